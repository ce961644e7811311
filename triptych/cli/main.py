"""The command line: finds the command, reads its arguments, turns errors into one line and an exit code.

To add a command: write a module with `COMMANDS = {"name": Command(...)}` and add it to `_MODULES`.
"""

import argparse
import contextlib
import os
import shutil
import sys
from collections.abc import Sequence
from typing import NoReturn

import triptych
from triptych.cli import (
    calibrate,
    completion,
    data,
    demo,
    evaluate,
    export,
    fit,
    generate,
    grid,
    info,
    paper,
    plan,
    scenes,
    serve,
    study,
    sweep,
    tokenize,
    tokenizers,
    train,
    verify,
)
from triptych.cli.command import GROUPS, Command
from triptych.cli.damage import printed_damage
from triptych.cli.stopping import StopHandlers, Terminated
from triptych.errors import UserError, did_you_mean
from triptych.hub.directions import DIRECTIONS
from triptych.utils.arguments import check_path
from triptych.utils.parent import follow_parent
from triptych.utils.terminal import one_line

# In the order of the overview.
_MODULES = (
    demo,
    generate,
    serve,
    evaluate,
    info,
    export,
    calibrate,
    completion,
    train,
    tokenize,
    data,
    tokenizers,
    verify,
)
_MODULES += (scenes, plan, grid, fit, sweep, study, paper)  # type: ignore[assignment]
COMMANDS: dict[str, Command] = {name: command for module in _MODULES for name, command in module.COMMANDS.items()}

_HELP = ("-h", "--help", "help")
_EXIT_CODES = """\
exit codes: 0 success, 2 wrong argument or configuration, 3 data, 4 checkpoint or model, 75 stopped by SIGTERM,
130 stopped by Ctrl-C, 1 any other failure"""


# -- help -------------------------------------------------------------------------------------------------------------


def _rows(names: Sequence[str]) -> str:
    width = max(map(len, COMMANDS)) + 2
    return "\n".join(f"  {name:{width}}{COMMANDS[name].summary}" for name in names)


def _members(word: str) -> list[str]:
    """The commands of two words that start with this one."""
    return [name for name in COMMANDS if name.startswith(f"{word} ")]


def overview() -> str:
    sections = [
        f"{group}:\n{_rows([name for name, command in COMMANDS.items() if command.group == group])}" for group in GROUPS
    ]
    return f"""\
Triptych: one masked-diffusion model for text, images and audio.

usage: triptych COMMAND [arguments]

{chr(10).join(f"{section}{chr(10)}" for section in sections)}
examples:
  triptych demo                                      the demo model in every direction, as a page to look at
  triptych generate text-to-image "two cats"         one image
  triptych tokenize photos/ --out data/photos        your own images with captions (cat.png + cat.txt)
  triptych train nano                                a minute of training on the toy dataset

`triptych COMMAND --help` explains a command, with examples. `triptych --version` prints the version."""


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Descriptions as written, and one column for all options."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=30, width=min(118, shutil.get_terminal_size().columns))


# -- arguments --------------------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """Reports what is wrong in one line, with the nearest thing that would be right."""

    def error(self, message: str) -> NoReturn:
        message = message.removesuffix(", KEY=VALUE")  # argparse counts optional words as required here
        raise UserError(f"{message} (see `{self.prog} --help`)")

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        known = [option for action in self._actions for option in action.option_strings]
        # Before argparse looks: it would complain first that --out is missing where --ouput was given.
        for word in words[: words.index("--")] if "--" in words else words:
            name = word.partition("=")[0]
            if name.startswith("--") and name not in known:
                raise UserError(f"unknown option {name}.{did_you_mean(name, known)}")
        # Intermixed: `train scenes --out runs/a num_steps=100` has words on both sides of an option.
        args, extra = self.parse_known_intermixed_args(words)
        if extra:
            raise UserError(f"unexpected argument {extra[0]!r}.{did_you_mean(extra[0], known)}")
        return args


def _choose(words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The command that the words start with, and the words after it."""
    for length in (2, 1):
        name = " ".join(words[:length])
        if name in COMMANDS:
            return name, words[length:]
    members = _members(words[0])
    if members and len(words) == 1:
        raise UserError(f"`triptych {words[0]}` needs a second word: {' or '.join(members)}.")
    if members:
        raise UserError(f"unknown command {' '.join(words[:2])!r}.{did_you_mean(' '.join(words[:2]), members)}")
    if words[0] in DIRECTIONS:
        raise UserError(f"{words[0]} is a direction of `triptych generate`: triptych generate {words[0]} INPUT")
    raise UserError(f"unknown command {words[0]!r}.{did_you_mean(words[0], list(COMMANDS))}")


def parser_of(name: str) -> _Parser:
    """The parser of a command."""
    parser = _Parser(f"triptych {name}", allow_abbrev=False, formatter_class=_Formatter)
    COMMANDS[name].describe(parser)
    parser.add_argument("--quiet", "-q", action="store_true", help="print results and errors only")
    if "exit codes" not in f"{parser.description} {parser.epilog}":
        parser.epilog = "\n\n".join(filter(None, [parser.epilog, _EXIT_CODES]))
    return parser


def parse(words: Sequence[str]) -> tuple[Command, argparse.Namespace]:
    """The command and the arguments of a command line."""
    for word in filter(None, words):
        check_path(f"the argument {word[:100]!r}", word)  # files of runs and datasets name it
    name, rest = _choose(words)
    return COMMANDS[name], parser_of(name).parse(rest)


# -- running ----------------------------------------------------------------------------------------------------------


def _run(command: Command, args: argparse.Namespace) -> None:
    with contextlib.ExitStack() as stack:
        if args.quiet:  # progress and notes go to standard error; the error of a failure is printed by `main`
            stack.enter_context(contextlib.redirect_stderr(stack.enter_context(open(os.devnull, "w"))))
        stack.enter_context(printed_damage())
        command.run(args)
    sys.stdout.flush()


def main(argv: Sequence[str] | None = None, stops: StopHandlers | None = None) -> int:
    """Run a command line, by default that of this process, with its handlers if it has some; returns the exit code."""
    is_process = argv is None
    stops = stops or StopHandlers(until_exit=is_process)
    code = 1
    try:
        stops.begin()
        if is_process:
            follow_parent()
        code = _main(list(sys.argv[1:] if argv is None else argv), stops)
    except (KeyboardInterrupt, Terminated):  # while an error was printed
        code = stops.exit_code
    except SystemExit as end:  # of --help, or with the code of several ranks
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if is_process:
            _end_rank(code)
        raise
    finally:
        if is_process:
            stops.exits_with(code)
        else:
            stops.restore()
    if is_process:
        _end_rank(code)
    return code


def _end_rank(code: int) -> None:
    """End the process here if it is one of several ranks and has failed."""
    ranks = sys.modules.get("triptych.training.ranks")
    if code and ranks is not None:
        ranks.exit_if_connected(code)


def _main(words: list[str], stops: StopHandlers) -> int:
    command = None
    try:
        if not words or words in (["-h"], ["--help"], ["help"]):
            print(overview())
            return 0
        if words[0] in _HELP:  # `triptych help tokenize`
            words = [*words[1:], "--help"]
        if len(words) == 2 and words[1] in _HELP and words[0] not in COMMANDS and _members(words[0]):
            print(_rows(_members(words[0])))
            return 0
        if words[0] in ("-V", "--version"):
            print(f"triptych {triptych.__version__}")
            return 0
        command, args = parse(words)
        _run(command, args)
        return 0
    except UserError as error:
        print(f"triptych: error: {one_line(str(error))}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader of our output has closed it. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        # A folder that cannot be created, a file that cannot be written: a wrong name, or a full disk.
        where = f": {error.filename}" if error.filename else ""
        print(f"triptych: error: {one_line(f'{error.strerror or error}{where}')}", file=sys.stderr)
        return UserError.exit_code
    except (KeyboardInterrupt, Terminated) as stop:
        code = getattr(stop, "exit_code", None)  # a training run has said itself that and where it stopped
        if code is None:
            from triptych.training.launch import is_first_to_print

            # Of several ranks, one says it, and none if they are stopped because a rank has reported an error.
            if is_first_to_print("stopped", alone=True):
                print(f"triptych: {command.when_stopped if command else 'stopped.'}", file=sys.stderr)
            code = stops.exit_code
        return code

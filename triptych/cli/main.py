"""The command line: finds the verb, reads its arguments, and turns what a user can cause into one line and a code."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import triptych
from triptych.cli import data, model, plan, scaling, scenes, study, verify
from triptych.cli.command import Command
from triptych.errors import UserError, did_you_mean

_FIRST = {"demo": scenes.COMMANDS["demo"]}
COMMANDS: dict[str, Command] = (
    _FIRST
    | model.COMMANDS
    | plan.COMMANDS
    | study.COMMANDS
    | scaling.COMMANDS
    | data.COMMANDS
    | verify.COMMANDS
    | scenes.COMMANDS
)

_HELP = ("-h", "--help", "help")
_PREEMPTED, _INTERRUPTED = 75, 130  # exit codes after SIGTERM and Ctrl-C


def _summaries(names: Sequence[str]) -> str:
    return "\n".join(f"  triptych {name:16} {COMMANDS[name].summary}" for name in names)


def _group(word: str) -> list[str]:
    """The verbs of two words that begin with this one."""
    return [name for name in COMMANDS if name.startswith(f"{word} ")]


def _overview() -> str:
    return f"""\
Triptych: one masked-diffusion model for text, images and audio.

{_summaries(list(COMMANDS))}

start with:
  triptych demo                                  draws, captions, answers, speaks, listens, fills in
  triptych generate image "two cats"             one picture
  triptych tokenize photos/ --out data/photos    your own pictures with captions (cat.png + cat.txt)

`triptych VERB --help` explains a verb, with examples. `triptych --version` prints the version."""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, and the nearest thing that would be right."""

    def error(self, message: str) -> NoReturn:
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
    """The verb that the words begin with, and the words behind it."""
    for length in (2, 1):
        name = " ".join(words[:length])
        if name in COMMANDS:
            return name, words[length:]
    members = _group(words[0])
    if members and len(words) == 1:
        raise UserError(f"`triptych {words[0]}` needs a second word: {' or '.join(members)}.")
    if members:
        raise UserError(f"unknown verb {' '.join(words[:2])!r}.{did_you_mean(' '.join(words[:2]), members)}")
    raise UserError(f"unknown verb {words[0]!r}.{did_you_mean(words[0], list(COMMANDS))}")


def parse(words: Sequence[str]) -> tuple[Command, argparse.Namespace]:
    """What a command line asks for."""
    name, rest = _choose(words)
    verb = COMMANDS[name]
    parser = _Parser(
        f"triptych {name}",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verb.describe(parser)
    return verb, parser.parse(rest)


class _Terminated(BaseException):
    """SIGTERM or SIGUSR1, as an exception: like Ctrl-C it must pass through everything that catches errors."""


def _raise_terminated(*_: Any) -> NoReturn:
    raise _Terminated


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    before = {number: signal.signal(number, _raise_terminated) for number in (signal.SIGTERM, signal.SIGUSR1)}
    verb = None
    try:
        if not words or words in (["-h"], ["--help"], ["help"]):
            print(_overview())
            return 0
        if len(words) == 2 and words[1] in _HELP and words[0] not in COMMANDS and _group(words[0]):
            print(_summaries(_group(words[0])))
            return 0
        if words[0] == "help":  # `triptych help tokenize`
            words = [*words[1:], "--help"]
        if words[0] in ("-V", "--version"):
            print(f"triptych {triptych.__version__}")
            return 0
        verb, args = parse(words)
        verb.run(args)
        sys.stdout.flush()
        return 0
    except UserError as error:
        print(f"triptych: error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # Who read our output has had enough. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        # A folder that cannot be made, a file that cannot be written: what the user named, or a full disk.
        where = f": {error.filename}" if error.filename else ""
        print(f"triptych: error: {error.strerror or error}{where}", file=sys.stderr)
        return UserError.exit_code
    except (KeyboardInterrupt, _Terminated) as stop:
        print(f"triptych: {verb.when_stopped if verb else 'stopped.'}", file=sys.stderr)
        return _PREEMPTED if isinstance(stop, _Terminated) else _INTERRUPTED
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

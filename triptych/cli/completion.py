"""`triptych completion`: a script that completes commands, options and names in a shell."""

import argparse

from triptych.cli.command import USE, Command, one_of

_BASH = """\
# Triptych's completion for bash: eval "$(triptych completion bash)"
_triptych() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" line="${{COMP_WORDS[*]:1:COMP_CWORD-1}}" words=""
    case "$line" in
{cases}
    *) words="" ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    [ ${{#COMPREPLY[@]}} -gt 0 ] || COMPREPLY=($(compgen -f -- "$word"))
}}
complete -o filenames -F _triptych triptych
"""

_ZSH = """\
# Triptych's completion for zsh: eval "$(triptych completion zsh)"
autoload -U +X bashcompinit && bashcompinit
"""


def _describe(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Print a script that completes commands, options and names.

examples:
  eval "$(triptych completion bash)"                     in ~/.bashrc
  eval "$(triptych completion zsh)"                      in ~/.zshrc
  triptych completion fish > ~/.config/fish/completions/triptych.fish"""
    parser.add_argument("shell", **one_of(["bash", "zsh", "fish"]))


def _run(args: argparse.Namespace) -> None:
    from triptych.cli.main import COMMANDS, parser_of

    words = {name: _words(parser_of(name)) for name in COMMANDS}
    if args.shell == "fish":
        print(_fish(words), end="")
        return
    print((_ZSH if args.shell == "zsh" else "") + _bash(words), end="")


def _words(parser: argparse.ArgumentParser) -> list[str]:
    """What may follow a command: its options, and names that argparse lists in braces."""
    words = [option for action in parser._actions for option in action.option_strings if option.startswith("--")]
    for action in parser._actions:
        if not action.option_strings and isinstance(action.metavar, str) and action.metavar.startswith("{"):
            words += action.metavar.strip("{}").split(",")
    return words


def _bash(words: dict[str, list[str]]) -> str:
    first = sorted({name.split()[0] for name in words})
    cases = [f'    "") words="{" ".join(first)}" ;;']
    for group in sorted({name.split()[0] for name in words if " " in name}):
        seconds = [name.split()[1] for name in words if name.startswith(f"{group} ")]
        own = words.get(group, [])
        cases.append(f'    "{group}") words="{" ".join([*seconds, *own])}" ;;')
    # Longer names first: `plan grid` before `plan`.
    for name in sorted(words, key=len, reverse=True):
        cases.append(f'    "{name}"*) words="{" ".join(words[name])}" ;;')
    return _BASH.format(cases="\n".join(cases))


def _fish(words: dict[str, list[str]]) -> str:
    lines = ["# Triptych's completion for fish", "complete -c triptych -n __fish_use_subcommand -f"]
    for first in sorted({name.split()[0] for name in words}):
        lines.append(f"complete -c triptych -n __fish_use_subcommand -f -a {first}")
    for name, options in words.items():
        parts = name.split()
        seen = "; and ".join(f"__fish_seen_subcommand_from {part}" for part in parts)
        if len(parts) == 2:
            lines.append(f"complete -c triptych -n '__fish_seen_subcommand_from {parts[0]}' -f -a {parts[1]}")
        for option in options:
            form = f"-l {option[2:]}" if option.startswith("--") else f"-f -a {option}"
            lines.append(f"complete -c triptych -n '{seen}' {form}")
    return "\n".join(lines) + "\n"


COMMANDS = {"completion": Command("completion of commands and options for bash, zsh and fish", _describe, _run, USE)}

"""`triptych completion`: a script that completes commands, options and names in a shell."""

import argparse

from triptych.cli.command import USE, Command, one_of
from triptych.hub.directions import DIRECTIONS
from triptych.hub.source import BUILTIN_MODELS
from triptych.sample.names import PRESET_NAMES, SAMPLER_NAMES

_BASH = """\
# Triptych's completion for bash: eval "$(triptych completion bash)"
_triptych() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}"
    local line="${{COMP_WORDS[*]:1:$((COMP_CWORD-1))}}" options="" values="" first=""
    case "$line" in
{cases}
    esac
    COMPREPLY=()
    if [[ "$word" == -* ]]; then
        COMPREPLY=($(compgen -W "$options" -- "$word"))
    elif [[ -n "$values" ]]; then
        COMPREPLY=($(compgen -W "$values" -- "$word"))
    elif [[ -n "$first" ]]; then
        COMPREPLY=($(compgen -W "$first" -- "$word"))
    fi
    if [[ ${{#COMPREPLY[@]}} -eq 0 && "$word" != -* ]]; then
        compopt -o filenames 2>/dev/null
        local IFS=$'\\n'
        COMPREPLY=($(compgen -f -- "$word"))
    fi
}}
complete -F _triptych triptych
"""

_ZSH = """\
# Triptych's completion for zsh: eval "$(triptych completion zsh)"
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
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

    parsers: dict[str, argparse.ArgumentParser] = {name: parser_of(name) for name in COMMANDS}
    if args.shell == "fish":
        print(_fish(parsers), end="")
        return
    print((_ZSH if args.shell == "zsh" else "") + _bash(parsers), end="")


def _options(parser: argparse.ArgumentParser) -> list[str]:
    return [option for action in parser._actions for option in action.option_strings if option.startswith("--")]


def _values(name: str, parser: argparse.ArgumentParser) -> dict[str, list[str]]:
    """What may follow the command itself (key "") and each of its options, where these are names."""
    values = {
        option: action.metavar.strip("{}").split(",")
        for action in parser._actions
        for option in action.option_strings
        if option.startswith("--") and isinstance(action.metavar, str) and action.metavar.startswith("{")
    }
    values = {
        "--sampler": list(SAMPLER_NAMES), "--preset": list(PRESET_NAMES), "--model": list(BUILTIN_MODELS), **values
    }  # fmt: skip
    first = {"generate": list(DIRECTIONS), "info": list(BUILTIN_MODELS), "completion": ["bash", "zsh", "fish"]}
    recipes = ["scenes", "scenes_full", "nano", "proxy", "paper_base", "paper_3b"]
    first |= dict.fromkeys(("train", "plan", "plan grid"), recipes)
    options = {option for action in parser._actions for option in action.option_strings}
    return {key: words for key, words in values.items() if key in options} | {"": first.get(name, [])}


def _bash(parsers: dict[str, argparse.ArgumentParser]) -> str:
    cases = [f'    "") first="{" ".join(sorted({name.split()[0] for name in parsers}))}" ;;']
    for group in sorted({name.split()[0] for name in parsers if " " in name}):
        seconds = [name.split()[1] for name in parsers if name.startswith(f"{group} ")]
        own = parsers.get(group)
        names, options = (_values(group, own)[""], _options(own)) if own else ([], [])
        cases.append(f'    "{group}") first="{" ".join([*seconds, *names])}" options="{" ".join(options)}" ;;')
    # Longer names first: `plan grid` before `plan`.
    for name in sorted(parsers, key=len, reverse=True):
        values, flags = _values(name, parsers[name]), " ".join(_options(parsers[name]))
        if values[""]:
            cases.append(f'    "{name}") first="{" ".join(values[""])}" options="{flags}" ;;')
        by_option = [f'{key}) values="{" ".join(words)}" ;;' for key, words in values.items() if key]
        inner = f'case "$before" in {" ".join(by_option)} esac' if by_option else ":"
        cases.append(f'    "{name}"|"{name} "*) options="{flags}"; {inner} ;;')
    return _BASH.format(cases="\n".join(cases))


def _fish(parsers: dict[str, argparse.ArgumentParser]) -> str:
    lines = ["# Triptych's completion for fish"]
    for first in sorted({name.split()[0] for name in parsers}):
        lines.append(f"complete -c triptych -n __fish_use_subcommand -f -a {first}")
    for name, parser in parsers.items():
        parts = name.split()
        seen = "; and ".join(f"__fish_seen_subcommand_from {part}" for part in parts)
        if len(parts) == 2:
            lines.append(f"complete -c triptych -n '__fish_seen_subcommand_from {parts[0]}' -f -a {parts[1]}")
        values = _values(name, parser)
        if values[""]:
            lines.append(f"complete -c triptych -n '{seen}' -a '{' '.join(values[''])}'")
        for option in _options(parser):
            names = f" -x -a '{' '.join(values[option])}'" if option in values else ""
            lines.append(f"complete -c triptych -n '{seen}' -l {option[2:]}{names}")
    return "\n".join(lines) + "\n"


COMMANDS = {"completion": Command("completion of commands and options for bash, zsh and fish", _describe, _run, USE)}

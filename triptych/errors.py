"""Errors a user can cause. The command line prints their one line and exits with their code.

A message says what was expected, what came and what to do. A mistake that only a developer can make is an `assert`.

    0 success   1 a run that failed   2 wrong argument or configuration   3 data   4 checkpoint or model   5 diverged
    75 stopped by SIGTERM, SIGUSR1 or SIGHUP (run the same command again)   130 stopped by Ctrl-C
"""

import importlib
import re
from collections.abc import Sequence
from types import ModuleType
from typing import Any


class UserError(ValueError):
    """A wrong argument, name or configuration."""

    exit_code = 2


class DataError(UserError):
    """Input data, or a dataset made from it, that cannot be used."""

    exit_code = 3


class CheckpointError(UserError):
    """Saved weights or tokenizers that cannot be used."""

    exit_code = 4


class UnusualInputWarning(UserWarning):
    """An input that is unlike the data a model was trained on: there is a result, but it may be wrong.

    `check` is the `InputCheck` with its score.
    """

    def __init__(self, message: str, check: Any = None):
        super().__init__(message)
        self.check = check


class DamageWarning(UserWarning):
    """A part of a file is damaged and was left out, or a file cannot be checked for damage."""


_FEW = 12  # known names that fit in one error message


def nearest(name: str, known: Sequence[str], count: int = 3) -> list[str]:
    """The known names that `name` may be a slip of, best first, without regard to case; often none.

    A name is near if it is the same but for case, contains the other as a whole word, or differs in few letters.
    """
    import difflib

    wanted = str(name).lower().strip("-")
    if not wanted:
        return []

    def nearness(candidate: str) -> float:
        other = candidate.lower().strip("-")
        if wanted == other:
            return 2.0
        words, others = (set(re.findall(r"[a-z0-9]+", each)) for each in (wanted, other))
        if words and others and min(len(wanted), len(other)) > 1 and (words <= others or others <= words):
            return 1.0
        return difflib.SequenceMatcher(None, wanted, other, autojunk=False).ratio()

    scored = sorted(((nearness(each), each) for each in set(known)), key=lambda pair: (-pair[0], pair[1]))
    least = max(_NEAR, scored[0][0] - 0.15) if scored else 0.0
    return [candidate for score, candidate in scored if score >= least][:count]


_NEAR = 0.66  # of difflib's ratio: one wrong letter in three


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """The end of an error about an unknown name: what is near, and all known names if they are few."""
    near = nearest(name, known)
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    return hint if near and len(known) > _FEW else f"{hint} Known: {_listed(known)}."


def _listed(known: Sequence[str]) -> str:
    names = sorted(set(known))
    return ", ".join(names) if len(names) <= 3 * _FEW else f"{', '.join(names[:_FEW])} and {len(names) - _FEW} more"


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """Import an optional dependency, or say which extra brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"{purpose} needs the package {module!r}, which is not installed ({error}). "
            f'Install it with: pip install -c constraints.txt -e ".[{extra}]"'
        ) from error

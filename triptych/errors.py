"""Errors a user can cause. The command line prints their one line and exits with their code; nothing else does.

Messages say what was expected, what came and what to do. A mistake only we can make is an `assert`, never one of these.
"""

import importlib
from types import ModuleType


class UserError(ValueError):
    """A wrong argument, name or configuration."""

    exit_code = 2


class DataError(UserError):
    """Input data, or a data set made from it, that cannot be used."""

    exit_code = 3


class CheckpointError(UserError):
    """Saved weights or tokenizers that cannot be used."""

    exit_code = 4


def did_you_mean(name: str, known: list[str]) -> str:
    """The tail of an error about an unknown name: the nearest known one, then all of them."""
    import difflib

    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    return f"{hint} Known: {', '.join(sorted(known))}."


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """Import an optional dependency, or say which extra brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"{purpose} needs the package {module!r}, which is not installed ({error}). "
            f'Install it with: pip install -c constraints.txt -e ".[{extra}]"'
        ) from error

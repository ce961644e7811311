"""Checks of what callers pass to public functions: a wrong type is one line, not a TypeError from deep inside."""

import functools
import inspect
import numbers
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

from triptych.errors import UserError

P = ParamSpec("P")
R = TypeVar("R")

_NAMES = {str: "a text", int: "a whole number", float: "a number", bool: "True or False", Path: "a path"}
_MOST_SHOWN = 80  # characters of a wrong value
_TOO_MANY_DIGITS = 10**40  # Python refuses to write, and to convert to a float, what is far larger


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """The function, with its arguments compared with their annotations at every call."""
    signature = inspect.signature(function)

    @functools.cache
    def hints() -> dict[str, Any]:  # at the first call: annotations may name what is imported later
        known = typing.get_type_hints(function)
        variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        return {name: known[name] for name, each in signature.parameters.items() if name in known} | {
            name: Any for name, each in signature.parameters.items() if each.kind in variable
        }

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:  # an argument is missing or unknown, which the function's own call reports
            given = {}
        check_values(given, hints())
        return function(*args, **kwargs)

    return call


def check_fields(config: Any) -> None:
    """Compare the fields of a dataclass with their annotations."""
    check_values(vars(config), _hints_of(config.__class__))


@functools.cache
def _hints_of(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def check_values(values: Mapping[str, Any], hints: Mapping[str, Any]) -> None:
    """Raise a UserError for the first value that does not have the type of its name."""
    for name, value in values.items():
        if name in hints and not _fits(value, hints[name]):
            raise UserError(f"{name} must be {_described(hints[name])}, got {shown(value)}.")
        if isinstance(value, str | Path) and Path in _members(hints.get(name)):
            check_path(name, value)


def check_path(name: str, path: str | Path) -> None:
    """Refuse a path that cannot be written into the files of a run or dataset, which are UTF-8."""
    text = str(path)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{name} must be UTF-8, got {shown(text)}. Rename the file, or name its folder.") from None
    if not text:
        raise UserError(f"{name} must be the name of a file or folder, got an empty text.")
    if "\0" in text:
        raise UserError(f"{name} must be the name of a file, got {shown(text)}, which holds a NUL.")


def shown(value: Any) -> str:
    """A wrong value in one short line."""
    if isinstance(value, str | bytes | int | float | bool | None | Path | list | tuple | dict):
        text = _short_int(value) if isinstance(value, int) else repr(value)
        return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
    return type(value).__name__ if not isinstance(value, type) else f"the class {value.__name__}"


def _short_int(value: int) -> str:
    return repr(value) if abs(value) < _TOO_MANY_DIGITS else "a number of more digits than fit here"


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value has a type. What cannot be checked cheaply fits."""
    if hint is Any or isinstance(hint, TypeVar | ParamSpec):
        return True
    if hint is None or hint is type(None):
        return value is None
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, member) for member in inner)
    if origin is Literal:
        return any(value is member or (type(value) is type(member) and value == member) for member in inner)
    if hint is bool:
        return isinstance(value, bool)
    if hint in (int, float):
        kind = numbers.Integral if hint is int else numbers.Real
        if isinstance(value, int) and abs(value) >= _TOO_MANY_DIGITS:
            return False
        return isinstance(value, kind) and not isinstance(value, bool)
    if origin in (Sequence, list, tuple) or hint in (list, tuple, Sequence):
        return _fits_sequence(value, origin or hint, inner)
    if origin in (Mapping, dict):
        return isinstance(value, Mapping) and all(
            _fits(key, inner[0]) and _fits(each, inner[1]) for key, each in value.items()
        )
    if origin is Callable or hint is Callable:
        return callable(value)
    kind = origin or hint
    if getattr(kind, "_is_protocol", False):
        return "__call__" not in vars(kind) or callable(value)
    if not isinstance(kind, type):
        return True
    return isinstance(value, kind)


def _fits_sequence(value: Any, kind: Any, inner: tuple[Any, ...]) -> bool:
    if isinstance(value, str | bytes) or not isinstance(value, list | tuple if kind is Sequence else kind):
        return isinstance(value, Sequence) and kind is Sequence and not isinstance(value, str | bytes)
    if not inner:
        return True
    if kind is tuple and inner[-1] is not Ellipsis:
        return len(value) == len(inner) and all(map(_fits, value, inner))
    return all(_fits(each, inner[0]) for each in value)


def _described(hint: Any) -> str:
    """What a hint asks for, in words."""
    members = _members(hint)
    if len(members) > 1:
        words = list(dict.fromkeys(_described(member) for member in members))
        return ", ".join(words[:-1]) + f" or {words[-1]}" if len(words) > 1 else words[0]
    if hint is None or hint is type(None):
        return "None"
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin in (Sequence, list, tuple):
        return f"a list of {_NAMES.get(inner[0], 'such').removeprefix('a ')}s" if inner[0] in _NAMES else "a list"
    if origin in (Mapping, dict):
        return "a dictionary"
    if origin is Callable:
        return "a function"
    return _NAMES.get(hint, f"a {getattr(hint, '__name__', str(hint))}")

"""Configurations as frozen dataclasses: JSON, `key.path=value` overrides, and what differs between two of them.

A field whose type is a union of dataclasses, or a protocol registered with `register_choices`, is a choice: its JSON
has a "kind", and on the command line it is set by name, as in `corrupt.schedule=polynomial(3)`.
"""

import dataclasses
import math
import re
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args, get_origin

from triptych.errors import UserError, did_you_mean, nearest
from triptych.utils.arguments import check_values
from triptych.utils.legacy import RENAMED_KEYS

Config = TypeVar("Config")

_choices: dict[Any, tuple[type, ...]] = {}


def register_choices(protocol: Any, kinds: Sequence[type]) -> None:
    """Declare the dataclasses that a field of type `protocol` may hold."""
    _choices[protocol] = tuple(kinds)


def _options(hint: Any) -> dict[str, type]:
    """The kinds that a field of this type chooses from, by name; empty if it is not a choice."""
    members = [member for member in get_args(hint) if member is not type(None)] if _is_union(hint) else [hint]
    if len(members) == 1:
        kinds = _choices.get(members[0], ())
    else:
        kinds = tuple(members) if all(dataclasses.is_dataclass(member) for member in members) else ()
    return {kind.__name__.lower(): kind for kind in kinds}


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (typing.Union, types.UnionType)


# -- JSON -------------------------------------------------------------------------------------------------------------


def to_json(value: Any, hint: Any = None) -> Any:
    """The configuration as plain JSON. `hint` is the type of the field that holds the value."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        hints = typing.get_type_hints(type(value))
        fields = {f.name: to_json(getattr(value, f.name), hints[f.name]) for f in dataclasses.fields(value)}
        return {"kind": type(value).__name__.lower(), **fields} if _options(hint) else fields
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    return value


def from_json(kind: type[Config], content: Any) -> Config:
    """A configuration from its JSON; fields that it lacks have their defaults. Raises UserError for what is none."""
    return _from_json(kind, content, "")


def _from_json(hint: Any, value: Any, name: str) -> Any:
    if value is None and _is_union(hint) and type(None) in get_args(hint):
        return None
    options = _options(hint)
    if options:
        if not isinstance(value, dict) or value.get("kind") not in options:
            raise UserError(f"{name} must have a kind of {', '.join(options)}, got {str(value)[:100]}.")
        hint, value = options[value["kind"]], {key: item for key, item in value.items() if key != "kind"}
    elif _is_union(hint):
        hint = next(member for member in get_args(hint) if member is not type(None))
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        if not isinstance(value, dict) or (unknown := [key for key in value if key not in hints]):
            what = f"has the unknown key {unknown[0]!r}" if isinstance(value, dict) else "must have fields"
            raise UserError(f"{name or 'the configuration'} {what}.")
        inner = {key: _from_json(hints[key], item, f"{name}.{key}" if name else key) for key, item in value.items()}
        check_values(inner, hints)
        try:
            return hint(**inner)  # type: ignore[operator]
        except TypeError as error:
            raise UserError(f"{name or 'the configuration'} lacks a field ({error}).") from error
    if get_origin(hint) is tuple and isinstance(value, list | tuple):
        return tuple(value)
    return value


def fill_in(saved: Any, config: Any, hint: Any = None) -> Any:
    """The saved JSON of a configuration, with defaults for fields that did not exist when it was saved.

    `config` is a current configuration of the same type; its values are not used.
    """
    if not isinstance(saved, dict) or not dataclasses.is_dataclass(config):
        return saved
    if _options(hint) and saved.get("kind") != type(config).__name__.lower():  # another kind, with other fields
        return saved
    hints = typing.get_type_hints(type(config))
    filled = dict(saved)
    for f in dataclasses.fields(config):
        if f.name in saved:
            filled[f.name] = fill_in(saved[f.name], getattr(config, f.name), hints[f.name])
        elif f.default is not dataclasses.MISSING:
            filled[f.name] = to_json(f.default, hints[f.name])
        elif f.default_factory is not dataclasses.MISSING:
            filled[f.name] = to_json(f.default_factory(), hints[f.name])
    return filled


def flatten(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one level of dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in content.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat


def changed_keys(
    old: Mapping[str, Any], new: Mapping[str, Any], ignored: Collection[str] = (), prefix: str = ""
) -> dict[str, tuple[Any, Any]]:
    """Dotted keys whose values differ, with the old and the new value; a missing key has the value None."""
    changed: dict[str, tuple[Any, Any]] = {}
    for key in sorted({*old, *new}):
        before, now = old.get(key), new.get(key)
        if prefix + key in ignored or before == now:
            continue
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            changed |= changed_keys(before, now, ignored, f"{prefix}{key}.")
        else:
            changed[prefix + key] = (before, now)
    return changed


def differences(old: Mapping[str, Any], new: Mapping[str, Any], ignored: Collection[str] = ()) -> list[str]:
    """A clause for each changed key: "optimizer.lr was 0.001, is 0.002"."""
    return [f"{key} was {before!r}, is {now!r}" for key, (before, now) in changed_keys(old, new, ignored).items()]


def assignments(config: Any, other: Any) -> list[str]:
    """The overrides that turn `config` into `other`."""
    return _assignments(to_json(config), to_json(other), "")


def _assignments(old: Any, new: Any, name: str) -> list[str]:
    if old == new:
        return []
    if isinstance(old, dict) and isinstance(new, dict) and old.get("kind") == new.get("kind"):
        prefix = f"{name}." if name else ""
        return [text for key, value in new.items() for text in _assignments(old.get(key), value, prefix + key)]
    if isinstance(new, dict):
        fields = [_assignments(None, value, f"{name}.{key}") for key, value in new.items() if key != "kind"]
        return [f"{name}={new['kind']}", *(text for field in fields for text in field)]
    if isinstance(new, list):
        return [f"{name}={','.join(map(str, new))}"]
    return [f"{name}={'none' if new is None else str(new).lower() if isinstance(new, bool) else new}"]


# -- key.path=value ---------------------------------------------------------------------------------------------------

_KIND = "="  # in a branch of changes: the kind to choose before its fields are set


def override(config: Config, changes: Sequence[str]) -> Config:
    """The configuration with some fields changed: ["model.width=256", "corrupt.schedule=cosine", "data=a,b"].

    All fields of one part change together, so the order of interdependent values does not matter.
    """
    tree: dict[str, Any] = {}
    for change in changes:
        path, equals, text = change.partition("=")
        if not equals:
            raise UserError(f"expected key=value, got {change!r}; try {change}=VALUE.")
        branch = tree
        *parents, last = path.split(".")
        for parent in parents:
            if isinstance(branch.get(parent), str):  # `layout=packed layout.row_length=600`: a kind, then its fields
                branch[parent] = {_KIND: branch[parent]}
            branch = branch.setdefault(parent, {})
        if isinstance(branch.get(last), dict):
            branch[last][_KIND] = text
        else:
            branch[last] = text
    return _apply(config, tree, "", _all_keys(config))


def _apply(config: Any, changes: dict[str, Any], prefix: str, keys: list[str]) -> Any:
    hints, known = typing.get_type_hints(type(config)), {f.name for f in dataclasses.fields(config)}
    values = {}
    for name, change in changes.items():
        path = prefix + name
        if name not in known:
            raise UserError(_unknown(_first_key(change, path), keys))
        current = getattr(config, name)
        if not isinstance(change, dict):
            values[name] = _parse(hints[name], change, path)
            continue
        if _KIND in change:
            current = _parse(hints[name], change[_KIND], path)
        inner = {key: value for key, value in change.items() if key != _KIND}
        if isinstance(current, dict):
            values[name] = _apply_to_dict(hints[name], current, inner, f"{path}.")
        elif dataclasses.is_dataclass(current):
            values[name] = _apply(current, inner, f"{path}.", keys)
        else:
            raise UserError(f"{_first_key(change, path)!r}: {path} has no fields; write {path}=VALUE.")
    return dataclasses.replace(config, **values)


def _apply_to_dict(hint: Any, current: dict[str, Any], changes: dict[str, Any], prefix: str) -> dict[str, Any]:
    """`hint` is a mapping of names to numbers, or to mappings of that type."""
    inner = get_args(hint)[1]
    updated = dict(current)
    for name, change in changes.items():
        if get_origin(inner) is None:
            if isinstance(change, dict):
                raise UserError(f"{prefix}{name} has no fields; write {prefix}{name}=VALUE.")
            updated[name] = _number(change, prefix + name)
        elif not isinstance(change, dict):
            raise UserError(f"{prefix}{name} cannot be set as a whole; write {prefix}{name}.FIELD=VALUE.")
        else:
            updated[name] = _apply_to_dict(inner, updated.get(name, {}), change, f"{prefix}{name}.")
    return updated


def _first_key(change: Any, path: str) -> str:
    """The full key of a change, for an error."""
    while isinstance(change, dict):
        key = next(key for key in change if key != _KIND)
        change, path = change[key], f"{path}.{key}"
    return path


def _all_keys(config: Any, prefix: str = "") -> list[str]:
    keys = []
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        keys += _all_keys(value, f"{prefix}{f.name}.") if dataclasses.is_dataclass(value) else [prefix + f.name]
    return keys


def _unknown(path: str, keys: list[str]) -> str:
    """An error about an unknown key, with at most three keys that may be meant."""
    new = RENAMED_KEYS.get(path)
    if new is not None:
        return f"unknown key {path!r}: it is called {new!r} now."
    parent, _, name = path.rpartition(".")
    names = {key: key.rpartition(".")[2] for key in keys}
    siblings = [key for key in keys if key.rpartition(".")[0] == parent]
    initials = "".join(word[0] for word in name.split("_") if word)  # learning_rate is lr
    near = [key for key in keys if names[key] in (name, initials)]
    for candidates in (siblings, keys):
        near = near or [
            key
            for last in nearest(name, [names[key] for key in candidates])
            for key in candidates
            if names[key] == last
        ]
    near = (near or nearest(path, keys))[:3]
    hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else "See `triptych train RECIPE --print-config`."
    return f"unknown key {path!r}. {hint}"


# -- values -----------------------------------------------------------------------------------------------------------


def _parse(hint: Any, text: str, name: str) -> Any:
    """The value of a field of this type from its text."""
    if _is_union(hint) and type(None) in get_args(hint) and text.lower() in ("none", "null"):
        return None
    options = _options(hint)
    if options:
        return _parse_choice(options, text, name)
    if _is_union(hint):
        return _parse(next(member for member in get_args(hint) if member is not type(None)), text, name)
    if get_origin(hint) is Literal:
        if text not in get_args(hint):
            raise UserError(f"{name} must be one of {', '.join(map(str, get_args(hint)))}, got {text!r}.")
        return text
    if get_origin(hint) is tuple:
        return () if text.lower() == "none" else tuple(item for item in text.split(",") if item)
    if hint is bool:
        if text.lower() not in ("true", "false", "1", "0", "yes", "no"):
            raise UserError(f"{name} must be true or false, got {text!r}.")
        return text.lower() in ("true", "1", "yes")
    if hint is int:
        return _whole_number(text, name)
    if hint is float:
        return _number(text, name)
    if hint is str:
        return text
    raise UserError(f"{name} cannot be set as a whole; set one of its fields ({name}.FIELD=VALUE).")


def _number(text: str, name: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise UserError(f"{name} must be a number, got {text!r}.")
    return number


def _whole_number(text: str, name: str) -> int:
    try:
        number: float = int(text.replace("_", ""))  # exact
    except ValueError:
        number = _number(text, name)
    if math.isinf(number) or number != int(number):
        raise UserError(f"{name} must be a whole number, got {text!r}.")
    if not -(2**63) <= number < 2**63:
        raise UserError(f"{name} must lie between -2**63 and 2**63, got {text!r}.")
    return int(number)


def _parse_choice(options: dict[str, Any], text: str, name: str) -> Any:
    """`cosine`, or with numbers for its fields in order, `polynomial(3)`."""
    match = re.fullmatch(r"(\w+)(?:\((.+)\))?", text)
    if not match:
        raise UserError(f"{name} must be a kind, or a kind with numbers as in polynomial(3), got {text!r}.")
    kind, numbers = match.groups()
    if kind not in options:
        raise UserError(f"{name}: unknown kind {kind!r}.{did_you_mean(kind, list(options))}")
    fields = dataclasses.fields(options[kind])
    texts = numbers.split(",") if numbers else []
    if len(texts) > len(fields):
        raise UserError(f"{name}: {kind} takes {', '.join(f.name for f in fields) or 'no numbers'}, got {text!r}.")
    hints = typing.get_type_hints(options[kind])
    values = {f.name: _parse(hints[f.name], n.strip(), f"{name}.{f.name}") for f, n in zip(fields, texts)}
    return options[kind](**values)

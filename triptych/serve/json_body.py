"""JSON as the API takes it: what parsers may read in different ways, or only at a great cost, is refused."""

import json
from typing import Any, NoReturn

from triptych.errors import UserError
from triptych.serve.limits import ServeLimits


def read_json(data: bytes, limits: ServeLimits) -> Any:
    """The value of a body.

    Refuse what is not JSON in UTF-8, or is deep, or has duplicate keys, NaN, huge numbers or half characters.
    """
    # Before parsing: an empty list takes two bytes in a body and thirty times that in memory.
    num_values = sum(map(data.count, (b",", b"[", b"{")))
    if num_values > limits.json_values:
        raise UserError(f"a JSON body has at most {limits.json_values} values, got {num_values}.")
    try:
        value = json.loads(
            data.decode(), object_pairs_hook=_object, parse_constant=_no_constant, parse_float=_finite_float
        )
        _check_depth(value, limits.json_depth)
        if b"\\u" in data:
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except UserError:
        raise
    except UnicodeError:
        raise UserError("the body is not UTF-8: half of a surrogate pair is no character.") from None
    except RecursionError:
        raise _too_deep(limits.json_depth) from None
    except json.JSONDecodeError as error:
        raise UserError(f"the body is not JSON: {error.msg} at character {error.pos}.") from None
    except ValueError:  # Python reads no whole numbers of thousands of digits
        raise UserError("the body holds a number that is too large.") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise UserError("a key is given twice in one JSON object.")
    return made


def _no_constant(name: str) -> NoReturn:
    raise UserError(f"{name} is not JSON.")


def _finite_float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise UserError("the body holds a number that is too large.")
    return value


def _check_depth(value: Any, limit: int) -> None:
    level = [value]
    for _ in range(limit):
        level = [
            inner
            for each in level
            if isinstance(each, list | dict)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return
    raise _too_deep(limit)


def _too_deep(limit: int) -> UserError:
    return UserError(f"a JSON body has at most {limit} levels.")

"""Arrays in JSON records, as base64: as decimal text they would be several times as long."""

import base64
from typing import Any

import numpy as np

_TYPES = {"float32": "<f4", "int32": "<i4"}


def pack(array: np.ndarray) -> dict[str, Any]:
    """An array of float32 or int32 as a JSON object."""
    kind = "int32" if array.dtype == np.int32 else "float32"
    data = np.ascontiguousarray(array, _TYPES[kind]).tobytes()
    return {"shape": list(array.shape), kind: base64.b64encode(data).decode()}


def unpack(packed: dict[str, Any]) -> np.ndarray:
    kind = next(name for name in _TYPES if name in packed)
    return np.frombuffer(base64.b64decode(packed[kind]), _TYPES[kind]).reshape(packed["shape"])

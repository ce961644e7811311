"""Packed batches, dense attention as a reference, and a recorder of operations, shared by the tests of the model."""

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from triptych.model.segments import Segments, attend

CPU = torch.device("cpu")
HEADS, HEAD = 3, 4


def random_ids(seed: int, rows: int = 5, length: int = 24) -> np.ndarray:
    """Segment ids of rows with several sequences. Some rows end with padding, one starts with it, one is empty."""
    rng = np.random.default_rng(seed)
    ids = np.zeros((rows, length), np.int32)
    number = 0
    for row in range(rows):
        start = int(rng.integers(3)) if row == 1 else 0
        while row != 2 and start < length and rng.random() < 0.9:
            stop = min(length, start + int(rng.integers(1, length)))
            number += 1
            ids[row, start:stop] = number
            start = stop
    return ids


LAYOUTS = {
    **{f"packed {seed}": random_ids(seed) for seed in range(4)},
    "shuffled": np.random.default_rng(0).integers(0, 4, (4, 15)),
    "apart": np.array([[1, 2, 1]]),
    "one position each": np.arange(1, 13).reshape(2, 6),
    "one row": np.full((1, 9), 7),
    "whole rows": np.array([[1] * 6, [2] * 6, [1] * 6]),
    "whole rows beside an empty one": np.array([[1] * 6, [0] * 6, [2] * 6]),
    "all padding": np.zeros((2, 5), np.int32),
}


def dense_attention(qkv_RT3Hh: Tensor, ids: np.ndarray) -> Tensor:
    """[R, T, H h]: attention over whole rows, with -inf between positions of different segments."""
    q, k, v = qkv_RT3Hh.unbind(2)
    numbers = torch.from_numpy(ids)
    may_see = numbers[:, None, :, None] == numbers[:, None, None, :]
    scores = torch.einsum("rihc,rjhc->rhij", q, k) / HEAD**0.5
    share = scores.masked_fill(~may_see, -torch.inf).softmax(-1)
    return torch.einsum("rhij,rjhc->rihc", share, v).flatten(2)


def random_qkv(ids: np.ndarray, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(*ids.shape, 3, HEADS, HEAD, dtype=torch.float64, generator=generator)


def attend_in_segments(qkv_RT3Hh: Tensor, segments: Segments) -> Tensor:
    """[R, T, H h] as a block computes it: queries, keys and values are views of one projection."""
    computed = segments.gather(qkv_RT3Hh)
    return segments.scatter(attend(computed[:, :2], computed[:, 2], segments))


class OperationRecorder(TorchDispatchMode):
    """Records every operation and the shape of its results."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[tuple[str, tuple[int, ...]]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.results.append((func.overloadpacket.__name__, tuple(tensor.shape)))
        return result

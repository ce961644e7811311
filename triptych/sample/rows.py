"""The model on rows of a batch, each rounded as it would be in any other batch.

Below some number of rows a matrix product takes another path, in other rounding. So there are never fewer.
"""

from typing import Any, Protocol

import torch
from torch import Tensor

from triptych.vocab import Modality, Vocabulary

# B rows, T positions, n rows of one modality, V columns of its softmax

MOST_TOKENS = 16_384  # positions of one forward pass


class Network(Protocol):
    """What generation needs of a model."""

    vocabulary: Vocabulary

    def __call__(self, tokens: Tensor, positions: Tensor) -> Any: ...

    def logits(self, hidden_nD: Tensor, modality: Modality) -> Tensor: ...


def hidden_states(network: Network, tokens_BT: Tensor) -> Tensor:
    """[B, T, D]"""
    length = tokens_BT.shape[1]
    filled = _filled_up(tokens_BT, -(-least_rows() // length))
    positions = torch.arange(length, device=tokens_BT.device).expand_as(filled)
    return network(filled, positions)[: len(tokens_BT)]


def logits(network: Network, hidden_nD: Tensor, modality: Modality) -> Tensor:
    """[n, V]"""
    return network.logits(_filled_up(hidden_nD, least_rows()), modality)[: len(hidden_nD)]


def least_rows() -> int:
    """Of a matrix product, for every row to be rounded as in a larger one. With two threads 12 were enough."""
    return 8 * max(2, torch.get_num_threads())


def _filled_up(rows: Tensor, least: int) -> Tensor:
    """At least so many rows, the missing ones copies of the first."""
    missing = least - len(rows)
    return rows if missing <= 0 else torch.cat([rows, rows[:1].expand(missing, -1)])

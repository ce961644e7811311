"""The masks that estimate the negative ELBO of an answer of L tokens, and the estimate from the losses under them.

Drawn masks follow the k-uniform estimator (see `diffusion.likelihood`): k uniform in 1..L, then a random set of k
tokens, each with the weight L / k. The values of k are evenly spaced over the n draws.

    plain         sum over draws j and tokens i of a_ij * loss_ij,   a_ij = L / (k_j n) if j masks i, otherwise 0
    controlled    the same minus (a_ij - 1/n) * c_ij,   c_ij = mean loss of token i in the other draws

The expectation of a_ij is 1/n, whatever k is, and c_ij does not depend on draw j: so both are unbiased. Plain weights
of a token sum to 1 only on average. The second form takes out this noise, which is most of it where some tokens are
hard and others easy.

All masks of a short answer can be enumerated instead. The estimate is then exact:

    weight of a token in a set of k masked tokens = 1 / (k * number of sets of k tokens)
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from triptych.utils.rng import CorruptStream, random_bits, to_uniform


@dataclass(frozen=True, eq=False)
class Masks:
    """The masks of one answer."""

    is_masked: np.ndarray
    """[M, L] bool: different masks; each hides at least one token."""
    weights: np.ndarray
    """[M] float64: weight of each masked token of a mask. Over all masks, the weights of masked tokens sum to L."""
    draws: np.ndarray | None = None
    """[n] which mask each draw is; None for masks that are enumerated."""

    def estimate(self, losses: np.ndarray, *, controlled: bool = True) -> float:
        """The negative ELBO from [M, L] losses of the tokens under every mask; those of visible tokens do not count."""
        if self.draws is None or not controlled:
            return float((self.weights[:, None] * np.where(self.is_masked, losses, 0.0)).sum())
        is_masked = self.is_masked[self.draws]
        count, length = is_masked.shape
        own = np.where(is_masked, length / is_masked.sum(1, keepdims=True) / count, 0.0)
        terms = own * np.where(is_masked, losses[self.draws], 0.0)
        # The other draws: of this token, or of all tokens if they never mask it.
        seen = is_masked.sum(0) - is_masked
        of_token = (terms.sum(0) - terms) / np.where(seen > 0, own.sum(0) - own, 1.0)
        rest = own.sum() - own.sum(1, keepdims=True)
        of_all = (terms.sum() - terms.sum(1, keepdims=True)) / np.where(rest > 0.5 / count, rest, np.inf)
        return float(terms.sum() - ((own - 1 / count) * np.where(seen > 0, of_token, of_all)).sum())


@lru_cache(maxsize=64)
def all_masks(length: int) -> Masks:
    """The 2^L - 1 masks of an answer, which give the exact value."""
    numbers = np.arange(1, 2**length)
    is_masked = (numbers[:, None] >> np.arange(length) & 1).astype(bool)
    counts = is_masked.sum(1)
    sets = np.array([math.comb(length, k) for k in range(length + 1)])
    return Masks(is_masked, 1 / (counts * sets[counts]))


def drawn_masks(length: int, num_draws: int, seed: int, key: int) -> Masks:
    """Random masks, a pure function of the arguments. Draws of the same mask are merged.

    With the same `key`, answers of different lengths have the same shares of masked tokens and the same random order
    of their positions.
    """
    draws = np.arange(num_draws)
    first = to_uniform(random_bits(seed, CorruptStream.VALIDATION_COUNT, key))
    share = (first + draws / num_draws) % 1.0
    counts = np.minimum((share * length).astype(np.int64), length - 1) + 1
    keys = random_bits(seed, CorruptStream.VALIDATION_ORDER, key, draws[:, None], np.arange(length))
    rank = keys.argsort(axis=1, kind="stable").argsort(axis=1)
    is_masked, which = np.unique(rank < counts[:, None], axis=0, return_inverse=True)
    which = which.reshape(-1)
    return Masks(is_masked, np.bincount(which, weights=length / counts / num_draws), which)


def longest_enumerable(num_masks: int) -> int:
    """Tokens of the longest answer with at most this many masks."""
    return (num_masks + 1).bit_length() - 1

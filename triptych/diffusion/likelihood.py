"""The k-uniform estimator of the negative ELBO: it draws the number of masked positions instead of a time.

With L maskable positions, k uniform in 1..L, and a uniformly drawn set of k masked positions,

    E [ L / k * sum of the masked positions' cross-entropies ]  =  negative ELBO of the sequence, in nats

The importance weight L / k is the discrete form of 1 / t. Unlike a time, k has no cut-off at 0 and always masks exactly
its share of positions, which lowers the variance. Masks are a pure function of (seed, sample, draw), so different
models and checkpoints are compared on the same masks.
"""

from typing import Literal, get_args

import numpy as np

from triptych.data.types import Batch
from triptych.diffusion.corrupt import Corrupted
from triptych.errors import UserError, did_you_mean
from triptych.utils.rng import CorruptStream, random_bits
from triptych.vocab import Modality, Vocabulary

Given = Literal["nothing", "text", "media"]


def k_uniform(
    batch: Batch, vocabulary: Vocabulary, *, seed: int, draw: int, num_draws: int, given: Given = "nothing"
) -> Corrupted:
    """Mask every sequence of a batch for draw `draw` of `num_draws`; the values of k are evenly spaced over the draws.

    `given` names the side of a pair that stays unmasked: the ELBO is then one of the other side, conditional on it.
    A sequence without maskable positions gets no mask.
    """
    if given not in get_args(Given):
        raise UserError(f"unknown side {given!r}.{did_you_mean(given, list(get_args(Given)))}")
    sequence_RT = np.maximum(batch.segment_ids.astype(np.int64) - 1, 0)
    num_sequences = len(batch.sample_ids)
    is_text_RT = batch.modality_ids == Modality.TEXT
    open_RT = batch.maskable & {"nothing": True, "text": ~is_text_RT, "media": is_text_RT}[given]
    rows, columns = np.nonzero(open_RT)
    sequences = sequence_RT[rows, columns]
    num_open = np.bincount(sequences, minlength=num_sequences)

    first = random_bits(seed, CorruptStream.VALIDATION_COUNT, batch.epochs, batch.sample_ids) % np.maximum(
        num_open, 1
    ).astype(np.uint64)
    counts = (first.astype(np.int64) + draw * num_open // num_draws) % np.maximum(num_open, 1) + 1

    keys = random_bits(
        seed,
        CorruptStream.VALIDATION_ORDER,
        draw,
        batch.epochs[sequences],
        batch.sample_ids[sequences],
        batch.positions[rows, columns],
    )
    order = np.lexsort((keys, sequences))  # by sequence, then by random key
    starts = np.concatenate([[0], np.cumsum(num_open)])[:-1]
    rank = np.arange(len(order)) - starts[sequences[order]]
    masked = order[rank < counts[sequences[order]]]

    predicted_RT = np.zeros_like(open_RT)
    predicted_RT[rows[masked], columns[masked]] = True
    mask_ids = vocabulary.mask_ids.astype(np.int32)
    modality_RT = np.minimum(batch.modality_ids, len(Modality) - 1)
    tokens_RT = np.where(predicted_RT, mask_ids[modality_RT], batch.tokens)
    weight_SM, time_SM = (
        np.repeat(values_S[:, None], len(Modality), axis=1)
        for values_S in (num_open / counts, counts / np.maximum(num_open, 1))
    )
    return Corrupted(tokens_RT, predicted_RT, weight_SM, num_open, time_SM)

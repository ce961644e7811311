"""The k-uniform estimate of the negative ELBO: masks of exactly k positions, k uniform, no time and no cut-off.

With L open positions, k uniform in 1..L and a uniform set of k of them masked,

    E [ L / k * sum of the masked positions' losses ]  =  negative ELBO of the sequence, in nats

which has none of the 1 / t variance of drawing times. Masks are a pure function of (seed, sample, draw): two models,
or one model at two steps, are compared on the same masks.
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
    """Draw number `draw` of `num_draws` for every sequence of a batch; counts are spread evenly over the draws.

    `given` leaves one side of pairs whole: the bound is then on the likelihood of the other side, given this one.
    A sequence that has nothing open gets no mask.
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
    order = np.lexsort((keys, sequences))  # by sequence, and within each by its random keys
    starts = np.concatenate([[0], np.cumsum(num_open)])[:-1]
    rank = np.arange(len(order)) - starts[sequences[order]]
    chosen = order[rank < counts[sequences[order]]]

    predicted_RT = np.zeros_like(open_RT)
    predicted_RT[rows[chosen], columns[chosen]] = True
    masks = np.array([vocabulary.mask(modality) for modality in Modality], np.int32)
    modality_RT = np.minimum(batch.modality_ids, len(Modality) - 1)
    tokens_RT = np.where(predicted_RT, masks[modality_RT], batch.tokens)
    weight_SM, share_SM = (
        np.repeat(each_S[:, None], len(Modality), axis=1)
        for each_S in (num_open / counts, counts / np.maximum(num_open, 1))
    )
    return Corrupted(tokens_RT, predicted_RT, weight_SM, num_open, share_SM)

"""Loss weights: the training loss is a weighted sum of the predicted tokens' cross-entropies.

With M eligible positions in a sequence, I the predicted ones, w the ELBO weight and B sequences in the global batch,
the weight of a predicted token is:

    sequence        w / M / B        unbiased per-token ELBO of each sequence, averaged over sequences; the default
    tokens          w / sum of M     unbiased per-token ELBO over all tokens: longer sequences count more
    masked          1 / |I| / B      mean over the predicted tokens, as MaskGIT trains. With the linear schedule it is
                                     `sequence` up to a factor M / (M + 1), with lower variance. With other schedules
                                     it reweights the times they favour, and is not a bound
    paper_literal   w / |I| / B      as the paper prints it: counts the time twice and is not an ELBO

The statements about ELBOs assume independently masked positions. They do not hold with `p_text_end` or
`p_prompt_masked`; with `p_one_sided` the bound is a mixture of conditional ELBOs. All weights are divided by totals of
the global batch, so the loss of a step is the sum over ranks and micro-batches.
"""

from typing import Literal, get_args

import numpy as np

from triptych.data.types import Batch
from triptych.diffusion.corrupt import Corrupted
from triptych.errors import UserError, did_you_mean
from triptych.vocab import Modality

Norm = Literal["sequence", "tokens", "masked", "paper_literal"]


def check_norm(norm: str) -> None:
    """Raise an error for an unknown norm."""
    if norm not in get_args(Norm):
        raise UserError(f"unknown loss norm {norm!r}.{did_you_mean(norm, list(get_args(Norm)))}")


def token_weights(
    batch: Batch, corrupted: Corrupted, norm: Norm, *, num_sequences: int, num_eligible: int | None = None
) -> np.ndarray:
    """[R, T] float64: loss weight of every predicted token; 0 elsewhere.

    `num_sequences`, and `num_eligible` for the norm "tokens", are totals of the global batch.
    """
    weights = np.zeros(batch.tokens.shape)
    rows, columns = np.nonzero(corrupted.predicted)
    sequences = batch.segment_ids[rows, columns] - 1
    elbo = corrupted.weight[sequences, np.minimum(batch.modality_ids[rows, columns], len(Modality) - 1)]
    num_predicted = np.bincount(sequences, minlength=len(batch.sample_ids))
    match norm:
        case "sequence":
            weight_n = elbo / corrupted.num_eligible[sequences] / num_sequences
        case "tokens":
            assert num_eligible is not None
            weight_n = elbo / num_eligible
        case "masked":
            weight_n = 1 / num_predicted[sequences] / num_sequences
        case "paper_literal":
            weight_n = elbo / num_predicted[sequences] / num_sequences
    weights[rows, columns] = weight_n
    return weights

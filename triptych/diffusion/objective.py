"""What each predicted token counts in the loss, so that the loss is a plain weighted sum over predicted tokens.

With M eligible positions in a sequence, I the predicted ones, w the ELBO weight and B sequences in the global batch:

    sequence        w / M / B            unbiased per-token ELBO of every sequence, averaged over sequences; the default
    tokens          w / sum of M         the same over all tokens: long sequences count more
    masked          1 / |I| / B          with the linear schedule `sequence` up to M / (M + 1), with less variance; with
                                         others reweighted to where they stay longer, no bound (as MaskGIT trains)
    paper_literal   w / |I| / B          as the paper prints it: counts the time twice and is not an ELBO

What is said of ELBOs holds for masks drawn position by position: not with `p_text_end` or `p_prompt_masked`, and with
`p_one_sided` for mixtures of conditional ELBOs. All divide by totals of the global batch, so the sum over ranks and
micro-batches is the loss of the step.
"""

from typing import Literal, get_args

import numpy as np

from triptych.data.types import Batch
from triptych.diffusion.corrupt import Corrupted
from triptych.errors import UserError, did_you_mean
from triptych.vocab import Modality

Norm = Literal["sequence", "tokens", "masked", "paper_literal"]


def check_norm(norm: str) -> None:
    """Refuse names of nothing."""
    if norm not in get_args(Norm):
        raise UserError(f"unknown loss norm {norm!r}.{did_you_mean(norm, list(get_args(Norm)))}")


def token_weights(
    batch: Batch, corrupted: Corrupted, norm: Norm, *, num_sequences: int, num_eligible: int | None = None
) -> np.ndarray:
    """[R, T] float64: what the negative log-likelihood of each predicted token is multiplied by; 0 elsewhere.

    `num_sequences` and, for the norm "tokens", `num_eligible` are totals of the global batch.
    """
    weights = np.zeros(batch.tokens.shape)
    rows, columns = np.nonzero(corrupted.predicted)
    sequences = batch.segment_ids[rows, columns] - 1
    elbo = corrupted.weight[sequences, np.minimum(batch.modality_ids[rows, columns], len(Modality) - 1)]
    predicted = np.bincount(sequences, minlength=len(batch.sample_ids))
    match norm:
        case "sequence":
            found = elbo / corrupted.num_eligible[sequences] / num_sequences
        case "tokens":
            assert num_eligible is not None
            found = elbo / num_eligible
        case "masked":
            found = 1 / predicted[sequences] / num_sequences
        case "paper_literal":
            found = elbo / predicted[sequences] / num_sequences
    weights[rows, columns] = found
    return weights

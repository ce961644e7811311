"""How much given tokens surprise a model: the cross-entropy of each, from a few forward passes in one batch.

Every given token is masked once, in one of a few complementary masks, and predicted from the tokens that this mask
leaves: a pseudo-log-likelihood. With a single mask over everything, tokens would be judged one by one; with one mask
per token there would be as many forward passes as tokens.
"""

import numpy as np
import torch

from triptych.sample.canvas import MASKED, Canvas, lay_out
from triptych.sample.forward import LogitsReader, Network, hidden_states
from triptych.sample.logits import Categorical, mask_specials
from triptych.utils.rng import permute
from triptych.vocab import Modality

# K masks, T positions, n given tokens of the span


@torch.inference_mode()
def token_surprise(
    network: Network, canvas: Canvas, modality: Modality, num_masks: int, device: torch.device | str = "cpu"
) -> np.ndarray:
    """[n] float64, in nats: the surprise of each given token of one span. The masks depend on n alone."""
    layout = lay_out(canvas, network.vocabulary)
    side = [span.modality for span in canvas.spans].index(modality)
    position_n = layout.starts[side] + np.flatnonzero(canvas.spans[side].ids != MASKED)
    count = len(position_n)
    if not count:
        return np.zeros(0)
    num_masks = min(num_masks, count)
    mask_n = permute(np.arange(count), np.array([count]), count) % num_masks
    where_KT = np.zeros((num_masks, len(layout.tokens)), bool)
    where_KT[mask_n, position_n] = True
    tokens_KT = np.where(where_KT, network.vocabulary.mask(modality), layout.tokens)
    hidden = hidden_states(network, torch.from_numpy(tokens_KT).to(device), torch.from_numpy(where_KT).to(device))
    order_n = np.lexsort((position_n, mask_n))  # hidden states come mask by mask
    local_n = network.vocabulary.to_local(modality, layout.tokens[position_n[order_n]])
    target_n = torch.from_numpy(local_n).to(device)
    no_eos_n = torch.zeros(count, dtype=torch.bool, device=device)
    log_prob_n = torch.zeros(count, dtype=torch.float64, device=device)

    def use(rows: slice, logits: list[torch.Tensor]) -> None:
        log_prob_n[rows] = Categorical(mask_specials(logits[0], no_eos_n[rows])).log_prob(target_n[rows])

    LogitsReader(network).for_each_piece(use, modality, hidden)
    surprise_n = np.empty(count)
    surprise_n[order_n] = -log_prob_n.cpu().numpy()
    return surprise_n

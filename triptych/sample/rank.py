"""Which of several results is best, as the model itself sees it: each side must be likely beside the other.

    log p(given | made) + log p(made | given)

The first tells whether a caption fits its picture: what was given is the same for all results, whatever their lengths,
and is masked in the same places for all. Alone it does not mind how a caption says it; the second does.
"""

from collections.abc import Sequence

import numpy as np
import torch

from triptych.sample.canvas import Canvas, lay_out
from triptych.sample.forward import MOST_TOKENS, Columns, Network, hidden_states
from triptych.sample.logits import Categorical, mask_specials
from triptych.vocab import Modality

# b results, T positions, L of them given, K looks, n masked positions of all looks together

LOOKS = 16


def has_a_given_side(canvas: Canvas) -> bool:
    """Whether results can be judged: one span is given whole, beside one that is not."""
    whole = [span for span in canvas.spans if span.open_slot is None and not span.unconditional and not span.num_masked]
    return len(canvas.spans) == 2 and len(whole) == 1 and len(whole[0].ids) > 0


def best(
    network: Network,
    candidates: Sequence[Sequence[Canvas]],
    device: torch.device | str = "cpu",
    looks: int = LOOKS,
) -> list[Canvas]:
    """Of each list the one whose sides fit best, the first of equals. Where all are the same, nothing is judged."""
    disputed = [each for each in candidates if len({_contents(canvas) for canvas in each}) > 1]
    fits = iter(agreement(network, [canvas for each in disputed for canvas in each], device, looks))
    chosen = iter([each[int(np.argmax([next(fits) for _ in each]))] for each in disputed])
    return [next(chosen) if len({_contents(canvas) for canvas in each}) > 1 else each[0] for each in candidates]


def _contents(canvas: Canvas) -> tuple[tuple[Modality, bytes], ...]:
    return tuple((span.modality, span.ids.tobytes()) for span in canvas.spans)


def agreement(
    network: Network, canvases: Sequence[Canvas], device: torch.device | str = "cpu", looks: int = LOOKS
) -> list[float]:
    """Of finished pairs, how well their sides fit each other, in nats; each side by so many looks.

    What is equal is looked at once.
    """
    keys = [_contents(canvas) for canvas in canvases]
    different = dict(zip(keys, canvases))
    sides = [
        log_likelihoods(network, [*different.values()], [key[place][0] for key in different], device, looks)
        for place in (0, 1)
    ]
    fit = {key: one + other for key, one, other in zip(different, *sides)}
    return [fit[key] for key in keys]


@torch.inference_mode()
def log_likelihoods(
    network: Network,
    canvases: Sequence[Canvas],
    judges: Sequence[Modality],
    device: torch.device | str = "cpu",
    looks: int = LOOKS,
) -> list[float]:
    """Of every finished canvas, an estimate of a lower bound on log p(its span of that modality | rest), in nats."""
    alike: dict[tuple[int, int, int, Modality], list[int]] = {}
    layouts = [lay_out(canvas, network.vocabulary) for canvas in canvases]
    for i, (canvas, modality) in enumerate(zip(canvases, judges)):
        place = [span.modality for span in canvas.spans].index(modality)
        key = len(layouts[i].tokens), layouts[i].starts[place], len(canvas.spans[place].ids), modality
        alike.setdefault(key, []).append(i)
    found = np.zeros(len(canvases))
    for (length, start, count, modality), members in alike.items():
        most = max(1, MOST_TOKENS // (length * looks))
        for first in range(0, len(members), most):
            part = members[first : first + most]
            tokens_bT = np.stack([layouts[i].tokens for i in part])
            found[part] = _bounds(network, tokens_bT, slice(start, start + count), modality, device, looks)
    return found.tolist()


def _bounds(
    network: Network, tokens_bT: np.ndarray, masked: slice, modality: Modality, device: torch.device | str, looks: int
) -> np.ndarray:
    """[b] of results of one shape: L / k times the sum over the k masked positions, averaged over the looks."""
    masks_KL = _masks(masked.stop - masked.start, looks)
    masks_KT = np.zeros((looks, tokens_bT.shape[1]), bool)
    masks_KT[:, masked] = masks_KL
    seen_bKT = np.where(masks_KT, network.vocabulary.mask(modality), tokens_bT[:, None])
    seen = torch.from_numpy(seen_bKT.reshape(-1, tokens_bT.shape[1])).to(device)
    hidden = hidden_states(network, seen, torch.from_numpy(np.tile(masks_KT, (len(tokens_bT), 1))).to(device))
    true_bn = np.broadcast_to(tokens_bT[:, None], seen_bKT.shape)[:, masks_KT]
    true_n = torch.from_numpy(network.vocabulary.to_local(modality, true_bn.reshape(-1))).to(device)
    no_end = torch.zeros(len(true_n), dtype=torch.bool, device=device)
    log_prob_n = [
        Categorical(mask_specials(logits, no_end[rows])).log_prob(true_n[rows])
        for rows, (logits,) in Columns(network).pieces(modality, hidden)
    ]
    log_prob_bn = torch.cat(log_prob_n).cpu().numpy().reshape(len(tokens_bT), -1)
    counts_K = masks_KL.sum(1)
    weight_n = np.repeat(masks_KL.shape[1] / counts_K / looks, counts_K)
    # Row by row: a sum over an axis of a matrix may add in another order.
    return np.array([float((weight_n * row).sum()) for row in log_prob_bn])


def _masks(count: int, looks: int) -> np.ndarray:
    """[K, L] bool: from few to most positions, evenly; which ones depends on how many there are alone."""
    rng = np.random.default_rng(count)
    masks = np.zeros((looks, count), bool)
    for look in range(looks):
        masks[look, rng.permutation(count)[: -(-(2 * look + 1) * count // (2 * looks))]] = True
    return masks

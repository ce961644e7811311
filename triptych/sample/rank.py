"""Best-of-n: rank candidates by the model's own likelihoods, in both directions.

    score = log p(given | generated) + log p(generated | given)

The first term measures whether a caption fits its image. It is comparable between candidates of different lengths: the
given side is the same for all of them and is masked at the same positions. It ignores how a caption is worded; the
second term does not.
"""

from collections.abc import Sequence

import numpy as np
import torch

from triptych.sample.canvas import Canvas, lay_out
from triptych.sample.forward import MAX_TOKENS_PER_PASS, LogitsReader, Network, hidden_states
from triptych.sample.logits import Categorical, mask_specials
from triptych.vocab import Modality

# b candidates, T positions, L positions of the scored span, K forward passes, n masked positions of all K passes

NUM_SCORE_PASSES = 16


def can_rank(canvas: Canvas) -> bool:
    """Whether candidates can be scored: exactly one of two spans is fully given, and not empty."""
    given = [span for span in canvas.spans if span.open_slot is None and not span.unconditional and not span.num_masked]
    return len(canvas.spans) == 2 and len(given) == 1 and len(given[0].ids) > 0


def select_best(
    network: Network,
    candidates: Sequence[Sequence[Canvas]],
    device: torch.device | str = "cpu",
    num_passes: int = NUM_SCORE_PASSES,
) -> list[Canvas]:
    """The candidate with the highest score from each list, the first of equals. Identical candidates are not scored."""

    def all_equal(group: Sequence[Canvas]) -> bool:
        return len({_contents(canvas) for canvas in group}) <= 1

    to_score = [canvas for group in candidates if not all_equal(group) for canvas in group]
    scores = iter(pair_scores(network, to_score, device, num_passes))
    return [
        group[0] if all_equal(group) else group[int(np.argmax([next(scores) for _ in group]))] for group in candidates
    ]


def _contents(canvas: Canvas) -> tuple[tuple[Modality, bytes], ...]:
    return tuple((span.modality, span.ids.tobytes()) for span in canvas.spans)


def pair_scores(
    network: Network,
    canvases: Sequence[Canvas],
    device: torch.device | str = "cpu",
    num_passes: int = NUM_SCORE_PASSES,
) -> list[float]:
    """The score of each finished pair, in nats, from `num_passes` forward passes per side. Equal pairs share them."""
    keys = [_contents(canvas) for canvas in canvases]
    distinct = dict(zip(keys, canvases))
    sides = [
        log_likelihood_bounds(network, [*distinct.values()], [key[side][0] for key in distinct], device, num_passes)
        for side in (0, 1)
    ]
    scores = {key: first + second for key, first, second in zip(distinct, *sides)}
    return [scores[key] for key in keys]


@torch.inference_mode()
def log_likelihood_bounds(
    network: Network,
    canvases: Sequence[Canvas],
    modalities: Sequence[Modality],
    device: torch.device | str = "cpu",
    num_passes: int = NUM_SCORE_PASSES,
) -> list[float]:
    """For each finished canvas, an estimate of a lower bound on log p(span of the given modality | rest), in nats."""
    groups: dict[tuple[int, int, int, Modality], list[int]] = {}
    layouts = [lay_out(canvas, network.vocabulary) for canvas in canvases]
    for i, (canvas, modality) in enumerate(zip(canvases, modalities)):
        side = [span.modality for span in canvas.spans].index(modality)
        key = len(layouts[i].tokens), layouts[i].starts[side], len(canvas.spans[side].ids), modality
        groups.setdefault(key, []).append(i)
    bounds = np.zeros(len(canvases))
    for (length, start, count, modality), members in groups.items():
        size = max(1, MAX_TOKENS_PER_PASS // (length * num_passes))
        for first in range(0, len(members), size):
            part = members[first : first + size]
            tokens_bT = np.stack([layouts[i].tokens for i in part])
            bounds[part] = _bounds(network, tokens_bT, slice(start, start + count), modality, device, num_passes)
    return bounds.tolist()


def _bounds(
    network: Network,
    tokens_bT: np.ndarray,
    span: slice,
    modality: Modality,
    device: torch.device | str,
    num_passes: int,
) -> np.ndarray:
    """[b] for candidates of equal layout: L / k times the sum over the k masked positions, averaged over passes."""
    masks_KL = score_masks(span.stop - span.start, num_passes)
    masks_KT = np.zeros((num_passes, tokens_bT.shape[1]), bool)
    masks_KT[:, span] = masks_KL
    input_bKT = np.where(masks_KT, network.vocabulary.mask(modality), tokens_bT[:, None])
    inputs = torch.from_numpy(input_bKT.reshape(-1, tokens_bT.shape[1])).to(device)
    hidden = hidden_states(network, inputs, torch.from_numpy(np.tile(masks_KT, (len(tokens_bT), 1))).to(device))
    target_bn = np.broadcast_to(tokens_bT[:, None], input_bKT.shape)[:, masks_KT]
    target_n = torch.from_numpy(network.vocabulary.to_local(modality, target_bn.reshape(-1))).to(device)
    no_eos = torch.zeros(len(target_n), dtype=torch.bool, device=device)
    log_prob_n = torch.zeros(len(target_n), dtype=torch.float64, device=device)

    def use(rows: slice, logits: list[torch.Tensor]) -> None:
        log_prob_n[rows] = Categorical(mask_specials(logits[0], no_eos[rows])).log_prob(target_n[rows])

    LogitsReader(network).for_each_piece(use, modality, hidden)
    log_prob_bn = log_prob_n.cpu().numpy().reshape(len(tokens_bT), -1)
    counts_K = masks_KL.sum(1)
    weight_n = np.repeat(masks_KL.shape[1] / counts_K / num_passes, counts_K)
    # Row by row: a sum over an axis of a matrix may add in a different order.
    return np.array([float((weight_n * row).sum()) for row in log_prob_bn])


def score_masks(count: int, num_passes: int) -> np.ndarray:
    """[K, L] bool: masks of evenly increasing size, from few positions to most. They depend on the sizes alone."""
    rng = np.random.default_rng(count)
    masks = np.zeros((num_passes, count), bool)
    for k in range(num_passes):
        masks[k, rng.permutation(count)[: -(-(2 * k + 1) * count // (2 * num_passes))]] = True
    return masks

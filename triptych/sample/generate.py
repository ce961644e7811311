"""Generation: fill canvases. First lengths, then tokens, in batches of equal length.

Requests of equal length share forward passes. The result of a request does not depend on its batch: its random numbers
are its own, rows of different lengths never share a matrix product, and `forward` keeps rounding independent of the
other rows.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from triptych.errors import UserError
from triptych.sample.batch import Callback, RequestBatch, group_by_length
from triptych.sample.canvas import Canvas, read_back
from triptych.sample.config import SamplingConfig
from triptych.sample.forward import Network
from triptych.sample.lengths import choose_lengths
from triptych.sample.predictor import ModelPredictor, Observer
from triptych.sample.rank import can_rank, select_best
from triptych.sample.samplers import make_sampler
from triptych.utils.rng import SampleStream, random_bits


@torch.inference_mode()
def generate(
    network: Network,
    canvases: Sequence[Canvas],
    config: SamplingConfig,
    seeds: Sequence[int],
    *,
    device: torch.device | str = "cpu",
    callback: Callback | None = None,
    observer: Observer | None = None,
) -> list[Canvas]:
    """Fill every canvas. The same canvas with the same seed gives the same result in any batch.

    Canvases of different lengths are filled in separate batches, one after another, and so are canvases that do not fit
    one forward pass. `callback` sees each batch from its step 0 to its last; with `best_of`, a batch holds all
    candidates. Forward passes that choose lengths or score candidates are not reported. `observer` gets the model's
    forecast before each of these steps.
    """
    assert len(canvases) == len(seeds)
    for canvas in canvases:
        check_canvas(canvas, config)
    if config.best_of > 1:
        return _best_of(network, canvases, config, seeds, device, callback, observer)
    sampler = make_sampler(config.sampler, config.options)
    closed = choose_lengths(network, canvases, config, seeds, device)
    filled = list(closed)
    for members, layouts in group_by_length(closed, network.vocabulary, copies=1 if config.guidance_scale == 1 else 2):
        batch = RequestBatch.from_layouts(layouts, [seeds[i] for i in members], network.vocabulary, device)
        predictor = ModelPredictor(
            network,
            layouts,
            batch,
            guidance_scale=config.guidance_scale,
            temperature=config.temperature,
            top_p=config.top_p,
            observer=observer,
        )
        tokens = sampler.run(predictor, batch, config.num_steps, callback)
        for i, row in zip(members, tokens.cpu().numpy()):
            filled[i] = read_back(closed[i], row, network.vocabulary)
    return filled


def check_canvas(canvas: Canvas, config: SamplingConfig) -> None:
    """Refuse a canvas that cannot be filled in this way."""
    if config.best_of > 1 and not can_rank(canvas):
        raise UserError(
            "best_of ranks candidates by how well they fit what is given: it needs a complete text, image or audio "
            "as input. Use best_of=1."
        )
    if config.guidance_scale != 1 and not canvas.hide_text:
        raise UserError(
            "guidance needs a known text to hide from the unconditional branch, and there is none here. "
            "Use guidance_scale=1."
        )


def _best_of(
    network: Network,
    canvases: Sequence[Canvas],
    config: SamplingConfig,
    seeds: Sequence[int],
    device: torch.device | str,
    callback: Callback | None,
    observer: Observer | None,
) -> list[Canvas]:
    """Fill every canvas `best_of` times and return the candidates with the highest scores."""
    count = config.best_of
    # The first candidate has the seed of the request, so best_of=n never scores below best_of=1.
    candidate_seeds = [
        seed if n == 0 else random_bits(seed, SampleStream.CANDIDATE_SEED, n).item()
        for seed in seeds
        for n in range(count)
    ]
    candidates = generate(
        network,
        [canvas for canvas in canvases for _ in range(count)],
        replace(config, best_of=1),
        candidate_seeds,
        device=device,
        callback=callback,
        observer=observer,
    )
    groups = [candidates[i : i + count] for i in range(0, len(candidates), count)]
    return select_best(network, groups, device, config.num_score_passes)

"""Lengths of open-ended spans: one forward pass gives the model's distribution over all of them.

At position i of a fully masked slot, the probability of EOS is the probability that the length is at most i, because
training repeats EOS up to the end of the slot (see `data.sequences`). Differences between positions give the
distribution over lengths.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from triptych.sample.batch import RequestBatch, group_by_length
from triptych.sample.canvas import Canvas, CanvasTokens, Span, lay_out
from triptych.sample.config import LengthRule, SamplingConfig
from triptych.sample.forward import Network
from triptych.sample.logits import Categorical
from triptych.sample.predictor import Index, ModelPredictor
from triptych.utils.rng import FIRST_TOKEN_STEP, SampleStream
from triptych.vocab import Modality


def choose_lengths(
    network: Network,
    canvases: Sequence[Canvas],
    config: SamplingConfig,
    seeds: Sequence[int],
    device: torch.device | str,
) -> list[Canvas]:
    """Close every open end, media before text: one forward pass per span, and one for the first token of a text."""
    closed = list(canvases)
    for turn in (0, 1):  # a pair closes its media in the first turn and its text in the second
        if not config.single_pass:
            closed = _draw_first_tokens(network, closed, config, seeds, device)
        pending = [i for i, canvas in enumerate(closed) if any(span.open_slot for span in canvas.spans)]
        if not pending:
            break
        still_open = [closed[i] for i in pending]
        for members, layouts in group_by_length(still_open, network.vocabulary):
            batch = RequestBatch.from_layouts(layouts, [seeds[pending[i]] for i in members], network.vocabulary, device)
            predictions = _predict_lengths(network, batch, layouts, [still_open[i] for i in members], config)
            uniform = batch.uniform(turn, SampleStream.LENGTH)[:, 0].tolist()
            for i, (distribution, ids), u in zip(members, predictions, uniform):
                span = _open_span(still_open[i])
                length = pick_length(distribution, config.length, u)
                filled = replace(span, ids=ids[:length], open_slot=None) if config.single_pass else span.closed(length)
                closed[pending[i]] = still_open[i].with_span(filled)
    return closed


def length_distribution(network: Network, canvas: Canvas, device: torch.device | str = "cpu") -> dict[int, float]:
    """The probability of every length that the first open span of a canvas may have."""
    layouts = [lay_out(canvas, network.vocabulary)]
    batch = RequestBatch.from_layouts(layouts, [0], network.vocabulary, device)
    return _predict_lengths(network, batch, layouts, [canvas], SamplingConfig())[0][0]


def pick_length(distribution: dict[int, float], rule: LengthRule, u: float) -> int:
    """A length by its rule; `u` in [0, 1) is the random number of "draw"."""
    lengths, mass = list(distribution), np.array(list(distribution.values()))
    if rule == "mode":
        return lengths[int(mass.argmax())]
    quantile = 0.5 if rule == "median" else u
    return lengths[min(int(np.searchsorted(np.cumsum(mass), quantile, side="right")), len(lengths) - 1)]


def _open_span(canvas: Canvas) -> Span:
    return next(span for span in canvas.spans if span.open_slot is not None)


def _draw_first_tokens(
    network: Network,
    canvases: Sequence[Canvas],
    config: SamplingConfig,
    seeds: Sequence[int],
    device: torch.device | str,
) -> list[Canvas]:
    """Draw the first token of every open text without a prefix, if the text is next to be closed.

    The length of a text depends on its first token: one distribution over captions and questions together would fit
    neither. First token, length, rest is the chain rule in a different order.
    """
    started = list(canvases)
    pending = [
        i
        for i, canvas in enumerate(canvases)
        if canvas.text.open_slot is not None and not len(canvas.text.ids) and _open_span(canvas) is canvas.text
    ]
    without_prefix = [canvases[i] for i in pending]
    for members, layouts in group_by_length(without_prefix, network.vocabulary):
        batch = RequestBatch.from_layouts(layouts, [seeds[pending[i]] for i in members], network.vocabulary, device)
        first_positions = [layout.starts[-1] for layout in layouts]
        where = torch.zeros_like(batch.masked)
        where[range(len(layouts)), first_positions] = True
        predictor = ModelPredictor(network, layouts, batch, temperature=config.temperature, top_p=config.top_p)
        proposals = predictor(batch.tokens, where, FIRST_TOKEN_STEP)
        for row, i in enumerate(members):
            first = proposals.ids[row, first_positions[row]].cpu().numpy()[None]
            span = replace(without_prefix[i].text, ids=network.vocabulary.to_local(Modality.TEXT, first))
            started[pending[i]] = without_prefix[i].with_span(span)
    return started


def _predict_lengths(
    network: Network,
    batch: RequestBatch,
    layouts: Sequence[CanvasTokens],
    canvases: Sequence[Canvas],
    config: SamplingConfig,
) -> list[tuple[dict[int, float], np.ndarray]]:
    """For each canvas, the distribution over the lengths of its first open span, and ids for its whole slot.

    With `single_pass` the ids are drawn in the same forward pass, without EOS; otherwise they are zeros.
    """
    predictor = ModelPredictor(network, layouts, batch)
    where, slots = torch.zeros_like(batch.masked), []
    for row, canvas in enumerate(canvases):
        span = _open_span(canvas)
        start = layouts[row].starts[canvas.spans.index(span)]
        assert span.open_slot is not None
        lengths = np.arange(span.min_length, span.open_slot, span.stride)
        slot = range(start + len(span.ids), start + span.open_slot)
        where[row, slot if config.single_pass else start + lengths] = True
        slots.append((span, start, lengths, slot))
    states = predictor.hidden_states(batch.tokens, where)
    uniform = batch.uniform(FIRST_TOKEN_STEP, SampleStream.TOKEN)
    eos_prob = torch.zeros(where.shape, dtype=torch.float64, device=where.device)
    ids = torch.zeros_like(batch.tokens)
    for modality in {span.modality for span, *_ in slots}:
        eos = network.vocabulary.eos_column(modality)

        def use(at: Index, dist: Categorical, eos: int = eos) -> None:
            eos_prob[at] = dist.log_prob(torch.full_like(at[0], eos)).exp()
            if config.single_pass:
                dist.shifted_nV[:, eos] = -np.inf
                ids[at] = Categorical(dist.shifted_nV).draw(uniform[at], config.temperature, config.top_p)

        predictor.for_each_distribution(use, states, where, modality)
    predictions = []
    for row, (span, start, lengths, slot) in enumerate(slots):
        cumulative = np.maximum.accumulate(eos_prob[row].cpu().numpy()[start + lengths])
        mass = np.diff(cumulative, prepend=0.0)
        mass[-1] += 1 - cumulative[-1]  # the longest length takes the probability of all longer ones
        all_ids = np.concatenate([span.ids, ids[row, slot].cpu().numpy()])
        predictions.append((dict(zip(lengths.tolist(), (mass / mass.sum()).tolist())), all_ids))
    return predictions

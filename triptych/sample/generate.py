"""From canvases to finished canvases: lengths first, then tokens, in groups of equal length.

The model is a callable, and requests of equal length share its forward passes. What a request gets does not depend on
its company: its random numbers are its own, rows of unequal length never share a matrix, and `rows` sees to rounding.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from triptych.errors import UserError, did_you_mean
from triptych.sample.batch import Callback, Proposals, RequestBatch, Wants
from triptych.sample.canvas import Canvas, CanvasTokens, Span, lay_out, read_back
from triptych.sample.forward import MOST_TOKENS, Columns, Network, hidden_states
from triptych.sample.logits import Categorical, apply_cfg, mask_specials
from triptych.sample.rank import LOOKS, best, has_a_given_side
from triptych.sample.samplers import SAMPLERS
from triptych.utils.rng import FIRST_TOKEN_STEP, SampleStream, random_bits
from triptych.vocab import Modality, Vocabulary

# B requests, T positions, n rows of one modality, V columns of its softmax


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How to sample."""

    sampler: str = "random_order"
    num_steps: int | None = None
    """Looks at the canvas; None for one token a look."""
    temperature: float = 1.0
    top_p: float = 1.0
    guidance_scale: float = 1.0
    """How far to go from what the model says without the text towards, and past, what it says with it; 1 is off."""
    length: Literal["draw", "median", "mode"] = "median"
    """How an open length is chosen from the model's law of it."""
    single_pass: bool = False
    """Whether what has an open length is filled in at the look that chooses it: one look instead of one for how a text
    begins, one for its length and some for the rest. For what depends on the given alone, as a transcript does."""
    best_of: int = 1
    """How many are made of each, with seeds of their own; kept is what fits best with what was given (see `rank`)."""
    num_score_passes: int = LOOKS
    """How often each side of a candidate is looked at to judge it."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the sampler."""

    def __post_init__(self) -> None:
        if self.sampler not in SAMPLERS:
            raise UserError(f"unknown sampler {self.sampler!r}.{did_you_mean(self.sampler, list(SAMPLERS))}")
        if self.num_steps is not None and self.num_steps < 1:
            raise UserError(f"num_steps must be at least 1, got {self.num_steps}.")
        if self.best_of < 1 or self.num_score_passes < 1:
            raise UserError(
                f"best_of and num_score_passes must be at least 1, got {self.best_of} and {self.num_score_passes}."
            )
        if not self.temperature >= 0 or not 0 < self.top_p <= 1:
            raise UserError(
                "temperature must not be negative and top_p must lie in (0, 1], "
                f"got {self.temperature} and {self.top_p}."
            )
        if not 0 <= self.guidance_scale < float("inf"):
            raise UserError(f"guidance_scale must not be negative (1 is none), got {self.guidance_scale}.")
        if self.length not in ("draw", "median", "mode"):
            raise UserError(f"length must be chosen by draw, median or mode, got {self.length!r}.")
        if self.single_pass and self.guidance_scale != 1:
            raise UserError(
                f"single_pass draws from an unguided look; use guidance_scale=1, got {self.guidance_scale}."
            )
        _check_options(self.sampler, self.options)


def _check_options(sampler: str, options: Mapping[str, Any]) -> None:
    names = (sampler, options.get("inner", "low_confidence")) if sampler == "blocks" else (sampler,)
    known = [
        name
        for each in names
        for name, parameter in inspect.signature(SAMPLERS.get(each, SAMPLERS[sampler])).parameters.items()
        if parameter.kind == parameter.KEYWORD_ONLY and name != "callback"
    ]
    for name in options:
        if name not in known:
            raise UserError(f"the sampler {sampler!r} has no option {name!r}.{did_you_mean(name, sorted(set(known)))}")


@torch.inference_mode()
def generate(
    network: Network,
    canvases: Sequence[Canvas],
    settings: SamplingConfig,
    seeds: Sequence[int],
    *,
    device: torch.device | str = "cpu",
    callback: Callback | None = None,
) -> list[Canvas]:
    """Fill every canvas. The same canvas with the same seed gives the same result in any company."""
    assert len(canvases) == len(seeds)
    if settings.best_of > 1:
        return _best(network, canvases, settings, seeds, device, callback)
    if settings.guidance_scale != 1 and any(not canvas.hide for canvas in canvases):
        raise UserError(
            "guidance works against a hidden text; here no known text is to be hidden. Use guidance_scale=1."
        )
    sized = _choose_lengths(network, canvases, settings, seeds, device)
    done: list[Canvas | None] = [None] * len(sized)
    for members, layouts in _groups(sized, network.vocabulary, copies=1 if settings.guidance_scale == 1 else 2):
        group = _group(layouts, [seeds[i] for i in members], network.vocabulary, device)
        tokens = group.tokens
        if bool(group.masked.any()):
            propose = _Proposer(network, layouts, group, settings)
            sampler = SAMPLERS[settings.sampler]
            tokens = sampler(propose, group, settings.num_steps, callback=callback, **settings.options)
        for i, row in zip(members, tokens.cpu().numpy()):
            done[i] = read_back(sized[i], row, network.vocabulary)
    return [canvas for canvas in done if canvas is not None]


def _best(
    network: Network,
    canvases: Sequence[Canvas],
    settings: SamplingConfig,
    seeds: Sequence[int],
    device: torch.device | str,
    callback: Callback | None,
) -> list[Canvas]:
    """Fill every canvas several times and keep what the model judges best; the first of equals."""
    count = settings.best_of
    if not all(map(has_a_given_side, canvases)):
        raise UserError("best_of judges what is made by what is given: it needs a whole text, picture or sound beside.")
    several = [canvas for canvas in canvases for _ in range(count)]
    # The first has the seed itself: more candidates are never worse than one, as the model sees it.
    own = [
        seed if n == 0 else random_bits(seed, SampleStream.CANDIDATE_SEED, n).item()
        for seed in seeds
        for n in range(count)
    ]
    made = generate(network, several, replace(settings, best_of=1), own, device=device, callback=callback)
    return best(network, [made[i : i + count] for i in range(0, len(made), count)], device, settings.num_score_passes)


# -- groups -----------------------------------------------------------------------------------------------------------


def _groups(
    canvases: Sequence[Canvas], vocabulary: Vocabulary, copies: int
) -> list[tuple[list[int], list[CanvasTokens]]]:
    """Which canvases go together: those of equal length, as many as fit one forward pass."""
    layouts = [lay_out(canvas, vocabulary) for canvas in canvases]
    by_length: dict[int, list[int]] = {}
    for i, layout in enumerate(layouts):
        by_length.setdefault(len(layout.tokens), []).append(i)
    found = []
    for length, members in by_length.items():
        most = max(1, MOST_TOKENS // (length * copies))
        for start in range(0, len(members), most):
            part = members[start : start + most]
            found.append((part, [layouts[i] for i in part]))
    return found


def _group(
    layouts: Sequence[CanvasTokens], seeds: Sequence[int], vocabulary: Vocabulary, device: torch.device | str
) -> RequestBatch:
    masks = np.array([vocabulary.mask(modality) for modality in Modality], np.int64)
    return RequestBatch(
        tokens=torch.from_numpy(np.stack([layout.tokens for layout in layouts])).to(device),
        masked=torch.from_numpy(np.stack([layout.masked for layout in layouts])).to(device),
        mask_ids=torch.from_numpy(np.stack([masks[layout.modality] for layout in layouts])).to(device),
        seeds=tuple(seeds),
    )


class _Proposer:
    """The model's look at a group (see `Propose`)."""

    def __init__(
        self, network: Network, layouts: Sequence[CanvasTokens], group: RequestBatch, settings: SamplingConfig
    ):
        self.network, self.group, self.settings = network, group, settings
        device = group.tokens.device
        self.modality = torch.from_numpy(np.stack([layout.modality for layout in layouts])).to(device)
        self.may_end = torch.from_numpy(np.stack([layout.may_end for layout in layouts])).to(device)
        self.hidden = torch.from_numpy(np.stack([layout.hidden for layout in layouts])).to(device)
        self.columns = Columns(network)

    def __call__(self, tokens: Tensor, where: Tensor, step: int, wants: Wants = "ids") -> Proposals:
        states = self.look(tokens, where)
        ids, settings = tokens.clone(), self.settings
        log_prob, entropy = torch.zeros(2, *tokens.shape, dtype=torch.float64, device=tokens.device)
        uniform = self.group.uniform(step, SampleStream.TOKEN)
        for modality in Modality:
            for at, dist in self.distributions(states, where, modality):
                chosen = dist.draw(uniform[at], settings.temperature, settings.top_p)
                ids[at] = chosen + self.network.vocabulary.ids(modality).start
                if wants == "confidence":
                    log_prob[at] = dist.log_prob(chosen)
                elif wants == "entropy":
                    entropy[at] = dist.entropy
        return Proposals(ids, log_prob, entropy)

    def look(self, tokens: Tensor, where: Tensor) -> tuple[Tensor, ...]:
        """Hidden states [n, D] of positions with and, if guided, without the text; of requests that ask for some."""
        asks = where.any(1)
        seen = [tokens[asks]]
        if self.settings.guidance_scale != 1:
            seen.append(torch.where(self.hidden, self.group.mask_ids, tokens)[asks])
        both = hidden_states(self.network, torch.cat(seen), torch.cat([where[asks]] * len(seen)))
        return tuple(both.chunk(len(seen)))

    def distributions(
        self, states: tuple[Tensor, ...], where: Tensor, modality: Modality
    ) -> Iterator[tuple[tuple[Tensor, ...], Categorical]]:
        """Of the positions `where` that are of a modality, a few at a time: which they are, and what may be drawn."""
        places = (where & (self.modality == modality)).nonzero()
        if not len(places):
            return
        own = (self.modality[where] == modality).nonzero()[:, 0]
        for rows, found in self.columns.pieces(modality, *(state[own] for state in states)):
            at = tuple(places[rows].T)
            logits = found[0] if len(found) == 1 else apply_cfg(found[0], found[1], self.settings.guidance_scale)
            yield at, Categorical(mask_specials(logits, self.may_end[at]))


# -- lengths ----------------------------------------------------------------------------------------------------------


def _choose_lengths(
    network: Network,
    canvases: Sequence[Canvas],
    settings: SamplingConfig,
    seeds: Sequence[int],
    device: torch.device | str,
) -> list[Canvas]:
    """Close every open end, the media before the text: one look each, and one for how a text begins."""
    sized = list(canvases)
    for pick in (0, 1):  # a pair has its media first; a text alone is done in the first round
        if not settings.single_pass:
            sized = _begin_texts(network, sized, settings, seeds, device)
        waiting = [i for i, canvas in enumerate(sized) if any(span.open_slot for span in canvas.spans)]
        if not waiting:
            break
        asked = [sized[i] for i in waiting]
        for members, layouts in _groups(asked, network.vocabulary, copies=1):
            group = _group(layouts, [seeds[waiting[i]] for i in members], network.vocabulary, device)
            found = _length_laws(network, group, layouts, [asked[i] for i in members], settings)
            uniform = group.uniform(pick, SampleStream.LENGTH)[:, 0].tolist()
            for i, (dist, ids), u in zip(members, found, uniform):
                span = _open_span(asked[i])
                length = _pick(dist, settings.length, u)
                sized[waiting[i]] = asked[i].with_span(
                    replace(span, ids=ids[:length], open_slot=None) if settings.single_pass else span.closed(length)
                )
    return sized


def _begin_texts(
    network: Network, canvases: list[Canvas], settings: SamplingConfig, seeds: Sequence[int], device: torch.device | str
) -> list[Canvas]:
    """Draw the first token of every open text that has none.

    How long a text is depends on how it begins: a law of lengths over captions and questions together would fit
    neither. First token, length, rest is the chain rule in another order.
    """
    begun = list(canvases)
    waiting = [
        i
        for i, canvas in enumerate(canvases)
        if canvas.text.open_slot is not None and not len(canvas.text.ids) and _open_span(canvas) is canvas.text
    ]
    asked = [canvases[i] for i in waiting]
    for members, layouts in _groups(asked, network.vocabulary, copies=1):
        group = _group(layouts, [seeds[waiting[i]] for i in members], network.vocabulary, device)
        where = torch.zeros_like(group.masked)
        where[range(len(layouts)), [layout.starts[-1] for layout in layouts]] = True
        found = _Proposer(network, layouts, group, replace(settings, guidance_scale=1.0))(
            group.tokens, where, FIRST_TOKEN_STEP
        )
        for row, i in enumerate(members):
            first = found.ids[row, layouts[row].starts[-1]].cpu().numpy()[None]
            span = replace(asked[i].text, ids=network.vocabulary.to_local(Modality.TEXT, first))
            begun[waiting[i]] = asked[i].with_span(span)
    return begun


def _open_span(canvas: Canvas) -> Span:
    return next(span for span in canvas.spans if span.open_slot is not None)


def _length_laws(
    network: Network,
    group: RequestBatch,
    layouts: Sequence[CanvasTokens],
    canvases: Sequence[Canvas],
    settings: SamplingConfig,
) -> list[tuple[dict[int, float], np.ndarray]]:
    """For each canvas, the probability of every length its first open span may have; and its ids, if it never ended.

    The end is at or before position i with probability p(EOS at i), in one look; differences give the law. Ids are
    drawn at the same look, if that is all there is to be.
    """
    plain = _Proposer(network, layouts, group, SamplingConfig())
    where, asked = torch.zeros_like(group.masked), []
    for row, canvas in enumerate(canvases):
        span = _open_span(canvas)
        start = layouts[row].starts[canvas.spans.index(span)]
        assert span.open_slot is not None
        lengths = np.arange(span.shortest, span.open_slot, span.stride)
        slot = range(start + len(span.ids), start + span.open_slot)
        where[row, slot if settings.single_pass else start + lengths] = True
        asked.append((span, start, lengths, slot))
    states, uniform = plain.look(group.tokens, where), group.uniform(FIRST_TOKEN_STEP, SampleStream.TOKEN)
    ended = torch.zeros(where.shape, dtype=torch.float64, device=where.device)
    ids = torch.zeros_like(group.tokens)
    for modality in {span.modality for span, *_ in asked}:
        end = network.vocabulary.data_size(modality) + 1
        for at, dist in plain.distributions(states, where, modality):
            ended[at] = dist.log_prob(torch.full_like(at[0], end)).exp()
            if settings.single_pass:
                dist.shifted_nV[:, end] = -np.inf
                ids[at] = Categorical(dist.shifted_nV).draw(uniform[at], settings.temperature, settings.top_p)
    found = []
    for row, (span, start, lengths, slot) in enumerate(asked):
        distribution = np.maximum.accumulate(ended[row].cpu().numpy()[start + lengths])
        mass = np.diff(distribution, prepend=0.0)
        mass[-1] += 1 - distribution[-1]  # whatever has not ended by then ends there
        whole = np.concatenate([span.ids, ids[row, slot].cpu().numpy()])
        found.append((dict(zip(lengths.tolist(), (mass / mass.sum()).tolist())), whole))
    return found


def _pick(dist: dict[int, float], how: str, u: float) -> int:
    lengths, mass = list(dist), np.array(list(dist.values()))
    if how == "mode":
        return lengths[int(mass.argmax())]
    threshold = 0.5 if how == "median" else u
    return lengths[min(int(np.searchsorted(np.cumsum(mass), threshold, side="right")), len(lengths) - 1)]

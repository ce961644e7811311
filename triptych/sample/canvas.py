"""A canvas: one sequence in which any part of any modality is known, masked, or of unknown length.

    text        [TASK BOS text EOS]
    pair        [TASK BOS_m media EOS_m BOS text EOS]

A `Span` is the part of one modality. If its end is open, the rest of its slot, EOS included, is masked, and `generate`
first chooses a length with the model (see `sample.lengths`, and `data.sequences` for open ends in training).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from triptych.errors import UserError
from triptych.utils.arguments import checked
from triptych.vocab import Modality, Task, Vocabulary

MASKED = -1  # in a span's ids: to be generated
_LONGEST = 2**24  # positions of a span, beyond any model


@dataclass(frozen=True)
class Span:
    """Local ids of one modality, -1 at positions to generate."""

    modality: Modality
    ids: np.ndarray
    open_slot: int | None = None
    """None for a span of known length. Otherwise the end is open: `ids` is a prefix, and prefix, generated tokens and
    at least one EOS fill a slot of this many positions."""
    stride: int = 1
    """The length is a multiple of this: the number of codebooks for audio."""
    unconditional: bool = False
    """Whether masked ids stay masked: the model generates the rest without this span."""

    def __post_init__(self) -> None:
        name = self.modality.name.lower()
        if self.open_slot is not None and len(self.ids) + 1 > self.open_slot:
            raise UserError(
                f"the {name} given is {len(self.ids)} tokens long, but the model knows "
                f"{name} of at most {self.open_slot - 1} tokens. Shorten it."
            )
        if self.open_slot is not None and self.min_length >= self.open_slot:
            raise UserError(
                f"the model knows {name} of at most {self.open_slot - 1} tokens, "
                f"but this span needs at least {self.min_length}."
            )

    @property
    def num_masked(self) -> int:
        return int((self.ids == MASKED).sum())

    @property
    def min_length(self) -> int:
        """The shortest length an open span can take: its prefix, at least one token, rounded up to the stride."""
        return -(-max(len(self.ids), 1) // self.stride) * self.stride

    def closed(self, length: int) -> "Span":
        """This span with a fixed length; the positions after the prefix are masked."""
        new = np.full(length - len(self.ids), MASKED, self.ids.dtype)
        return replace(self, ids=np.concatenate([self.ids, new]), open_slot=None)


@checked
def known(modality: Modality, ids: np.ndarray | Sequence[int]) -> Span:
    return Span(modality, np.asarray(ids, np.int64))


@checked
def masked(modality: Modality, length: int) -> Span:
    if not 0 <= length <= _LONGEST:
        raise UserError(f"length must be from 0 to {_LONGEST:,}, got {length}.")
    return Span(modality, np.full(length, MASKED, np.int64))


def unconditional(modality: Modality, length: int) -> Span:
    """A span that stays masked, as the text does in the unconditional branch of guidance."""
    return replace(masked(modality, length), unconditional=True)


def open_ended(modality: Modality, slot: int, prefix: np.ndarray | None = None, stride: int = 1) -> Span:
    ids = np.zeros(0, np.int64) if prefix is None else np.asarray(prefix, np.int64)
    return Span(modality, ids, slot, stride)


@dataclass(frozen=True)
class Canvas:
    """One request: a text, or media with a text."""

    text: Span
    media: Span | None = None
    hide_text: bool = False
    """Whether the unconditional branch of guidance masks the known text. Guidance needs this."""

    def __post_init__(self) -> None:
        if self.text.modality != Modality.TEXT or (self.media and self.media.modality == Modality.TEXT):
            raise UserError("a canvas takes a text span as text, and an image or audio span as media.")

    @property
    def task(self) -> Task:
        if self.media is None:
            return Task.TEXT
        return Task.IMAGE_TEXT if self.media.modality == Modality.IMAGE else Task.AUDIO_TEXT

    @property
    def spans(self) -> tuple[Span, ...]:
        """In the order of the sequence: media, then text."""
        return (self.text,) if self.media is None else (self.media, self.text)

    def with_span(self, span: Span) -> "Canvas":
        """This canvas with the span of the same modality replaced."""
        return replace(self, text=span) if span.modality == Modality.TEXT else replace(self, media=span)


@dataclass(frozen=True)
class CanvasTokens:
    """A canvas as the model sees it; all arrays are [T]."""

    tokens: np.ndarray
    """Ids of the unified vocabulary."""
    masked: np.ndarray
    """Positions to generate."""
    modality: np.ndarray
    """Modality of each position; TASK counts as text."""
    allow_eos: np.ndarray
    """Positions where EOS may be generated: those after the minimum length of an open span."""
    hidden: np.ndarray
    """Positions that the unconditional branch of guidance masks."""
    starts: tuple[int, ...]
    """Position of each span's first id."""


def lay_out(canvas: Canvas, vocabulary: Vocabulary) -> CanvasTokens:
    """Add the special tokens and map ids to the unified vocabulary."""
    tokens, starts = [vocabulary.task(canvas.task)], []
    modality, allow_eos, is_unconditional = [Modality.TEXT], [False], [False]
    for span in canvas.spans:
        slot = span.open_slot if span.open_slot is not None else len(span.ids)
        fill = np.full(slot - len(span.ids), MASKED, np.int64)
        local = np.concatenate([span.ids, fill])
        ids = np.where(local == MASKED, vocabulary.mask(span.modality), 0)
        ids[local != MASKED] = vocabulary.to_global(span.modality, local[local != MASKED])
        end = [] if span.open_slot is not None else [vocabulary.eos(span.modality)]
        tokens.append(vocabulary.bos(span.modality))
        starts.append(len(tokens))
        tokens += [*ids.tolist(), *end]
        modality += [span.modality] * (1 + slot + len(end))
        num_required = span.min_length - len(span.ids) if len(fill) else 0  # generated tokens before the first EOS
        allow_eos += [False] * (1 + len(span.ids) + num_required) + [True] * (len(fill) - num_required)
        allow_eos += [False] * len(end)
        is_unconditional += [span.unconditional] * (1 + slot + len(end))
    token_array, modality_array = np.array(tokens, np.int64), np.array(modality, np.uint8)
    is_masked = (token_array == vocabulary.mask_ids[modality_array]) & ~np.array(is_unconditional)
    text_ids = np.zeros(len(tokens), bool)
    text_ids[starts[-1] : starts[-1] + len(canvas.text.ids)] = True
    return CanvasTokens(
        tokens=token_array,
        masked=is_masked,
        modality=modality_array,
        allow_eos=np.array(allow_eos),
        hidden=text_ids & ~is_masked if canvas.hide_text else np.zeros(len(tokens), bool),
        starts=tuple(starts),
    )


def read_back(canvas: Canvas, tokens: np.ndarray, vocabulary: Vocabulary) -> Canvas:
    """The canvas with its masked positions filled from a finished sequence."""
    for span, start in zip(canvas.spans, lay_out(canvas, vocabulary).starts):
        if span.unconditional:
            continue
        ids = vocabulary.to_local(span.modality, tokens[start : start + len(span.ids)])
        canvas = canvas.with_span(replace(span, ids=ids))
    return canvas

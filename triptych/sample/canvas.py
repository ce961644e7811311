"""A canvas: one sequence in which any part of any modality is known, masked, or of unknown length.

    text        [TASK BOS text EOS]
    pair        [TASK BOS_m media EOS_m BOS text EOS]

A `Span` is one modality's part of it. Where its end is open, masked positions up to the end of the slot take the place
of the rest and of its EOS; `generate` first asks the model how long it should be (see `data.sequences` on open ends).
"""

from dataclasses import dataclass, replace

import numpy as np

from triptych.errors import UserError
from triptych.vocab import Modality, Task, Vocabulary

MASKED = -1  # in a span's ids: to be generated


@dataclass(frozen=True)
class Span:
    """Local ids of one modality, -1 where something is to be generated."""

    modality: Modality
    ids: np.ndarray
    open_slot: int | None = None
    """If set, the end is open: what follows `ids` is to be generated, `ids` and the rest filling at most this many
    positions, of which one at least is the end."""
    stride: int = 1
    """Its length is a multiple of this: codebooks of a sound."""
    unconditional: bool = False
    """Whether masked ids stay masked: nothing is known of this span, and nothing asked."""

    def __post_init__(self) -> None:
        if self.open_slot is not None and len(self.ids) + 1 > self.open_slot:
            raise UserError(
                f"the {self.modality.name.lower()} given is {len(self.ids)} tokens long, but the model knows "
                f"{self.modality.name.lower()} of at most {self.open_slot - 1} tokens. Shorten it."
            )
        if self.open_slot is not None and self.shortest >= self.open_slot:
            raise UserError(
                f"the model knows {self.modality.name.lower()} of at most {self.open_slot - 1} tokens, "
                f"but here it would be {self.shortest} at least."
            )

    @property
    def num_masked(self) -> int:
        return int((self.ids == MASKED).sum())

    @property
    def shortest(self) -> int:
        """Tokens an open span has at least: what is given, and something, in whole steps of the stride."""
        return -(-max(len(self.ids), 1) // self.stride) * self.stride

    def closed(self, length: int) -> "Span":
        """Of so many positions in all, the new ones masked."""
        new = np.full(length - len(self.ids), MASKED, self.ids.dtype)
        return replace(self, ids=np.concatenate([self.ids, new]), open_slot=None)


def known(modality: Modality, ids: np.ndarray) -> Span:
    return Span(modality, np.asarray(ids, np.int64))


def masked(modality: Modality, length: int) -> Span:
    return Span(modality, np.full(length, MASKED, np.int64))


def unconditional(modality: Modality, length: int) -> Span:
    """A span the model is to do without, as in the unconditional branch of guidance."""
    return replace(masked(modality, length), unconditional=True)


def open_ended(modality: Modality, slot: int, prefix: np.ndarray | None = None, stride: int = 1) -> Span:
    ids = np.zeros(0, np.int64) if prefix is None else np.asarray(prefix, np.int64)
    return Span(modality, ids, slot, stride)


@dataclass(frozen=True)
class Canvas:
    """One request: a text, or media with a text."""

    text: Span
    media: Span | None = None
    hide: bool = False
    """Whether the unconditional branch of guidance hides the text: it must be known, and something else masked."""

    def __post_init__(self) -> None:
        if self.text.modality != Modality.TEXT or (self.media and self.media.modality == Modality.TEXT):
            raise UserError("a canvas takes a text, and an image or a sound as its media.")

    @property
    def task(self) -> Task:
        if self.media is None:
            return Task.TEXT
        return Task.IMAGE_TEXT if self.media.modality == Modality.IMAGE else Task.AUDIO_TEXT

    @property
    def spans(self) -> tuple[Span, ...]:
        return (self.text,) if self.media is None else (self.media, self.text)

    def with_span(self, span: Span) -> "Canvas":
        """The same with the span of this modality replaced."""
        return replace(self, text=span) if span.modality == Modality.TEXT else replace(self, media=span)


@dataclass(frozen=True)
class CanvasTokens:
    """A canvas as the model sees it; all arrays are [T]."""

    tokens: np.ndarray
    """Ids of the unified vocabulary."""
    masked: np.ndarray
    """What is to be generated."""
    modality: np.ndarray
    """Of each position; TASK counts as text."""
    may_end: np.ndarray
    """Where EOS may be generated: behind an open end."""
    hidden: np.ndarray
    """What the unconditional branch of guidance does not see."""
    starts: tuple[int, ...]
    """Where each span begins."""


def lay_out(canvas: Canvas, vocabulary: Vocabulary) -> CanvasTokens:
    """Put the special tokens around the spans."""
    tokens, starts = [vocabulary.task(canvas.task)], []
    modality, is_open, is_unsaid = [Modality.TEXT], [False], [False]
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
        still = span.shortest - len(span.ids) if len(fill) else 0  # what must come before an end may
        is_open += [False] * (1 + len(span.ids) + still) + [True] * (len(fill) - still) + [False] * len(end)
        is_unsaid += [span.unconditional] * (1 + slot + len(end))
    token_array, modality_array = np.array(tokens, np.int64), np.array(modality, np.uint8)
    masks = np.array([vocabulary.mask(m) for m in Modality], np.int64)
    where = (token_array == masks[modality_array]) & ~np.array(is_unsaid)
    text_data = np.zeros(len(tokens), bool)
    text_start = starts[-1]
    text_data[text_start : text_start + len(canvas.text.ids)] = canvas.hide
    return CanvasTokens(token_array, where, modality_array, np.array(is_open), text_data & ~where, tuple(starts))


def read_back(canvas: Canvas, tokens: np.ndarray, vocabulary: Vocabulary) -> Canvas:
    """The canvas with its masked positions filled from a finished sequence."""
    for span, start in zip(canvas.spans, lay_out(canvas, vocabulary).starts):
        if span.unconditional:
            continue
        ids = vocabulary.to_local(span.modality, tokens[start : start + len(span.ids)])
        canvas = canvas.with_span(replace(span, ids=ids))
    return canvas

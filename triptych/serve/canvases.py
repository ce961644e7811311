"""Canvases of `/v1/canvas`: from the segments of a body to a canvas, and from token sequences back to segments."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from triptych.errors import UserError
from triptych.hub.directions import Kind
from triptych.hub.pipeline import Pipeline
from triptych.hub.requests import Request
from triptych.sample.canvas import MASKED, Canvas, Span, open_ended, unconditional
from triptych.serve.job import Outlook
from triptych.serve.limits import ServeLimits
from triptych.serve.media import data_uri, decode_audio, decode_image, encode_audio, encode_image
from triptych.serve.remote import bytes_of_url
from triptych.serve.schemas import Segment
from triptych.utils.media import Audio
from triptych.vocab import Modality, Vocabulary

_NO_TEXT = 8  # length of a text that is not given: that of a usual caption


def request_of(pipe: Pipeline, segments: Sequence[Segment], limits: ServeLimits) -> Request:
    """The request that fills a canvas of these segments; its result is the filled canvas."""
    by_kind = {segment.modality: segment for segment in segments}
    if len(by_kind) < len(segments) or {"image", "audio"} <= set(by_kind):
        raise UserError("a canvas has at most one text, and at most one image or audio.")
    text, media = by_kind.get("text"), by_kind.get("image") or by_kind.get("audio")
    beside = None if media is None else media.modality
    media_span = None if media is None else span_of(pipe, media, limits)
    text_span = unconditional(Modality.TEXT, _NO_TEXT)
    if text is not None:
        is_whole = not text.open and text.mask is None and text.length is None
        is_prompt = is_whole and media_span is not None and _is_generated(media_span)
        text_span = span_of(pipe, text, limits, beside, is_prompt)
    is_text_given = text is not None and not _is_generated(text_span)
    if not _is_generated(text_span) and (media_span is None or not _is_generated(media_span)):
        raise UserError("there is nothing to generate: mask something, or leave out the content of a segment.")
    makes_media = media_span is not None and _is_generated(media_span)
    target = media_span.modality if makes_media and media_span is not None else Modality.TEXT
    canvas = Canvas(text_span, media_span, hide_text=is_text_given and makes_media)
    return Request(
        canvas, target, read=lambda filled: filled, defaults={} if canvas.hide_text else {"guidance_scale": 1.0}
    )


def span_of(pipe: Pipeline, segment: Segment, limits: ServeLimits, beside: Any = None, is_prompt: bool = False) -> Span:
    """The span of a segment: what is known, with -1 at positions to generate."""
    modality = Modality[segment.modality.upper()]
    ids = _given_ids(pipe, segment, modality, limits, beside, is_prompt)
    if segment.mask is not None:
        ids = _masked(ids, segment)
    if segment.open:
        return _open(pipe, segment, modality, ids)
    if modality == Modality.IMAGE:
        length = pipe.bundle.image.tokens_per_image
        if segment.length not in (None, length) or len(ids) not in (0, length):
            raise UserError(f"an image has {length} tokens with this model, got {segment.length or len(ids)}.")
    elif segment.length is None:
        if not len(ids):
            return _open(pipe, segment, modality, ids)
        length = len(ids)
    else:
        length = segment.length
    stride = pipe.bundle.audio.num_codebooks if modality == Modality.AUDIO else 1
    if length < len(ids) or length % stride:
        raise UserError(
            f"length must be at least the {len(ids)} tokens given"
            + (f" and a multiple of {stride}" if stride > 1 else "")
            + f", got {length}."
        )
    if length > pipe.limits.seq_len:
        raise UserError(f"length must be at most {pipe.limits.seq_len} for this model, got {length}.")
    return Span(modality, np.concatenate([ids, np.full(length - len(ids), MASKED, np.int64)]))


def _given_ids(
    pipe: Pipeline, segment: Segment, modality: Modality, limits: ServeLimits, beside: Any, is_prompt: bool
) -> np.ndarray:
    if segment.content is not None and segment.tokens is not None:
        raise UserError("a segment has content or tokens, not both.")
    if segment.tokens is not None:
        given = [each for each in segment.tokens if each is not None]
        count = pipe.vocabulary.data_size(modality)
        if not all(0 <= each < count for each in given):
            raise UserError(f"tokens of {segment.modality} lie between 0 and {count - 1}; null is to be generated.")
        return np.array([MASKED if each is None else each for each in segment.tokens], np.int64)
    if segment.content is None:
        return np.zeros(0, np.int64)
    if modality == Modality.TEXT:
        text = checked_text(segment.content, limits)
        return pipe._inputs.text(text, beside, is_prompt=is_prompt).ids if text.strip() else np.zeros(0, np.int64)
    data = bytes_of_url(segment.content, segment.modality, limits)  # type: ignore[arg-type]
    if modality == Modality.IMAGE:
        return pipe._inputs.image(decode_image(data, limits)).ids
    return pipe._inputs.audio(decode_audio(data, limits)).ids


def checked_text(text: str, limits: ServeLimits) -> str:
    """A text that is not too long for the server."""
    if len(text) > limits.text_chars:
        raise UserError(f"a text has at most {limits.text_chars} characters, got {len(text)}.")
    return text


def _masked(ids: np.ndarray, segment: Segment) -> np.ndarray:
    assert segment.mask is not None
    if segment.mask == "all":
        return np.full_like(ids, MASKED)
    new = ids.copy()
    for start, stop in segment.mask:
        if not 0 <= start < stop <= len(ids):
            raise UserError(
                f"a range of mask is [start, stop) within the {len(ids)} tokens of the segment, got [{start}, {stop})."
            )
        new[start:stop] = MASKED
    return new


def _open(pipe: Pipeline, segment: Segment, modality: Modality, ids: np.ndarray) -> Span:
    slot = {Modality.TEXT: pipe.limits.text_slot, Modality.AUDIO: pipe.limits.audio_slot}.get(modality)
    if slot is None:
        raise UserError(f"this model cannot choose the length of {segment.modality}: give it as length.")
    if (ids == MASKED).any():
        raise UserError("a segment whose length the model chooses has no masked tokens before its open end.")
    return open_ended(modality, slot, ids, pipe.bundle.audio.num_codebooks if modality == Modality.AUDIO else 1)


def _is_generated(span: Span) -> bool:
    return not span.unconditional and (span.open_slot is not None or span.num_masked > 0)


# -- back to segments -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SegmentIds:
    """The ids of one segment in a sequence, with -1 where it is masked."""

    modality: Modality
    start: int
    """Position of the first id in the sequence."""
    ids: np.ndarray


def segments_in(tokens: np.ndarray, vocabulary: Vocabulary) -> list[SegmentIds]:
    """The segments of a sequence [T], found by their BOS and EOS."""
    segments = []
    for modality in Modality:
        starts = np.flatnonzero(tokens == vocabulary.bos(modality))
        if not len(starts):
            continue
        start = int(starts[0]) + 1
        ends = np.flatnonzero(tokens[start:] == vocabulary.eos(modality))
        part = tokens[start : start + int(ends[0])] if len(ends) else tokens[start:]
        is_masked = part == vocabulary.mask(modality)
        local = np.where(is_masked, MASKED, part - vocabulary.ids(modality).start)
        segments.append(SegmentIds(modality, start, local))
    return segments


def text_segment(tokens: np.ndarray, vocabulary: Vocabulary) -> SegmentIds:
    """The text in a sequence."""
    (segment,) = (each for each in segments_in(tokens, vocabulary) if each.modality == Modality.TEXT)
    return segment


def num_masked(tokens: np.ndarray, vocabulary: Vocabulary, kind: Kind) -> int:
    """How many tokens of a modality are masked in a sequence."""
    return int((tokens == vocabulary.mask(Modality[kind.upper()])).sum())


def likeliest_ids(segment: SegmentIds, outlook: Outlook, vocabulary: Vocabulary) -> np.ndarray:
    """The ids of a segment, as they would be if every masked position had its likeliest id."""
    first, size = vocabulary.ids(segment.modality).start, vocabulary.data_size(segment.modality)
    expected = dict(zip(outlook.positions.tolist(), outlook.ids[:, 0].tolist()))
    ids = segment.ids.copy()
    for position in np.flatnonzero(ids == MASKED).tolist():
        local = expected.get(segment.start + position, -1) - first
        ids[position] = local if 0 <= local < size else 0
    return ids


def content_of(pipe: Pipeline, modality: Modality, ids: np.ndarray) -> str:
    """A text, or the data URI of an image or audio. Masked positions of media are shown as id 0, of texts left out."""
    if modality == Modality.TEXT:
        return str(pipe.bundle.text.decode([ids[ids != MASKED]])[0])
    made = pipe.bundle[modality].decode([np.where(ids == MASKED, 0, ids)])[0]
    if isinstance(made, Audio):
        return data_uri(encode_audio(made), "audio/wav")
    return data_uri(encode_image(made), "image/png")


def pieces_of(pipe: Pipeline, ids: np.ndarray) -> list[str | None]:
    """The text of every token; None for masked ones."""
    decode = pipe.bundle.text.decode
    return [None if each == MASKED else decode([np.array([each])])[0] for each in ids]


def layout_of(pipe: Pipeline, modality: Modality, length: int) -> dict[str, Any]:
    """What the positions of a segment are: rows and columns of an image, frames of audio."""
    if modality == Modality.IMAGE:
        side = pipe._inputs.codes_per_side
        return {"rows": side, "columns": side, "codebooks": pipe._inputs.image_codebooks}
    if modality == Modality.AUDIO:
        codebooks = pipe.bundle.audio.num_codebooks
        return {
            "frames": length // codebooks,
            "codebooks": codebooks,
            "frame_rate": float(pipe.bundle.audio.frame_rate),
        }
    return {}

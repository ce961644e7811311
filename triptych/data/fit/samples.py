"""The samples that tokenizers are fitted to: a bounded number from every input, some of them held out."""

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from PIL import Image

from triptych.data.sources import BadSample, ReadOptions, Source, open_source
from triptych.data.types import RawSample
from triptych.errors import DataError, UserError
from triptych.utils.media import Audio, read_audio, read_image
from triptych.vocab import Task

MAX_TEXT_BYTES = 32_000_000  # a BPE of a few thousand ids does not change with more
MAX_IMAGES = 20_000
MAX_IMAGE_BYTES = 1_500_000_000  # of decoded pixels
MAX_AUDIO_SECONDS = 7_200.0
MAX_CLIP_SECONDS = 30.0
_PIECE_CHARS = 16_000
_HELD_OUT_SHARE, _MAX_HELD_OUT = 20, 256  # every twentieth sample, at most 256


@dataclass
class FitSamples:
    """Samples by kind. Held-out ones are for the report alone."""

    texts: list[str] = field(default_factory=list)
    held_out_texts: list[str] = field(default_factory=list)
    images: list[Image.Image] = field(default_factory=list)
    held_out_images: list[Image.Image] = field(default_factory=list)
    clips: list[Audio] = field(default_factory=list)
    held_out_clips: list[tuple[str, Audio]] = field(default_factory=list)
    """With their transcripts."""
    bad: list[BadSample] = field(default_factory=list)

    @property
    def text_bytes(self) -> int:
        return sum(len(text.encode()) for text in self.texts)

    @property
    def audio_seconds(self) -> float:
        return sum(clip.seconds for clip in self.clips)


def open_sources(inputs: Sequence[str], options: ReadOptions) -> list[Source]:
    """One source per input, each with its own format and task."""
    return [open_source([text], options=options) for text in inputs]


def read_samples(sources: Sequence[Source], max_side: int | None = None, seed: int = 0) -> FitSamples:
    """Read samples of all sources until the limits are reached. Images larger than `max_side` are reduced to it."""
    samples = FitSamples()
    by_task = {task: [source for source in sources if source.task == task] for task in Task}
    for task, members in by_task.items():
        for source in members:
            _read(samples, source, task, 1 / len(members), max_side, seed)
    if not samples.texts:
        reason = samples.bad[0].reason if samples.bad else "all inputs are empty"
        raise DataError(f"no usable sample was found: {reason}.")
    return samples


def _read(samples: FitSamples, source: Source, task: Task, share: float, max_side: int | None, seed: int) -> None:
    """Add samples of one source, up to its share of the limits."""
    chosen: list[tuple[str, str, Image.Image | Audio | None]] = []
    size = pixels = seconds = 0.0
    for item in spread(source, MAX_IMAGES, seed):
        if isinstance(item, BadSample):
            samples.bad.append(item)
            continue
        media: Image.Image | Audio | None = None
        try:
            if task == Task.IMAGE_TEXT and item.media is not None:
                media = _reduced(read_image(item.media), max_side)
                pixels += 3 * media.width * media.height
            elif task == Task.AUDIO_TEXT and item.media is not None:
                media = read_audio(
                    item.media,
                    item.offset_seconds,
                    item.duration_seconds,
                    max_seconds=MAX_CLIP_SECONDS,
                    too_long="cut",
                )
                seconds += media.seconds
        except UserError as error:
            samples.bad.append(BadSample(item.key, str(error)))
            continue
        if task != Task.TEXT and media is None:
            continue
        text = item.prompt + item.response if task != Task.AUDIO_TEXT else item.text
        try:
            size += len(text.encode())
        except UnicodeEncodeError:
            samples.bad.append(BadSample(item.key, "not UTF-8"))
            continue
        pieces = _pieces(text) if task == Task.TEXT else [text]
        chosen += [(f"{item.key} {n}" if n else item.key, piece, media) for n, piece in enumerate(pieces)]
        is_enough = (size / MAX_TEXT_BYTES, pixels / MAX_IMAGE_BYTES, seconds / MAX_AUDIO_SECONDS)
        if max(is_enough) >= share or (task == Task.IMAGE_TEXT and len(chosen) >= MAX_IMAGES * share):
            break
    _divide(samples, chosen)


def _pieces(text: str) -> list[str]:
    """A long text in pieces of whole lines, so that a part of a single document can be held out."""
    pieces, start = [], 0
    while start < len(text):
        end = text.find("\n", start + _PIECE_CHARS)
        end = len(text) if end < 0 else end + 1
        pieces.append(text[start:end])
        start = end
    return pieces or [text]


def _divide(samples: FitSamples, chosen: list[tuple[str, str, Image.Image | Audio | None]]) -> None:
    """Hold out a few samples: those whose names have the smallest hashes. A single sample is fitted to and reported."""
    ranked = sorted(chosen, key=lambda entry: hashlib.sha256(entry[0].encode()).digest())
    count = min(_MAX_HELD_OUT, -(-len(ranked) // _HELD_OUT_SHARE))
    held_out = ranked[:count]
    for _, text, media in ranked[count:] or ranked:
        samples.texts.append(text)
        if isinstance(media, Image.Image):
            samples.images.append(media)
        elif media is not None:
            samples.clips.append(media)
    for _, text, media in held_out:
        samples.held_out_texts.append(text)
        if isinstance(media, Image.Image):
            samples.held_out_images.append(media)
        elif media is not None:
            samples.held_out_clips.append((text, media))


def spread(source: Source, limit: int, seed: int) -> Iterator[RawSample | BadSample]:
    """Samples from files in random order, about equally many from each: a large input is not read to its end."""
    parts = list(source.parts)
    random.Random(seed).shuffle(parts)
    per_part = max(16, -(-2 * limit // max(1, len(parts))))
    for part in parts:
        yield from islice(Source([part], source.task, source.options), per_part)


def _reduced(image: Image.Image, max_side: int | None) -> Image.Image:
    if max_side is None or max(image.size) <= max_side:
        return image
    scale = max_side / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return image.resize(size, Image.Resampling.BICUBIC)

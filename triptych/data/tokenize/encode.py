"""Raw samples to token ids, a few at a time. One that cannot be used becomes a BadSample and harms no other."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from triptych.data.sources import BadSample, Item
from triptych.data.tokenize.settings import TokenizeSettings
from triptych.data.transforms import paper_transform, resize_with_white_padding
from triptych.data.types import RawSample, TokenSample
from triptych.errors import UserError
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.utils.media import Audio, read_audio, read_image
from triptych.vocab import Modality, Task

Outcome = list[TokenSample] | BadSample
"""What became of a raw sample: its views as tokens, or why there are none."""


@dataclass(frozen=True)
class _Opened:
    """A sample whose text and media can be used; `views` are empty where there is only text."""

    key: str
    text: str
    views: list[Any]


class Encoder:
    """Tokenizes raw samples of one task. The outcome depends on a sample and its number, not on its neighbours."""

    def __init__(self, bundle: TokenizerBundle, task: Task, settings: TokenizeSettings):
        self._task, self._settings = task, settings
        self._text = bundle[Modality.TEXT]
        self._media: Any = None if task.partner is None else bundle[task.partner]

    def __call__(self, first: int, items: Sequence[Item]) -> list[Outcome]:
        """Encode samples number `first`, `first` + 1, ... of the source."""
        opened = [self._open(item, first + index) for index, item in enumerate(items)]
        good = [sample for sample in opened if isinstance(sample, _Opened)]
        texts = iter(_ids(self._text, [sample.text for sample in good]))
        views = iter(_ids(self._media, [view for sample in good for view in sample.views]))
        return [
            self._outcome(sample, next(texts), [next(views) for _ in sample.views])
            if isinstance(sample, _Opened)
            else sample
            for sample in opened
        ]

    def _open(self, item: Item, number: int) -> _Opened | BadSample:
        if isinstance(item, BadSample):
            return item
        if not item.text.strip():
            return BadSample(item.key, "empty text" if self._task == Task.TEXT else "empty caption")
        if isinstance(item.media, str) and not os.path.isfile(item.media):
            return BadSample(item.key, f"missing file: {item.media}")
        match self._task:
            case Task.TEXT:
                return _Opened(item.key, item.text, [])
            case Task.IMAGE_TEXT:
                return self._open_image(item, number)
            case Task.AUDIO_TEXT:
                return self._open_sound(item)

    def _open_image(self, item: RawSample, number: int) -> _Opened | BadSample:
        assert item.media is not None
        try:
            image = read_image(item.media)
        except UserError as error:
            return BadSample(item.key, f"bad image: {error}")
        size = self._media.resolution
        if self._settings.image_transform == "pad":
            return _Opened(item.key, item.text, [resize_with_white_padding(image, size)])
        # Seeded by what the view is, so that it does not matter which process makes it, or after how many others.
        seeds = ([self._settings.seed, number, view] for view in range(self._settings.views))
        return _Opened(
            item.key, item.text, [paper_transform(image, size, np.random.default_rng(seed)) for seed in seeds]
        )

    def _open_sound(self, item: RawSample) -> _Opened | BadSample:
        assert item.media is not None
        limit, cut = self._settings.max_seconds, self._settings.too_long == "cut"
        try:
            # A second more than allowed is enough to see that it is too long, without decoding hours.
            sound: Audio = read_audio(
                item.media,
                item.offset_seconds,
                item.duration_seconds,
                max_seconds=limit if cut else limit + 1,
                too_long="cut",
            )
        except UserError as error:
            return BadSample(item.key, f"bad audio: {error}")
        if sound.seconds > limit and not cut:
            return BadSample(item.key, f"audio too long: more than {limit:g} s")
        return _Opened(item.key, item.text, [sound])

    def _outcome(self, sample: _Opened, text: np.ndarray | str, views: list[np.ndarray | str]) -> Outcome:
        if isinstance(text, str):
            return BadSample(sample.key, f"text cannot be encoded: {text}")
        if self._task == Task.TEXT:
            return [TokenSample(self._task, np.zeros(0, np.int32), text)]
        tokens = []
        for view in views:
            if isinstance(view, str):
                return BadSample(sample.key, f"{self._media.modality.name.lower()} cannot be encoded: {view}")
            tokens.append(TokenSample(self._task, view, text))
        return tokens


def _ids(tokenizer: Any, items: list[Any]) -> list[np.ndarray | str]:
    """The ids of every item, or why it has none."""
    if not items:
        return []
    try:
        encoded: list[np.ndarray | str] = list(tokenizer.encode(items))
    except UserError as error:
        if len(items) == 1:
            return [str(error)]
        return [result for item in items for result in _ids(tokenizer, [item])]  # one of them is to blame
    for index, ids in enumerate(encoded):
        assert isinstance(ids, np.ndarray)
        if not len(ids):
            encoded[index] = "it gives no tokens"
        else:
            assert 0 <= ids.min() <= ids.max() < tokenizer.vocab_size
    return encoded

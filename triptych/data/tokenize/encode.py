"""Raw samples to token ids, batch by batch. An unusable sample becomes a BadSample and affects no other sample."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from triptych.data.sources import BadSample, Item
from triptych.data.tokenize.config import TokenizeConfig
from triptych.data.transforms import paper_transform, resize_with_white_padding
from triptych.data.types import RawSample, TokenSample
from triptych.errors import UserError
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.utils.media import read_audio, read_image
from triptych.vocab import Modality, Task

_NO_IDS = np.zeros(0, np.int32)
Outcome = list[TokenSample] | BadSample
"""The result for a raw sample: its views as tokens, or the reason why there are none."""


@dataclass(frozen=True)
class _Decoded:
    """A sample with usable text and decoded media; `views` is empty for text-only samples."""

    sample: RawSample
    views: list[Any]


class Encoder:
    """Tokenizes raw samples of one task. The outcome depends on a sample and its number, not on its neighbours."""

    def __init__(self, bundle: TokenizerBundle, task: Task, config: TokenizeConfig):
        self._task, self._config = task, config
        self._text = bundle[Modality.TEXT]
        self._media: Any = None if task.partner is None else bundle[task.partner]

    def __call__(self, first: int, items: Sequence[Item]) -> list[Outcome]:
        """Encode samples number `first`, `first` + 1, ... of the source."""
        decoded = [self._decode(item, first + index) for index, item in enumerate(items)]
        good = [each for each in decoded if isinstance(each, _Decoded)]
        texts = iter(_ids(self._text, [each.sample.response for each in good]))
        prompts = iter(_ids(self._text, [each.sample.prompt for each in good if each.sample.prompt]))
        views = iter(_ids(self._media, [view for each in good for view in each.views]))
        return [
            self._outcome(
                each.sample,
                next(prompts) if each.sample.prompt else _NO_IDS,
                next(texts),
                [next(views) for _ in each.views],
            )
            if isinstance(each, _Decoded)
            else each
            for each in decoded
        ]

    def _decode(self, item: Item, number: int) -> _Decoded | BadSample:
        if isinstance(item, BadSample):
            return item
        if not item.text.strip():
            what = "response" if item.prompt else "text" if self._task == Task.TEXT else "caption"
            return BadSample(item.key, f"empty {what}")
        if isinstance(item.media, str) and not os.path.isfile(item.media):
            return BadSample(item.key, f"missing file: {item.media}")
        match self._task:
            case Task.TEXT:
                return _Decoded(item, [])
            case Task.IMAGE_TEXT:
                return self._decode_image(item, number)
            case Task.AUDIO_TEXT:
                return self._decode_audio(item)

    def _decode_image(self, item: RawSample, number: int) -> _Decoded | BadSample:
        assert item.media is not None
        try:
            image = read_image(item.media)
        except UserError as error:
            return BadSample(item.key, f"bad image: {error}")
        size = self._media.resolution
        if self._config.image_transform == "pad":
            return _Decoded(item, [resize_with_white_padding(image, size)])
        # Seeded by the sample's number and the view, so that the result does not depend on the process or its history.
        seeds = ([self._config.seed, number, view] for view in range(self._config.views))
        return _Decoded(item, [paper_transform(image, size, np.random.default_rng(seed)) for seed in seeds])

    def _decode_audio(self, item: RawSample) -> _Decoded | BadSample:
        assert item.media is not None
        limit, is_cut = self._config.max_seconds, self._config.too_long == "cut"
        try:
            # One second above the limit shows that the clip is too long, without decoding hours.
            audio = read_audio(
                item.media,
                item.offset_seconds,
                item.duration_seconds,
                max_seconds=limit if is_cut else limit + 1,
                too_long="cut",
            )
        except UserError as error:
            return BadSample(item.key, f"bad audio: {error}")
        if audio.seconds > limit and not is_cut:
            return BadSample(item.key, f"audio too long: more than {limit:g} s")
        return _Decoded(item, [audio])

    def _outcome(
        self, sample: RawSample, prompt: np.ndarray | str, response: np.ndarray | str, views: list[np.ndarray | str]
    ) -> Outcome:
        for ids in (prompt, response):
            if isinstance(ids, str):
                return BadSample(sample.key, f"text cannot be encoded: {ids}")
        assert isinstance(prompt, np.ndarray)
        assert isinstance(response, np.ndarray)
        text = np.concatenate([prompt, response])
        if self._task == Task.TEXT:
            return [TokenSample(self._task, _NO_IDS, text, len(prompt))]
        tokens = []
        for view in views:
            if isinstance(view, str):
                return BadSample(sample.key, f"{self._media.modality.name.lower()} cannot be encoded: {view}")
            tokens.append(TokenSample(self._task, view, text, len(prompt)))
        return tokens


def _ids(tokenizer: Any, items: list[Any]) -> list[np.ndarray | str]:
    """The ids of every item, or the reason why it has none."""
    if not items:
        return []
    try:
        encoded: list[np.ndarray | str] = list(tokenizer.encode(items))
    except UserError as error:
        if len(items) == 1:
            return [str(error)]
        return [result for item in items for result in _ids(tokenizer, [item])]  # finds the item that fails
    for index, ids in enumerate(encoded):
        assert isinstance(ids, np.ndarray)
        if not len(ids):
            encoded[index] = "it gives no tokens"
        else:
            assert 0 <= ids.min() <= ids.max() < tokenizer.vocab_size
    return encoded

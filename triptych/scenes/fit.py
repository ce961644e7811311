"""`triptych scenes fit`: trains the demo tokenizers of the preset `full`.

All three use the training split only, so the test split measures them on unseen compositions and voices.
The tokenizers of the preset `small` are kept as they were fitted first, because studies were run with them.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from triptych.scenes.image import background, draw
from triptych.scenes.layout import place
from triptych.scenes.picture import Picture
from triptych.scenes.samples import scene_sample
from triptych.scenes.speech import available_voices, synthesize
from triptych.scenes.spoken import spoken_caption
from triptych.scenes.vocabulary import model_words
from triptych.scenes.voice_degrade import degrade
from triptych.scenes.world import FULL
from triptych.tokenizers.fit_mel_rvq import fit_mel_rvq
from triptych.tokenizers.fit_patch_vq import fit_codes, fit_decoder
from triptych.tokenizers.mel_rvq import MelRVQ
from triptych.tokenizers.patch_vq import PatchVQ, PatchVQConfig
from triptych.tokenizers.pixels import to_pixels
from triptych.tokenizers.text import ByteBPE
from triptych.utils.media import Audio
from triptych.vocab import Task, Vocabulary

Report = Callable[[str], None]

TEXT_SAMPLES = 40_000
TEXT_VOCABULARY = 1_024  # an upper bound: merging stops when every word of the dataset is one token
IMAGE_NETWORK = PatchVQConfig(resolution=128, patch=16, codes=8192, components=160, width=256, layers=6)
CODE_IMAGES, DECODER_STEPS, IMAGE_BATCH = 12_000, 6_000, 16
SPEECH_CLIPS, SPEECH_CODEBOOKS, SPEECH_DECODER_STEPS = 4_000, 2, 4_000
DEGRADED_SHARE = 0.15  # of the clips: the codes of noise are to be noise, not speech


def fit_text(report: Report, voices: Path | None = None) -> ByteBPE:
    """Texts of all tasks; every word also alone, with and without a space, so that each ends as one token."""
    tasks = (Task.TEXT, Task.IMAGE_TEXT)
    texts = [scene_sample(task, "train", index).text for index in range(TEXT_SAMPLES // 2) for task in tasks]
    known = 2 * model_words()  # twice, because a word that occurs once is not merged
    tokenizer = ByteBPE.train([*texts, *known, *(f"a {word}" for word in known)], TEXT_VOCABULARY)
    report(f"text: {tokenizer.vocab_size} ids")
    return tokenizer


# -- images -----------------------------------------------------------------------------------------------------------


def fit_image(report: Report, voices: Path | None = None) -> PatchVQ:
    tokenizer = PatchVQ.untrained(IMAGE_NETWORK)
    fit_codes(tokenizer, *_distinct_patches(tokenizer), report=report)
    fit_decoder(tokenizer, _image_batches(), DECODER_STEPS, report=report)
    return tokenizer


def _crowded_picture(rng: np.random.Generator) -> Picture:
    """A picture of several objects: an image tokenizer learns little from plain background."""
    categories = [name for name in FULL.categories if name not in ("single object", "colours")]
    return place(FULL.sample(rng, "train", categories[rng.integers(len(categories))]), rng)


def _distinct_patches(tokenizer: PatchVQ) -> tuple[Tensor, Tensor]:
    """Every patch once, with a weight that grows with its frequency."""
    rng = np.random.default_rng(1)
    pixels = (torch.from_numpy(to_pixels([draw(_crowded_picture(rng))])) for _ in range(CODE_IMAGES))
    patches = torch.cat([tokenizer.network.to_patches(image)[0].half() for image in pixels])
    _, first, count = np.unique(patches.numpy().view(np.uint16), axis=0, return_index=True, return_counts=True)
    return patches[torch.from_numpy(first)].float(), torch.from_numpy(np.sqrt(count).clip(max=200)).float()


def _image_batches() -> Iterator[tuple[Tensor, Tensor]]:
    """Images; the pixels of objects have a larger weight than the background."""
    rng = np.random.default_rng(0)
    while True:
        pictures = [_crowded_picture(rng) for _ in range(IMAGE_BATCH)]
        images = torch.from_numpy(to_pixels([draw(picture) for picture in pictures]))
        behind = np.stack([background(picture.background) for picture in pictures]).transpose(0, 3, 1, 2)
        is_object = (images - (2 * torch.from_numpy(behind) - 1)).abs().amax(1, keepdim=True) > 0.04
        yield images, 1 + 3 * is_object.float()


# -- speech -----------------------------------------------------------------------------------------------------------


def fit_audio(report: Report, voices: Path | None = None) -> MelRVQ:
    """Clips in all training voices in turn, some of them degraded."""
    rng = np.random.default_rng(2)
    names = available_voices(voices)
    clips: list[Audio] = []
    for number in range(SPEECH_CLIPS):
        text = spoken_caption(FULL.sample(rng, "train"), rng)
        clip = synthesize(text, rng, FULL, names[number % len(names)], voices)
        clips.append(degrade(clip, rng) if rng.random() < DEGRADED_SHARE else clip)
        if (number + 1) % 1000 == 0:
            report(f"{number + 1} of {SPEECH_CLIPS} sentences spoken, {len(names)} voices")
    return fit_mel_rvq(clips, SPEECH_CODEBOOKS, decoder_steps=SPEECH_DECODER_STEPS, report=report)


FIT_FUNCTIONS: dict[str, Callable[[Report, Path | None], Any]] = {
    "text": fit_text,
    "image": fit_image,
    "audio": fit_audio,
}


def fit_tokenizers(folder: Path, parts: list[str], voices: Path | None = None, report: Report = print) -> None:
    """Train tokenizers and save them in the folder of a bundle; `vocab.json` is written once all three exist."""
    for part in parts:
        tokenizer = FIT_FUNCTIONS[part](report, voices)
        half = {} if part == "text" else {"half": True}
        tokenizer.save(folder / part, **half)
        report(f"wrote {folder / part}")
    write_vocabulary(folder)


def write_vocabulary(folder: Path) -> None:
    """Write `vocab.json` for the tokenizers in a folder, if all three exist."""
    parts = {part: folder / part / "tokenizer.json" for part in FIT_FUNCTIONS}
    if all(path.exists() for path in parts.values()):
        sizes = {part: json.loads(path.read_text())["vocab_size"] for part, path in parts.items()}
        Vocabulary(**sizes).save(folder / "vocab.json")

"""`triptych scenes fit`: trains the demo tokenizers of the preset `full`.

All three use the training split only, so the test split measures them on unseen compositions and voices.
The tokenizers of the preset `small` are kept as they were fitted first, because studies were run with them.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from triptych.scenes.image import draw
from triptych.scenes.layout import place
from triptych.scenes.picture import Picture
from triptych.scenes.samples import scene_sample
from triptych.scenes.speech import available_voices, speakable, synthesize
from triptych.scenes.tokenizer_report import write_reconstruction_report
from triptych.scenes.vocabulary import model_words
from triptych.scenes.voice_degrade import degrade
from triptych.scenes.world import FULL
from triptych.tokenizers.bundle import finish_bundle
from triptych.tokenizers.fit_mel_rvq import fit_mel_rvq
from triptych.tokenizers.fit_patch_names import name_by_pattern_and_color
from triptych.tokenizers.fit_patch_vq import different_patches, fit_patch_vq
from triptych.tokenizers.mel_rvq import MelRVQ
from triptych.tokenizers.patch_vq import PatchVQ, PatchVQConfig
from triptych.tokenizers.text import ByteBPE
from triptych.utils.json_files import read_json
from triptych.utils.media import Audio
from triptych.vocab import Task, Vocabulary

Report = Callable[[str], None]

TEXT_SAMPLES = 40_000
TEXT_VOCABULARY = 2_048  # an upper bound: merging stops when every word of the dataset is one token
IMAGE_CODES = PatchVQConfig(resolution=128, patch=16, codes=8192)
IMAGE_PATTERNS, IMAGE_COLORS = 1024, 32
CODE_IMAGES = 12_000
SPEECH_CLIPS, SPEECH_CODEBOOKS, SPEECH_CODES, SPEECH_DECODER_STEPS = 4_000, 3, 2_048, 6_000
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
    """All patches of pictures of several objects."""
    rng = np.random.default_rng(1)
    images = (draw(_crowded_picture(rng)) for _ in range(CODE_IMAGES))
    tokenizer = fit_patch_vq(IMAGE_CODES, *different_patches(images, IMAGE_CODES), report=report)
    return name_by_pattern_and_color(tokenizer, IMAGE_PATTERNS, IMAGE_COLORS)


def _crowded_picture(rng: np.random.Generator) -> Picture:
    """A picture of several objects: an image tokenizer learns little from plain background."""
    categories = [name for name in FULL.categories if name not in ("single object", "colours")]
    return place(FULL.sample(rng, "train", categories[rng.integers(len(categories))]), rng)


# -- speech -----------------------------------------------------------------------------------------------------------


def fit_audio(report: Report, voices: Path | None = None) -> MelRVQ:
    """Clips in all training voices in turn, some of them degraded."""
    rng = np.random.default_rng(2)
    names = available_voices(voices)
    clips: list[Audio] = []
    for number in range(SPEECH_CLIPS):
        scene, first = FULL.sample(rng, "train"), names[number % len(names)]
        _, text, voice = speakable(scene, "train", rng, names, first, folder=voices)
        clip = synthesize(text, rng, FULL, voice, voices)
        clips.append(degrade(clip, rng) if rng.random() < DEGRADED_SHARE else clip)
        if (number + 1) % 1000 == 0:
            report(f"{number + 1} of {SPEECH_CLIPS} sentences spoken, {len(names)} voices")
    return fit_mel_rvq(clips, SPEECH_CODEBOOKS, SPEECH_CODES, decoder_steps=SPEECH_DECODER_STEPS, report=report)


FIT_FUNCTIONS: dict[str, Callable[[Report, Path | None], Any]] = {
    "text": fit_text,
    "image": fit_image,
    "audio": fit_audio,
}


def fit_tokenizers(folder: Path, parts: list[str], voices: Path | None = None, report: Report = print) -> None:
    """Train tokenizers and save them in the folder of a bundle; `vocab.json` is written once all three exist."""
    for part in parts:
        tokenizer = FIT_FUNCTIONS[part](report, voices)
        half = {"half": True} if part == "audio" else {}
        tokenizer.save(folder / part, **half)
        report(f"wrote {folder / part}")
    write_vocabulary(folder)
    if (folder / "vocab.json").exists():
        write_reconstruction_report(folder, FULL, voices)


def write_vocabulary(folder: Path) -> None:
    """Write `vocab.json` for the tokenizers in a folder, if all three exist."""
    parts = {part: folder / part / "tokenizer.json" for part in FIT_FUNCTIONS}
    if all(path.exists() for path in parts.values()):
        sizes = {part: read_json(path)["vocab_size"] for part, path in parts.items()}
        finish_bundle(folder, Vocabulary(**sizes))

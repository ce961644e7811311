"""How the embedded tokenizers were made: `triptych scenes fit` makes them again.

All three learn from the training split only, so that round trips of the test split are of unseen compositions.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from triptych.scenes import grammar
from triptych.scenes.grammar import Scene, sample_scene
from triptych.scenes.image import PICTURE, picture
from triptych.scenes.speech import speak
from triptych.tokenizers.fit_mel_rvq import fit_mel_rvq
from triptych.tokenizers.fit_movq import fit_movq, retire_codes
from triptych.tokenizers.image import MoVQ
from triptych.tokenizers.mel_rvq import MelRVQ
from triptych.tokenizers.pixels import to_pixels
from triptych.tokenizers.text import ByteBPE
from triptych.vocab import Vocabulary

Report = Callable[[str], None]

TEXT_DOCUMENTS = 30_000
TEXT_VOCABULARY = 1_024  # an upper bound: merging ends when every word of the world is one token
IMAGE_STEPS, IMAGE_BATCH = 3_000, 8
REREAD_PICTURES = 1_000
IMAGE_NETWORK: dict[str, Any] = {
    "local": True,
    "channels": (64, 128, 128),
    "patch": 4,
    "codes": 512,
    "latent_channels": 8,
    "groups": 8,
}
SPEECH_CLIPS, SPEECH_CODEBOOKS, SPEECH_DECODER_STEPS = 4_000, 1, 4_000


def fit_text(report: Report) -> ByteBPE:
    rng = np.random.default_rng(0)
    texts = []
    for _ in range(TEXT_DOCUMENTS):
        scene = sample_scene(rng, "train")
        # Captions and questions also alone, as beside pictures: a word that begins a text is a token of its own.
        texts += [grammar.document(scene, rng), grammar.caption(scene, rng), " ".join(grammar.question(scene, rng))]
    tokenizer = ByteBPE.train(texts, TEXT_VOCABULARY)
    report(f"text: {tokenizer.vocab_size} ids")
    return tokenizer


def fit_image(report: Report) -> MoVQ:
    tokenizer = MoVQ.small(PICTURE, **IMAGE_NETWORK)
    fit_movq(
        tokenizer,
        _picture_batches(),
        IMAGE_STEPS,
        report=lambda r: report(" ".join(f"{name} {value:.4g}" for name, value in r.items())),
    )
    rng = np.random.default_rng(1)
    retire_codes(tokenizer, [picture(_crowded_scene(rng), rng) for _ in range(REREAD_PICTURES)], report=report)
    return tokenizer


def _picture_batches() -> Iterator[torch.Tensor]:
    rng = np.random.default_rng(0)
    while True:
        pictures = [picture(_crowded_scene(rng), rng) for _ in range(IMAGE_BATCH)]
        yield torch.from_numpy(to_pixels(pictures))


def _crowded_scene(rng: np.random.Generator) -> Scene:
    """Scenes with more things are likelier: white teaches an image tokenizer little."""
    while True:
        scene = sample_scene(rng, "train")
        if sum(group.count for group in scene.groups) >= rng.integers(1, grammar.MAX_THINGS + 1):
            return scene


def fit_audio(report: Report) -> MelRVQ:
    rng = np.random.default_rng(2)
    sounds = []
    for number in range(SPEECH_CLIPS):
        sounds.append(speak(grammar.caption(sample_scene(rng, "train"), rng), rng))
        if (number + 1) % 500 == 0:
            report(f"spoke {number + 1} of {SPEECH_CLIPS} captions")
    return fit_mel_rvq(sounds, SPEECH_CODEBOOKS, decoder_steps=SPEECH_DECODER_STEPS, report=report)


FITS: dict[str, Callable[[Report], Any]] = {"text": fit_text, "image": fit_image, "audio": fit_audio}


def fit(folder: Path, parts: list[str], report: Report = print) -> None:
    """Fit parts into a bundle's folder; the vocabulary is written once all three are there."""
    for part in parts:
        tokenizer = FITS[part](report)
        half = {} if part == "text" else {"half": True}
        tokenizer.save(folder / part, **half)
        report(f"wrote {folder / part}")
    write_vocabulary(folder)


def write_vocabulary(folder: Path) -> None:
    """Write `vocab.json` for the tokenizers in a folder, if all three are there."""
    parts = {part: folder / part / "tokenizer.json" for part in FITS}
    if all(path.exists() for path in parts.values()):
        sizes = {part: json.loads(path.read_text())["vocab_size"] for part, path in parts.items()}
        Vocabulary(**sizes).save(folder / "vocab.json")

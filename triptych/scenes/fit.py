"""`triptych scenes fit`: trains the demo tokenizers.

All three use the training split only, so the test split measures them on unseen compositions.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from triptych.scenes import grammar
from triptych.scenes.grammar import Scene, sample_scene
from triptych.scenes.image import IMAGE_SIZE, scene_image
from triptych.scenes.speech import synthesize
from triptych.tokenizers.fit_mel_rvq import fit_mel_rvq
from triptych.tokenizers.fit_movq import fit_movq, retire_codes
from triptych.tokenizers.image import MoVQ
from triptych.tokenizers.mel_rvq import MelRVQ
from triptych.tokenizers.pixels import to_pixels
from triptych.tokenizers.text import ByteBPE
from triptych.vocab import Vocabulary

Report = Callable[[str], None]

TEXT_DOCUMENTS = 30_000
TEXT_VOCABULARY = 1_024  # an upper bound: merging stops when every word of the dataset is one token
IMAGE_STEPS, IMAGE_BATCH = 3_000, 8
REENCODED_IMAGES = 1_000  # to find codes that are not stable under decoding and encoding
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
        # Captions and questions also alone, as in image-text samples: the first word of a text has its own token.
        texts += [grammar.document(scene, rng), grammar.caption(scene, rng), " ".join(grammar.question(scene, rng))]
    tokenizer = ByteBPE.train(texts, TEXT_VOCABULARY)
    report(f"text: {tokenizer.vocab_size} ids")
    return tokenizer


def fit_image(report: Report) -> MoVQ:
    tokenizer = MoVQ.small(IMAGE_SIZE, **IMAGE_NETWORK)
    fit_movq(
        tokenizer,
        _image_batches(),
        IMAGE_STEPS,
        report=lambda r: report(" ".join(f"{name} {value:.4g}" for name, value in r.items())),
    )
    rng = np.random.default_rng(1)
    retire_codes(tokenizer, [scene_image(_crowded_scene(rng), rng) for _ in range(REENCODED_IMAGES)], report=report)
    return tokenizer


def _image_batches() -> Iterator[torch.Tensor]:
    rng = np.random.default_rng(0)
    while True:
        images = [scene_image(_crowded_scene(rng), rng) for _ in range(IMAGE_BATCH)]
        yield torch.from_numpy(to_pixels(images))


def _crowded_scene(rng: np.random.Generator) -> Scene:
    """A scene, with more objects more likely: an image tokenizer learns little from white background."""
    while True:
        scene = sample_scene(rng, "train")
        if sum(group.count for group in scene.groups) >= rng.integers(1, grammar.MAX_OBJECTS + 1):
            return scene


def fit_audio(report: Report) -> MelRVQ:
    rng = np.random.default_rng(2)
    clips = []
    for number in range(SPEECH_CLIPS):
        clips.append(synthesize(grammar.caption(sample_scene(rng, "train"), rng), rng))
        if (number + 1) % 500 == 0:
            report(f"{number + 1} of {SPEECH_CLIPS} captions synthesized")
    return fit_mel_rvq(clips, SPEECH_CODEBOOKS, decoder_steps=SPEECH_DECODER_STEPS, report=report)


FIT_FUNCTIONS: dict[str, Callable[[Report], Any]] = {"text": fit_text, "image": fit_image, "audio": fit_audio}


def fit_tokenizers(folder: Path, parts: list[str], report: Report = print) -> None:
    """Train tokenizers and save them in the folder of a bundle; `vocab.json` is written once all three exist."""
    for part in parts:
        tokenizer = FIT_FUNCTIONS[part](report)
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

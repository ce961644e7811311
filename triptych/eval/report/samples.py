"""A few samples of a model for its report: images, speech and texts with their prompts and fixed seeds.

They are kept beside the results, so a report that is made again does not generate them again.

    FOLDER/samples/samples.json     prompts, seeds, texts, and the fingerprint of the model
    FOLDER/samples/*.png, *.wav
"""

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from PIL import Image

from triptych.errors import UserError
from triptych.eval.records import Progress, model_fingerprint
from triptych.hub.pipeline import Pipeline
from triptych.utils.files import write_atomically
from triptych.utils.json_files import parse_json, read_json
from triptych.utils.media import Audio, load_audio

SAMPLES = "samples"
SEED = 7
_SHOWN = 8  # of each suite
_IMAGES, _CLIPS = 4, 2
PROMPTS = ("a photo of a dog", "a red car in front of a house", "two apples on a table", "a boat on a lake")
"""For models that say nothing of the prompts that suit them."""


@dataclass(frozen=True)
class Sample:
    """What a model made of a prompt."""

    direction: str
    kind: Literal["text", "image", "audio"]
    prompt: str
    seed: int
    content: str | Image.Image | Audio


@dataclass(frozen=True)
class Samples:
    samples: Sequence[Sample] = ()
    notes: Sequence[str] = ()
    """Directions that the model cannot do, and why."""


def make_samples(
    pipe: Pipeline, folder: Path, progress: Progress, prompts: Sequence[str] = (), seed: int = SEED
) -> Samples:
    """Samples of a model, from `folder` if they are there for the same weights, prompts and seed."""
    chosen = list(prompts or pipe.limits.examples or PROMPTS)[:_IMAGES]
    identity = {"model": model_fingerprint(pipe), "prompts": chosen, "seed": seed}
    kept = read_samples(folder, identity)
    if kept is not None:
        return kept
    before, pipe.check_inputs = pipe.check_inputs, False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = _generate(pipe, chosen, seed, progress)
    finally:
        pipe.check_inputs = before
    _write(folder, identity, made)
    return made


def _generate(pipe: Pipeline, prompts: Sequence[str], seed: int, progress: Progress) -> Samples:
    samples: list[Sample] = []
    notes: list[str] = []

    def attempt(direction: str, make: Callable[[], list[Sample]]) -> None:
        progress(f"  samples: {direction}")
        try:
            samples.extend(make())
        except UserError as error:  # a model without this modality, or one that needs lengths
            notes.append(f"{direction}: {error}")

    def images() -> list[Sample]:
        made = pipe.text_to_image(list(prompts), seed=seed)
        return [Sample("text-to-image", "image", p, seed + i, m) for i, (p, m) in enumerate(zip(prompts, made))]

    def clips() -> list[Sample]:
        texts = list(prompts[:_CLIPS])
        made = pipe.text_to_speech(texts, seed=seed)
        return [Sample("text-to-speech", "audio", p, seed + i, m) for i, (p, m) in enumerate(zip(texts, made))]

    def captions() -> list[Sample]:
        sources = [each for each in samples if isinstance(each.content, Image.Image)]
        return [
            Sample(
                "caption", "text", f"the image drawn for: {each.prompt}", seed, pipe.caption(each.content, seed=seed)
            )
            for each in sources[:_CLIPS]
            if isinstance(each.content, Image.Image)
        ]

    def transcripts() -> list[Sample]:
        return [
            Sample(
                "transcribe",
                "text",
                f"the clip spoken for: {each.prompt}",
                seed,
                pipe.transcribe(each.content, seed=seed),
            )
            for each in samples
            if isinstance(each.content, Audio)
        ]

    def texts() -> list[Sample]:
        return [
            Sample("complete", "text", "(an empty text)", seed + i, pipe.complete("", seed=seed + i, temperature=1.0))
            for i in range(_CLIPS)
        ]

    attempt("text-to-image", images)
    attempt("text-to-speech", clips)
    attempt("caption", captions)
    attempt("transcribe", transcripts)
    attempt("complete", texts)
    return Samples(samples, notes)


def _write(folder: Path, identity: dict[str, Any], made: Samples) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for number, each in enumerate(made.samples):
        row: dict[str, Any] = {name: getattr(each, name) for name in ("direction", "kind", "prompt", "seed")}
        if isinstance(each.content, str):
            row["text"] = each.content
        else:
            row["file"] = f"{number}{'.png' if each.kind == 'image' else '.wav'}"
            each.content.save(folder / row["file"])
        rows.append(row)
    content = {**identity, "samples": rows, "notes": list(made.notes)}
    write_atomically(folder / "samples.json", (json.dumps(content, indent=2) + "\n").encode())


def read_samples(folder: Path, identity: dict[str, Any] | None = None) -> Samples | None:
    """Samples that were kept; None if there are none, or none of this model (`identity`)."""
    try:
        content = read_json(folder / "samples.json")
        if identity is not None and any(content.get(key) != value for key, value in identity.items()):
            return None
        samples = [_read(folder, row) for row in content["samples"]]
        return Samples(samples, [str(note) for note in content["notes"]])
    except (OSError, ValueError, KeyError, TypeError):  # none yet, or a folder that somebody has cleaned up
        return None


def _read(folder: Path, row: dict[str, Any]) -> Sample:
    content: str | Image.Image | Audio
    if row["kind"] == "image":
        with Image.open(folder / row["file"]) as image:
            content = image.convert("RGB")
    elif row["kind"] == "audio":
        content = load_audio(folder / row["file"])
    else:
        content = str(row["text"])
    return Sample(str(row["direction"]), row["kind"], str(row["prompt"]), int(row["seed"]), content)


def suite_samples(folder: Path) -> list[Sample]:
    """Samples that the suites of images and audio have left beside their results, with their prompts."""
    shown: list[Sample] = []
    images = folder / SAMPLES / "image"
    for row in _listed(images / "prompts.json")[:_SHOWN]:
        try:
            with Image.open(images / str(row["file"])) as image:
                shown.append(Sample("text-to-image", "image", str(row["prompt"]), 0, image.convert("RGB")))
        except (OSError, KeyError):  # a suite that was stopped before it drew them all
            continue
    for listing in sorted((folder / "audio").glob("*/clips.jsonl")):
        for row in _lines(listing)[:_CLIPS]:
            try:
                clip = load_audio(listing.parent / str(row["text-to-speech"]))
                shown.append(Sample("text-to-speech", "audio", str(row["text"]), 0, clip))
            except (OSError, KeyError, UserError):
                continue
    return shown


def _listed(path: Path) -> list[dict[str, Any]]:
    try:
        rows = read_json(path)
        return [row for row in rows if isinstance(row, dict)]
    except (OSError, ValueError, TypeError):
        return []


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        rows = [parse_json(line) for line in path.read_text().splitlines()]
        return [row for row in rows if isinstance(row, dict)]
    except (OSError, ValueError):
        return []

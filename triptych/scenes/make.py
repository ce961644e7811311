"""The toy dataset, ready to train on: written as ordinary files, then tokenized like user data.

FOLDER/raw/SPLIT/TASK/...      the files; deleted at the end
FOLDER/SPLIT/TASK/             the tokenized datasets
"""

import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from triptych.data.shards import MANIFEST, Manifest
from triptych.data.tokenize import TokenizeConfig, build_dataset
from triptych.errors import UserError
from triptych.scenes.world import World
from triptych.scenes.write import write_scenes
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.vocab import Modality, Task


def make_scenes(
    folder: Path,
    num_samples: dict[Task, int],
    num_validation: int,
    *,
    world: World,
    voices: Path | None = None,
    workers: int,
    tokenizers: str = "scenes",
    overwrite: bool = False,
    report: Callable[[str], None],
    progress: Any = None,
) -> None:
    """Make the datasets of the training and validation split. After a stop, the same call resumes.

    Complete datasets are kept. A complete dataset with other samples or tokenizers is an error, raised before anything
    is written; with `overwrite`, it is replaced, and so are unfinished ones.
    """
    counts = {("train", task): count for task, count in num_samples.items() if count}
    counts |= {("validation", task): num_validation for task in num_samples if num_validation}
    bundle = TokenizerBundle.load(tokenizers)
    if Modality.IMAGE in bundle and bundle.image.resolution != world.image_size:
        raise UserError(
            f"the preset {world.name} has images of {world.image_size} pixels, but the tokenizers {tokenizers!r} take "
            f"{bundle.image.resolution}. The built-in tokenizers are scenes for the preset small, scenes-full for full."
        )
    complete = set()
    for (split, task), count in counts.items():
        out = folder / split / task.label
        if not (out / MANIFEST).exists():
            continue
        manifest = Manifest.load(out)
        difference = _difference(manifest, count, bundle)
        if not difference:
            complete.add((split, task))
            report(f"{split}, {task.label}: exists already, {manifest.num_samples:,} samples")
        elif not overwrite:
            raise UserError(f"{out} {difference}. Delete that folder or choose another one.")
    raw = folder / "raw"
    if overwrite:
        shutil.rmtree(raw, ignore_errors=True)
    for (split, task), count in counts.items():
        if (split, task) in complete:
            continue
        num_written = 0
        for in_file in write_scenes(raw, split, [task], count, 0, max(1, workers), world, voices):
            num_written += in_file
            report(f"{split}, {task.label}: {num_written:,} of {count:,} written")
        ending = "jsonl" if task == Task.TEXT else "tar"
        inputs = tuple(str(path) for path in sorted((raw / split / task.label).glob(f"*.{ending}")))
        # All clips are short; a long one would be a defect, and is listed as a bad sample instead of cut.
        config = TokenizeConfig(inputs=inputs, tokenizers=tokenizers, too_long="skip")
        out = folder / split / task.label
        manifest = build_dataset(config, out, workers=workers, overwrite=overwrite, progress=progress)
        report(f"{split}, {task.label}: {manifest.num_samples:,} samples, {manifest.num_tokens:,} tokens")
    shutil.rmtree(raw, ignore_errors=True)


def _difference(manifest: Manifest, count: int, bundle: TokenizerBundle) -> str:
    """How a dataset differs from what the call requests; empty if it does not."""
    num_samples = manifest.num_samples + manifest.bad_samples
    if num_samples != count:
        return f"holds {num_samples:,} samples, but {count:,} are requested"
    for name, fingerprint in manifest.tokenizers.items():
        requested = bundle.fingerprints.get(name, "none")
        if requested != fingerprint:
            return f"was made with the {name} tokenizer {fingerprint[:12]}, but {requested[:12]} is requested"
    if manifest.vocabulary != asdict(bundle.vocabulary):
        return f"has the vocabulary {manifest.vocabulary}, but {asdict(bundle.vocabulary)} is requested"
    return ""

"""The embedded world as data sets ready to train on: written as ordinary files, then tokenized like anyone's data.

FOLDER/raw/SPLIT/TASK/...      the files; deleted at the end
FOLDER/SPLIT/TASK/             the data sets
"""

import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from triptych.data.shards import MANIFEST, Manifest
from triptych.data.tokenize import TokenizeSettings, tokenize
from triptych.errors import UserError
from triptych.scenes.write import write_scenes
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.vocab import Task


def make_scenes(
    folder: Path,
    samples: dict[Task, int],
    validation: int,
    *,
    workers: int,
    tokenizers: str = "scenes",
    renew: bool = False,
    report: Callable[[str], None],
    progress: Any = None,
) -> None:
    """Make the data sets of both splits. Run again after a stop, it goes on; what is complete is left alone.

    What is complete but not what is asked for is an error, before anything is made. With `renew` it is made anew
    instead, and so is what a stop left unfinished.
    """
    counts = {("train", task): count for task, count in samples.items() if count}
    counts |= {("validation", task): validation for task in samples if validation}
    bundle = TokenizerBundle.load(tokenizers)
    complete = set()
    for (split, task), count in counts.items():
        out = folder / split / task.label
        if not (out / MANIFEST).exists():
            continue
        manifest = Manifest.load(out)
        difference = _difference(manifest, count, bundle)
        if not difference:
            complete.add((split, task))
            report(f"{split}, {task.label}: is there already, {manifest.num_samples:,} samples")
        elif not renew:
            raise UserError(f"{out} {difference}. Delete that folder or name another one.")
    raw = folder / "raw"
    if renew:
        shutil.rmtree(raw, ignore_errors=True)
    for (split, task), count in counts.items():
        if (split, task) in complete:
            continue
        done = 0
        for new in write_scenes(raw, split, [task], count, 0, max(1, workers)):
            done += new
            report(f"{split}, {task.label}: {done:,} of {count:,} written")
        ending = "jsonl" if task == Task.TEXT else "tar"
        inputs = tuple(str(path) for path in sorted((raw / split / task.label).glob(f"*.{ending}")))
        settings = TokenizeSettings(inputs=inputs, tokenizers=tokenizers)
        out = folder / split / task.label
        manifest = tokenize(settings, out=str(out), workers=workers, overwrite=renew, progress=progress)
        report(f"{split}, {task.label}: {manifest.num_samples:,} samples, {manifest.num_tokens:,} tokens")
    shutil.rmtree(raw, ignore_errors=True)


def _difference(manifest: Manifest, count: int, bundle: TokenizerBundle) -> str:
    """How a data set is not what is asked for; nothing if it is."""
    found = manifest.num_samples + manifest.bad_samples
    if found != count:
        return f"holds {found:,} samples, not {count:,} as asked"
    for name, fingerprint in manifest.tokenizers.items():
        asked = bundle.fingerprints.get(name, "none")
        if asked != fingerprint:
            return f"was made with the {name} tokenizer {fingerprint[:12]}, not with {asked[:12]} as asked"
    if manifest.vocabulary != asdict(bundle.vocabulary):
        return f"has the vocabulary {manifest.vocabulary}, not {asdict(bundle.vocabulary)} as asked"
    return ""

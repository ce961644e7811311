"""The embedded world as data sets ready to train on: written as ordinary files, then tokenized like anyone's data.

FOLDER/raw/SPLIT/TASK/...      the files; deleted at the end
FOLDER/SPLIT/TASK/             the data sets
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from triptych.data.shards import Manifest
from triptych.data.tokenize import TokenizeSettings, tokenize
from triptych.scenes.write import write_scenes
from triptych.vocab import Task

SHIPPED = {Task.TEXT: 50_000, Task.IMAGE_TEXT: 60_000, Task.AUDIO_TEXT: 24_000}
"""Training samples of each task for the recipe `scenes`."""


def make_scenes(
    folder: Path,
    samples: dict[Task, int],
    validation: int,
    *,
    workers: int,
    tokenizers: str = "scenes",
    report: Callable[[str], None],
    progress: Any = None,
) -> None:
    """Make the data sets of both splits. Run again after a stop, it goes on; what is complete is left alone."""
    for split, counts in {"train": samples, "validation": dict.fromkeys(samples, validation)}.items():
        for task, count in counts.items():
            out = folder / split / task.label
            if not count:
                continue
            if (out / "manifest.json").exists():
                report(f"{split}, {task.label}: is there already, {Manifest.load(out).num_samples:,} samples")
                continue
            raw = folder / "raw"
            done = 0
            for new in write_scenes(raw, split, [task], count, 0, max(1, workers)):
                done += new
                report(f"{split}, {task.label}: {done:,} of {count:,} written")
            ending = "jsonl" if task == Task.TEXT else "tar"
            inputs = tuple(str(path) for path in sorted((raw / split / task.label).glob(f"*.{ending}")))
            settings = TokenizeSettings(inputs=inputs, tokenizers=tokenizers)
            manifest = tokenize(settings, out=str(out), workers=workers, progress=progress)
            report(f"{split}, {task.label}: {manifest.num_samples:,} samples, {manifest.num_tokens:,} tokens")
    shutil.rmtree(folder / "raw", ignore_errors=True)

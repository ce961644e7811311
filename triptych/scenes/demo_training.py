"""The part of `triptych demo` that trains: the recipe `nano` for a few hundred steps, with a chart of its loss."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from triptych.eval import html as page
from triptych.recipes import recipe
from triptych.scenes.make import make_scenes
from triptych.scenes.world import SMALL
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.logging import read_records
from triptych.training.loop import train_loop
from triptych.training.setup import open_run
from triptych.vocab import Task

NUM_TRAIN = {Task.TEXT: 400, Task.IMAGE_TEXT: 600, Task.AUDIO_TEXT: 200}  # training samples
NUM_VALIDATION = 40  # validation samples of each task


def train_small_model(out: Path, num_steps: int, console: Console) -> str:
    """Make a small dataset of the preset `small`, train on it; returns a chart and what it shows."""
    data = out / "data"
    console.print("  making a small dataset ...")
    make_scenes(data, NUM_TRAIN, NUM_VALIDATION, world=SMALL, workers=0, overwrite=True, report=lambda line: None)
    config = recipe("nano")
    config = replace(
        config,
        num_steps=num_steps,
        data=tuple(str(data / "train" / task.label) for task in Task),
        validation_data=tuple(str(data / "validation" / task.label) for task in Task),
        validation=replace(config.validation, every=max(1, num_steps // 4)),
        save_every=num_steps,
        log_every=min(config.log_every, max(1, num_steps // 2)),
    )
    bundle = TokenizerBundle.load(config.tokenizers)
    folder = out / "nano"
    shutil.rmtree(folder, ignore_errors=True)  # every demo trains from scratch
    with console.status("") as status, open_run(config, folder, bundle, torch.device("cpu")) as run:
        train_loop(run, [lambda event: _show_progress(event, status)])
    events = [
        event for event in read_records(folder / "records.jsonl") if event["kind"] == "step" and not event["skipped"]
    ]
    first, last = events[0], events[-1]
    console.print(f"  {last['step']} steps: loss {first['loss']:.2f} -> {last['loss']:.2f} nats per token")
    lines = {"all": [(float(e["step"]), float(e["loss"])) for e in events]}
    for name in ("text", "image", "audio"):
        points = [(float(e["step"]), float(e["nll"][name])) for e in events if e["nll"].get(name) is not None]
        lines |= {name: points} if points else {}
    return "".join(
        [
            page.paragraph(
                f"The recipe <code>nano</code>: {num_steps} steps on {sum(NUM_TRAIN.values()):,} samples, trained on "
                "this machine just now. The chart shows the negative log-likelihood of masked tokens in nats. "
                "<code>triptych train scenes</code> trains the demo model itself."
            ),
            page.line_chart(lines, "step", "nats per masked token"),
        ]
    )


def _show_progress(event: dict[str, Any], status: Any) -> None:
    if event["kind"] == "step" and not event["skipped"]:
        status.update(f"  step {event['step']} of {event['num_steps']}, loss {event['loss']:.2f}")

"""What a verb is, and what the arguments of several have in common."""

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triptych.errors import UserError, did_you_mean


@dataclass(frozen=True)
class Verb:
    summary: str
    """One line for the overview."""
    describe: Callable[[argparse.ArgumentParser], None]
    """Adds the description and the arguments."""
    run: Callable[[argparse.Namespace], None]
    when_stopped: str = "stopped."
    """What to say after Ctrl-C or SIGTERM."""


def one_of(known: list[str]) -> dict[str, Any]:
    """What `choices` of argparse does, but an unknown name is answered with the nearest known one."""

    def parse(name: str) -> str:
        if name not in known:
            raise argparse.ArgumentTypeError(f"unknown name {name!r}.{did_you_mean(name, known)}")
        return name

    return {"type": parse, "metavar": "{" + ",".join(known) + "}"}


def device_named(name: str) -> Any:
    """The torch device of that name, if this machine has it."""
    import torch

    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"--device {name} cannot be used here ({reason}). Use cpu, or cuda where there is one."
        ) from None
    return device


def open_model(source: str, device: Any = "cpu") -> Any:
    """A model by any of its names: embedded, a saved folder, a hub name, or the folder of a run.

    What reads runs takes a third of the time until a first answer to import, and is imported for runs only.
    """
    from triptych.hub.format import BUILTIN_MODELS

    if source not in BUILTIN_MODELS and (Path(source) / "checkpoints").is_dir():
        from triptych.hub.export import pipeline_of_run

        return pipeline_of_run(Path(source)).to(device)
    from triptych.hub.pipeline import Pipeline

    return Pipeline.from_pretrained(source, device=device)


def cpus() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def short(number: float) -> str:
    """Three digits and a letter."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}" if number < 1e15 else f"{number:.1e}"
    return f"{number:.3g}"

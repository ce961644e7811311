"""`triptych train own --hours H` or `--budget FLOPS`: the size by a scaling law, then the run."""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from triptych.errors import UserError

if TYPE_CHECKING:
    from triptych.training.config import RunConfig

CHOICE = "choice.json"


def train_for(args: argparse.Namespace, source: "str | RunConfig", changes: list[str]) -> None:
    from triptych.recipes import OWN
    from triptych.scaling.grid import SET_BY_GRID
    from triptych.training.run import train
    from triptych.training.setup import read_run_config

    if source != OWN:
        raise UserError("--hours and --budget are for the recipe own: `triptych train own data=FOLDER --hours 2`.")
    if args.hours is not None and args.budget is not None:
        raise UserError("give --hours or --budget, not both.")
    if args.nproc is not None:
        raise UserError("--hours measures one process; choose with it first, then `--resume RUN --nproc N`.")
    for change in changes:
        if change.partition("=")[0] in SET_BY_GRID:
            raise UserError(f"{change.partition('=')[0]} follows from --hours or --budget and cannot be changed.")
    out = args.out or Path("runs") / OWN

    def say(line: str) -> None:
        if not args.quiet:
            print(line, file=sys.stderr)

    if (out / CHOICE).exists():
        say(f"{out} was begun: it goes on with the size that was chosen then")
        config = read_run_config(out) if (out / "records.jsonl").exists() else None
    else:
        config = None
    if config is None:
        config = _choose(args, changes, out, say)
    train(config, out=out, device=args.device, stop_after=args.stop_after, force=args.force, quiet=args.quiet)
    _compare(out, say)


def _choose(args: argparse.Namespace, changes: list[str], out: Path, say: Callable[[str], None]) -> "RunConfig":
    import torch

    from triptych.recipes import OWN, configure
    from triptych.scaling.choose import Chooser, describe
    from triptych.scaling.fit_file import read_fit
    from triptych.tokenizers.bundle import TokenizerBundle
    from triptych.training.setup import need_data
    from triptych.utils.files import write_atomically

    base = configure(OWN, changes)
    need_data(base)
    if not base.validation_folders:
        raise UserError("the size is chosen by validation losses: leave out loader.held_out=0, or add validation_data.")
    if base.threads is not None:
        torch.set_num_threads(base.threads)
    bundle = TokenizerBundle.load(base.tokenizers)
    chooser = Chooser(base, bundle.vocabulary, None if args.law is None else read_fit(args.law))
    budget = args.budget
    if budget is None:
        budget = chooser.budget_of_hours(args.hours, bundle, say)
    choice = chooser.choose(budget, bundle, say)
    for line in describe(choice, bundle.vocabulary):
        say(line)
    config = choice.config
    every = max(1, config.num_steps // 8)
    config = replace(
        config,
        ema_decay=min(0.999, 1 - 10 / max(20, config.num_steps)),
        validation=replace(config.validation, every=every),
        save_every=min(config.save_every, every),
    )
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / CHOICE, (json.dumps(choice.as_json, indent=2) + "\n").encode())
    return config


def _compare(out: Path, say: Callable[[str], None]) -> None:
    """Predicted against reached, after the last step."""
    from triptych.training.logging import read_records
    from triptych.training.validate import MIXTURE

    records = read_records(out / "records.jsonl")
    if not any(event["kind"] == "end" for event in records):
        return
    last = [event for event in records if event["kind"] == "validation"][-1]
    prediction = json.loads((out / CHOICE).read_text())["prediction"]
    reached = last["nelbo"].get(MIXTURE, {}).get("nats_per_token")
    if prediction is None or reached is None:
        return
    inside = "inside" if prediction["low"] <= reached <= prediction["high"] else "outside"
    say(
        f"validation loss: predicted {prediction['loss']:.3f} ({prediction['low']:.3f} to {prediction['high']:.3f}), "
        f"reached {reached:.3f}, {inside} the interval, ratio {reached / prediction['loss']:.3f}"
    )

"""`triptych train own --hours H` or `--budget FLOPS`: the size by a scaling law, then the run."""

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triptych.errors import CheckpointError, UserError

if TYPE_CHECKING:
    from triptych.training.config import RunConfig

CHOICE, _BUDGET, _PILOTS = "choice.json", "budget.json", "pilots.json"


def train_for(
    args: argparse.Namespace, source: "str | RunConfig", changes: list[str], launch: Callable[[], None]
) -> None:
    """Choose a size, unless that was done before, and train. `launch` runs the same command in several processes."""
    from triptych.recipes import OWN
    from triptych.scaling.grid import SET_BY_GRID
    from triptych.training.run import train

    if source != OWN:
        raise UserError("--hours and --budget are for the recipe own: `triptych train own data=FOLDER --hours 2`.")
    if args.hours is not None and args.budget is not None:
        raise UserError("give --hours or --budget, not both.")
    if args.gpus is None and (args.gpu is not None or args.mfu is not None):
        raise UserError("--gpu and --mfu need --gpus N.")
    if args.gpus is not None and (args.nproc is not None or args.stop_after is not None):
        raise UserError("--gpus only shows the choice for GPUs elsewhere; leave out --nproc and --stop-after.")
    if args.gpus is not None and args.hours is None:
        raise UserError("--gpus turns --hours into FLOPs; with --budget it has no meaning.")
    if args.mfu is not None and not 0 < args.mfu <= 1:
        raise UserError(f"--mfu is a share of the peak, above 0 and at most 1, got {args.mfu:g}.")
    for key in (change.partition("=")[0] for change in changes):
        if key in SET_BY_GRID:
            raise UserError(f"{key} follows from --hours or --budget and cannot be changed.")
        if key == "init_from":
            raise UserError("a saved model has a size: leave out --hours and --budget with init_from.")
    if args.gpus is not None:
        _show(args, changes)
        return
    out = args.out or Path("runs") / OWN
    asked = {"hours": args.hours, "budget": args.budget, "law": None if args.law is None else str(args.law)}
    asked["changes"] = list(changes)

    is_first = os.environ.get("RANK", "0") == "0"  # of the processes that `launch` starts

    def say(line: str) -> None:
        if not args.quiet and is_first:
            print(line, file=sys.stderr)

    config = _chosen_before(out, asked)
    if args.nnodes > 1 and (config is None or args.nproc is None):
        raise UserError(
            f"the size is chosen by one machine: run this once without --nnodes, into {out}; then `triptych train "
            f"--resume {out}` with --nnodes and --nproc."
        )
    if config is None:
        config = _choose(args, changes, out, asked, say)
    else:
        if (out / "records.jsonl").exists():
            say(f"{out} was begun: resuming it with the size that was chosen then")
    if args.nproc is not None:  # the processes find the choice in the folder
        import torch

        torch.cuda.empty_cache()  # of the pilot runs; nothing without a GPU
        launch()
        return
    train(config, out=out, device=args.device, stop_after=args.stop_after, force=args.force, quiet=args.quiet)
    if is_first:
        _compare(out, say)


def _chosen_before(out: Path, asked: dict[str, Any]) -> "RunConfig | None":
    """The configuration of a choice in this folder; an error if another run is in it."""
    from triptych.training.config import RunConfig
    from triptych.utils.config import from_json
    from triptych.utils.json_files import read_json

    path = out / CHOICE
    if not path.exists():
        if (out / "records.jsonl").exists() or (out / "checkpoints").exists():
            raise UserError(f"{out} holds a run whose size was not chosen by --hours or --budget: use another --out.")
        return None
    try:
        content = read_json(path)
        before = content["asked"]
        if before != asked:
            key = next(key for key in asked if before.get(key) != asked[key])
            raise UserError(
                f"{out} was begun with {key} {before.get(key)!r}, not {asked[key]!r}: `triptych train --resume {out}` "
                "continues it; for another size use another --out."
            )
        return from_json(RunConfig, content["config"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, UserError):
            raise
        raise CheckpointError(f"{path} is not a choice of this version ({error!r}).") from error


def _show(args: argparse.Namespace, changes: list[str]) -> None:
    """The choice for GPUs that are elsewhere. Nothing is measured or trained."""
    import shlex

    from triptych.plan.machines import find_machine
    from triptych.recipes import OWN, configure
    from triptych.scaling.choose import TRAINING_SHARE, Chooser, describe
    from triptych.scaling.fit_file import read_fit
    from triptych.tokenizers.bundle import TokenizerBundle
    from triptych.training.setup import need_data

    machine, mfu = find_machine(args.gpu or "h100", args.gpus), args.mfu or 0.4
    if not machine.is_gpu:
        raise UserError("this machine's speed is measured: leave out --gpus and --gpu.")
    base = configure(OWN, changes)
    need_data(base)
    vocabulary = TokenizerBundle.load(base.tokenizers).vocabulary
    chooser = Chooser(base, vocabulary, None if args.law is None else read_fit(args.law))
    budget = TRAINING_SHARE * args.hours * 3600 * args.gpus * machine.peak * mfu
    print(f"{args.hours:g} hours on {args.gpus} x {machine.name} at {mfu:.0%} of the peak: {budget:.3g} FLOPs")
    for line in describe(chooser.choose(budget), vocabulary, machine, args.gpus):
        print(line)
    words = ["triptych", "train", OWN, *changes, "--budget", f"{budget:.3g}", "--nproc", str(args.gpus)]
    for option, value in (("--law", args.law), ("--out", args.out)):
        words += [option, str(value)] if value is not None else []
    print(f"to train it there, after pilot runs that predict the loss: {shlex.join([*words, '--device', 'cuda'])}")


def _choose(
    args: argparse.Namespace, changes: list[str], out: Path, asked: dict[str, Any], say: Callable[[str], None]
) -> "RunConfig":
    import torch

    from triptych.recipes import OWN, configure
    from triptych.scaling.choose import Chooser, Pilots, describe, read_kept
    from triptych.scaling.fit_file import read_fit
    from triptych.tokenizers.bundle import TokenizerBundle
    from triptych.training.setup import need_data
    from triptych.utils.config import to_json
    from triptych.utils.device import resolve_device
    from triptych.utils.files import write_atomically

    base = configure(OWN, changes)
    need_data(base)
    if not base.validation_folders:
        raise UserError("the size is chosen by validation losses: leave out loader.held_out=0, or add validation_data.")
    if base.threads is not None:
        torch.set_num_threads(base.threads)
    device = resolve_device(args.device)
    bundle = TokenizerBundle.load(base.tokenizers)
    chooser = Chooser(base, bundle.vocabulary, None if args.law is None else read_fit(args.law))
    out.mkdir(parents=True, exist_ok=True)
    budget, measured = args.budget, out / _BUDGET
    if budget is None and measured.exists():
        saved = read_kept(measured)
        budget = saved.get("budget") if saved.get("asked") == asked else None
    if budget is None:
        processes = args.nproc or 1 if device.type == "cuda" else 1  # on a CPU, processes share the cores
        budget = chooser.budget_of_hours(args.hours, bundle, device, say) * processes
        write_atomically(measured, (json.dumps({"budget": budget, "asked": asked}) + "\n").encode())
    choice = chooser.choose(budget, Pilots(bundle, device, out / _PILOTS, say))
    for line in describe(choice, bundle.vocabulary):
        say(line)
    config = _with_intervals(choice.config, {change.partition("=")[0] for change in changes})
    content = {**choice.as_json, "asked": asked, "config": to_json(config)}
    write_atomically(out / CHOICE, (json.dumps(content, indent=2) + "\n").encode())
    return config


def _with_intervals(config: "RunConfig", given: set[str]) -> "RunConfig":
    """Validation, saving and the moving average by the length of the run, where they are not given."""
    every = max(1, config.num_steps // 8)
    if "ema_decay" not in given:
        config = replace(config, ema_decay=min(0.999, 1 - 10 / max(20, config.num_steps)))
    if "validation.every" not in given:
        config = replace(config, validation=replace(config.validation, every=every))
    if "save_every" not in given:
        config = replace(config, save_every=min(config.save_every, every))
    return config


def _compare(out: Path, say: Callable[[str], None]) -> None:
    """Predicted against reached, after the last step."""
    from triptych.training.logging import read_records
    from triptych.training.validate import MIXTURE
    from triptych.utils.json_files import read_json

    records = read_records(out / "records.jsonl")
    if not any(event["kind"] == "end" for event in records):
        return
    last = [event for event in records if event["kind"] == "validation"][-1]
    prediction = read_json(out / CHOICE)["prediction"]
    reached = last["nelbo"].get(MIXTURE, {}).get("nats_per_token")
    if prediction is None or reached is None:
        return
    inside = "inside" if prediction["low"] <= reached <= prediction["high"] else "outside"
    say(
        f"validation loss: predicted {prediction['loss']:.3f} ({prediction['low']:.3f} to {prediction['high']:.3f}), "
        f"reached {reached:.3f}, {inside} the interval, ratio {reached / prediction['loss']:.3f}"
    )

"""`train`: train a model by a recipe, in one process or as one of several ranks."""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from triptych.errors import UserError
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training import checkpoint as ckpt
from triptych.training.config import RunConfig
from triptych.training.launch import is_first_to_print
from triptych.training.logging import Console, Logger
from triptych.training.loop import OnValidation, train_loop
from triptych.training.peak import matmul_peak, products_dtype
from triptych.training.ranks import RankLost, Ranks, communication_problem, init_ranks, rank_device, shutdown_ranks
from triptych.training.setup import need_data, open_run
from triptych.training.signals import RunStopped
from triptych.utils.arguments import checked
from triptych.utils.config import override
from triptych.utils.device import resolve_device


@checked
def train(
    recipe: str | RunConfig,
    overrides: str | Sequence[str] = (),
    *,
    out: Path | str | None = None,
    device: str = "auto",
    stop_after: int | None = None,
    force: bool = False,
    quiet: bool = False,
) -> Path:
    """Train a model, or resume the run in `out`; returns the folder of the run.

        run = train("nano", ["num_steps=500", "optimizer.lr=2e-3"], out="runs/nano")
        pipe = Pipeline.from_pretrained(run)

    `recipe` is the name of a recipe or a configuration; `overrides` change its fields. `out` is runs/RECIPE by default.
    `stop_after` saves and returns at that step; the same call without it resumes. `force` resumes although the
    configuration or the data have changed. `quiet` prints nothing.

    Raises a `UserError` if the run cannot be trained, and `RunStopped` after SIGINT, SIGTERM, SIGUSR1 or SIGHUP, which
    save a checkpoint. In a process that `torchrun` started, this is one of several ranks that train one model.
    """
    if stop_after is not None and stop_after < 1:
        raise UserError(f"stop_after must be at least 1, got {stop_after}.")
    changes = [overrides] if isinstance(overrides, str) else list(overrides)
    if isinstance(recipe, str):
        from triptych.recipes import configure

        config = configure(recipe, changes)
    else:
        config = override(recipe, changes)
    need_data(config)  # before the tokenizers, which may be missing too
    if config.threads is not None:
        torch.set_num_threads(threads_to_use(config.threads))
    folder = Path("runs") / config.recipe if out is None else Path(out)
    try:
        used_device = resolve_device(rank_device(device))
        ranks = init_ranks(config.parallel.timeout, used_device)
        try:
            _train(config, folder, used_device, ranks, stop_after, force=force, quiet=quiet)
        except RuntimeError as error:
            problem = communication_problem(error)
            if ranks.size == 1 or problem is None:
                raise
            raise RankLost(f"another rank has exited or does not respond ({problem}).") from error
        shutdown_ranks()  # not after an error: a pending save may still communicate
    except (UserError, OSError) as error:
        # A rank prints its error before it exits, so a rank that is lost to it finds the message.
        if not is_first_to_print(str(error), alone=isinstance(error, RankLost)):
            raise SystemExit(getattr(error, "exit_code", UserError.exit_code)) from None
        raise
    return folder


def threads_to_use(threads: int) -> int:
    """A number of threads; far more than this machine has CPUs are refused, which would only fill its memory."""
    most = max(16, 4 * (os.cpu_count() or 1))
    if threads > most:
        raise UserError(f"threads={threads} is far more than the {os.cpu_count()} CPUs here; use threads=none for all.")
    return threads


def _train(
    config: RunConfig,
    folder: Path,
    device: torch.device,
    ranks: Ranks,
    stop_after: int | None,
    *,
    force: bool,
    quiet: bool,
) -> None:
    def say(text: str) -> None:
        if ranks.is_rank0 and not quiet:
            print(text, file=sys.stderr)

    bundle, num_steps = TokenizerBundle.load(config.tokenizers), config.num_steps
    with open_run(config, folder, bundle, device, ranks, force=force) as run:
        state = run.state
        if state.step >= num_steps:
            say(f"{folder} is complete: {state.step} of {num_steps} steps")
            return
        if stop_after is not None and state.step >= stop_after:
            say(f"{folder} is at step {state.step} of {num_steps}; {_HOW_TO_RESUME}")
            return
        if state.step:
            say(f"resuming at step {state.step} of {num_steps}")
        products = products_dtype(config.parallel.precision)
        peak = matmul_peak(device, products)
        if products != torch.float32 and peak < matmul_peak(device, torch.float32):
            say(
                "warning: products in bfloat16 are slower than in float32 on this CPU, which lacks the instructions; "
                "remove parallel.precision."
            )
        loggers: list[Logger] = [] if quiet else [Console()]
        on_validation: OnValidation | None = None
        if config.tensorboard and ranks.is_rank0:
            from triptych.training.tensorboard import TensorBoardLogger

            board = TensorBoardLogger(folder, bundle)
            loggers.append(board)
            on_validation = board.show_samples
        try:
            train_loop(
                run,
                loggers,
                peak_flops=peak * ranks.size,
                on_validation=on_validation,
                stop_after=stop_after,
            )
        except RunStopped as stop:
            say(
                f"saved step {stop.step}; run the same command to resume"
                if stop.saved
                else _lost(stop.step, run.checkpoints)
            )
            raise
        if state.step < num_steps:
            say(f"stopped at step {state.step} of {num_steps}; {_HOW_TO_RESUME}")
        elif config.prompts.examples:
            example = shlex.quote(config.prompts.examples[0])
            direction = "text-to-image" if config.loader.task_weights.get("image-text") else "text-to-speech"
            say(f"try it: triptych generate {direction} {example} --model {folder}")
        else:
            say(f"export it: triptych export {folder} --out MODEL")


_HOW_TO_RESUME = "run the same command without --stop-after to resume"


def _lost(step: int, checkpoints: Path) -> str:
    """The message after a stop that did not save."""
    saved = ckpt.list_checkpoints(checkpoints)
    newest = int(saved[-1].name.removeprefix("step-")) if saved else 0
    return f"stopped without saving: {step - newest} of {step} steps are lost; run the same command to " + (
        f"resume at step {newest}" if newest else "start again"
    )

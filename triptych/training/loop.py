"""The training loop: steps, validation, checkpoints, records. A stopped run resumes exactly.

RUN/records.jsonl    every event
RUN/config.json      the configuration
RUN/checkpoints/     the newest checkpoints
RUN/lock             held while the run is open
"""

import json
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from triptych.data.loader import Loader
from triptych.data.steps import Step, sample_names
from triptych.errors import CheckpointError, UserError
from triptych.model.flops import count_parameters
from triptych.model.transformer import Transformer
from triptych.training import checkpoint as ckpt
from triptych.training.checkpointer import AsyncCheckpointer, SaveResult
from triptych.training.distributed import gather_model, is_sharded, local
from triptych.training.guard import HangWatchdog, LossSpikeDetector
from triptych.training.logging import Logger, NullLog, RunLog, environment
from triptych.training.meter import Meter
from triptych.training.setup import explain_out_of_memory
from triptych.training.signals import STOP_SIGNALS, RunStopped, StopSignals
from triptych.training.state import Run
from triptych.training.step import StepSums, train_step, update_ema
from triptych.training.validate import Validator
from triptych.utils.config import to_json
from triptych.utils.files import write_atomically
from triptych.utils.json_lines import damage_of

OnValidation = Callable[[Run, Transformer], None]


class Diverged(UserError):
    """Training cannot continue: losses, gradients or weights are no longer finite."""

    exit_code = 5


def train_loop(
    run: Run,
    loggers: list[Logger],
    *,
    peak_flops: float | None = None,
    on_validation: OnValidation | None = None,
    stop_after: int | None = None,
) -> None:
    """Train to the last step. One of STOP_SIGNALS saves a checkpoint and raises `RunStopped`.

    `stop_after` saves and returns at an earlier step. A step whose loss or gradient is not finite, or whose loss is a
    spike, counts but changes nothing; too many of them in a row raise `Diverged` or roll the run back to a checkpoint
    (`GuardConfig`). `on_validation` gets the run and an unsharded model.
    """
    config, ranks, state = run.config, run.ranks, run.state
    last = config.num_steps if stop_after is None else min(stop_after, config.num_steps)
    with (
        StopSignals(lambda: state.step) as signals,
        HangWatchdog(config.parallel.hang_timeout) as watchdog,
        run.open_loader(last) as loader,
    ):
        validator = Validator.of_run(config, ranks)
        records = _open_records(run, loggers, peak_flops)
        trainer = _Trainer(run, loader, validator, records, signals, watchdog, peak_flops, on_validation)
        with closing(trainer.checkpointer):
            for step in loader:
                trainer.do(step, last)


class _Trainer:
    """One step after another, with everything around them."""

    def __init__(
        self,
        run: Run,
        loader: Loader,
        validator: Validator,
        records: RunLog | NullLog,
        signals: StopSignals,
        watchdog: HangWatchdog,
        peak_flops: float | None,
        on_validation: OnValidation | None,
    ):
        self.run, self.loader, self.validator = run, loader, validator
        self.records, self.signals, self.watchdog, self.on_validation = records, signals, watchdog, on_validation
        self.meter = Meter(run.config, run.bundle.vocabulary, records, peak_flops)
        self.checkpointer = AsyncCheckpointer(run.checkpoints, run.config.keep_last_checkpoints, run.ranks)
        self.next_save = _next_multiple(run.state.step, run.config.save_every)
        self.start = time.monotonic()

    def do(self, step: Step, last: int) -> None:
        run, config, state, ranks = self.run, self.run.config, self.run.state, self.run.ranks
        vocabulary, is_spike = run.bundle.vocabulary, state.guard.spikes.is_spike
        with explain_out_of_memory(config, run.bundle, ranks, run.device, f"at step {step.index + 1}", step):
            sums, norm = train_step(state.model, state.optimizer, step, config, vocabulary, run.device, ranks, is_spike)
        state.step = step.index + 1
        self.watchdog.reset()
        if sums.skipped:
            self._skip(step, sums, norm)
        else:
            state.guard.skipped = []
            if state.ema is not None:
                update_ema(state.ema, state.model, min(config.ema_decay or 0.0, (1 + state.step) / (10 + state.step)))
            self.meter.add(step, sums, norm)
        *stops, num_done = ranks.sum([*map(float, self.signals.flags), float(self.checkpointer.is_done)])
        stop = next((number for number, count in zip(STOP_SIGNALS, stops) if count), None)
        if num_done == ranks.size:
            self._record_save(self.checkpointer.wait())
        # After skipped steps the weights may be bad already; saving them could push out the last good checkpoint.
        is_due = state.step >= self.next_save and not state.guard.skipped
        is_last = state.step == last or stop is not None
        is_validated = state.step % config.validation.every == 0 or state.step == config.num_steps
        if is_due or is_last or is_validated:
            self.meter.flush()  # a resumed run does not see unrecorded steps again
            if not _weights_are_finite(run):
                raise _diverged(run, f"the weights after step {state.step} are not finite")
        if stop is not None:  # save before validation: there may be little time
            self._save(wait=True, is_regular=is_due)
        if is_validated:
            self._validate()
        if stop is None and (is_due or is_last):
            self._save(wait=is_last, is_regular=is_due)
        if is_due or is_last or is_validated:
            self.watchdog.reset()
            self.meter.restart()
        if stop is not None:
            raise RunStopped(stop, state.step, saved=True)
        if state.step == config.num_steps:
            self.records("end", step=state.step, seconds=round(time.monotonic() - self.start, 1))

    def _validate(self) -> None:
        run, step, model = self.run, self.run.state.step, self.run.state.eval_model
        if run.config.validation_folders:
            with explain_out_of_memory(run.config, run.bundle, run.ranks, run.device, "during validation"):
                estimates = self.validator.estimate(model, run.device)
            self.records("validation", step=step, nelbo={name: e.as_json for name, e in estimates.items()})
        if run.ranks.any([self.on_validation is not None])[0]:
            model = gather_model(model) if is_sharded(model) else model
            try:
                if self.on_validation is not None:
                    self.on_validation(run, model)
            except Exception as error:  # training does not depend on samples
                self.on_validation = None
                self.records("note", step=step, text=f"samples are no longer shown: {error!r}")

    # -- saving -------------------------------------------------------------------------------------------------------

    def _save(self, *, wait: bool, is_regular: bool) -> None:
        run, step = self.run, self.run.state.step
        self.next_save = _next_multiple(step, run.config.save_every)
        state = run.checkpoint_state(self.loader, is_regular=is_regular)
        with explain_out_of_memory(run.config, run.bundle, run.ranks, run.device, "for the copy that is saved"):
            results = self.checkpointer.save(step, run.state.tensors, state)
        for result in results:
            self._record_save(result)
        if wait:
            final = self.checkpointer.wait() if self.checkpointer.is_saving else None
            if final is not None:
                self._record_save(final)
            if final is None or final.path is None:
                checkpoints = ckpt.list_checkpoints(run.checkpoints)
                raise CheckpointError(
                    f"step {step} could not be saved to {run.checkpoints}: "
                    f"{final.problem if final else 'see above'}. Make room there and run the same command: it "
                    + (f"resumes from {checkpoints[-1].name}." if checkpoints else "starts again at step 0.")
                )

    def _record_save(self, result: SaveResult) -> None:
        if result.path is None:
            self.records("not saved", step=result.step, problem=result.problem)
            self.next_save = min(self.next_save, self.run.state.step + max(1, self.run.config.save_every // 10))
            return
        self.records(
            "saved",
            step=result.step,
            path=str(result.path),
            blocked=round(result.blocked, 3),
            seconds=round(result.seconds, 3),
        )

    # -- bad steps ----------------------------------------------------------------------------------------------------

    def _skip(self, step: Step, sums: StepSums, norm: float) -> None:
        """Record a skipped step; after too many in a row, roll back or end the run."""
        run, config, state, guard = self.run, self.run.config.guard, self.run.state, self.run.state.guard
        names = [name for batch in step.micro_batches for name in sample_names(run.config.data, batch.sample_ids)]
        samples = [name for of_rank in run.ranks.gather(names) for name in of_rank]
        self.meter.add(step, sums, norm, samples)
        guard.skipped.append(
            {"step": state.step, "why": sums.skipped, "loss": sums.loss, "grad_norm": norm, "samples": samples}
        )
        if len(guard.skipped) < config.max_consecutive_skips:
            return
        may_roll_back = guard.rollbacks < config.max_rollbacks
        if may_roll_back and all(skipped["why"] == "spike" for skipped in guard.skipped) and self._roll_back():
            return
        if self.checkpointer.is_saving:  # of good weights
            self._record_save(self.checkpointer.wait())
        dump = run.folder / f"diverged-{state.step:08d}.json"
        if run.ranks.is_rank0:
            with suppress(OSError):
                write_atomically(dump, (json.dumps(guard.skipped_as_json, indent=1) + "\n").encode())
        what = "was not finite" if sums.skipped == "not finite" else "was far above the mean"
        raise _diverged(
            run,
            f"the loss or the gradient of {len(guard.skipped)} steps in a row, up to {state.step}, {what} "
            f"(their samples are in {dump})",
        )

    def _roll_back(self) -> bool:
        """Restore the weights of a checkpoint, but not its position in the data: the data in between is skipped."""
        run, guard = self.run, self.run.state.guard
        if self.checkpointer.is_saving:
            self._record_save(self.checkpointer.wait())
        path = run.ranks.run_on_rank0(lambda: _rollback_target(run.checkpoints))
        if path is None:
            return False
        saved = run.ranks.run_on_rank0(lambda: ckpt.read_state(path))
        ckpt.load_into(path, run.state.tensors, run.ranks)
        guard.spikes = LossSpikeDetector(run.config.guard, saved["guard"]["spikes"])
        guard.rollbacks += 1
        guard.skipped = []
        self.records("rolled back", step=run.state.step, weights_of=saved["step"])
        return True


def _rollback_target(folder: Path) -> Path | None:
    """The newest valid checkpoint that was saved on schedule."""
    for path in reversed(ckpt.list_checkpoints(folder)):
        if ckpt.is_rollback_target(path):
            try:
                ckpt.verify(path)
                return path
            except CheckpointError:
                continue  # it is renamed to bad-* when the run is started again
    return None


def _next_multiple(step: int, every: int) -> int:
    return (step // every + 1) * every


def _open_records(run: Run, loggers: list[Logger], peak_flops: float | None) -> RunLog | NullLog:
    """The run's records up to its current step, followed by its configuration."""
    if not run.ranks.is_rank0:
        return NullLog()
    config, step = to_json(run.config), run.state.step
    records = RunLog(run.folder / "records.jsonl", loggers)
    damaged = records.rewind(step)
    write_atomically(run.folder / "config.json", (json.dumps(config, indent=2) + "\n").encode())
    count = count_parameters(run.config.model, run.bundle.vocabulary)
    records(
        "run",
        recipe=run.config.recipe,
        folder=str(run.folder),
        step=step,
        num_steps=run.config.num_steps,
        parameters=count.total,
        non_embedding=count.blocks,
        peak_flops=peak_flops,
        environment=environment(),
        config=config,
        ranks=run.ranks.size,
    )
    for message in [*run.messages, *([damage_of(records.path, damaged)] if damaged else [])]:
        records("note", step=step, text=message)
    return records


def _weights_are_finite(run: Run) -> bool:
    models = {run.state.model, run.state.eval_model}
    is_bad = any(not bool(local(p).isfinite().all()) for model in models for p in model.parameters())
    return not run.ranks.any([is_bad])[0]


def _diverged(run: Run, what: str) -> Diverged:
    saved = ckpt.list_checkpoints(run.checkpoints)
    return Diverged(
        f"{what}. {f'The newest checkpoint is {saved[-1]}' if saved else 'There is no checkpoint yet'}. "
        "Try a lower optimizer.lr, with --out in another folder, or look at the data with `triptych data show`."
    )

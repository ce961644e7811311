"""The training loop: steps, validation, checkpoints, records; stops and goes on exactly.

RUN/records.jsonl    every event
RUN/checkpoints/     the newest few
RUN/config.json      what it is a run of
RUN/lock             held while it is trained
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from triptych.data.loader import Loader, Step, sample_names
from triptych.data.shards import write_atomically
from triptych.errors import CheckpointError, UserError
from triptych.model.count import parameters
from triptych.model.transformer import Transformer
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training import checkpoint as ckpt
from triptych.training.config import to_json
from triptych.training.distributed import is_divided, local, whole_model
from triptych.training.guard import STOPS, LossSpikeDetector, Signals, Watch
from triptych.training.logging import Listener, NullLog, RunLog, environment
from triptych.training.meter import Meter
from triptych.training.setup import Run, advice_without_memory
from triptych.training.step import StepSums, train_step
from triptych.training.validate import Validator


class Stopped(Exception):
    """The run was asked to stop, and has saved where it is."""

    def __init__(self, number: int, step: int):
        super().__init__(f"stopped at step {step}")
        self.number, self.step = number, step


class Diverged(UserError):
    """The run cannot go on: its numbers are no longer finite."""

    exit_code = 5


def train(
    run: Run,
    listeners: list[Listener],
    bundle: TokenizerBundle,
    *,
    peak_flops: float | None = None,
    on_validation: Callable[[Run, Transformer], None] | None = None,
    stop_after: int | None = None,
) -> None:
    """Train to the end, or until a signal of STOPS; then what is there is saved and `Stopped` raised.

    `stop_after` ends (and saves) at a step before the last, as a stop would. A step whose loss or gradient is not
    finite, or whose loss is a spike, counts but changes nothing; too many of them in a row are `Diverged`, or make the
    run go back to a checkpoint (`GuardConfig`). `on_validation` gets the run and a plain model.
    """
    config, ranks = run.config, run.ranks
    last = config.num_steps if stop_after is None else min(stop_after, config.num_steps)
    try:
        with (
            Signals() as signals,
            Watch(config.parallel.watch) as watch,
            Loader(
                list(config.data), config.loader, ranks.rank, ranks.size, start_step=run.step, num_steps=last
            ) as loader,
        ):
            if run.restored is not None:
                loader.restore({**run.restored["loader"], "step": run.step}, force=run.force)
            validator = Validator(
                config.validation_data,
                config.loader,
                config.validation.sequences,
                config.validation.draws,
                ranks=ranks,
            )
            records = _open_records(run, listeners, peak_flops)
            trainer = _Trainer(run, bundle, loader, validator, records, signals, watch, peak_flops, on_validation)
            with trainer.saving():
                for step in loader:
                    trainer.do(step, last)
    except BaseException:
        if ranks.size == 1:  # else a save may still be under way, and the lock ends with the process
            run.lock.release()
        raise
    run.lock.release()


class _Trainer:
    """What goes on around one step after the other."""

    def __init__(
        self,
        run: Run,
        bundle: TokenizerBundle,
        loader: Loader,
        validator: Validator,
        records: "RunLog | NullLog",
        signals: Signals,
        watch: Watch,
        peak_flops: float | None,
        on_validation: Callable[[Run, Transformer], None] | None,
    ):
        self.run, self.bundle, self.loader, self.validator = run, bundle, loader, validator
        self.records, self.signals, self.watch, self.on_validation = records, signals, watch, on_validation
        self.meter = Meter(run.config, bundle.vocabulary, records, peak_flops)
        self.saver = ckpt.Saver(run.checkpoints, run.config.keep_last_checkpoints, run.ranks)
        guarded = (run.restored or {}).get("guard", {})
        self.spikes = LossSpikeDetector(run.config.guard, guarded.get("spikes"))
        self.rollbacks = guarded.get("rollbacks", 0)
        self.left_out: list[dict[str, Any]] = guarded.get("left_out", [])  # the last steps in a row that were
        self.save_at = _next_multiple(run.step, run.config.save_every)
        self.began = time.monotonic()

    def do(self, step: Step, last: int) -> None:
        run, config, ranks = self.run, self.run.config, self.run.ranks
        with advice_without_memory(config, self.bundle, ranks, run.device, f"at step {step.index + 1}", step):
            sums, norm = train_step(
                run.model, run.optimizer, step, config, self.bundle.vocabulary, run.device, ranks, self.spikes.is_spike
            )
        run.step = step.index + 1
        self.watch.beat()
        if sums.skipped:
            self._leave_out(step, sums, norm)
        else:
            self.left_out = []
            if run.ema is not None:
                _average(run.ema, run.model, min(config.ema_decay or 0.0, (1 + run.step) / (10 + run.step)))
            self.meter.add(step, sums, norm)
        heard = ranks.sum([*map(float, self.signals.flags), float(self.saver.is_done)])
        stop = next((number for number, count in zip(STOPS, heard) if count), None)
        if heard[-1] == ranks.size:
            self._report(self.saver.finish())
        # Weights on which steps fail may be bad already; they must not push the good ones out.
        is_due = run.step >= self.save_at and not self.left_out
        is_last = run.step == last or stop is not None
        is_validated = run.step % config.validation.every == 0 or run.step == config.num_steps
        if is_due or is_last or is_validated:
            self.meter.flush()  # what is not recorded now would be missing after a resume
            if not _is_finite(run):
                raise _diverged(run, f"the weights after step {run.step} are not finite")
        if stop is not None:  # first things first: there may be little time
            self._save(wait=True, is_anchor=is_due)
        if is_validated:
            self._validate()
        if stop is None and (is_due or is_last):
            self._save(wait=is_last, is_anchor=is_due)
        if is_due or is_last or is_validated:
            self.watch.beat()
            self.meter.restart()
        if stop is not None:
            raise Stopped(stop, run.step)
        if run.step == config.num_steps:
            self.records("end", step=run.step, seconds=round(time.monotonic() - self.began, 1))

    def _validate(self) -> None:
        run = self.run
        if run.config.validation_data:
            estimates = self.validator.estimate(run.eval_model, run.device)
            self.records("validation", step=run.step, nelbo={name: e.as_json for name, e in estimates.items()})
        if run.ranks.any([self.on_validation is not None])[0]:
            model = whole_model(run.eval_model) if is_divided(run.eval_model) else run.eval_model
            try:
                if self.on_validation is not None:
                    self.on_validation(run, model)
            except Exception as error:  # a tracker: training does not depend on it
                self.on_validation = None
                self.records("note", step=run.step, text=f"samples are no longer shown: {error!r}")

    # -- saving -------------------------------------------------------------------------------------------------------

    @contextmanager
    def saving(self) -> Iterator[None]:
        try:
            yield
        finally:
            self.saver.close()

    def _save(self, *, wait: bool, is_anchor: bool) -> None:
        run = self.run
        self.save_at = _next_multiple(run.step, run.config.save_every)
        state = {
            "loader": self.loader.state(),
            "config": to_json(run.config),
            "shape": to_json(run.model.config),
            "vocabulary": self.bundle.vocabulary.fingerprint,
            "tokenizers": self.bundle.fingerprints,
            "guard": {
                "spikes": self.spikes.state,
                "rollbacks": self.rollbacks,
                "left_out": _readable(self.left_out),
                "is_anchor": is_anchor and run.config.guard.spike_sigmas is not None,
            },
        }
        with advice_without_memory(run.config, self.bundle, run.ranks, run.device, "for the copy that is saved"):
            outcomes = self.saver.begin(run.step, run.tensors, state)
        for outcome in outcomes:
            self._report(outcome)
        if wait:
            saved = self.saver.finish() if self.saver.is_busy else None
            if saved is not None:
                self._report(saved)
            if saved is None or saved.path is None:
                raise CheckpointError(
                    f"step {run.step} could not be saved to {run.checkpoints}: "
                    f"{saved.problem if saved else 'see above'}. Make room there and run the same command: "
                    f"{_where_it_goes_on(run)}"
                )

    def _report(self, saved: ckpt.Saved) -> None:
        if saved.path is not None:
            self.records(
                "saved",
                step=saved.step,
                path=str(saved.path),
                blocked=round(saved.blocked, 3),
                seconds=round(saved.seconds, 3),
            )
            return
        self.records("not saved", step=saved.step, problem=saved.problem)
        self.save_at = min(self.save_at, self.run.step + max(1, self.run.config.save_every // 10))

    # -- steps that go wrong ------------------------------------------------------------------------------------------

    def _leave_out(self, step: Step, sums: StepSums, norm: float) -> None:
        run, guard = self.run, self.run.config.guard
        mine = [name for batch in step.micro_batches for name in sample_names(run.config.data, batch.sample_ids)]
        samples = [name for each in run.ranks.gather(mine) for name in each]
        self.meter.add(step, sums, norm, samples)
        self.left_out.append(
            {"step": run.step, "why": sums.skipped, "loss": sums.loss, "grad_norm": norm, "samples": samples}
        )
        if len(self.left_out) < guard.max_consecutive_skips:
            return
        may_roll_back = self.rollbacks < guard.max_rollbacks
        if may_roll_back and all(each["why"] == "spike" for each in self.left_out) and self._roll_back():
            return
        if self.saver.is_busy:  # of good weights
            self._report(self.saver.finish())
        dump = run.folder / f"diverged-{run.step:08d}.json"
        if run.ranks.is_rank0:
            with suppress(OSError):
                write_atomically(dump, (json.dumps(_readable(self.left_out), indent=1) + "\n").encode())
        what = "was not finite" if sums.skipped == "not finite" else "was far above the mean"
        raise _diverged(
            run,
            f"the loss or the gradient of {len(self.left_out)} steps in a row, up to {run.step}, {what} "
            f"(their samples are in {dump})",
        )

    def _roll_back(self) -> bool:
        """Take the weights of a checkpoint and go on with the next data: what lies between is stepped over."""
        run = self.run
        if self.saver.is_busy:
            self._report(self.saver.finish())
        path = run.ranks.run_on_rank0(lambda: _anchor(run.checkpoints))
        if path is None:
            return False
        state = run.ranks.run_on_rank0(lambda: ckpt.read_state(path))
        ckpt.load_into(path, run.tensors, run.ranks)
        self.spikes = LossSpikeDetector(run.config.guard, state["guard"]["spikes"])
        self.rollbacks += 1
        self.left_out = []
        self.records("rolled back", step=run.step, weights_of=state["step"])
        return True


def _anchor(folder: Path) -> Path | None:
    """The newest whole checkpoint that was due and not made by a stop: every way through a run finds the same."""
    for path in reversed(ckpt.list_checkpoints(folder)):
        if ckpt.is_anchor(path):
            try:
                ckpt.verify(path)
                return path
            except CheckpointError:
                continue  # set aside when a run begins
    return None


def _next_multiple(step: int, every: int) -> int:
    return (step // every + 1) * every


def _where_it_goes_on(run: Run) -> str:
    saved = ckpt.list_checkpoints(run.checkpoints)
    return f"it goes on from {saved[-1].name}." if saved else "it begins anew."


def _readable(value: Any) -> Any:
    """Numbers that JSON does not know, as words."""
    if isinstance(value, dict):
        return {key: _readable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_readable(item) for item in value]
    return str(value) if isinstance(value, float) and value - value != 0 else value


def _open_records(run: Run, listeners: list[Listener], peak_flops: float | None) -> RunLog | NullLog:
    """The run's records, ending at its step and at what it now is."""
    if not run.ranks.is_rank0:
        return NullLog()
    config = to_json(run.config)
    records = RunLog(run.folder / "records.jsonl", listeners)
    records.rewind(run.step)
    write_atomically(run.folder / "config.json", (json.dumps(config, indent=2) + "\n").encode())
    count = parameters(run.config.model, run.model.vocabulary)
    records(
        "run",
        recipe=run.config.recipe,
        folder=str(run.folder),
        step=run.step,
        num_steps=run.config.num_steps,
        parameters=count.total,
        non_embedding=count.blocks,
        peak_flops=peak_flops,
        environment=environment(),
        config=config,
        ranks=run.ranks.size,
    )
    for note in run.notes:
        records("note", step=run.step, text=note)
    return records


def _is_finite(run: Run) -> bool:
    bad = any(not bool(local(p).isfinite().all()) for model in {run.model, run.eval_model} for p in model.parameters())
    return not run.ranks.any([bad])[0]


def _diverged(run: Run, what: str) -> Diverged:
    saved = ckpt.list_checkpoints(run.folder / "checkpoints")
    return Diverged(
        f"{what}. {f'The newest checkpoint is {saved[-1]}' if saved else 'There is no checkpoint yet'}. "
        "Try a lower optimizer.lr, with --out in another folder, or look at the data with `triptych data show`."
    )


@torch.no_grad()
def _average(ema: nn.Module, model: nn.Module, decay: float) -> None:
    torch._foreach_lerp_([local(p) for p in ema.parameters()], [local(p) for p in model.parameters()], 1 - decay)

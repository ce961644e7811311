"""The training loop: steps, validation, checkpoints, records; stops and goes on exactly.

RUN/records.jsonl    every event
RUN/checkpoints/     the newest few
RUN/config.json      what it is a run of
"""

import json
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from triptych.data.loader import Loader, Step
from triptych.data.shards import TokenDataset, write_atomically
from triptych.errors import CheckpointError, UserError
from triptych.model.count import flops, parameters
from triptych.model.transformer import Transformer
from triptych.saved import EMBEDDED, read_model
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.train import checkpoint as ckpt
from triptych.train.config import RunConfig, fill_in, to_json
from triptych.train.log import Listener, Records, Silent, environment
from triptych.train.ranks import Ranks
from triptych.train.step import StepSums, build_model, build_optimizer, lr_factor, train_step
from triptych.train.validate import HeldOut
from triptych.vocab import Modality

# May differ between a run and its continuation: none of them changes a weight.
_FREE = ("log_every", "save_every", "keep", "threads", "tensorboard", "validation", "validation_data", "world")
_FREE_PATHS = ("data", "tokenizers")  # where things lie; what they hold is compared by fingerprint
_FREE_LOADER = ("layout", "num_workers", "prefetch")
_STOPS = (signal.SIGINT, signal.SIGTERM)
_MOST_SKIPPED = 10  # in a row; one bad batch is over after one


@dataclass
class Run:
    """A run at some step: all that training changes."""

    config: RunConfig
    folder: Path
    model: Transformer
    optimizer: torch.optim.Optimizer
    ema: Transformer | None
    step: int
    device: torch.device
    ranks: Ranks
    loader_state: dict[str, Any] | None = None
    """Of the checkpoint it goes on from: which data that was."""

    @property
    def best(self) -> Transformer:
        """What to validate, sample from and export."""
        return self.ema if self.ema is not None else self.model


class Stopped(Exception):
    """The run was asked to stop, and has saved where it is."""

    def __init__(self, number: int, step: int):
        super().__init__(f"stopped at step {step}")
        self.number, self.step = number, step


class StoppedAtOnce(KeyboardInterrupt):
    """The run was asked a second time, and has not saved."""

    def __init__(self, number: int):
        super().__init__("stopped at once")
        self.number = number


class Diverged(UserError):
    """The run cannot go on: its numbers are no longer finite."""

    exit_code = 1


def start(
    config: RunConfig,
    folder: Path,
    bundle: TokenizerBundle,
    device: torch.device,
    ranks: Ranks = Ranks(),  # noqa: B008 (frozen)
) -> Run:
    """A new run, or one that goes on from the newest checkpoint in its folder."""
    model = build_model(config, bundle.vocabulary)
    existing = ckpt.list_checkpoints(folder / "checkpoints")
    if config.begin_with is not None and not existing:
        _take_weights(model, config.begin_with, bundle)
    model.to(device)
    optimizer = build_optimizer(model, config.resolved)
    ema = None
    if config.ema_decay is not None:
        ema = Transformer(model.config, bundle.vocabulary).to(device).requires_grad_(False)
        ema.load_state_dict(model.state_dict())
    run = Run(config, folder, model, optimizer, ema, 0, device, ranks)
    if existing:
        _restore(run, existing[-1], bundle)
    return run


def _take_weights(model: Transformer, name: str, bundle: TokenizerBundle) -> None:
    saved = read_model(EMBEDDED.get(name, Path(name)))
    theirs, ours = (
        {
            "model": asdict(model.config),
            "vocabulary": bundle.vocabulary.fingerprint,
            "fingerprints": bundle.fingerprints,
        }
        for model, bundle in ((saved.model, saved.bundle), (model, bundle))
    )
    other = differences(theirs, ours)
    if other:
        raise CheckpointError(f"begin_with={name} has another shape or other tokenizers: {'; '.join(other)}.")
    model.load_state_dict(saved.model.state_dict())


def _restore(run: Run, path: Path, bundle: TokenizerBundle) -> None:
    found = ckpt.load(path)
    changed = differences(fill_in(found.state["config"], run.config), to_json(run.config))
    now = {"vocabulary": bundle.vocabulary.fingerprint, "tokenizers": bundle.fingerprints}
    changed += differences({key: found.state[key] for key in now}, now, "content of ")
    if changed:
        raise CheckpointError(
            f"{path} is of another run: {'; '.join(changed)}. Go back to those values, or choose another folder."
        )
    run.model.load_state_dict(found.model)
    if run.ema is not None and found.ema is not None:
        run.ema.load_state_dict(found.ema)
    ckpt.restore_optimizer(run.optimizer, run.model, found.optimizer)
    run.step, run.loader_state = found.step, found.state["loader"]


def differences(old: Any, new: Any, prefix: str = "") -> list[str]:
    """What decides the weights and is not as it was."""
    changed = []
    for key in sorted({*old, *new}):
        if (not prefix and key in (*_FREE, *_FREE_PATHS)) or (prefix == "loader." and key in _FREE_LOADER):
            continue
        before, now = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(now, dict):
            changed += differences(before, now, f"{prefix}{key}.")
        elif before != now:
            changed.append(f"{prefix}{key} was {before!r}, is {now!r}")
    return changed


def train(
    run: Run,
    listeners: list[Listener],
    bundle: TokenizerBundle,
    *,
    peak_flops: float | None = None,
    on_validation: Callable[[Run], None] | None = None,
    stop_after: int | None = None,
) -> None:
    """Train to the end, or until SIGINT or SIGTERM; then what is there is saved and `Stopped` raised.

    `stop_after` ends (and saves) at a step before the last, as a stop would. A step whose loss or gradient is not
    finite counts but changes nothing; too many of them in a row are `Diverged`.
    """
    config, vocabulary, ranks = run.config, bundle.vocabulary, run.ranks
    last = config.num_steps if stop_after is None else min(stop_after, config.num_steps)
    check_data(config, bundle)  # before anything is written
    with (
        _Signals() as signals,
        Loader(list(config.data), config.loader, ranks.rank, ranks.size, start_step=run.step, num_steps=last) as loader,
    ):
        if run.loader_state is not None:
            loader.restore({**run.loader_state, "step": run.step})
        held_out = HeldOut(config.validation_data, config.loader, config.validation.sequences, config.validation.draws)
        records = _open_records(run, listeners, peak_flops)
        began, meter = time.monotonic(), _Meter(run, records, peak_flops)
        skipped, save_is_due = 0, False
        for step in loader:
            sums, norm = train_step(run.model, run.optimizer, step, config, vocabulary, run.device, ranks)
            run.step = step.index + 1
            if run.ema is not None and not sums.skipped:
                _average(run.ema, run.model, min(config.ema_decay or 0.0, (1 + run.step) / (10 + run.step)))
            meter.add(step, sums, norm)
            skipped = skipped + 1 if sums.skipped else 0
            if skipped == _MOST_SKIPPED:
                raise _diverged(
                    run, f"the loss or the gradient of {skipped} steps in a row, up to {run.step}, was not finite"
                )
            stop = signals.agreed(ranks)
            # Weights on which steps fail may be bad already; they must not push the good ones out.
            save_is_due = save_is_due or run.step % config.save_every == 0
            is_saved = (save_is_due and not skipped) or run.step == last or stop is not None
            is_validated = run.step % config.validation.every == 0 or run.step == config.num_steps
            if is_saved or is_validated:
                meter.flush()  # what is not recorded now would be missing after a resume
                if not _is_finite(run):
                    raise _diverged(run, f"the weights after step {run.step} are not finite")
            if is_validated:
                if config.validation_data and ranks.is_first:
                    estimates = held_out.estimate(run.best, run.device)
                    records("validation", step=run.step, nelbo={name: e.as_json for name, e in estimates.items()})
                if on_validation is not None and ranks.is_first:
                    on_validation(run)
                meter.restart()
            if is_saved:
                save_is_due = False
                if ranks.is_first:
                    records("saved", step=run.step, path=str(save(run, loader, bundle)))
                ranks.barrier()
                meter.restart()
            if stop is not None:
                raise Stopped(stop, run.step)
    if run.step == config.num_steps:
        records("end", step=run.step, seconds=round(time.monotonic() - began, 1))


def _open_records(run: Run, listeners: list[Listener], peak_flops: float | None) -> Records | Silent:
    """The run's records, ending at its step and at what it now is."""
    if not run.ranks.is_first:
        return Silent()
    config = to_json(run.config)
    records = Records(run.folder / "records.jsonl", listeners)
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
    )
    return records


def save(run: Run, loader: Loader, bundle: TokenizerBundle) -> Path:
    state = {
        "loader": loader.state(),
        "config": to_json(run.config),
        "shape": to_json(run.model.config),
        "vocabulary": bundle.vocabulary.fingerprint,
        "tokenizers": bundle.fingerprints,
    }
    found = ckpt.Checkpoint(
        run.step,
        run.model.state_dict(),
        ckpt.optimizer_tensors(run.optimizer, run.model),
        None if run.ema is None else run.ema.state_dict(),
        state,
    )
    return ckpt.save(run.folder / "checkpoints", found, run.config.keep)


def _is_finite(run: Run) -> bool:
    return all(bool(p.isfinite().all()) for model in {run.model, run.best} for p in model.parameters())


def _diverged(run: Run, what: str) -> Diverged:
    saved = ckpt.list_checkpoints(run.folder / "checkpoints")
    return Diverged(
        f"{what}. {f'The newest checkpoint is {saved[-1]}' if saved else 'There is no checkpoint yet'}. "
        "Try a lower optimizer.lr, with --out in another folder, or look at the data with `triptych data show`."
    )


def need_data(config: RunConfig) -> None:
    if not config.data:
        raise UserError(f"the recipe {config.recipe!r} names no data; add data=FOLDER,FOLDER.")
    for folder in (*config.data, *config.validation_data):
        if not (Path(folder) / "manifest.json").exists():
            raise UserError(
                f"{folder} holds no data set. Make it with `triptych scenes make data/scenes` (the embedded world) or "
                "`triptych tokenize`, or name others with data=FOLDER,FOLDER."
            )


def check_data(config: RunConfig, bundle: TokenizerBundle) -> None:
    """There must be data, made with the run's tokenizers."""
    need_data(config)
    for folder in (*config.data, *config.validation_data):
        dataset = TokenDataset(folder)
        if dataset.vocabulary != bundle.vocabulary:
            raise UserError(
                f"{folder} has the vocabulary {dataset.vocabulary}, but the tokenizers {config.tokenizers!r} have "
                f"{bundle.vocabulary}. Tokenize the data with them, or set tokenizers=FOLDER."
            )
        for name, fingerprint in dataset.manifest.tokenizers.items():
            if bundle.fingerprints.get(name, fingerprint) != fingerprint:
                raise UserError(
                    f"{folder} was made with another {name} tokenizer than that of {config.tokenizers!r}. "
                    "Tokenize the data with it, or set tokenizers=FOLDER."
                )


@torch.no_grad()
def _average(ema: nn.Module, model: nn.Module, decay: float) -> None:
    torch._foreach_lerp_(list(ema.parameters()), list(model.parameters()), 1 - decay)


class _Meter:
    """Gathers steps and records their mean every `log_every`."""

    def __init__(self, run: Run, records: Records | Silent, peak_flops: float | None):
        self.run, self.records, self.peak = run, records, peak_flops
        self.restart()

    def restart(self) -> None:
        """Begin to measure anew, so that validation and saving do not count as slow steps."""
        self._since = time.monotonic()
        self._clear()

    def _clear(self) -> None:
        self._seconds, self._steps, self._tokens, self._positions, self._flops = 0.0, 0, 0, 0, 0.0
        self._sums, self._loss, self._norm = StepSums(), 0.0, 0.0

    def add(self, step: Step, sums: StepSums, norm: float) -> None:
        config = self.run.config
        before, self._since = self._since, time.monotonic()
        if sums.skipped:
            self.flush()  # it has a record of its own, and is in no mean
        self._step = step.index + 1
        self._seconds += self._since - before
        self._steps += 1
        self._tokens += step.num_tokens
        self._positions += step.num_positions
        passed = step.num_tokens * (2 if config.antimask else 1)
        share = float(sums.predicted.sum()) / max(1, passed)
        context = step.num_tokens / max(1, step.num_sequences)
        per_token = flops(
            config.model, self.run.model.vocabulary, context, predicted=share, columns=self._columns(sums)
        ).training
        self._flops += per_token * passed
        self._loss += sums.loss
        self._norm += norm
        self._sums.nll += sums.nll
        self._sums.predicted += sums.predicted
        self._sums.skipped = sums.skipped
        if sums.skipped or self._step % config.log_every == 0:
            self.flush()

    def _columns(self, sums: StepSums) -> float | None:
        """How many logits a predicted token has, on average."""
        if self.run.config.model.softmax_scope == "full" or not sums.predicted.sum():
            return None
        sizes = [len(self.run.model.columns(modality)) for modality in Modality]
        return float(np.average(sizes, weights=sums.predicted))

    def flush(self) -> None:
        if not self._steps:
            return
        config = self.run.config
        seconds = max(self._seconds, 1e-9)
        nll = {
            modality.name.lower(): round(float(self._sums.nll[modality] / n), 5)
            if (n := self._sums.predicted[modality])
            else None
            for modality in Modality
        }
        self.records(
            "step",
            step=self._step,
            num_steps=config.num_steps,
            skipped=self._sums.skipped,
            loss=round(self._loss / self._steps, 5),
            nll=nll,
            lr=config.optimizer.lr * lr_factor(self._step - 1, config),
            grad_norm=round(self._norm / self._steps, 5),
            tokens=self._tokens,
            padding=round(1 - self._tokens / max(1, self._positions), 4),
            tokens_per_second=round(self._tokens / seconds, 1),
            mfu=None if self.peak is None else round(self._flops / seconds / self.peak, 4),
            seconds_left=round((config.num_steps - self._step) * seconds / self._steps, 1),
        )
        self._clear()


class _Signals:
    """Notes SIGINT and SIGTERM so that the step in progress can end; a second one stops at once."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "_Signals":
        for number in _STOPS:
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def agreed(self, ranks: Ranks) -> int | None:
        """The signal that any rank has received, known to all of them at the same step."""
        if ranks.size == 1:
            return self.received
        return next(
            (n for n, heard in zip(_STOPS, ranks.sum([float(self.received == n) for n in _STOPS])) if heard), None
        )

    def _note(self, number: int, _: Any) -> None:
        if self.received is not None:
            raise StoppedAtOnce(number)
        self.received = number

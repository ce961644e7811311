"""How a run begins: anew, with the weights of another, or where it was; and whether it can."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from triptych.data.loader import Step
from triptych.data.shards import TokenDataset
from triptych.errors import CheckpointError, UserError
from triptych.hub.format import BUILTIN_MODELS, read_model
from triptych.model.count import MemoryInputs, advice, memory
from triptych.model.transformer import Transformer
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training import checkpoint as ckpt
from triptych.training.config import RunConfig, differences, fill_in, to_json
from triptych.training.distributed import build_mesh, build_sharded, local, write_weight
from triptych.training.guard import FolderLock
from triptych.training.logging import read_records
from triptych.training.ranks import Ranks
from triptych.training.step import build_model, build_optimizer


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
    lock: FolderLock
    notes: list[str]
    """What was found while it was started, worth a record."""
    restored: dict[str, Any] | None = None
    """The state in the checkpoint it goes on from."""
    force: bool = False
    """Whether a configuration or data that are not those of that checkpoint are to be taken all the same."""

    @property
    def eval_model(self) -> Transformer:
        """What to validate, sample from and export."""
        return self.ema if self.ema is not None else self.model

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """Everything that a checkpoint holds, as it is in memory."""
        return ckpt.run_tensors(self.model, self.optimizer, self.ema)


def start(
    config: RunConfig,
    folder: Path,
    bundle: TokenizerBundle,
    device: torch.device,
    ranks: Ranks = Ranks(),  # noqa: B008 (frozen)
    *,
    force: bool = False,
) -> Run:
    """A new run, or one that goes on from the newest whole checkpoint in its folder.

    The folder belongs to it from here to the end of `train`. With `force`, it goes on with what has changed since.
    """
    lock, checkpoints = FolderLock(folder), folder / "checkpoints"
    ranks.run_on_rank0(lock.take)
    try:
        newest, notes = ranks.run_on_rank0(lambda: _newest(folder))
        mesh = build_mesh(config.parallel, ranks.size, device.type)
        with advice_without_memory(config, bundle, ranks, device, "at the start"):
            model = build_model(config, bundle.vocabulary, device, mesh)
        if config.init_from is not None and newest is None:
            _take_weights(model, config.init_from, bundle)
        optimizer = build_optimizer(model, config.resolved)
        ema = None
        with advice_without_memory(config, bundle, ranks, device, "at the start"):
            ckpt.init_optimizer_state(model, optimizer)
            if config.ema_decay is not None:
                ema = build_sharded(model.config, bundle.vocabulary, config.parallel, mesh, device)
                ema.requires_grad_(False)
                for mean, parameter in zip(ema.parameters(), model.parameters()):
                    local(mean).copy_(local(parameter))
        run = Run(config, folder, model, optimizer, ema, 0, device, ranks, lock, notes, force=force)
        if newest is not None:
            _restore(run, newest, bundle)
        check_data(config, bundle)
        ranks.run_on_rank0(lambda: ckpt.check_writable(checkpoints))
        return run
    except BaseException:
        lock.release(undo=True)
        raise


def _newest(folder: Path) -> tuple[Path | None, list[str]]:
    """The checkpoint to go on from; none if nothing was ever saved here."""
    newest, notes = ckpt.newest_valid(folder / "checkpoints")
    records = folder / "records.jsonl"
    if newest is None and records.exists():
        saved = [event for event in read_records(records) if event.get("kind") == "saved"]
        if saved:
            raise CheckpointError(
                f"{folder} has saved step {saved[-1]['step']}, but its checkpoints are gone. Bring them back, or begin "
                "anew with another --out."
            )
    return newest, notes


def _take_weights(model: Transformer, name: str, bundle: TokenizerBundle) -> None:
    saved = read_model(BUILTIN_MODELS.get(name, Path(name)))
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
        raise CheckpointError(f"init_from={name} has another shape or other tokenizers: {'; '.join(other)}.")
    weights = saved.model.state_dict()
    for key, parameter in model.named_parameters():
        write_weight(parameter, weights[key])


def _restore(run: Run, path: Path, bundle: TokenizerBundle) -> None:
    state = run.ranks.run_on_rank0(lambda: ckpt.read_state(path))
    now = {"vocabulary": bundle.vocabulary.fingerprint, "tokenizers": bundle.fingerprints}
    try:
        changed = differences(fill_in(state["config"], run.config), to_json(run.config))
        changed += differences({key: state[key] for key in now}, now, "content of ")
        _ = state["loader"]
    except (KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{path} has no whole state of a run ({error!r}).") from error
    if changed and not run.force:
        raise CheckpointError(
            f"{path} is of another run: {'; '.join(changed)}. Go back to those values, choose another folder, or go on "
            "with the new ones by --force."
        )
    if changed:
        run.notes.append(f"forced to go on after step {state['step']}, although {'; '.join(changed)}")
    ckpt.load_into(path, run.tensors, run.ranks)
    run.step, run.restored = state["step"], state


# -- data -------------------------------------------------------------------------------------------------------------


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


# -- memory -----------------------------------------------------------------------------------------------------------


class OutOfMemory(UserError):
    """The machine is too small for the run as it is configured."""


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)


@contextmanager
def advice_without_memory(
    config: RunConfig, bundle: TokenizerBundle, ranks: Ranks, device: torch.device, when: str, step: Step | None = None
) -> Iterator[None]:
    """Where memory runs out, say the planner's own estimate, for this very step if there is one, and what helps."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        batches = [] if step is None else step.micro_batches
        largest = max(batches, key=lambda batch: batch.tokens.size, default=None)
        rows, length = (1, config.loader.seq_len) if largest is None else largest.tokens.shape
        load = MemoryInputs.of(
            config.parallel,
            ranks.size,
            rows=rows,
            row_length=length,
            context=min(length, config.loader.seq_len),
            filled=1.0 if largest is None else float((largest.segment_ids > 0).mean()),
            accumulates=len(batches) > 1,
            has_ema=config.ema_decay is not None,
            on_gpu=device.type == "cuda",
        )
        needed = advice(memory(config.model, bundle.vocabulary, load))
        raise OutOfMemory(f"memory ran out {when}: this run needs about {needed}") from error

"""Open a run: new, from a saved model, or from its newest checkpoint. Check its data, tokenizers and memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import torch

from triptych.data.shards import TokenDataset
from triptych.data.steps import Step
from triptych.errors import CheckpointError, UserError
from triptych.hub.format import read_model
from triptych.hub.source import BUILTIN_MODELS, check_source, is_run
from triptych.model.memory import MemoryInputs, memory
from triptych.model.memory_advice import memory_advice
from triptych.model.transformer import Transformer
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training import checkpoint as ckpt
from triptych.training.checkpointer import check_writable
from triptych.training.config import RunConfig
from triptych.training.distributed import build_mesh, build_sharded, local, write_weight
from triptych.training.guard import GuardState
from triptych.training.logging import read_records
from triptych.training.ranks import Ranks
from triptych.training.state import Run, TrainState
from triptych.training.step import build_model, build_optimizer, init_optimizer_state
from triptych.utils.config import differences, from_json
from triptych.utils.json_files import read_json
from triptych.utils.legacy import with_current_keys
from triptych.utils.locks import FolderLock


@contextmanager
def open_run(
    config: RunConfig,
    folder: Path,
    bundle: TokenizerBundle,
    device: torch.device,
    ranks: Ranks = Ranks(),  # noqa: B008 (frozen)
    *,
    force: bool = False,
) -> Iterator[Run]:
    """A new run, or the run in this folder at its newest valid checkpoint. The folder is locked until the block ends.

    With `force`, a run resumes although its configuration or data have changed.
    """
    lock = FolderLock(folder, "trained")
    ranks.run_on_rank0(lock.take)
    try:
        newest, messages = ranks.run_on_rank0(lambda: _newest(folder))
        state = _initial_state(config, bundle, device, ranks, load_weights=newest is None)
        run = Run(config, folder, bundle, device, ranks, state, force, messages)
        if newest is not None:
            run.restore(newest)
        check_data(config, bundle)
        ranks.run_on_rank0(lambda: check_writable(run.checkpoints))
    except BaseException:
        lock.release(undo=True)
        raise
    try:
        yield run
    except BaseException:
        if ranks.size == 1:  # otherwise another rank may still be saving; the lock ends with the process
            lock.release()
        raise
    lock.release()


def _newest(folder: Path) -> tuple[Path | None, list[str]]:
    """The checkpoint to resume from, None if nothing was ever saved here; and messages about damaged ones."""
    newest, messages = ckpt.newest_valid(folder / "checkpoints")
    records = folder / "records.jsonl"
    if newest is None and records.exists():
        saved = [event for event in read_records(records) if event.get("kind") == "saved"]
        if saved:
            raise CheckpointError(
                f"{folder} has saved step {saved[-1]['step']}, but its checkpoints are gone. Restore them, or start a "
                "new run with another --out."
            )
    return newest, messages


def _initial_state(
    config: RunConfig, bundle: TokenizerBundle, device: torch.device, ranks: Ranks, *, load_weights: bool
) -> TrainState:
    """The state before the first step. `load_weights`: whether `init_from` applies."""
    mesh = build_mesh(config.parallel, ranks.size, device.type)
    with explain_out_of_memory(config, bundle, ranks, device, "at the start"):
        model = build_model(config, bundle.vocabulary, device, mesh)
    if config.init_from is not None and load_weights:
        _load_weights(model, config.init_from, bundle)
    optimizer = build_optimizer(model, config.resolved)
    ema = None
    with explain_out_of_memory(config, bundle, ranks, device, "at the start"):
        init_optimizer_state(model, optimizer)
        if config.ema_decay is not None:
            ema = build_sharded(model.config, bundle.vocabulary, config.parallel, mesh, device)
            ema.requires_grad_(False)
            for mean, parameter in zip(ema.parameters(), model.parameters()):
                local(mean).copy_(local(parameter))
    return TrainState(model, optimizer, ema, GuardState.from_json(config.guard, {}))


def _load_weights(model: Transformer, name: str, bundle: TokenizerBundle) -> None:
    """Copy the weights of a saved model, which must have the same shape and tokenizers."""
    check_source(name)
    folder = BUILTIN_MODELS.get(name, Path(name))
    if is_run(folder):
        raise CheckpointError(f"init_from={name} is a run; export it first: `triptych export {name} --out MODEL`.")
    saved = read_model(folder)
    saved_shape, own_shape = (
        {
            "model": {key: value for key, value in asdict(model.config).items() if key != "init_std"},
            "vocabulary": bundle.vocabulary.fingerprint,
            "fingerprints": bundle.fingerprints,
        }
        for model, bundle in ((saved.model, saved.bundle), (model, bundle))
    )
    changed = differences(saved_shape, own_shape)
    if changed:
        scales = any("_scale" in change for change in changed)
        hint = " With transfer.rule=standard the run keeps the scales of the shape." if scales else ""
        raise CheckpointError(f"init_from={name} has another shape or other tokenizers: {'; '.join(changed)}.{hint}")
    weights = saved.model.state_dict()
    for key, parameter in model.named_parameters():
        write_weight(parameter, weights[key])


def read_run_config(folder: Path) -> RunConfig:
    """The configuration of a run that was started."""
    path = folder / "config.json"
    if not (folder / "records.jsonl").exists():
        raise UserError(f"{folder} holds no run to resume: expected config.json and records.jsonl in it.")
    try:
        content = with_current_keys(read_json(path))
        return from_json(RunConfig, content)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is not the configuration of a run ({error}).") from error


# -- data -------------------------------------------------------------------------------------------------------------


def need_data(config: RunConfig) -> None:
    """Raise an error with the next command if the run has no data or a dataset is missing."""
    own = "For your own files: `triptych tokenize FOLDER --out data/mine`, then `triptych train own data=data/mine` "
    own += "(docs/your-data.md)."
    if not config.data:
        raise UserError(f"the recipe {config.recipe!r} names no data. {own}")
    for key, folders in (("data", config.data), ("validation_data", config.validation_data)):
        for folder in folders:
            if (Path(folder) / "manifest.json").exists():
                continue
            preset = "data/scenes-full --preset full" if config.recipe == "scenes_full" else "data/scenes"
            toy = "" if config.recipe == "own" else f"The toy dataset is made by `triptych scenes make {preset}`. "
            without = " Add validation_data=none to train without validation." * (key != "data")
            raise UserError(f"{key}: {folder} holds no dataset. {toy}{own}{without}")


def check_data(config: RunConfig, bundle: TokenizerBundle) -> None:
    """Raise an error unless there are data, made with the run's tokenizers."""
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
    """The run does not fit into the memory of this machine."""


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)


@contextmanager
def explain_out_of_memory(
    config: RunConfig, bundle: TokenizerBundle, ranks: Ranks, device: torch.device, when: str, step: Step | None = None
) -> Iterator[None]:
    """Turn an out-of-memory error into one with the planner's estimate, for this step if given, and advice."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        batches = [] if step is None else step.micro_batches
        largest = max(batches, key=lambda batch: batch.tokens.size, default=None)
        rows, length = (1, config.loader.seq_len) if largest is None else largest.tokens.shape
        inputs = MemoryInputs(
            rows=rows,
            row_length=length,
            context=min(length, config.loader.seq_len),
            filled=1.0 if largest is None else float((largest.segment_ids > 0).mean()),
            accumulates=len(batches) > 1,
            has_ema=config.ema_decay is not None,
            on_gpu=device.type == "cuda",
        ).with_parallel(config.parallel, ranks.size)
        needed = memory_advice(memory(config.model, bundle.vocabulary, inputs))
        raise OutOfMemory(f"memory ran out {when}: this run needs about {needed}") from error

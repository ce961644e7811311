"""The data loader: deterministic global batches, independent of the number of ranks, resumable at any step.

    mix        the sequences of step k: mixture weights and shuffling   every rank, whole global batch
    sequences  their lengths, without reading tokens                    every rank, whole global batch
    pack       their rows and micro-batches, from the lengths           every rank, whole global batch
    steps      tokens, segment ids, maskable positions                  only the rows of this rank
    prefetch   the next steps, ahead of time, in a thread or in worker processes
    loader     iteration and resuming

Step k is a pure function of the datasets, the configuration and k, so the state to resume from is a step number.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from triptych.data.mix import Mixture, OnePass, source_weights
from triptych.data.prefetch import Prefetcher
from triptych.data.sequences import Documents, PackedText, Pairs, SequenceSource, split_by_content
from triptych.data.shards import TokenDataset, dataset_names
from triptych.data.steps import LoaderConfig, Step, StepBuilder
from triptych.errors import DataError, UserError
from triptych.utils.config import changed_keys
from triptych.utils.rng import random_bits
from triptych.vocab import Task, Vocabulary

__all__ = ["Loader", "LoaderConfig", "Step"]

_ORDER_VERSION = 1  # increase it when the same seed gives other batches: older states are then refused


class Loader:
    """An iterator over the steps of one rank, endless or until `num_steps`. Close it, or use it in a `with`.

        with Loader(datasets, config, rank, world_size) as loader:
            loader.restore(state)
            for step in loader:
                ...
                state = loader.state()  # resumes after this step

    With `one_pass`, for evaluation, every sequence of the datasets comes once, in order or shuffled by `pass_seed`; the
    last step may be smaller. If the configuration holds sequences out, the loader has all others, or, with `held_out`,
    the ones held out. The number of ranks, the layout and the workers may change when a run is resumed; the data may
    not.
    """

    def __init__(
        self,
        datasets: Sequence[TokenDataset | str | Path],
        config: LoaderConfig,
        rank: int = 0,
        world_size: int = 1,
        *,
        start_step: int = 0,
        num_steps: int | None = None,
        one_pass: bool = False,
        pass_seed: int | None = None,
        held_out: bool = False,
    ):
        if not 0 <= rank < world_size:
            raise UserError(f"rank must be in [0, world_size={world_size}), got {rank}.")
        if start_step < 0 or (num_steps is not None and num_steps < 0):
            raise UserError(f"start_step and num_steps must not be negative, got {start_step} and {num_steps}.")
        opened = [item if isinstance(item, TokenDataset) else TokenDataset(item) for item in datasets]
        vocabulary = common_vocabulary(opened)
        seeds = [None if one_pass else int(random_bits(config.seed, number)[0]) for number in range(len(opened))]
        sources = [_source(dataset, config, seed, held_out) for dataset, seed in zip(opened, seeds)]
        sizes = [len(source) for source in sources]
        shares = None if one_pass else _shares(opened, sizes, config)
        if shares is None:
            stream: OnePass | Mixture = OnePass(sizes, pass_seed)
        else:
            stream = Mixture(sizes, shares, config.seed, config.unique_sequences)
            _check_subsets(opened, sizes, stream, config)
        if stream.length is not None:
            steps_in_pass = -(-stream.length // config.global_batch)
            num_steps = steps_in_pass if num_steps is None else min(num_steps, steps_in_pass)
        self.config, self.num_steps = config, num_steps
        self.fingerprint = _fingerprint(opened, shares, config) | (
            {} if pass_seed is None else {"pass_seed": pass_seed}
        )
        self.builder = StepBuilder(sources, stream, config, vocabulary, rank, world_size)
        self._step = start_step
        self._prefetcher: Prefetcher[Step] | None = None

    # -- iteration ------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Step]:
        return self

    def __next__(self) -> Step:
        if self.num_steps is not None and self._step >= self.num_steps:
            self.close()
            raise StopIteration
        if self._prefetcher is None:
            workers, prefetch = self.config.num_workers, self.config.prefetch
            self._prefetcher = Prefetcher(self.builder, self._step, self.num_steps, workers, prefetch)
        try:
            step = next(self._prefetcher)
        except BaseException:
            self.close()
            raise
        assert step.index == self._step
        self._step += 1
        return step

    def close(self) -> None:
        """Stop prefetching. The next iteration starts it again, at the next step."""
        prefetcher, self._prefetcher = self._prefetcher, None
        if prefetcher is not None:
            prefetcher.close()

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- resume -----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """The state to save, as plain JSON. A restored loader continues after the last step that was returned."""
        return {"step": self._step, "fingerprint": self.fingerprint}

    def restore(self, state: Mapping[str, Any], *, force: bool = False) -> None:
        """Continue from a saved state. An error, unless forced, if the batches would differ from those of that run."""
        step, fingerprint = state.get("step"), state.get("fingerprint")
        if not isinstance(step, int) or step < 0 or not isinstance(fingerprint, Mapping):
            raise DataError(f"this is not the state of a loader: {str(dict(state))[:100]}.")
        differences = _differences(fingerprint, self.fingerprint)
        if differences and not force:
            raise DataError(
                f"these are not the batches of the saved run: {'; '.join(differences)}. "
                "Use its data and configuration, start a new run, or force it."
            )
        self.close()
        self._step = step


# -- parts of a loader -----------------------------------------------------------------------------------------


def _source(dataset: TokenDataset, config: LoaderConfig, seed: int | None, held_out: bool) -> SequenceSource:
    if dataset.task == Task.TEXT and not config.document_attention:
        if config.held_out:
            raise UserError(
                "loader.held_out needs sequences that stay the same in every epoch: set "
                "loader.document_attention=true, or give validation_data and loader.held_out=0."
            )
        if config.unique_sequences is not None and seed is not None:
            raise UserError(
                "loader.unique_sequences needs texts that stay the same in every epoch: set "
                "loader.document_attention=true."
            )
        return PackedText(dataset, config.seq_len, seed, config.p_subsample)
    kind = Documents if dataset.task == Task.TEXT else Pairs
    source = kind(dataset, config.seq_len, seed, config.open_ends)
    return split_by_content(source, config.held_out, held_out=held_out) if config.held_out else source


def _shares(datasets: Sequence[TokenDataset], sizes: Sequence[int], config: LoaderConfig) -> list[float]:
    names, tasks = dataset_names(datasets), [dataset.task for dataset in datasets]
    return source_weights(names, tasks, sizes, config.task_weights, config.dataset_weights)


def _check_subsets(
    datasets: Sequence[TokenDataset], sizes: Sequence[int], stream: Mixture, config: LoaderConfig
) -> None:
    if stream.subsets is None:
        return
    for dataset, size, needed in zip(datasets, sizes, stream.subsets.tolist()):
        if needed > size:
            raise DataError(
                f"loader.unique_sequences={config.unique_sequences} needs {needed:,} different sequences of "
                f"{dataset.folder}, which has {size:,}: choose fewer, or add data."
            )


def common_vocabulary(datasets: Sequence[TokenDataset]) -> Vocabulary:
    """The vocabulary of all datasets, after checking that they have the same tokenizers."""
    if not datasets:
        raise UserError("a loader needs at least one dataset.")
    first = datasets[0]
    tokenizers: dict[str, tuple[str, TokenDataset]] = {}
    for dataset in datasets:
        if dataset.vocabulary != first.vocabulary:
            raise DataError(
                f"{dataset.folder} and {first.folder} have different vocabularies, {dataset.vocabulary} and "
                f"{first.vocabulary}. Tokenize both with the same tokenizers."
            )
        for modality, fingerprint in dataset.manifest.tokenizers.items():
            known, owner = tokenizers.setdefault(modality, (fingerprint, dataset))
            if known != fingerprint:
                raise DataError(
                    f"{dataset.folder} and {owner.folder} were made with different {modality} tokenizers. "
                    "Tokenize both with the same."
                )
    return first.vocabulary


def _fingerprint(
    datasets: Sequence[TokenDataset], shares: Sequence[float] | None, config: LoaderConfig
) -> dict[str, Any]:
    """Everything that decides the sequences of each step, by name; not the layout, the ranks or the workers."""
    content: dict[str, Any] = {"order_version": _ORDER_VERSION, "one_pass": shares is None}
    for name in ("seed", "seq_len", "global_batch", "p_subsample", "document_attention", "mask_text_eos"):
        content[name] = getattr(config, name)
    if config.held_out:
        content["held_out"] = config.held_out
    if config.unique_sequences is not None:
        content["unique_sequences"] = config.unique_sequences
    if config.open_ends.probability:
        content["open_ends"] = asdict(config.open_ends)
    for number, dataset in enumerate(datasets):
        manifest = dataset.manifest
        parts = {"content": manifest.fingerprint, "share": None if shares is None else round(shares[number], 9)}
        parts |= {f"vocabulary.{name}": size for name, size in manifest.vocabulary.items()}
        parts |= {f"tokenizers.{name}": fingerprint for name, fingerprint in manifest.tokenizers.items()}
        content |= {f"datasets[{number}].{name}": value for name, value in parts.items()}
    return content


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """One clause for each changed value; fingerprints are shortened."""

    def shown(value: object) -> str:
        return f"{value[:12]}..." if isinstance(value, str) and len(value) > 16 else repr(value)

    return [f"{name} was {shown(before)}, is {shown(now)}" for name, (before, now) in changed_keys(old, new).items()]

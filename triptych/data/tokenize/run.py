"""The run that turns raw files into a dataset.

    source -> batches -> encoders (in processes) -> shards (in order) -> manifest

A shard is a fixed slice of the source, and batches never cross its border. So the bytes of a shard depend on the
configuration and the input alone, not on the number of processes or on interruptions. Only this process writes.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import triptych
from triptych.data.shards import MANIFEST, Manifest, Shard, write_shard
from triptych.data.sources import BadSample, Item, ReadOptions, Source, open_source
from triptych.data.tokenize.check import check_reconstruction
from triptych.data.tokenize.config import TokenizeConfig
from triptych.data.tokenize.encode import Encoder, Outcome
from triptych.data.tokenize.folder import (
    BAD,
    Finished,
    Journal,
    Plan,
    adopt,
    finish,
    locked,
    reporting_write_errors,
    shard_name,
    tidy,
    write_bad,
)
from triptych.data.tokenize.progress import Progress
from triptych.data.types import TokenSample
from triptych.errors import DataError, UserError, did_you_mean
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.utils.arguments import checked, shown
from triptych.utils.workers import MOST_WORKERS, map_in_order, one_thread
from triptych.vocab import Modality, Task, Vocabulary

_BATCH_SAMPLES = 16  # enough to amortise a call, few enough that the images of all processes fit into memory
_BATCH_BYTES = 8 << 20  # of texts and encoded media in a batch; a single sample may have more
_AHEAD_BYTES = 64 << 20  # of batches that are read before their turn to be written, for each process
_SHARD_TEXT_BYTES = 64 << 20  # of the texts of a shard, whose tokens are kept in memory until it is written
_BAD_ALWAYS_ALLOWED = 10  # in a small dataset one bad sample is already more than one percent

LoadTokenizers = Callable[[str], TokenizerBundle]


@checked
def tokenize(
    inputs: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    tokenizers: str | Path = "scenes",
    workers: int = 0,
    max_bad: float = 0.01,
    overwrite: bool = False,
    progress: bool = True,
    **options: Any,
) -> Manifest:
    """Tokenize files into the dataset `out`; the same as `triptych tokenize`.

        manifest = tokenize("photos/", "data/photos", tokenizers="tokenizers/paper", workers=4)
        tokenize(["a.jsonl.zst", "b.jsonl.zst"], "data/books", text_key="body")
        dataset = TokenDataset("data/photos")
        print(manifest.num_samples, manifest.num_tokens, dataset[0].text)

    A stopped run resumes when it is called again; a complete dataset is left as it is.

    Args:
        inputs: files, folders or patterns ("shards/{000..099}.tar"): text, or images or audio with texts.
        out: folder of the dataset.
        tokenizers: folder of a tokenizer bundle, or "scenes" for the demo tokenizers.
        workers: number of processes; 0 runs in this one. With more, a script needs `if __name__ == "__main__":`.
        max_bad: fraction of samples that may be unusable before the run stops. They are listed in OUT/bad.jsonl.
        overwrite: start over, whatever dataset is in `out`.
        progress: show progress on standard error.
        **options: further fields of `TokenizeConfig`, such as `format`, `task`, `text_key`, `views`, `max_seconds`.
            Errors name them like the command line does: `--text-key` is `text_key` here.
    """
    known = [field.name for field in fields(TokenizeConfig)]
    for name in options:
        if name not in known:
            arguments = ["workers", "max_bad", "overwrite", "progress"]
            raise UserError(f"tokenize has no argument {name!r}.{did_you_mean(name, known + arguments)}")
    paths = [inputs] if isinstance(inputs, str | Path) else inputs
    config = TokenizeConfig(inputs=tuple(map(str, paths)), tokenizers=str(tokenizers), **options)
    shown = Progress.on_stderr() if progress else None
    return build_dataset(config, out, workers=workers, max_bad=max_bad, overwrite=overwrite, progress=shown)


def build_dataset(
    config: TokenizeConfig,
    out: str | Path,
    *,
    workers: int = 0,
    max_bad: float = 0.01,
    overwrite: bool = False,
    load: LoadTokenizers = TokenizerBundle.load,
    progress: Progress | None = None,
) -> Manifest:
    """`tokenize` from a configuration: make the dataset `out`, resume making it, or return it if it is complete.

    `load` turns `config.tokenizers` into a bundle. Worker processes call it too, so it must be picklable.
    """
    if not 0 <= workers <= MOST_WORKERS or not 0 <= max_bad <= 1:
        raise UserError(
            f"--workers must be from 0 to {MOST_WORKERS}, --max-bad from 0 to 1; "
            f"got {shown(workers)} and {shown(max_bad)}."
        )
    out, progress = Path(out), progress or Progress()
    source = _open(config, out)
    bundle = load(config.tokenizers)
    plan = _plan(config, source, bundle)
    with locked(out), one_thread(), progress:
        adopt(out, plan, overwrite=overwrite)
        if (out / MANIFEST).exists():
            tidy(out)
            progress.say(f"{out} is already complete.")
            return Manifest.load(out)
        journal = Journal(out)
        if not journal.finished and (warning := check_reconstruction(source, bundle)):
            progress.say(warning)
        if journal.finished:
            progress.say(f"Resuming; {len(journal.finished):,} shards are already finished.")
        build = partial(_build, load, config, source.task)
        _make_shards(config, source, build, bundle.vocabulary, journal, workers, max_bad, progress)
        return _finish(plan, journal, progress)


def _open(config: TokenizeConfig, out: Path) -> Source:
    for text in config.inputs:
        if Path(text).is_dir() and out.resolve().is_relative_to(Path(text).resolve()):
            raise UserError(
                f"{out} is inside the input {text}; choose a folder outside, or it would read its own output."
            )
    options = ReadOptions(
        text_key=config.text_key, prompt_key=config.prompt_key, media_key=config.media_key, per_line=config.per_line
    )
    task = next((task for task in Task if task.label == config.task), None)
    source = open_source(config.inputs, format=config.format, task=task, options=options)
    if source.task != Task.IMAGE_TEXT and config.image_transform != "pad":
        raise UserError(f"--image-transform is for images, but the input is {source.task.label}.")
    return source


def _plan(config: TokenizeConfig, source: Source, bundle: TokenizerBundle) -> Plan:
    modalities = [Modality.TEXT] + ([source.task.partner] if source.task.partner is not None else [])
    for modality in modalities:
        if modality not in bundle:
            raise UserError(
                f"the input needs a tokenizer for {modality.name.lower()}, which {config.tokenizers!r} does not have."
            )
    bundle.verify(modalities)  # ids of damaged weights would carry the fingerprint of the right ones
    fingerprints = bundle.fingerprints
    plan = asdict(config) | {
        "task": source.task.name,
        "input_files": source.fingerprint(),
        "fingerprints": {modality.name.lower(): fingerprints[modality.name.lower()] for modality in modalities},
        "vocabulary": asdict(bundle.vocabulary),
    }
    if config.prompt_key is None:
        del plan["prompt_key"]  # plans of earlier versions do not have it
    return json.loads(json.dumps(plan))  # equal to the plan that is read back


# -- work -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Work:
    """Neighbouring samples of one shard, numbered from `first`; later their outcomes."""

    shard: int
    first: int
    items: list[Item]
    size: int
    """Bytes of their texts and media."""
    fraction: float
    """Fraction of the source that is read up to here."""
    outcomes: tuple[Outcome, ...] = ()


def _build(load: LoadTokenizers, config: TokenizeConfig, task: Task) -> Callable[[_Work], _Work]:
    return partial(_encode, Encoder(load(config.tokenizers), task, config))


def _encode(encoder: Encoder, work: _Work) -> _Work:
    return replace(work, items=[], outcomes=tuple(encoder(work.first, work.items)))


def _sharded(source: Source, samples_per_shard: int) -> Iterator[tuple[int, int, Item]]:
    """Every item with the number of its shard and its own. A shard ends early if its texts are long."""
    shard = count = text_bytes = 0
    for number, item in enumerate(source):
        size = 0 if isinstance(item, BadSample) else item.text_bytes
        if count == samples_per_shard or (count and text_bytes + size > _SHARD_TEXT_BYTES):
            shard, count, text_bytes = shard + 1, 0, 0
        count, text_bytes = count + 1, text_bytes + size
        yield shard, number, item


def _batches(source: Source, samples_per_shard: int, finished: Mapping[int, Finished]) -> Iterator[_Work]:
    """The source in batches, without the batches of finished shards."""
    for shard, numbered in groupby(_sharded(source, samples_per_shard), key=lambda entry: entry[0]):
        if shard in finished:
            count = sum(1 for _ in numbered)
            if count != finished[shard].read:
                raise DataError(
                    f"{shard_name(shard)} holds {finished[shard].read:,} samples of the input, and this version reads "
                    f"{count:,} into it: it was started by an earlier version. Start over with --overwrite."
                )
            continue
        first, size = 0, 0
        items: list[Item] = []
        for _, number, item in numbered:
            first = first if items else number
            items.append(item)
            size += 0 if isinstance(item, BadSample) else item.size
            if len(items) == _BATCH_SAMPLES or size >= _BATCH_BYTES:
                yield _Work(shard, first, items, size, source.fraction)
                items, size = [], 0
        if items:
            yield _Work(shard, first, items, size, source.fraction)


def _make_shards(
    config: TokenizeConfig,
    source: Source,
    build: Callable[[], Callable[[_Work], _Work]],
    vocabulary: Vocabulary,
    journal: Journal,
    workers: int,
    max_bad: float,
    progress: Progress,
) -> None:
    batches = _batches(source, config.samples_per_shard, journal.finished)
    read, bad = sum(entry.read for entry in journal.entries), journal.bad
    ahead = _AHEAD_BYTES * max(1, workers)
    with closing(map_in_order(build, batches, workers, size_of=lambda work: work.size, max_ahead=ahead)) as results:
        for shard, works in groupby(results, key=lambda work: work.shard):
            samples: list[TokenSample] = []
            read_before, bad_before = read, len(bad)
            for work in works:
                new = [sample for outcome in work.outcomes if not isinstance(outcome, BadSample) for sample in outcome]
                new_bad = [outcome for outcome in work.outcomes if isinstance(outcome, BadSample)]
                samples += new
                bad += new_bad
                read += len(work.outcomes)
                _check_bad(bad, read, max_bad, journal.folder)
                tokens = sum(sample.num_tokens for sample in new)
                progress.advance(samples=len(new), tokens=tokens, bad=len(new_bad), fraction=work.fraction)
            with reporting_write_errors(journal.folder):
                info = write_shard(journal.folder / shard_name(shard), samples, vocabulary)
                journal.add(shard, info, read - read_before, bad[bad_before:])


def _check_bad(bad: list[BadSample], read: int, max_bad: float, folder: Path) -> None:
    """Stop when many samples are bad: the input is then more likely misread than damaged."""
    allowed = max(_BAD_ALWAYS_ALLOWED, max_bad * read) if max_bad else 0
    if len(bad) > allowed:
        write_bad(folder, bad)
        raise DataError(
            f"{len(bad):,} of {read:,} samples are bad, more than --max-bad {max_bad:g} allows "
            f"({_by_category(bad)}). They are listed in {folder / BAD}. Finished shards are kept: fix the input, "
            "or run the same command with a higher --max-bad to resume."
        )


def _by_category(bad: list[BadSample]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in Counter(sample.category for sample in bad).most_common())


def _finish(plan: Plan, journal: Journal, progress: Progress) -> Manifest:
    entries, out = journal.entries, journal.folder
    manifest = Manifest(
        name=out.resolve().name,
        task=plan["task"],
        vocabulary=plan["vocabulary"],
        tokenizers=plan["fingerprints"],
        shards=[entry.shard for entry in entries],
        bad_samples=len(journal.bad),
        created_by=f"triptych {triptych.__version__}",
        settings=plan,
        longest_prompted=max((_longest_prompted(out / entry.shard.file, plan["task"]) for entry in entries), default=0),
    )
    with reporting_write_errors(out):
        write_bad(out, journal.bad)
        if not manifest.num_samples:
            reason = (
                f"all {len(journal.bad)} samples are bad ({_by_category(journal.bad)})"
                if journal.bad
                else f"it is empty, or has no samples of the task {Task[manifest.task].label}"
            )
            raise DataError(f"the input has no usable sample: {reason}.")
        finish(out, manifest)
    if manifest.longest_prompted:
        progress.say("The samples have prompts: only their responses will be predicted in training.")
    if journal.bad:
        progress.say(f"Left out {len(journal.bad):,} bad samples ({_by_category(journal.bad)}); see {out / BAD}.")
    return manifest


def _longest_prompted(path: Path, task: str) -> int:
    """Most tokens of a sample with a prompt in a shard."""
    shard = Shard(path, Task[task])
    return int(shard.lengths[shard.prompts > 0].max(initial=0))

"""The run that turns a source into a data set.

    source -> batches -> encoders (in processes) -> shards (in order) -> manifest

A shard is a fixed slice of the source and batches never cross its border, so the bytes of a shard depend on the
settings and the input alone: not on the number of processes, nor on how often the run was killed. This process alone
writes.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import groupby, islice
from pathlib import Path

import triptych
from triptych.data.shards import MANIFEST, Manifest, write_shard
from triptych.data.sources import BadSample, Item, ReadOptions, Source, open_source
from triptych.data.tokenize.encode import Encoder, Outcome
from triptych.data.tokenize.folder import (
    BAD,
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
from triptych.data.tokenize.settings import TokenizeSettings
from triptych.data.tokenize.workers import map_in_order, one_thread
from triptych.data.types import TokenSample
from triptych.errors import DataError, UserError
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.vocab import Modality, Task, Vocabulary

_BATCH_SAMPLES = 16  # enough to share the cost of a call, few enough that pictures of all processes fit into memory
_BAD_ALWAYS_ALLOWED = 10  # in a small data set one bad sample is already more than a per cent

LoadTokenizers = Callable[[str], TokenizerBundle]


def tokenize(
    settings: TokenizeSettings,
    out: str | Path,
    *,
    workers: int = 0,
    max_bad: float = 0.01,
    overwrite: bool = False,
    load: LoadTokenizers = TokenizerBundle.load,
    progress: Progress | None = None,
) -> Manifest:
    """Make the data set `out`, or go on making it, or find it complete.

    `max_bad` is the fraction of samples that may be bad before the run stops. `workers` is a number of processes; 0
    works in this one. `load` turns `settings.tokenizers` into a bundle; processes call it too, so it must be picklable.
    """
    if workers < 0 or not 0 <= max_bad <= 1:
        raise UserError(f"--workers must be 0 or more, --max-bad from 0 to 1; got {workers} and {max_bad:g}.")
    out, progress = Path(out), progress or Progress()
    source = _open(settings, out)
    bundle = load(settings.tokenizers)
    plan = _plan(settings, source, bundle)
    with locked(out), one_thread(), progress:
        adopt(out, plan, overwrite=overwrite)
        if (out / MANIFEST).exists():
            tidy(out)
            progress.say(f"{out} is already complete.")
            return Manifest.load(out)
        journal = Journal(out)
        if journal.finished:
            progress.say(f"Going on; shards finished before: {len(journal.finished):,}.")
        build = partial(_build, load, settings, source.task)
        _make_shards(settings, source, build, bundle.vocabulary, journal, workers, max_bad, progress)
        return _finish(plan, journal, progress)


def _open(settings: TokenizeSettings, out: Path) -> Source:
    for text in settings.inputs:
        if Path(text).is_dir() and out.resolve().is_relative_to(Path(text).resolve()):
            raise UserError(
                f"{out} lies inside the input {text}; choose a folder outside, or it would read its own output."
            )
    options = ReadOptions(text_key=settings.text_key, media_key=settings.media_key, per_line=settings.per_line)
    task = next((task for task in Task if task.label == settings.task), None)
    source = open_source(settings.inputs, format=settings.format, task=task, options=options)
    if source.task != Task.IMAGE_TEXT and settings.image_transform != "pad":
        raise UserError(f"--image-transform is for pictures, but the input is {source.task.label}.")
    return source


def _plan(settings: TokenizeSettings, source: Source, bundle: TokenizerBundle) -> Plan:
    modalities = [Modality.TEXT] + ([source.task.partner] if source.task.partner is not None else [])
    for modality in modalities:
        if modality not in bundle:
            raise UserError(
                f"tokenizers {settings.tokenizers!r} have none for {modality.name.lower()}, which the input needs."
            )
    bundle.verify(modalities)  # ids made with damaged weights would bear the name of the right ones
    fingerprints = bundle.fingerprints
    plan = asdict(settings) | {
        "task": source.task.name,
        "input_files": source.fingerprint(),
        "fingerprints": {modality.name.lower(): fingerprints[modality.name.lower()] for modality in modalities},
        "vocabulary": asdict(bundle.vocabulary),
    }
    return json.loads(json.dumps(plan))  # as it will be when it is read back


# -- work -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Work:
    """Neighbouring samples of one shard, numbered from `first`, and what became of them."""

    shard: int
    first: int
    items: list[Item]
    fraction: float
    """How much of the source is read with them."""
    outcomes: tuple[Outcome, ...] = ()


def _build(load: LoadTokenizers, settings: TokenizeSettings, task: Task) -> Callable[[_Work], _Work]:
    return partial(_encode, Encoder(load(settings.tokenizers), task, settings))


def _encode(encoder: Encoder, work: _Work) -> _Work:
    return replace(work, items=[], outcomes=tuple(encoder(work.first, work.items)))


def _batches(source: Source, samples_per_shard: int, finished: Collection[int]) -> Iterator[_Work]:
    """The source in batches, without those of finished shards."""
    for shard, numbered in groupby(enumerate(source), key=lambda pair: pair[0] // samples_per_shard):
        if shard in finished:
            continue
        while batch := list(islice(numbered, _BATCH_SAMPLES)):
            yield _Work(shard, batch[0][0], [item for _, item in batch], source.fraction)


def _make_shards(
    settings: TokenizeSettings,
    source: Source,
    build: Callable[[], Callable[[_Work], _Work]],
    vocabulary: Vocabulary,
    journal: Journal,
    workers: int,
    max_bad: float,
    progress: Progress,
) -> None:
    batches = _batches(source, settings.samples_per_shard, journal.finished.keys())
    read, bad = sum(entry.read for entry in journal.entries), journal.bad
    with closing(map_in_order(build, batches, workers)) as results:
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
    """Stop when too much of the input is bad: then it is more likely misunderstood than damaged."""
    allowed = max(_BAD_ALWAYS_ALLOWED, max_bad * read) if max_bad else 0  # who says 0 means none
    if len(bad) > allowed:
        write_bad(folder, bad)
        raise DataError(
            f"{len(bad):,} of {read:,} samples are bad, more than --max-bad {max_bad:g} allows "
            f"({_by_category(bad)}). They are named in {folder / BAD}. Finished shards are kept: mend the input, "
            "or run the same command with a higher --max-bad to go on."
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
    )
    with reporting_write_errors(out):
        write_bad(out, journal.bad)
        if not manifest.num_samples:
            found = (
                f"all {len(journal.bad)} samples are bad ({_by_category(journal.bad)})"
                if journal.bad
                else f"it is empty, or has nothing of the task {Task[manifest.task].label}"
            )
            raise DataError(f"the input holds no sample that can be used: {found}.")
        finish(out, manifest)
    if journal.bad:
        progress.say(f"Left out {len(journal.bad):,} bad samples ({_by_category(journal.bad)}); see {out / BAD}.")
    return manifest

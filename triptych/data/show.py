"""Inspect datasets: facts, lengths of samples, decoded examples, damaged files."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from triptych.data.shards import MANIFEST, TokenDataset
from triptych.errors import DataError, UserError
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.utils.files import files_below
from triptych.utils.terminal import printable, say
from triptych.vocab import Modality, Task

_BAR_WIDTH = 30
_EXAMPLE_CHARS = 300


def find_datasets(folders: Sequence[str | Path]) -> list[TokenDataset]:
    """The datasets in the folders or below them."""
    datasets: list[TokenDataset] = []
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise DataError(f"no such folder: {folder}")
        manifests = [folder / MANIFEST]
        if not manifests[0].exists():
            manifests = [path for path in files_below(folder) if path.name == MANIFEST]
        if not manifests:
            raise DataError(
                f"{folder} holds no finished dataset: {MANIFEST} is missing. Make one with `triptych tokenize`, "
                "or run the same command again to finish it."
            )
        datasets += [TokenDataset(manifest.parent) for manifest in manifests]
    return datasets


def show(
    datasets: Iterable[TokenDataset], console: Console, *, examples: int = 3, tokenizers: str | None = None
) -> None:
    """Print the facts of each dataset, the lengths of its samples, and some texts."""
    for dataset in datasets:
        console.print(_facts(dataset))
        console.print(*_histogram(dataset.lengths), sep="\n", markup=False, highlight=False)
        for line in _examples(dataset, examples, tokenizers):
            console.print(printable(line), markup=False, highlight=False, soft_wrap=True)
        console.print()


def names_of(datasets: Sequence[TokenDataset]) -> list[str]:
    """Unique names of datasets: those of their folders, with parent folders where two are equal."""
    for depth in (1, 2, 3):
        names = ["-".join(dataset.folder.resolve().parts[-depth:]) for dataset in datasets]
        if len(set(names)) == len(names):
            return names
    return [f"{name}-{number}" for number, name in enumerate(names)]


def render(
    dataset: TokenDataset,
    folder: str | Path,
    *,
    name: str | None = None,
    count: int = 4,
    tokenizers: str | None = None,
) -> list[Path]:
    """Decode some samples into .txt, .png and .wav files called NAME-number; NAME is that of the folder by default."""
    folder = Path(folder)
    bundle = open_tokenizers(dataset, tokenizers)
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    name = name or names_of([dataset])[0]
    for index in _spread(len(dataset), count):
        sample = dataset[index]
        stem = f"{name}-{index:06d}"
        text = folder / f"{stem}.txt"
        text.write_text(bundle.text.decode([sample.text])[0], encoding="utf-8")
        written.append(text)
        match dataset.task:
            case Task.IMAGE_TEXT:
                bundle.image.decode([sample.media])[0].save(folder / f"{stem}.png")
                written.append(folder / f"{stem}.png")
            case Task.AUDIO_TEXT:
                written.append(bundle.audio.decode([sample.media])[0].save(folder / f"{stem}.wav"))
    return written


def open_tokenizers(dataset: TokenDataset, source: str | None = None) -> TokenizerBundle:
    """The tokenizers that a dataset was made with, from `source` or from where they were then."""
    source = source or dataset.manifest.settings.get("tokenizers")
    if not source:
        raise UserError(f"{dataset.folder} does not name its tokenizers; choose them with --tokenizers.")
    try:
        bundle = TokenizerBundle.load(source)
    except UserError as error:
        raise DataError(
            f"the tokenizers of {dataset.folder} cannot be loaded: {error} Choose them with --tokenizers."
        ) from error
    for modality, expected in dataset.manifest.tokenizers.items():
        actual = bundle.fingerprints.get(modality)
        if actual != expected:
            raise DataError(
                f"{dataset.folder} was made with another {modality} tokenizer: its fingerprint is {expected[:12]}, "
                f"that of {source} is {(actual or 'missing')[:12]}. Choose the right ones with --tokenizers."
            )
    return bundle


def _facts(dataset: TokenDataset) -> Table:
    manifest, lengths, vocabulary = dataset.manifest, dataset.lengths, dataset.vocabulary
    table = Table(
        title=Text(printable(manifest.name)), title_justify="left", show_header=False, box=None, title_style="bold"
    )
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    rows: dict[str, Any] = {
        "folder": dataset.folder,
        "task": dataset.task.label,
        "samples": f"{manifest.num_samples:,}",
        "tokens": f"{manifest.num_tokens:,}{_shares(dataset)}",
        "tokens per sample": _quantiles(lengths),
        "shards": f"{len(manifest.shards):,}",
        **({"prompts": "yes: only responses are predicted"} if manifest.longest_prompted else {}),
        "bad samples": f"{manifest.bad_samples:,}",
        "tokenizers": ", ".join(f"{name} {value[:12]}" for name, value in manifest.tokenizers.items()),
        "vocabulary": f"{vocabulary.size:,} ids: text {vocabulary.text:,}, image {vocabulary.image:,}, "
        f"audio {vocabulary.audio:,}, and special tokens",
        "made by": manifest.created_by,
    }
    for name, value in rows.items():
        table.add_row(name, Text(printable(str(value))))
    return table


def _shares(dataset: TokenDataset) -> str:
    """The shares of media and text tokens in pairs."""
    if dataset.task.partner is None:
        return ""
    media = sum(int(dataset.shard(number).splits.sum()) for number in range(len(dataset.manifest.shards)))
    total = max(dataset.manifest.num_tokens, 1)
    return f" ({dataset.task.partner.name.lower()} {media / total:.0%}, text {1 - media / total:.0%})"


def _quantiles(lengths: np.ndarray) -> str:
    if not len(lengths):
        return "-"
    median, mean = np.median(lengths), lengths.mean()
    return f"min {lengths.min():,}, median {median:,.0f}, mean {mean:,.1f}, max {lengths.max():,}"


def _histogram(lengths: np.ndarray) -> Iterator[str]:
    """Samples by length in about 8 bins: of equal width, or of equal ratio if lengths vary by a factor above 10."""
    if not len(lengths):
        return
    low, high = int(lengths.min()), int(lengths.max())
    if low > 0 and high > 10 * low:
        edges = np.unique(np.round(np.geomspace(low, high + 1, 9)).astype(np.int64))
    else:
        width = (high - low) // 8 + 1
        edges = np.arange(low, high + width + 1, width)
    counts, _ = np.histogram(lengths, edges)
    digits = len(f"{edges[-1]:,}")
    for start, stop, count in zip(edges, edges[1:], counts):
        bar = "█" * int(np.ceil(count / counts.max() * _BAR_WIDTH))
        yield f"  {start:>{digits},} to {stop - 1:>{digits},}  {bar:{_BAR_WIDTH}}  {count:,}"


def _examples(dataset: TokenDataset, count: int, tokenizers: str | None) -> Iterator[str]:
    if count < 1 or not len(dataset):
        return
    try:
        tokenizer = open_tokenizers(dataset, tokenizers)[Modality.TEXT]
    except UserError as error:
        if tokenizers is not None:
            raise
        yield f"  (examples are not shown: {error})"
        return
    for index in _spread(len(dataset), count):
        sample = dataset[index]
        media = f"[{len(sample.media):,} {dataset.task.partner.name.lower()} tokens] " if dataset.task.partner else ""
        # A token is at least a byte of text. The end of a prompt and the beginning of the response are shown.
        given, predicted = sample.text[: sample.prompt], sample.text[sample.prompt :]
        prompt, text = tokenizer.decode([given[-_EXAMPLE_CHARS // 2 :], predicted[:_EXAMPLE_CHARS]])
        shown = (f"[prompt: {' '.join(prompt.split())}] " if sample.prompt else "") + " ".join(text.split())
        yield f"  #{index}: {media}{shown[:_EXAMPLE_CHARS]}{' ...' if len(shown) > _EXAMPLE_CHARS else ''}"


def _spread(total: int, count: int) -> list[int]:
    """`count` evenly spaced numbers of range(total)."""
    return sorted({int(index) for index in np.linspace(0, total - 1, min(count, total))}) if total and count > 0 else []


def verify(datasets: Iterable[TokenDataset]) -> None:
    """Read every byte; raises a DataError that names each damaged file."""
    problems = []
    for dataset in datasets:
        damaged = dataset.verify()
        problems += damaged
        state = f"{len(damaged)} damaged" if damaged else "intact"
        line = f"{dataset.folder}: {state} (shards: {len(dataset.manifest.shards):,})"
        say(line)
    if problems:
        raise DataError(
            "damaged data:\n  " + "\n  ".join(problems) + "\n  Restore these files from a copy or tokenize again."
        )

"""Measure several codecs on the same data, and put them into one table, as the paper does for its tokenizers."""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from triptych.errors import UserError
from triptych.eval.codecs.suite import CodecSettings, evaluate_codec
from triptych.eval.compare import format_score
from triptych.eval.metrics import file_sha256
from triptych.eval.records import Progress, RecordStore
from triptych.eval.results import DEFAULT_ROOT, Entry, ModelInfo, ResultFolder, result_folder
from triptych.eval.run_suites import RECORDS, EvaluationResult, collect
from triptych.tokenizers.bundle import BUILTIN_TOKENIZERS
from triptych.utils.files import files_below

SUITE = "tokenizers"


def run_codecs(
    codecs: Sequence[str],
    settings: CodecSettings,
    *,
    out: Path | None = None,
    seed: int = 0,
    nproc: int = 1,
    progress: Progress = lambda line: None,
    environment: Mapping[str, Any] | None = None,
) -> list[EvaluationResult]:
    """Measure codecs on the data of `settings`, each with results of its own in OUT/NAME (default: out/eval).

    Of several codecs, one that cannot be loaded does not stop the others.
    """
    results = []
    for codec in codecs:
        info = codec_info(codec)
        result = EvaluationResult(info, _folder_for(info, out or DEFAULT_ROOT))
        results.append(result)
        identity = {"codec": info.fingerprint, "seed": seed, "device": settings.device}
        try:
            folder = result_folder(result.folder, info)
            with closing(RecordStore(folder.path / RECORDS, identity)) as records:
                chosen = replace(settings, codec=codec)
                options: dict[str, Any] = {"out": folder.path, "records": records, "seed": seed, "nproc": nproc}
                outcomes = evaluate_codec(chosen, progress=progress, **options)
                collect(outcomes, SUITE, result, folder, progress, seed, environment)
        except UserError as error:
            if len(codecs) == 1:
                raise
            result.failures.append(f"{codec}: {error}")
            progress(f"  failed: {error}")
    return results


def _folder_for(info: ModelInfo, root: Path) -> Path:
    """ROOT/tokenizers-NAME, with a part of the fingerprint if another codec of that name has its results there."""
    folder = root / f"tokenizers-{info.name}"
    if ResultFolder(folder).holds_other_than(info.fingerprint):
        return folder.with_name(f"{folder.name}-{info.fingerprint[:8]}")
    return folder


def codec_info(codec: str) -> ModelInfo:
    """A codec as the owner of results: by the content of all its files but hidden ones, or by its name on the hub."""
    folder = Path(BUILTIN_TOKENIZERS.get(codec, codec))
    below = files_below(folder) if folder.is_dir() else [folder]
    files = [path for path in below if path.is_file()]
    digest = hashlib.sha256(codec.encode() if not files else b"")
    for path in files:
        digest.update(f"{path.relative_to(folder)} {file_sha256(path.resolve())}".encode())
    return ModelInfo(codec, digest.hexdigest())


# -- the paper's two tables -------------------------------------------------------------------------------------------

_IMAGE_COLUMNS = {
    "rFID ↓": "codec_rfid",
    "PSNR ↑": "codec_psnr",
    "SSIM ↑": "codec_ssim",
    "codes used": "codec_code_use_image",
}
_AUDIO_COLUMNS = {
    "PESQ ↑": "codec_pesq_{n}",
    "STOI ↑": "codec_stoi_{n}",
    "DNSMOS ↑": "codec_dnsmos_{n}",
    "WER ↓": "codec_wer_{n}",
    "CE ↑": "codec_audiobox/CE_{n}",
    "CU ↑": "codec_audiobox/CU_{n}",
    "PC ↓": "codec_audiobox/PC_{n}",
    "PQ ↑": "codec_audiobox/PQ_{n}",
}


def codec_table(results: Sequence[EvaluationResult], modality: str) -> str:
    """A Markdown table: one line per codec, for audio one per codec and number of codebooks."""
    if modality == "image":
        heads = ["tokenizer", "type", "latent size", "vocabulary", "tokens per image"]
        lines = [_image_line(result) for result in results if result.entries]
        columns = list(_IMAGE_COLUMNS)
    else:
        heads = ["tokenizer", "codebooks", "downsampling", "tokens per second", "kbit/s"]
        lines = [line for result in results if result.entries for line in _audio_lines(result)]
        columns = list(_AUDIO_COLUMNS)
    shown = [i for i in range(len(heads) + len(columns)) if i < len(heads) or any(line[i] != "–" for line in lines)]
    rows = [[*heads, *columns], ["---"] * (len(heads) + len(columns)), *lines]
    table = ["| " + " | ".join(row[i] for i in shown) + " |" for row in rows]
    failures = [f"failed: {failure}" for result in results for failure in result.failures]
    return "\n".join((table if lines else []) + list(dict.fromkeys(_missing(results))) + failures)


def _missing(results: Sequence[EvaluationResult]) -> list[str]:
    return [line for result in results for line in result.not_measured if not line.startswith("failed: ")]


def _image_line(result: EvaluationResult) -> list[str]:
    facts = _facts(result)
    known = {entry.metric.name: entry for entry in result.entries}
    cells = [result.model.name, *(_fact(facts, key) for key in ("type", "latent_size", "vocabulary", "tokens"))]
    return cells + [_cell(known.get(name)) for name in _IMAGE_COLUMNS.values()]


def _audio_lines(result: EvaluationResult) -> list[list[str]]:
    facts = _facts(result)
    known = {entry.metric.name: entry for entry in result.entries}
    lines = []
    about = {
        e.result.settings["codebooks"]: e.result.settings for e in result.entries if "codebooks" in e.result.settings
    }
    for number in sorted(about, reverse=True):
        bits = about[number].get("bits_per_second")
        rate = about[number].get("tokens_per_second")
        cells = [result.model.name, str(number), _fact(facts, "downsampling")]
        cells += ["–" if rate is None else f"{rate:g}", "–" if bits is None else f"{bits / 1000:.3g}"]
        lines.append(cells + [_cell(known.get(name.format(n=number))) for name in _AUDIO_COLUMNS.values()])
    originals = [_cell(known.get(name.format(n="original"))) for name in _AUDIO_COLUMNS.values()]
    if any(cell != "–" for cell in originals):
        lines.append([f"{result.model.name}: the recordings", "–", "–", "–", "–", *originals])
    return lines


def _facts(result: EvaluationResult) -> Mapping[str, Any]:
    return result.entries[0].result.settings.get("codec") or {}


def _fact(facts: Mapping[str, Any], key: str) -> str:
    value = facts.get(key)
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _cell(entry: Entry | None) -> str:
    return "–" if entry is None else format_score(entry.metric, entry.score.value)


def guess_modality(data: Sequence[str]) -> str:
    """Image or audio, by the files of the data; an error if both or neither are there."""
    from triptych.data.sources.base import AUDIO_SUFFIXES, IMAGE_SUFFIXES

    kinds_seen = set()
    for text in data:
        path = Path(text)
        for file in files_below(path) if path.is_dir() else [path]:
            kinds = {"image": file.suffix.lower() in IMAGE_SUFFIXES, "audio": file.suffix.lower() in AUDIO_SUFFIXES}
            kinds_seen |= {kind for kind, matches in kinds.items() if matches}
            if len(kinds_seen) == 2:
                break
    if len(kinds_seen) != 1:
        what = "images and recordings" if kinds_seen else "neither images nor recordings that their names tell"
        raise UserError(f"{', '.join(data)} has {what}: say which to use with --modality image or --modality audio.")
    return kinds_seen.pop()

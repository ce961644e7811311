"""What fitted tokenizers preserve of samples they were not fitted to.

text     bytes per token, and whether decoding is exact
image    PSNR, KID of the rebuilt images, a sheet of both
audio    STOI, PESQ, and the word error rate by Whisper, before and after
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from triptych.errors import UserError
from triptych.eval.audio.quality import pesq, stoi
from triptych.eval.audio.speech import normalize_transcript, transcribe, word_error_rate
from triptych.eval.image.inception import inception_features, kernel_inception_distance
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.tokenizers.pixels import resize_with_white_padding
from triptych.tokenizers.reconstruction import REPORT, TAIL, audio_distance, psnr
from triptych.utils.media import Audio

Report = Callable[[str], None]

_MIN_KID_IMAGES = 32  # half of them are compared with reconstructions of the other half
_SAVED_CLIPS = 5
_NAMES = {
    "bytes_per_token": "bytes per token",
    "psnr": "PSNR in dB",
    "psnr_low": f"PSNR of the worst {TAIL} %",
    "kid": "KID",
    "log_mel": "log-mel distance",
    "log_mel_high": f"log-mel distance of the worst {TAIL} %",
    "stoi": "STOI",
    "stoi_low": f"STOI of the worst {TAIL} %",
    "pesq": "PESQ",
    "wer": "WER by an English judge",
    "wer_rebuilt": "WER rebuilt",
}


def report_text(bundle: TokenizerBundle, texts: Sequence[str]) -> dict[str, float]:
    ids = bundle.text.encode(list(texts))
    return {
        "samples": len(texts),
        "bytes_per_token": sum(len(text.encode()) for text in texts) / max(1, sum(map(len, ids))),
        "exact": float(np.mean([a == b for a, b in zip(texts, bundle.text.decode(ids))])),
    }


def report_images(
    bundle: TokenizerBundle, images: Sequence[Image.Image], report: Report = print
) -> tuple[dict[str, float], Image.Image]:
    """The measures, and a sheet of images above their reconstructions."""
    originals = [resize_with_white_padding(image, bundle.image.resolution) for image in images]
    rebuilt = rebuild_images(bundle, originals)
    values = np.array([psnr(a, b) for a, b in zip(originals, rebuilt)])
    result = {"samples": len(images), "psnr": float(values.mean()), "psnr_low": float(np.percentile(values, TAIL))}
    if len(images) < _MIN_KID_IMAGES:
        report(f"KID: needs {_MIN_KID_IMAGES} held-out images, got {len(images)}")
    else:
        try:
            # Not the same images on both sides: the distance to their own reconstructions would be too small.
            before, after = inception_features(originals[::2]), inception_features(rebuilt[1::2])
            result["kid"] = kernel_inception_distance(before, after, subset_size=min(100, len(after)))[0]
        except UserError as error:
            report(f"KID: {error}")
    return result, contact_sheet(originals, rebuilt)


def report_audio(
    bundle: TokenizerBundle, clips: Sequence[tuple[str, Audio]], report: Report = print
) -> tuple[dict[str, float], list[Audio]]:
    """The measures, and the rebuilt clips. A measure whose package is missing is left out with a line."""
    texts, originals = [text for text, _ in clips], [clip for _, clip in clips]
    rebuilt = bundle.audio.decode(bundle.audio.encode(originals))
    distances = audio_distance(bundle, originals)
    result: dict[str, float] = {
        "samples": len(clips),
        "log_mel": float(distances.mean()),
        "log_mel_high": float(np.percentile(distances, 100 - TAIL)),
    }
    measures: dict[str, Callable[[], dict[str, float]]] = {
        "STOI": lambda: _stoi(originals, rebuilt),
        "PESQ": lambda: {"pesq": _pesq(originals, rebuilt)},
        "WER": lambda: _wer(texts, originals, rebuilt),
    }
    for name, measure in measures.items():
        try:
            result |= measure()
        except UserError as error:
            report(f"{name}: {error}")
    return result, rebuilt


def rebuild_images(bundle: TokenizerBundle, images: Sequence[Image.Image]) -> list[Image.Image]:
    return bundle.image.decode(bundle.image.encode(list(images)))


def contact_sheet(originals: Sequence[Image.Image], rebuilt: Sequence[Image.Image], columns: int = 10) -> Image.Image:
    """Images in rows, each above its reconstruction."""
    shown = list(zip(originals, rebuilt))[: 4 * columns]
    width, height = (side + 2 for side in originals[0].size)
    rows = -(-len(shown) // columns)
    sheet = Image.new("RGB", (min(columns, len(shown)) * width, 2 * rows * height), "gray")
    for index, pair in enumerate(shown):
        for below, image in enumerate(pair):
            sheet.paste(image, ((index % columns) * width + 1, (2 * (index // columns) + below) * height + 1))
    return sheet


def _wer(texts: Sequence[str], originals: Sequence[Audio], rebuilt: Sequence[Audio]) -> dict[str, float]:
    if not any(normalize_transcript(text) for text in texts):
        raise UserError("the judge knows English only, and no transcript has words in Latin letters.")
    before, after = (word_error_rate(texts, transcribe(clips)) for clips in (originals, rebuilt))
    return {"wer": before, "wer_rebuilt": after}


def _stoi(originals: Sequence[Audio], rebuilt: Sequence[Audio]) -> dict[str, float]:
    values = [value for value in map(stoi, originals, rebuilt) if value is not None]
    if not values:
        raise UserError("no held-out clip is long enough.")
    return {"stoi": float(np.mean(values)), "stoi_low": float(np.percentile(values, TAIL))}


def _pesq(originals: Sequence[Audio], rebuilt: Sequence[Audio]) -> float:
    """Wide-band PESQ; clips in which it finds no speech are left out."""
    values = [value for value in map(pesq, originals, rebuilt) if value is not None]
    if not values:
        raise UserError("no held-out clip has speech that PESQ finds.")
    return float(np.mean(values))


def write_report(
    folder: Path,
    bundle: TokenizerBundle,
    *,
    texts: Sequence[str] = (),
    images: Sequence[Image.Image] = (),
    clips: Sequence[tuple[str, Audio]] = (),
    report: Report = print,
) -> dict[str, dict[str, float]]:
    """Measure the tokenizers of a folder on held-out samples; writes FOLDER/report.json and FOLDER/report/."""
    result: dict[str, dict[str, float]] = {}
    if texts:
        result["text"] = report_text(bundle, texts)
    if images:
        result["image"], sheet = report_images(bundle, images, report)
        (folder / "report").mkdir(exist_ok=True)
        sheet.save(folder / "report" / "images.png")
    if clips:
        result["audio"], rebuilt = report_audio(bundle, clips, report)
        for number, ((_, original), again) in enumerate(list(zip(clips, rebuilt))[:_SAVED_CLIPS]):
            original.save(folder / "report" / f"{number}-original.wav")
            again.save(folder / "report" / f"{number}-rebuilt.wav")
    for part, values in result.items():
        listed = ", ".join(f"{_NAMES.get(name, name)} {value:.3g}" for name, value in values.items())
        report(f"{part}, held out: {listed}")
    (folder / REPORT).write_text(json.dumps(result, indent=2) + "\n")
    return result

"""What tokenizers preserve of the toy dataset: text exactly, images and speech by independent measures."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image

from triptych.eval.audio import dnsmos, transcribe, word_error_rate
from triptych.eval.image import psnr
from triptych.scenes.image import IMAGE_SIZE
from triptych.scenes.judge import score_images
from triptych.scenes.samples import scene_sample
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.tokenizers.mel_rvq import MelRVQ
from triptych.utils.media import Audio
from triptych.vocab import Task

Progress = Callable[[str], None]


def evaluate_tokenizers(
    bundle: TokenizerBundle, num_images: int, num_speech: int, split: str = "test", progress: Progress = print
) -> dict[str, Any]:
    """Encode and decode samples of a split; every measure is given for the originals and the reconstructions.

    The text tokenizer is measured on the texts of the images. `num_speech` 0 skips speech.
    """
    results: dict[str, Any] = {"split": split, "num_images": num_images, "num_speech": num_speech}
    samples = [scene_sample(Task.IMAGE_TEXT, split, index) for index in range(num_images)]
    texts = [sample.text for sample in samples]
    decoded_texts = bundle.text.decode(bundle.text.encode(texts))
    results["text_exact"] = float(np.mean([a == b for a, b in zip(texts, decoded_texts)]))
    progress(f"text: {results['text_exact']:.2%} exact")

    originals = [sample.image for sample in samples if sample.image is not None]
    scenes = [sample.scene for sample in samples]
    reconstructed = _reconstruct(bundle, originals)
    results["psnr_db"] = float(np.mean([psnr(a, b) for a, b in zip(originals, reconstructed)]))
    codes = bundle.image.encode(originals)
    results["code_entropy"] = _entropy(codes)
    # A model can caption its own images only if they are encoded as the codes they were generated from.
    is_changed = [(a != b).any() for a, b in zip(codes, bundle.image.encode(reconstructed))]
    results["reencoding_changed"] = float(np.mean(is_changed))
    progress(
        f"image codes: unigram entropy {results['code_entropy']:.2f} nats; "
        f"{results['reencoding_changed']:.1%} of reconstructed images have other codes"
    )
    results["judge_original"] = score_images(originals, scenes)
    results["judge_reconstructed"] = score_images(reconstructed, scenes)
    progress(
        f"images: PSNR {results['psnr_db']:.1f} dB; judge {results['judge_original']['overall']:.1%} on originals, "
        f"{results['judge_reconstructed']['overall']:.1%} on reconstructions"
    )
    if num_speech:
        results |= _evaluate_speech(bundle, num_speech, split, progress)
    return results


def _evaluate_speech(bundle: TokenizerBundle, num_speech: int, split: str, progress: Progress) -> dict[str, float]:
    samples = [scene_sample(Task.AUDIO_TEXT, split, index) for index in range(num_speech)]
    texts = [sample.text for sample in samples]
    originals = [sample.audio for sample in samples if sample.audio is not None]
    ids = bundle.audio.encode(originals)
    versions = {"original": originals, "reconstructed": bundle.audio.decode(ids)}
    if isinstance(bundle.audio, MelRVQ) and bundle.audio.decoder is not None:
        versions["without_decoder"] = bundle.audio.without_decoder().decode(ids)
    results = {"tokens_per_second": sum(map(len, ids)) / sum(clip.seconds for clip in originals)}
    for name, clips in versions.items():
        results[f"wer_{name}"] = word_error_rate(texts, _transcribe(clips, progress))
        results[f"mos_{name}"] = float(dnsmos(clips)[:, 2].mean())
        label = name.replace("_", " ")
        progress(f"speech, {label}: WER {results[f'wer_{name}']:.3f}, DNSMOS {results[f'mos_{name}']:.2f}")
    return results


def _entropy(ids: Sequence[np.ndarray]) -> float:
    share = np.bincount(np.concatenate(ids)) / sum(map(len, ids))
    return float(-(share[share > 0] * np.log(share[share > 0])).sum())


def _reconstruct(bundle: TokenizerBundle, images: Sequence[Image.Image]) -> list[Image.Image]:
    """Encode and decode images, at their original size."""
    decoded = bundle.image.decode(bundle.image.encode(images))
    return [new if new.size == old.size else new.resize(old.size) for new, old in zip(decoded, images)]


def _transcribe(clips: Sequence[Audio], progress: Progress, batch: int = 25) -> list[str]:
    transcripts: list[str] = []
    for start in range(0, len(clips), batch):
        transcripts += transcribe(clips[start : start + batch])
        progress(f"  transcribed {len(transcripts)} of {len(clips)}")
    return transcripts


def contact_sheet(bundle: TokenizerBundle, split: str = "test", columns: int = 12, rows: int = 4) -> Image.Image:
    """Images of a split, each above its reconstruction."""
    samples = [scene_sample(Task.IMAGE_TEXT, split, index) for index in range(columns * rows)]
    originals = [sample.image for sample in samples if sample.image is not None]
    cell = IMAGE_SIZE + 2
    sheet = Image.new("RGB", (columns * cell, 2 * rows * cell), "gray")
    for index, pair in enumerate(zip(originals, _reconstruct(bundle, originals))):
        for below, image in enumerate(pair):
            sheet.paste(image, ((index % columns) * cell + 1, (2 * (index // columns) + below) * cell + 1))
    return sheet

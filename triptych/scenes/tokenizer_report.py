"""What a tokenizer bundle keeps of the embedded world: text exactly, pictures and speech by independent judges."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image

from triptych.eval.audio import dnsmos, transcribe, word_error_rate
from triptych.eval.image import psnr
from triptych.scenes.image import PICTURE
from triptych.scenes.judge import score
from triptych.scenes.samples import scene_sample
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.tokenizers.mel_rvq import MelRVQ
from triptych.utils.media import Audio
from triptych.vocab import Task


def check_tokenizers(
    bundle: TokenizerBundle, pictures: int, sounds: int, split: str = "test", report: Callable[[str], None] = print
) -> dict[str, Any]:
    """Round trips of `pictures` and `sounds` samples of a split; beside each, the same measure of the originals."""
    results: dict[str, Any] = {"split": split, "pictures": pictures, "sounds": sounds}
    samples = [scene_sample(Task.IMAGE_TEXT, split, index) for index in range(pictures)]
    texts = [sample.text for sample in samples]
    results["text_exact"] = float(
        np.mean([a == b for a, b in zip(texts, bundle.text.decode(bundle.text.encode(texts)))])
    )
    report(f"text: {results['text_exact']:.2%} exact")

    originals = [sample.image for sample in samples if sample.image is not None]
    scenes = [sample.scene for sample in samples]
    rebuilt = _round_trip(bundle, originals)
    results["psnr_db"] = float(np.mean([psnr(a, b) for a, b in zip(originals, rebuilt)]))
    codes = bundle.image.encode(originals)
    results["code_entropy"] = _entropy(codes)
    # A model's drawing can be looked at again only if it is read as the codes it was drawn from.
    reread = [(a != b).any() for a, b in zip(codes, bundle.image.encode(rebuilt))]
    results["reread_otherwise"] = float(np.mean(reread))
    report(
        f"picture codes: unigram entropy {results['code_entropy']:.2f} nats; "
        f"{results['reread_otherwise']:.1%} of rebuilt pictures are encoded otherwise"
    )
    results["judge_true"], results["judge_rebuilt"] = score(originals, scenes), score(rebuilt, scenes)
    report(
        f"pictures: PSNR {results['psnr_db']:.1f} dB; judge {results['judge_true']['overall']:.1%} on true ones, "
        f"{results['judge_rebuilt']['overall']:.1%} on rebuilt ones"
    )
    if sounds:
        spoken = [scene_sample(Task.AUDIO_TEXT, split, index) for index in range(sounds)]
        said = [sample.text for sample in spoken]
        voices = [sample.sound for sample in spoken if sample.sound is not None]
        ids = bundle.audio.encode(voices)
        again = bundle.audio.decode(ids)
        results["tokens_per_second"] = sum(map(len, ids)) / sum(sound.seconds for sound in voices)
        versions = {"true": voices, "rebuilt": again}
        if isinstance(bundle.audio, MelRVQ) and bundle.audio.decoder is not None:
            versions["without_network"] = bundle.audio.without_decoder().decode(ids)
        for name, version in versions.items():
            results[f"wer_{name}"] = word_error_rate(said, _hear(version, report))
            results[f"mos_{name}"] = float(dnsmos(version)[:, 2].mean())
            report(f"speech, {name}: WER {results[f'wer_{name}']:.3f}, DNSMOS {results[f'mos_{name}']:.2f}")
    return results


def _entropy(ids: Sequence[np.ndarray]) -> float:
    share = np.bincount(np.concatenate(ids)) / sum(map(len, ids))
    return float(-(share[share > 0] * np.log(share[share > 0])).sum())


def _round_trip(bundle: TokenizerBundle, pictures: Sequence[Image.Image]) -> list[Image.Image]:
    """Through the image tokenizer and back, at the size they had."""
    rebuilt = bundle.image.decode(bundle.image.encode(pictures))
    return [new if new.size == old.size else new.resize(old.size) for new, old in zip(rebuilt, pictures)]


def _hear(sounds: Sequence[Audio], report: Callable[[str], None], portion: int = 25) -> list[str]:
    heard: list[str] = []
    for start in range(0, len(sounds), portion):
        heard += transcribe(sounds[start : start + portion])
        report(f"  heard {len(heard)} of {len(sounds)}")
    return heard


def contact_sheet(bundle: TokenizerBundle, split: str = "test", columns: int = 12, rows: int = 4) -> Image.Image:
    """Pictures of a split, and below each its round trip."""
    samples = [scene_sample(Task.IMAGE_TEXT, split, index) for index in range(columns * rows)]
    pictures = [sample.image for sample in samples if sample.image is not None]
    rebuilt = _round_trip(bundle, pictures)
    cell = PICTURE + 2
    sheet = Image.new("RGB", (columns * cell, 2 * rows * cell), "gray")
    for index, pair in enumerate(zip(pictures, rebuilt)):
        for below, image in enumerate(pair):
            sheet.paste(image, ((index % columns) * cell + 1, (2 * (index // columns) + below) * cell + 1))
    return sheet

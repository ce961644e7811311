"""What tokenizers preserve of the toy dataset: text exactly, images and speech by independent measures."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from triptych.eval.audio.speech import dnsmos, transcribe, word_error_rate
from triptych.eval.codecs.fitted import contact_sheet
from triptych.scenes.judge import score_images
from triptych.scenes.samples import SPLITS, scene_sample
from triptych.scenes.speech import ALWAYS_AVAILABLE, available_voices, speakable, synthesize
from triptych.scenes.world import FULL, Scene, World
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.tokenizers.mel_rvq import MelRVQ
from triptych.tokenizers.reconstruction import REPORT, TAIL, audio_distance, image_psnr, psnr
from triptych.utils.media import Audio
from triptych.vocab import Task

Progress = Callable[[str], None]


def evaluate_tokenizers(
    bundle: TokenizerBundle,
    num_images: int,
    num_speech: int,
    split: str = "test",
    world: World = FULL,
    voices: Path | None = None,
    progress: Progress = print,
) -> dict[str, Any]:
    """Encode and decode samples of a split; every measure is given for the originals and the reconstructions.

    The text tokenizer is measured on the texts of the images. Images have all categories in turn. `num_speech` is the
    number of sentences in every voice of the folder `voices`, held out or not; 0 skips speech.
    """
    results: dict[str, Any] = {"split": split, "num_images": num_images, "num_speech": num_speech}
    scenes, originals, texts = _images(num_images, split, world)
    decoded_texts = bundle.text.decode(bundle.text.encode(texts))
    results["text_exact"] = float(np.mean([a == b for a, b in zip(texts, decoded_texts)]))
    progress(f"text: {results['text_exact']:.2%} exact")

    reconstructed = _reconstruct(bundle, originals)
    results["psnr_db"] = float(np.mean([psnr(a, b) for a, b in zip(originals, reconstructed)]))
    codes = bundle.image.encode(originals)
    results["code_entropy"] = _entropy(codes)
    # A model can caption its own images only if they are encoded as the codes they were generated from.
    again = bundle.image.encode(reconstructed)
    results["reencoding_changed"] = float(np.mean([(a != b).mean() for a, b in zip(codes, again)]))
    progress(
        f"image codes: unigram entropy {results['code_entropy']:.2f} nats; "
        f"{results['reencoding_changed']:.1%} of the codes of reconstructed images are others"
    )
    results["judge_original"] = score_images(originals, scenes, world)
    results["judge_reconstructed"] = score_images(reconstructed, scenes, world)
    progress(
        f"images: PSNR {results['psnr_db']:.1f} dB; judge {results['judge_original']['overall']:.1%} on originals, "
        f"{results['judge_reconstructed']['overall']:.1%} on reconstructions"
    )
    for category, share in results["judge_reconstructed"].items():
        progress(f"  {category}: {results['judge_original'][category]:.1%} -> {share:.1%}")
    if num_speech:
        results["speech"] = _evaluate_speech(bundle, num_speech, split, world, voices, progress)
    return results


def _images(number: int, split: str, world: World) -> tuple[list[Scene], list[Image.Image], list[str]]:
    samples = [scene_sample(Task.IMAGE_TEXT, split, index, world=world) for index in range(number)]
    return (
        [sample.scene for sample in samples],
        [sample.image for sample in samples if sample.image is not None],
        [sample.text for sample in samples],
    )


def _evaluate_speech(
    bundle: TokenizerBundle, number: int, split: str, world: World, folder: Path | None, progress: Progress
) -> dict[str, dict[str, float]]:
    """Measures by voice, and "all"."""
    names: tuple[str, ...] = (ALWAYS_AVAILABLE,)
    if not world.plain_language:
        names = (*available_voices(folder), *available_voices(folder, held_out=True))
    clips: dict[str, list[tuple[str, Audio]]] = {}
    for place, voice in enumerate(names):
        rngs = [np.random.default_rng([SPLITS.index(split), place, index]) for index in range(number)]
        texts = [speakable(world.sample(rng, split), split, rng, [voice], voice, world, folder)[1] for rng in rngs]
        clips[voice] = [(text, synthesize(text, rng, world, voice, folder)) for text, rng in zip(texts, rngs)]
    results = {}
    every = [pair for pairs in clips.values() for pair in pairs]
    groups = clips if len(names) > 1 else {}
    for name, pairs in {**groups, "all": every}.items():
        results[name] = _measure_speech(bundle, [text for text, _ in pairs], [audio for _, audio in pairs])
        values = results[name]
        progress(
            f"speech, {name}: WER {values['wer_original']:.3f} -> {values['wer_reconstructed']:.3f}, "
            f"DNSMOS {values['mos_original']:.2f} -> {values['mos_reconstructed']:.2f}"
        )
    return results


def _measure_speech(bundle: TokenizerBundle, texts: Sequence[str], originals: Sequence[Audio]) -> dict[str, float]:
    ids = bundle.audio.encode(originals)
    versions = {"original": list(originals), "reconstructed": bundle.audio.decode(ids)}
    if isinstance(bundle.audio, MelRVQ) and bundle.audio.decoder is not None:
        versions["without_decoder"] = bundle.audio.without_decoder().decode(ids)
    results = {"tokens_per_second": sum(map(len, ids)) / sum(clip.seconds for clip in originals)}
    for name, clips in versions.items():
        results[f"wer_{name}"] = word_error_rate(texts, transcribe(clips))
        results[f"mos_{name}"] = float(dnsmos(clips)[:, 2].mean())
    return results


def write_reconstruction_report(
    folder: Path, world: World, voices: Path | None, images: int = 120, clips: int = 40
) -> None:
    """Write the report that `triptych tokenize` compares other samples with, on the validation split."""
    bundle = TokenizerBundle.load(folder)
    quality = image_psnr(bundle, _images(images, "validation", world)[1])
    names = available_voices(voices) if not world.plain_language else (ALWAYS_AVAILABLE,)
    spoken = []
    for index in range(clips):
        rng, voice = np.random.default_rng([3, index]), names[index % len(names)]
        text = speakable(world.sample(rng, "validation"), "validation", rng, [voice], voice, world, voices)[1]
        spoken.append(synthesize(text, rng, world, voice, voices))
    distance = audio_distance(bundle, spoken)
    report = {
        "image": {"samples": images, "psnr": quality.mean(), "psnr_low": np.percentile(quality, TAIL)},
        "audio": {"samples": clips, "log_mel": distance.mean(), "log_mel_high": np.percentile(distance, 100 - TAIL)},
    }
    rounded = {part: {name: round(float(value), 4) for name, value in of.items()} for part, of in report.items()}
    (folder / REPORT).write_text(json.dumps(rounded, indent=2) + "\n")


def _entropy(ids: Sequence[np.ndarray]) -> float:
    share = np.bincount(np.concatenate(ids)) / sum(map(len, ids))
    return float(-(share[share > 0] * np.log(share[share > 0])).sum())


def _reconstruct(bundle: TokenizerBundle, images: Sequence[Image.Image]) -> list[Image.Image]:
    """Encode and decode images, at their original size."""
    decoded = bundle.image.decode(bundle.image.encode(images))
    return [new if new.size == old.size else new.resize(old.size) for new, old in zip(decoded, images)]


def scenes_sheet(
    bundle: TokenizerBundle, split: str = "test", columns: int = 10, rows: int = 4, world: World = FULL
) -> Image.Image:
    """Images of a split, each above its reconstruction."""
    _, originals, _ = _images(columns * rows, split, world)
    return contact_sheet(originals, _reconstruct(bundle, originals), columns)

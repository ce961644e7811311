"""How well a model tells unusual inputs from those of the dataset: AUROC of its input checks.

    image             noise, flat grey, colour gradients, test images with their tiles shuffled
    audio             silence, white noise, chords
    text with image   captions with their words shuffled

AUROC is the probability that an unusual input is further from the validation data than a usual one of the test split.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from PIL import Image

from triptych.eval.records import Record, run_part
from triptych.eval.scores import Score, auroc
from triptych.hub.input_checks import InputCheck
from triptych.scenes.captions import caption
from triptych.scenes.exam_samples import Exam, Scored, exam_scenes, spoken_sentence
from triptych.scenes.image import scene_image
from triptych.utils.media import Audio

USUAL = "usual"
_IMAGES, _CAPTIONS = 11, 12  # streams of scenes
_TILES = 8  # a side
_RATE = 16_000
_RESAMPLES = 500
_PARTS = {"image": "unusual images", "audio": "unusual audio", "text with image": "unusual texts"}


def _kinds(exam: Exam) -> list[str]:
    checks = getattr(exam.pipe, "input_checks", None)
    return [kind for kind in _PARTS if checks is not None and kind in checks.distributions]


def run_unusual_inputs(exam: Exam, sampling: Mapping[str, Any]) -> None:
    if not _kinds(exam):
        exam.progress("  skipped: this model has no input checks; `triptych calibrate` makes them")
    for kind in _kinds(exam):
        items = _ITEMS[kind](exam)
        checks: dict[str, Callable[[Any], Any]] = {
            "image": exam.pipe.check_image,
            "audio": exam.pipe.check_audio,
            "text with image": partial(exam.pipe.check_text, beside="image"),
        }

        def measure(batch: range, items: Items = items, check: Callable[[Any], Any] = checks[kind]) -> list[Record]:
            results: list[InputCheck] = check([items[i][1]() for i in batch])
            return [
                # JSON has no infinity.
                {"set": items[i][0], "distance": min(each.distance, sys.float_info.max), "warned": each.is_unusual}
                for i, each in zip(batch, results)
            ]

        run_part(exam.records, _PARTS[kind], len(items), measure, exam.progress)


def score_unusual_inputs(exam: Exam) -> tuple[Scored, dict[str, Any]]:
    scores: dict[str, Score] = {}
    warned: dict[str, dict[str, float]] = {}
    for kind in _kinds(exam):
        distances: dict[str, list[float]] = {}
        flags: dict[str, list[bool]] = {}
        for record in exam.records.of(_PARTS[kind]):
            distances.setdefault(record["set"], []).append(record["distance"])
            flags.setdefault(record["set"], []).append(record["warned"])
        usual = distances.pop(USUAL, [])
        if not distances:
            continue
        scores[f"unusual {kind}, AUROC"] = _score(usual, list(chain(*distances.values())))
        if len(distances) > 1:
            scores |= {f"unusual {kind}, AUROC, {name}": _score(usual, each) for name, each in distances.items()}
        warned[kind] = {name: float(np.mean(each)) for name, each in flags.items()}
    if not _kinds(exam):
        return Scored(), {"unusual_inputs": "the model has no input checks"}
    return Scored(scores), {"unusual_inputs": {"warned": warned}}


def _score(usual: Sequence[float], unusual: Sequence[float]) -> Score:
    """AUROC with a bootstrap interval over both sets."""
    one, other, rng = np.asarray(usual), np.asarray(unusual), np.random.default_rng(0)
    values = [auroc(*(rng.choice(each, len(each)) for each in (one, other))) for _ in range(_RESAMPLES)]
    low, high = np.quantile(values, (0.025, 0.975))
    return Score(auroc(one, other), float(low), float(high), len(one) + len(other))


# -- inputs: the name of a set and a function that makes one -----------------------------------------------------------

Items = list[tuple[str, Callable[[], Any]]]


def _counts(n: int) -> tuple[int, int]:
    """Usual inputs, and unusual ones of each set."""
    return min(n, 200), max(1, min(n, 200) // 4)


def _image_items(exam: Exam) -> Items:
    num_usual, num_unusual = _counts(exam.num_images)
    size = exam.world.image_size
    scenes = exam_scenes(num_usual, exam.split, _IMAGES, exam.world)
    images = [scene_image(*pair, exam.world) for pair in scenes]
    items: Items = [(USUAL, partial(_same, image)) for image in images]
    for number, (name, make) in enumerate(_IMAGE_SETS.items()):
        for i in range(num_unusual):
            items.append((name, partial(make, np.random.default_rng([number, i]), size, images[i % num_usual])))
    return items


def _same(item: Any) -> Any:
    return item


def _noise(rng: np.random.Generator, size: int, image: Image.Image) -> Image.Image:
    return Image.fromarray(rng.normal(128, 64, (size, size, 3)).clip(0, 255).astype(np.uint8))


def _flat_grey(rng: np.random.Generator, size: int, image: Image.Image) -> Image.Image:
    return Image.new("RGB", (size, size), (int(rng.integers(32, 190)),) * 3)


def _gradient(rng: np.random.Generator, size: int, image: Image.Image) -> Image.Image:
    """From one colour at a side or corner to another at the opposite one."""
    first, last = rng.integers(0, 256, (2, 3))
    down, right = np.mgrid[:size, :size] / (size - 1)
    weight = rng.random()
    share = (weight * down + (1 - weight) * right)[..., None]
    return Image.fromarray((first + share * (last - first)).astype(np.uint8))


def _shuffled_tiles(rng: np.random.Generator, size: int, image: Image.Image) -> Image.Image:
    side = size // _TILES
    tiles = np.asarray(image).reshape(_TILES, side, _TILES, side, 3).swapaxes(1, 2).reshape(-1, side, side, 3)
    tiles = tiles[rng.permutation(len(tiles))].reshape(_TILES, _TILES, side, side, 3).swapaxes(1, 2)
    return Image.fromarray(np.ascontiguousarray(tiles.reshape(size, size, 3)))


_IMAGE_SETS = {"noise": _noise, "flat grey": _flat_grey, "gradients": _gradient, "tiles shuffled": _shuffled_tiles}


def _audio_items(exam: Exam) -> Items:
    num_usual, num_unusual = _counts(exam.num_speech)

    def usual(i: int) -> Audio:
        return spoken_sentence(i, exam.split, exam.world, exam.voices).audio

    items: Items = [(USUAL, partial(usual, i)) for i in range(num_usual)]
    for number, (name, make) in enumerate(_AUDIO_SETS.items()):
        for i in range(num_unusual):
            rng = np.random.default_rng([number, i])
            time = np.arange(round(rng.uniform(0.6, 4) * _RATE)) / _RATE
            items.append((name, partial(_clip, make, rng, time)))
    return items


def _clip(make: Callable[[np.random.Generator, np.ndarray], np.ndarray], rng: np.random.Generator, time: Any) -> Audio:
    return Audio(np.clip(make(rng, time), -1, 1).astype(np.float32), _RATE)


def _silence(rng: np.random.Generator, time: np.ndarray) -> np.ndarray:
    return np.zeros_like(time)


def _white_noise(rng: np.random.Generator, time: np.ndarray) -> np.ndarray:
    return rng.normal(0, 0.1, len(time))


def _chords(rng: np.random.Generator, time: np.ndarray) -> np.ndarray:
    """Half a second each: three notes with overtones that fade away."""
    wave = np.zeros_like(time)
    since = time % 0.5
    for start in np.arange(0, time[-1], 0.5):
        here = (time >= start) & (time < start + 0.5)
        root = rng.uniform(100, 400)
        for note in (root, root * (1.26 if rng.random() < 0.5 else 1.19), root * 1.5):
            for overtone in (1, 2, 3):
                wave[here] += 0.1 / overtone * np.sin(2 * np.pi * note * overtone * since[here])
    return wave * np.exp(-2 * since)


_AUDIO_SETS = {"silence": _silence, "white noise": _white_noise, "chords": _chords}


def _text_items(exam: Exam) -> Items:
    num_usual, num_unusual = _counts(exam.num_images)
    texts = [
        caption(scene, rng, exam.world) for scene, rng in exam_scenes(num_usual, exam.split, _CAPTIONS, exam.world)
    ]
    long = [text for text in texts if len(text.split()) > 3] or texts
    items: Items = [(USUAL, partial(_same, text)) for text in texts]
    for i in range(num_unusual):
        words = long[i % len(long)].rstrip(".?").split()
        items.append(("words shuffled", partial(_same, " ".join(np.random.default_rng(i).permutation(words)))))
    return items


_ITEMS = {"image": _image_items, "audio": _audio_items, "text with image": _text_items}
MEASURES = {"unusual-inputs": (run_unusual_inputs, score_unusual_inputs)}

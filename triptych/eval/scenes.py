"""The embedded world as an examination: every direction of a model, on scenes it has never seen, by exact judges.

    text -> image     the judge reads the picture back: six skills as in GenEval, and KID against true pictures
    image -> text     the caption must say exactly the scene
    question          the answer must be the right word
    speech -> text    word errors against what was said
    text -> speech    word errors of Whisper tiny.en on what is said; beside it on true and on re-coded speech

Ranges are 95 % bootstrap intervals over samples.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

from triptych.eval.audio import normalize_transcript, transcribe, word_errors
from triptych.eval.image import inception_features, kernel_distance
from triptych.pipeline import Pipeline
from triptych.scenes import grammar
from triptych.scenes.grammar import CATEGORIES
from triptych.scenes.judge import describes, read, shows
from triptych.scenes.picture import draw, place
from triptych.scenes.samples import SPLITS, scene_sample
from triptych.tokenizers.base import Sound
from triptych.vocab import Task

_LEAST_FOR_KID = 100  # pictures: what one of its subsets takes
_BATCH = 50  # requests between two lines of progress
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
    """sum(hits) / sum(counts) (by default the mean), with its bootstrap interval over samples."""
    top = np.asarray(hits, float)
    bottom = np.ones_like(top) if counts is None else np.asarray(counts, float)
    rng = np.random.default_rng(0)
    picks = rng.integers(len(top), size=(resamples, len(top)))
    values = top[picks].sum(1) / np.maximum(bottom[picks].sum(1), 1e-12)
    low, high = np.quantile(values, (0.025, 0.975))
    return Score(float(top.sum() / bottom.sum()), float(low), float(high), len(top))


def category_score(right: dict[str, list[bool]], resamples: int = 1000) -> Score:
    """The mean over categories, each resampled by itself."""
    rng = np.random.default_rng(0)
    columns = []
    for answers in right.values():
        values = np.asarray(answers, float)
        columns.append(values[rng.integers(len(values), size=(resamples, len(values)))].mean(1))
    means = np.mean(columns, axis=0)
    low, high = np.quantile(means, (0.025, 0.975))
    overall = float(np.mean([np.mean(answers) for answers in right.values()]))
    return Score(overall, float(low), float(high), sum(map(len, right.values())))


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
        features = inception_features(true)
        mean, std = kernel_distance(inception_features(drawn), features)
        recoded = pipe.bundle.image.decode(pipe.bundle.image.encode(true))
        floor, _ = kernel_distance(inception_features(recoded), features)
        found.extras["kid"] = {"value": mean, "std": std, "n": n, "recoded": floor}
        report(f"  KID x 1000: {1000 * mean:.2f} ± {1000 * std:.2f}; of re-coded true pictures {1000 * floor:.2f}")
    else:
        report(f"  KID left out: it needs {_LEAST_FOR_KID} pictures")
    report(f"text to image: {found.scores['text to image']}")


def _mean(right: dict[str, list[bool]]) -> float:
    return float(np.mean([answer for answers in right.values() for answer in answers]))


def _image_to_text(
    pipe: Pipeline, n: int, split: str, seed: int, found: Examination, report: Report, settings: dict[str, Any]
) -> None:
    right: list[bool] = []
    things = [place(scene, rng) for scene, rng in _scenes(n, split, 2)]
    for batch in _batches(n):
        said = pipe.caption([draw(things[i]) for i in batch], seed=seed + batch.start, **settings)
        right += [describes(text, things[i]) for i, text in zip(batch, said)]
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


def _spoken(n: int, split: str) -> tuple[list[str], list[Sound]]:
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
    said: list[Sound] = []
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

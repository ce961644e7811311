"""The demo, with a small model of random weights and a few steps of training: everything but the quality."""

import re

import pytest
from rich.console import Console

from triptych.cli.main import main
from triptych.data.shards import Manifest
from triptych.eval import html as report
from triptych.hub.pipeline import Limits, Pipeline
from triptych.model.transformer import ModelConfig, Transformer, initialise
from triptych.scenes import demo, grammar
from triptych.scenes.image import STEP, draw, place
from triptych.scenes.make import make_scenes
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.vocab import Task

SECTIONS = (
    "Text to picture",
    "Picture to text, and questions",
    "Text to speech, and back",
    "Filling in",
    "Speech to picture",
    "A nano model learns",
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


def test_the_demo_writes_a_page_with_all_its_parts(model, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(demo, "_TRAIN", {Task.TEXT: 8, Task.IMAGE_TEXT: 8, Task.AUDIO_TEXT: 4})
    monkeypatch.setattr(demo, "_HELD_OUT", 2)
    assert main(["demo", "--out", str(tmp_path / "page"), "--model", str(model), "--nano-steps", "4"]) == 0
    page = (tmp_path / "page/index.html").read_text()
    assert re.findall("<h2>(.*?)</h2>", page) == list(SECTIONS)
    # Four drawings, one looked at, three of filling in, one of speech; steps of one drawing; two recordings.
    assert len(re.findall("<img class='picture'", page)) == 9
    assert len(re.findall("<img class='step'", page)) == 8
    assert len(re.findall("<audio controls src='data:audio/wav;base64,[A-Za-z0-9+/=]+'>", page)) == 2
    assert len(re.findall("<polyline", page)) == 4
    assert "http" not in page.replace("http://www.w3.org", ""), "the page needs other files"
    said = capsys.readouterr().out
    assert "index.html" in said
    assert re.search(r"4 steps: loss \d+\.\d+ -> \d+\.\d+", said)
    assert said.count("✓") + said.count("✗") >= 10


def test_data_of_an_earlier_demo_that_do_not_fit_are_made_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "_TRAIN", {Task.TEXT: 8, Task.IMAGE_TEXT: 8, Task.AUDIO_TEXT: 4})
    monkeypatch.setattr(demo, "_HELD_OUT", 2)
    make_scenes(tmp_path / "data", {Task.TEXT: 3}, 2, workers=0, report=lambda line: None)
    assert "A nano model learns" in demo._learning(tmp_path, 2, Console(quiet=True))
    assert Manifest.load(tmp_path / "data/train/text").num_samples == 8


def test_a_hole_is_the_codes_of_one_thing():
    scene, rng = demo._held_out(30, "colour attribution")
    *others, thing = place(scene, rng)
    left, top, right, bottom = box = thing.plot
    assert (right - left, bottom - top) == (2 * STEP, 2 * STEP)
    assert left % STEP == top % STEP == 0
    holed = draw([*others, thing])
    holed.paste("white", box)
    assert holed.tobytes() == draw(others).tobytes()


def test_a_wrong_number_is_one_clear_line(capsys):
    assert main(["demo", "--nano-steps", "-1"]) == 2
    assert capsys.readouterr().err == "triptych: error: --nano-steps must not be negative, got -1.\n"


def test_a_wrong_model_is_one_clear_line(tmp_path, capsys):
    assert main(["demo", "--out", str(tmp_path / "page"), "--model", "scene"]) == 2
    assert "Did you mean 'scenes'?" in capsys.readouterr().err


# -- pieces of the page -----------------------------------------------------------------------------------------------


def test_what_comes_from_a_model_is_escaped():
    evil = "<script>&"
    assert "<script>" not in report.verdict(True, evil) + report.quote(evil) + report.section(evil)
    assert "&lt;script&gt;&amp;" in report.quote(evil)


def test_curves_keep_their_proportions_and_names():
    drawn = report.curves({"a": [(0.0, 1.0), (10.0, 3.0)], "b<": [(5.0, 3.0)]}, "step", "nats")
    points = re.findall("points='(.*?)'", drawn)
    (x0, y0), (x1, y1) = (tuple(map(float, pair.split(","))) for pair in points[0].split())
    assert x0 < x1
    assert y0 > y1  # more is higher up
    bottom = 300 - 40
    assert (bottom - y1) / (bottom - y0) == pytest.approx(3.0, abs=0.01)
    assert ">a</text>" in drawn
    assert ">b&lt;</text>" in drawn
    assert points[1] == f"{(x0 + x1) / 2:.1f},{y1:.1f}"

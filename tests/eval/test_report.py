"""The report: one page that loads nothing, escapes everything and works without a mouse; and its JSON."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from triptych.errors import DataError, UserError
from triptych.eval.metrics import Judge, Metric, Missing, Result
from triptych.eval.report import samples as report_samples
from triptych.eval.report.page import ReportedModel, group_by_model, report_json, report_page, unique_names
from triptych.eval.report.samples import Sample, Samples, make_samples, read_samples, suite_samples
from triptych.eval.results import Entry, MissingEntry, ModelInfo, StoredResults
from triptych.eval.scores import Score
from triptych.utils.media import Audio

EVIL = "<script>alert('1')</script>&\""
MINE, YOURS = ModelInfo("runs/mine", "1" * 64, num_parameters=3_500_000), ModelInfo("runs/yours", "2" * 64)


def entry(suite, name, value, modality="image", bounds=None, higher=False, model=MINE, date="2026-01-01", **settings):
    metric = Metric(name, name, modality, higher, bounds)
    judge = Judge("Inception", "ab" * 32)
    score = Score(value, value * 0.9, value * 1.1, 50)
    samples = [(value, 1.0)] * 50
    environment = {"torch": "2.13", "commit": "abc"}
    return Entry(suite, Result(metric, score, settings, judge, samples), model, 0, environment, date)


def paper_entries(model=MINE):
    return [
        entry("image", "fid", 25.0, model=model, reference="data/cc12m"),
        entry("text", "mmlu/acc", 0.3, "text", (0.0, 1.0), True, model=model),
        entry("text", "piqa/acc_norm", 0.6, "text", (0.0, 1.0), True, model=model),
        entry("audio", "wer", 0.4, "audio", (0.0, 1.0), model=model, source=["librispeech-pc"]),
    ]


def reported(tmp_path, entries, model=MINE, missing=(), notes=(), **fields):
    stored = StoredResults(tmp_path / model.name, entries, missing, notes)
    return ReportedModel(model.name, [stored], **fields)


SAMPLES = Samples(
    [
        Sample("text-to-image", "image", EVIL, 7, Image.new("RGB", (8, 8), "red")),
        Sample("text-to-speech", "audio", EVIL, 7, Audio(np.zeros(4000, np.float32), 16_000)),
        Sample("complete", "text", EVIL, 8, EVIL),
    ],
    [EVIL],
)


class Checker(HTMLParser):
    """Balanced tags, and what the page refers to."""

    void = {"meta", "img", "br", "line", "circle", "polyline", "polygon", "path", "link"}  # noqa: RUF012

    def __init__(self, text):
        super().__init__()
        self.open, self.addresses, self.ids, self.tags, self.unnamed = [], [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.tags.append(tag)
        self.addresses += [given[name] for name in ("src", "href", "srcset") if given.get(name)]
        self.ids += [given["id"]] if "id" in given else []
        if given.get("role") in ("img", "region") and not given.get("aria-label"):
            self.unnamed.append(tag)
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture
def page(tmp_path):
    missing = [MissingEntry("image", Missing(Metric("geneval", EVIL, "image", True), f"give --detector {EVIL}"), MINE)]
    evil = entry("scenes", EVIL, 0.5, bounds=(0.0, 1.0), data=EVIL)
    entries = [*paper_entries(), evil, *(entry("scenes", f"toy {i}", 0.5, bounds=(0.0, 1.0)) for i in range(3))]
    curves = {"all": [(0.0, 5.0), (10.0, 3.0)], EVIL: [(0.0, 4.0), (10.0, 2.0)]}
    mine = reported(tmp_path, entries, missing=missing, notes=[EVIL], samples=SAMPLES, curves=curves)
    return report_page([mine])


def test_the_page_is_well_formed_and_loads_nothing(page):
    checker = Checker(page)
    assert "script" not in checker.tags
    assert all(each.startswith(("data:image/png;", "data:audio/wav;", "#")) for each in checker.addresses)
    assert "url(" not in page
    assert "default-src 'none'" in page
    assert len(page) < 400_000


def test_everything_from_models_and_users_is_escaped(page):
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 9


def test_it_can_be_read_with_the_keyboard_and_by_a_screen_reader(page):
    checker = Checker(page)
    assert "<html lang='en'>" in page
    links = {each[1:] for each in checker.addresses if each.startswith("#")}
    assert links == set(checker.ids)
    assert len(links) >= 8
    assert checker.unnamed == []
    scrolling = re.findall(r"<div class='scroll'[^>]*>", page)
    assert scrolling
    assert all("tabindex='0'" in each and "aria-label=" in each for each in scrolling)
    assert re.search(r"<img class='image' alt='drawn for: ", page)


def test_it_has_light_and_dark_colours_and_a_phones_width(page):
    assert "prefers-color-scheme: dark" in page
    assert "width=device-width" in page


def row(page, title):
    (found,) = re.findall(rf"<tr><th scope='row'>{re.escape(title)}.*?</tr>", page)
    return re.sub(r"<[^>]*>", " ", found)


def test_the_papers_table_stands_beside_ours(page):
    assert re.search(r"41\.57 \s*30 \s*27 to 33", row(page, "MMLU"))
    assert re.search(r"10\.06 \s*25 \s*22\.5 to 27\.5", row(page, "FID, Inception-v3, CC12M"))
    assert re.search(r"10\.41 \s*–", row(page, "FID, Inception-v3, training data"))
    assert re.search(r"0\.164 \s*0\.4", row(page, "WER, LibriSpeech-PC"))


def test_sections_depend_on_what_there_is(page, tmp_path):
    titles = re.findall("<h2>(.*?)</h2>", page)
    assert titles == [
        "Model", "Profile", "Samples", "Beside the paper", "Toy dataset", "Text", "Images", "Audio", "Training",
        "Not measured", "How to read this page",
    ]  # fmt: skip
    little = report_page([reported(tmp_path, [entry("elbo", "elbo/text", 3.0, "text")])])
    titles = re.findall("<h2>(.*?)</h2>", little)
    assert titles == ["Model", "Likelihood (ELBO)", "Beside the paper", "How to read this page"]
    assert "None of these metrics has been measured here" in little
    assert "<h1>Evaluation of mine</h1>" in little


def test_two_models_have_columns_and_differences(tmp_path):
    ours = [reported(tmp_path, paper_entries()), reported(tmp_path, paper_entries(YOURS), YOURS)]
    page = report_page(ours)
    assert "Differences" in re.findall("<h2>(.*?)</h2>", page)
    assert "no difference shown" in page
    assert "<h1>Evaluation of mine and yours</h1>" in page
    assert page.count("class='key ") == 3  # the paper and both models
    Checker(page)


def test_nothing_to_report_is_one_clear_line(tmp_path):
    with pytest.raises(DataError, match="nothing to report: no metric has been computed"):
        report_page([reported(tmp_path, [])])


def test_the_json_has_results_the_papers_rows_and_positions(tmp_path):
    content = json.loads(json.dumps(report_json(reported(tmp_path, paper_entries())), allow_nan=False))
    assert [each["metric"]["name"] for each in content["results"]] == ["fid", "mmlu/acc", "piqa/acc_norm", "wer"]
    assert all("samples" not in each for each in content["results"])
    rows = {each["row"]: each for each in content["paper"]["rows"]}
    assert rows["lm/mmlu"] | {"title": ""} == {
        "row": "lm/mmlu",
        "title": "",
        "paper": 41.57,
        "value": 30.0,
        "position": pytest.approx(0.3),
        "paper_position": pytest.approx(0.4157),
    }
    assert rows["fid-inception/train"]["value"] is None
    assert content["model"]["num_parameters"] == 3_500_000


# -- several folders --------------------------------------------------------------------------------------------------


def test_folders_of_one_model_are_one_column_with_the_newest_results(tmp_path):
    first = StoredResults(tmp_path / "a", [entry("image", "fid", 30.0, date="2026-01-01")], ())
    second = StoredResults(tmp_path / "b", [entry("image", "fid", 20.0, date="2026-02-01")], ())
    other = StoredResults(tmp_path / "c", paper_entries(YOURS), ())
    groups = group_by_model([first, other, second, first])
    assert groups == [[first, second], [other]]
    assert unique_names(groups) == ["mine", "yours"]
    assert [each.score.value for each in ReportedModel("mine", groups[0]).entries] == [20.0]


def test_models_of_one_name_are_told_apart(tmp_path):
    twin = ModelInfo("runs/mine", "3" * 64)
    stored = [StoredResults(tmp_path / name, paper_entries(model), ()) for name, model in (("x", MINE), ("y", twin))]
    assert unique_names(group_by_model(stored)) == ["x", "y"]


# -- samples ----------------------------------------------------------------------------------------------------------


def test_samples_are_kept_for_the_same_model_and_prompts(small_pipe, tmp_path, monkeypatch):
    lines = []
    made = make_samples(small_pipe, tmp_path / "samples", lines.append, ["a cat"])
    assert {each.direction for each in made.samples} >= {"text-to-image", "text-to-speech", "complete"}
    assert [each.prompt for each in made.samples if each.kind == "image"] == ["a cat"]
    assert lines
    with monkeypatch.context() as patch:
        patch.setattr(report_samples, "_generate", lambda *rest: pytest.fail("they are there"))
        again = make_samples(small_pipe, tmp_path / "samples", lines.append, ["a cat"])
    assert [each.prompt for each in again.samples] == [each.prompt for each in made.samples]
    pixels = [np.asarray(next(s.content for s in each.samples if s.kind == "image")) for each in (made, again)]
    assert np.array_equal(*pixels)
    other = make_samples(small_pipe, tmp_path / "samples", lines.append, ["a dog"])
    assert [each.prompt for each in other.samples if each.kind == "image"] == ["a dog"]


def test_a_direction_that_a_model_lacks_is_a_note(small_pipe, tmp_path, monkeypatch):
    def refuse(*rest, **options):
        raise UserError("this model has no audio.")

    monkeypatch.setattr(small_pipe, "text_to_speech", refuse)
    made = make_samples(small_pipe, tmp_path / "samples", lambda line: None, ["a cat"])
    assert made.notes == ["text-to-speech: this model has no audio."]
    assert {each.kind for each in made.samples} == {"image", "text"}


def test_damaged_samples_are_made_again(tmp_path):
    (tmp_path / "samples.json").write_text("{")
    assert read_samples(tmp_path) is None
    (tmp_path / "samples.json").write_text('{"samples": [{"kind": "image", "file": "gone.png"}], "notes": []}')
    assert read_samples(tmp_path) is None


def test_samples_of_the_suites_are_shown(tmp_path):
    images, clips = tmp_path / "samples" / "image", tmp_path / "audio" / "abc"
    images.mkdir(parents=True)
    clips.mkdir(parents=True)
    Image.new("RGB", (4, 4)).save(images / "00000.png")
    listed = [{"file": "00000.png", "prompt": "a"}, {"file": "00001.png", "prompt": "not drawn yet"}]
    (images / "prompts.json").write_text(json.dumps(listed))
    Audio(np.zeros(1600, np.float32), 16_000).save(clips / "0.wav")
    lines = [{"text": "b", "text-to-speech": "0.wav"}, {"text": "not spoken"}]
    (clips / "clips.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = suite_samples(tmp_path)
    assert [(each.kind, each.prompt) for each in found] == [("image", "a"), ("audio", "b")]
    assert suite_samples(tmp_path / "nothing") == []


@pytest.fixture(scope="module")
def small_pipe():
    """A model of random weights."""
    from triptych.hub.format import Limits
    from triptych.hub.pipeline import Pipeline
    from triptych.model.transformer import ModelConfig, Transformer, initialise
    from triptych.tokenizers.bundle import TokenizerBundle

    bundle = TokenizerBundle.load("scenes")
    shape = ModelConfig(num_layers=1, width=16, num_heads=2, d_ff=24, softmax_scope="modality", init_std=0.3)
    network = Transformer(shape, bundle.vocabulary)
    initialise(network, 1)
    return Pipeline(network, bundle, Limits(seq_len=224, text_slot=12, audio_slot=32), preset="scenes")

"""Positions of the radar by hand, its outlines, and the paper's table against the numbers of the paper."""

import math
import re
from itertools import pairwise

import pytest

from triptych.eval.metrics import Metric, Result
from triptych.eval.report.paper import paper, paper_axes, result_of
from triptych.eval.report.radar import Axis, ecdf, radar_chart, radar_position, references
from triptych.eval.results import Entry, ModelInfo
from triptych.eval.scores import Score

MODEL = ModelInfo("mine", "1" * 64)


@pytest.mark.parametrize(
    ("value", "options", "position"),
    [
        (48.89, {"higher_is_better": True, "bounds": (0, 100)}, 0.4889),
        (0.164, {"higher_is_better": False, "bounds": (0, 1)}, 0.836),
        (1.7, {"higher_is_better": False, "bounds": (0, 1)}, 0.0),  # a WER above 1
        (5.5, {"higher_is_better": True, "bounds": (1, 10)}, 0.5),
        (3.01, {"higher_is_better": False, "bounds": (0, 10)}, 0.699),
        (10.0, {"higher_is_better": False, "published": (5, 10, 20, 40)}, 0.5),  # two of four are not above it
        (4.9, {"higher_is_better": False, "published": (5, 10, 20, 40)}, 1.0),
        (40.0, {"higher_is_better": False, "published": (5, 10, 20, 40)}, 0.0),
        (10.0, {"higher_is_better": True, "published": (5, 10, 20, 40)}, 0.5),
    ],
)
def test_positions_by_hand(value, options, position):
    assert radar_position(value, **options) == pytest.approx(position)


def test_without_bounds_and_references_there_is_no_position():
    assert radar_position(3.0, higher_is_better=False) is None
    assert radar_position(math.nan, higher_is_better=True, bounds=(0, 1)) is None


def test_the_ecdf_counts_ties():
    assert [ecdf((1, 2, 2, 3), x) for x in (0, 1, 2, 2.5, 3)] == [0, 0.25, 0.75, 0.75, 1]


def test_references_have_sources_and_are_enough():
    assert set(references()) == {"fid", "fid_dinov2", "fad"}
    for published in references().values():
        assert len(published) >= 6
        assert all(each.value > 0 and each.model and each.data and each.source for each in published)


# -- the paper's table ------------------------------------------------------------------------------------------------

PRINTED = """
FID-Inception 10.41 FID-DINOv2 112.12 FID-Inception 10.06 FID-DINOv2 107.61
93.12 63.38 33.44 64.89 11.50 27.00 48.89
37.40 40.76 24.97 41.57 64.69 72.52 65.88 30.66 71.55 43.09
0.218 0.124 6.89 6.20 5.45 1.89 0.368 0.164 6.01 5.34 5.07 3.01
"""


def test_the_table_is_that_of_the_paper():
    printed = [float(number) for number in re.findall(r"(?<!v)\d+\.\d+", PRINTED)]
    assert [row.value for row in paper().rows] == printed
    assert len({row.id for row in paper().rows}) == len(printed) == 33


def test_geneval_overall_is_the_mean_of_its_categories():
    values = {row.id: row.value for row in paper().rows if row.id.startswith("geneval/")}
    overall = values.pop("geneval/overall")
    assert overall == pytest.approx(sum(values.values()) / 6, abs=0.01)


def test_the_metrics_of_the_table_exist_in_the_suites():
    from triptych.eval.audio import suite as audio_suite
    from triptych.eval.audio.aesthetics import AXES
    from triptych.eval.geneval.prompts import CATEGORIES
    from triptych.eval.image.features import FeatureSpec
    from triptych.eval.image.settings import feature_metrics, geneval_metric
    from triptych.eval.text.suite import text_metrics

    known = {metric.name for metric in text_metrics().values()}
    known |= {geneval_metric(category).name for category in (*CATEGORIES, "overall")}
    for text in ("inception", "dinov2=folder"):
        known |= {metric.name for metric in feature_metrics(FeatureSpec.parse(text)).values()}
    known |= {audio_suite._error_metric("wer").name, audio_suite._fad_metric("clap", "CLAP", "text-to-speech").name}
    known |= {audio_suite._axis_metric(axis, "text-to-speech").name for axis in AXES}
    assert {name for row in paper().rows for name in row.metrics} <= known


def entry(name, value, data=None, modality="image", date="2026-01-01"):
    metric = Metric(name, name, modality, False)
    settings = {} if data is None else {"data": data}
    return Entry("image", Result(metric, Score(value, value, value, 5), settings), MODEL, date=date)


def test_a_result_stands_in_the_row_of_its_metric_and_data():
    rows = {row.id: row for row in paper().rows}
    entries = [
        entry("fid", 30.0, "data/cc12m/"),
        entry("fid", 40.0, "photos"),
        entry("fid", 20.0, "train-images", date="2026-02-01"),
        entry("fid", 25.0, "train_images"),
        entry("arc_easy/acc_norm", 0.5, modality="text"),
        entry("wer", 0.3, "LibriSpeech-PC", modality="audio"),
    ]
    found = {name: result_of(rows[name], entries) for name in rows}
    values = {name: rows[name].of(each) for name, each in found.items() if each is not None}
    assert values == {
        "fid-inception/train": 20.0,  # the newest
        "fid-inception/cc12m": 30.0,
        "lm/arc_easy": 50.0,  # in percent
        "wer/librispeech-pc": 0.3,
    }


def test_axes_of_the_papers_radar():
    axes = {axis.title: axis for axis in paper_axes([[entry("fid", 30.0, "cc12m")]])}
    assert len(axes) == 2 + 7 + 10 + 6
    published = [each.value for each in references()["fid"]]
    fid = axes["FID, Inception-v3"]
    assert fid.positions[0] == pytest.approx(sum(each > 10.06 for each in published) / len(published))
    assert fid.positions[1] == 0.0
    assert fid.labels == ["10.06", "30"]
    assert axes["MMLU"].positions == [pytest.approx(0.4157), None]
    assert axes["Audiobox PC"].positions[0] == pytest.approx(1 - 0.301)  # simple audio is better


# -- the chart --------------------------------------------------------------------------------------------------------


def corners(points):
    return [tuple(map(float, pair.split(","))) for pair in points.split()]


def test_the_chart_places_values_on_their_axes():
    axes = [Axis(name, [position], [name]) for name, position in (("a", 1.0), ("b", 0.5), ("c", 0.0), ("d", 0.25))]
    svg = radar_chart(["one"], axes, "test")
    rings = [corners(points) for points in re.findall("points='([^']*)' class='grid'", svg)]
    (area,) = (corners(points) for points in re.findall("points='([^']*)' class='area", svg))
    quarter, half, _, full = rings
    centre = tuple(sum(each) / 4 for each in zip(*full))
    assert area[0] == full[0]
    assert area[1] == half[1]
    assert area[2] == pytest.approx(centre, abs=0.11)
    assert area[3] == quarter[3]
    assert full[0][1] < centre[1]  # the first axis points up
    assert full[1][0] > centre[0]  # and the next ones follow clockwise


def test_an_outline_has_gaps_where_values_are_missing():
    axes = [Axis(name, [0.5, position], ["1", ""]) for name, position in zip("abcde", (0.5, 0.5, None, 0.5, 0.5))]
    svg = radar_chart(["whole", "gaps"], axes, "test")
    assert svg.count("class='area") == 1
    (path,) = re.findall("<path d='([^']*)'", svg)
    assert path.count("M") == 3  # of five sides, two touch the missing value
    assert svg.count("<circle") == 5 + 4


def test_names_are_escaped():
    axes = [Axis("<b>", [0.5], ["<i>"])] * 3
    svg = radar_chart(["<script>"], axes, "<em>")
    assert not re.search("<(b|i|script|em)>", svg)


@pytest.mark.parametrize("count", [3, 4, 12, 25, 33])
def test_labels_do_not_overlap_and_stay_on_the_chart(count):
    axes = [Axis(f"axis {i}", [0.5], ["0.5"]) for i in range(count)]
    svg = radar_chart(["one"], axes, "test")
    width, height = map(float, re.search("viewBox='0 0 (\\d+) (\\d+)'", svg).groups())
    texts = [
        (float(x), float(y), anchor)
        for x, y, anchor in re.findall("<text x='(.*?)' y='(.*?)' text-anchor='(.*?)'", svg)
    ]
    assert len(texts) == count
    for anchor in ("start", "end"):
        lines = sorted(y for _, y, side in texts if side == anchor)
        assert all(below - above >= 26 for above, below in pairwise(lines))
    assert all(10 < y < height - 14 and 0 < x < width for x, y, _ in texts)

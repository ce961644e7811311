import re

import pytest

from triptych.eval import html


def test_text_from_a_model_is_escaped():
    evil = "<script>&"
    assert "<script>" not in html.verdict(True, evil) + html.quote(evil) + html.section(evil)
    assert "&lt;script&gt;&amp;" in html.quote(evil)


def test_a_line_chart_has_its_proportions_and_labels():
    chart = html.line_chart({"a": [(0.0, 1.0), (10.0, 3.0)], "b<": [(5.0, 3.0)]}, "step", "nats")
    points = re.findall("points='(.*?)'", chart)
    (x0, y0), (x1, y1) = (tuple(map(float, pair.split(","))) for pair in points[0].split())
    assert x0 < x1
    assert y0 > y1  # more is higher up
    bottom = 300 - 40
    assert (bottom - y1) / (bottom - y0) == pytest.approx(3.0, abs=0.01)
    assert ">a</text>" in chart
    assert ">b&lt;</text>" in chart
    assert points[1] == f"{(x0 + x1) / 2:.1f},{y1:.1f}"

"""A radar chart of metrics with different units: each value becomes a number from 0 (worst) to 1 (best).

Bounded metrics are placed within their bounds. An unbounded one, such as a Fréchet distance, is placed by published
values: F is their empirical distribution function, and a value x where lower is better becomes 1 - F(x), the share of
published values above it. This is the radar of the paper; the references are ours, each with its source.
"""

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from triptych.eval.html import NUM_COLOURS, scrolling
from triptych.utils.json_files import read_json

_REFERENCES = Path(__file__).parents[2] / "assets" / "evaluation" / "references.json"


@dataclass(frozen=True)
class Reference:
    """A published value of an unbounded metric."""

    value: float
    model: str
    data: str
    source: str


@cache
def references() -> Mapping[str, tuple[Reference, ...]]:
    """Published values by metric name."""
    content = read_json(_REFERENCES)["references"]
    return {name: tuple(Reference(**each) for each in values) for name, values in content.items()}


def ecdf(values: Sequence[float], x: float) -> float:
    """Share of the values that are not above x."""
    return sum(value <= x for value in values) / len(values)


def radar_position(
    value: float,
    *,
    higher_is_better: bool,
    bounds: tuple[float, float] | None = None,
    published: Sequence[float] = (),
) -> float | None:
    """From 0 (worst) to 1 (best); None without bounds and without published values, or for a value that is NaN."""
    if math.isnan(value):
        return None
    if bounds is not None:
        position = min(1.0, max(0.0, (value - bounds[0]) / (bounds[1] - bounds[0])))
    elif published:
        position = ecdf(published, value)
    else:
        return None
    return position if higher_is_better else 1 - position


@dataclass(frozen=True)
class Axis:
    """One metric of the chart."""

    title: str
    positions: Sequence[float | None]
    """Of each series; None where the series has no value."""
    labels: Sequence[str]
    """The raw value of each series, as it is shown."""


_WIDTH, _HEIGHT, _RADIUS = 780, 560, 205
_LABEL_GAP = 14
_LINE = 13  # height of a line of text


def radar_chart(series: Sequence[str], axes: Sequence[Axis], label: str) -> str:
    """SVG with one outline per series. Where a series has no value, its outline has a gap."""
    assert len(axes) >= 3
    assert all(len(axis.positions) == len(axis.labels) == len(series) for axis in axes)
    name = html.escape(f"Radar chart of {label}: {', '.join(series)}. The table has the same values.")
    svg = [f"<svg class='wide' viewBox='0 0 {_WIDTH} {_HEIGHT}' width='{_WIDTH}' role='img' aria-label='{name}'>"]
    for level in (0.25, 0.5, 0.75, 1.0):
        ring = " ".join("{:.1f},{:.1f}".format(*_point(i, len(axes), level)) for i in range(len(axes)))
        svg.append(f"<polygon points='{ring}' class='grid'/>")
    for i in range(len(axes)):
        x, y = _point(i, len(axes), 1.0)
        svg.append(f"<line x1='{_WIDTH / 2:.1f}' y1='{_HEIGHT / 2:.1f}' x2='{x:.1f}' y2='{y:.1f}' class='grid'/>")
    for number in range(len(series)):
        svg.append(_outline([axis.positions[number] for axis in axes], f"s{number % NUM_COLOURS}"))
    svg += [_label(place, axis) for place, axis in zip(_label_places(len(axes)), axes)]
    keys = "".join(
        f"<span><span class='key s{number % NUM_COLOURS}'></span>{html.escape(each)}</span>"
        for number, each in enumerate(series)
    )
    return scrolling("".join(svg) + "</svg>", f"radar chart of {label}") + f"<div class='row'>{keys}</div>"


def _point(i: int, count: int, position: float) -> tuple[float, float]:
    angle = 2 * math.pi * i / count - math.pi / 2
    return _WIDTH / 2 + _RADIUS * position * math.cos(angle), _HEIGHT / 2 + _RADIUS * position * math.sin(angle)


def _outline(positions: Sequence[float | None], css_class: str) -> str:
    """The outline, filled if it is closed, and a dot at every value."""
    count = len(positions)
    points = [None if each is None else _point(i, count, each) for i, each in enumerate(positions)]
    dots = "".join(f"<circle cx='{p[0]:.1f}' cy='{p[1]:.1f}' r='2.5' class='{css_class}'/>" for p in points if p)
    if all(points):
        corners = " ".join(f"{p[0]:.1f},{p[1]:.1f}" for p in points if p)
        return f"<polygon points='{corners}' class='area {css_class}'/>{dots}"
    sides = "".join(
        f"M{a[0]:.1f},{a[1]:.1f}L{b[0]:.1f},{b[1]:.1f}" for a, b in zip(points, [*points[1:], points[0]]) if a and b
    )
    return f"<path d='{sides}' class='line {css_class}'/>{dots}"


def _label_places(count: int) -> list[tuple[float, float, str]]:
    """x, y and anchor of the labels. Those of one side are moved apart, away from the middle, where they overlap."""
    places = []
    for i in range(count):
        x, y = _point(i, count, 1 + _LABEL_GAP / _RADIUS)
        across = x - _WIDTH / 2
        places.append((x, y, "middle" if abs(across) < 1 else "start" if across > 0 else "end"))
    heights = [y for _, y, _ in places]
    for anchor in ("start", "end"):
        for direction in (1, -1):  # downwards in the lower half, upwards in the upper half
            half = [i for i, (_, y, side) in enumerate(places) if side == anchor and (y - _HEIGHT / 2) * direction >= 0]
            half.sort(key=lambda i: heights[i] * direction)
            for above, below in pairwise(half):
                least = heights[above] + direction * (2 * _LINE + 1)
                heights[below] = max(heights[below], least) if direction > 0 else min(heights[below], least)
    top, bottom = _HEIGHT / 2 - _RADIUS, _HEIGHT / 2 + _RADIUS
    heights = [
        y if anchor != "middle" else min(y, top - 2 * _LINE) if y < top else max(y, bottom + 2 * _LINE)
        for y, (_, _, anchor) in zip(heights, places)
    ]
    return [(x, y, anchor) for (x, _, anchor), y in zip(places, heights)]


def _label(place: tuple[float, float, str], axis: Axis) -> str:
    """The name of an axis, and below it the values in the colours of their series."""
    x, y, anchor = place
    values = [
        f"<tspan class='s{number % NUM_COLOURS}'>{html.escape(text)}</tspan>"
        for number, text in enumerate(axis.labels)
        if text
    ]
    shown = " <tspan>·</tspan> ".join(values)
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}'>{html.escape(axis.title)}"
        f"<tspan x='{x:.1f}' dy='{_LINE}'>{shown}</tspan></text>"
    )

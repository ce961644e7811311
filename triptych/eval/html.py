"""Building blocks of a self-contained HTML page: images, audio players and line charts are embedded in it."""

import base64
import html
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from triptych.tokenizers.audio import resample
from triptych.tokenizers.mel import MelConfig
from triptych.utils.media import Audio

_STYLE = Path(__file__).parent.parent / "assets" / "evaluation" / "page.css"
NUM_COLOURS = 5
"""Colours of series, the CSS classes s0 to s4."""
_POLICY = "default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'"


def page(title: str, body: str) -> str:
    """A whole page in light or dark colours, as the reader prefers. It loads nothing and runs no scripts."""
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'>"
        f"<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE.read_text()}</style>{body}</html>"
    )


def section(title: str, *parts: str, anchor: str | None = None) -> str:
    """`anchor` is a name to link to."""
    name = f" id='{html.escape(anchor)}'" if anchor else ""
    return f"<section{name}><h2>{html.escape(title)}</h2>{''.join(parts)}</section>"


def paragraph(text: str) -> str:
    """`text` is HTML: escape text from models and users."""
    return f"<p>{text}</p>"


def quote(text: str) -> str:
    return f"<q>{html.escape(text)}</q>"


def verdict(is_right: bool, text: str) -> str:
    """The text with a green check mark or a red cross."""
    return f"<span class='{'right' if is_right else 'wrong'}'>{'✓' if is_right else '✗'} {html.escape(text)}</span>"


def row(*figures: str) -> str:
    return f"<div class='row'>{''.join(figures)}</div>"


def figure(content: str, caption: str) -> str:
    """`caption` is HTML: escape text from models and users."""
    return f"<figure>{content}<figcaption>{caption}</figcaption></figure>"


def image(item: Image.Image, css_class: str = "image", alt: str = "") -> str:
    """CSS classes: image (160 px), thumbnail (88 px), spectrogram. `alt` says what it shows; empty for decoration."""
    buffer = io.BytesIO()
    item.save(buffer, format="PNG")
    data = base64.b64encode(buffer.getvalue()).decode()
    return f"<img class='{css_class}' alt='{html.escape(alt)}' src='data:image/png;base64,{data}'>"


def audio(item: Audio) -> str:
    """A spectrogram above an audio player."""
    import soundfile

    buffer = io.BytesIO()
    soundfile.write(buffer, item.samples, item.sample_rate, format="WAV", subtype="PCM_16")
    player = f"<audio controls src='data:audio/wav;base64,{base64.b64encode(buffer.getvalue()).decode()}'></audio>"
    return image(_spectrogram(item), "spectrogram") + player


@dataclass(frozen=True)
class Cell:
    """A cell of a table. `content` is HTML: escape text from models and users."""

    content: str
    css_class: str = ""
    span: int = 1


def number(text: str) -> Cell:
    return Cell(html.escape(text), "number")


def text_cell(text: str) -> Cell:
    return Cell(html.escape(text))


def table(headings: Sequence[Cell], rows: Sequence[Sequence[Cell]], caption: str = "") -> str:
    """A table that scrolls sideways on a narrow screen. A row of one cell that spans all columns is a heading."""
    parts = [f"<caption>{html.escape(caption)}</caption>" if caption else "", "<thead><tr>"]
    parts += [f"<th scope='col'{_class(each)}>{each.content}</th>" for each in headings]
    parts.append("</tr></thead><tbody>")
    for cells in rows:
        if len(cells) == 1 and len(headings) > 1:
            parts.append(
                f"<tr class='group'><th scope='colgroup' colspan='{len(headings)}'>{cells[0].content}</th></tr>"
            )
            continue
        first, *rest = cells
        parts.append(f"<tr><th scope='row'{_class(first)}>{first.content}</th>")
        parts += [f"<td{_class(each)}>{each.content}</td>" for each in rest]
        parts.append("</tr>")
    return scrolling(f"<table>{''.join(parts)}</tbody></table>", caption or "table")


def _class(cell: Cell) -> str:
    return f" class='{cell.css_class}'" if cell.css_class else ""


def scrolling(content: str, label: str) -> str:
    """A part of the page that scrolls sideways by itself, with the keyboard too."""
    return f"<div class='scroll' role='region' tabindex='0' aria-label='{html.escape(label)}'>{content}</div>"


def details(summary: str, content: str) -> str:
    """What a click or the Enter key shows. `content` is HTML."""
    return f"<details><summary>{html.escape(summary)}</summary>{content}</details>"


def definitions(items: Mapping[str, Any]) -> str:
    pairs = (f"<dt>{html.escape(str(key))}</dt><dd>{html.escape(str(value))}</dd>" for key, value in items.items())
    return f"<dl>{''.join(pairs)}</dl>"


def contents(sections: Sequence[tuple[str, str]]) -> str:
    """Links to the sections of the page, from (anchor, title)."""
    links = (f"<li><a href='#{anchor}'>{html.escape(title)}</a></li>" for anchor, title in sections)
    return f"<nav aria-label='Sections'><ul>{''.join(links)}</ul></nav>"


def _spectrogram(item: Audio) -> Image.Image:
    """Log-mel spectrogram: low frequencies at the bottom, loud parts dark."""
    mel = MelConfig()
    log_mel = mel.log_mel(torch.from_numpy(resample(item, mel.rate).samples)).numpy()
    level = (log_mel - np.log(mel.floor)) / max(1e-6, log_mel.max() - np.log(mel.floor))
    return Image.fromarray(np.round(255 * (1 - level.T[::-1])).clip(0, 255).astype(np.uint8))


_LABEL_HEIGHT = 13
_LINE_CLASSES = ("s4", "s0", "s1", "s2", "s3")


def line_chart(lines: Mapping[str, Sequence[tuple[float, float]]], x_label: str, y_label: str) -> str:
    """An SVG chart of lines of (x, y), each labelled at its end."""
    width, height, left, bottom, top, right = 720, 300, 50, 40, 28, 90
    points = [point for line in lines.values() for point in line]
    x_low, x_high = min(x for x, _ in points), max(x for x, _ in points)
    y_low, y_high = 0.0, max(y for _, y in points) * 1.05

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_low) / max(1e-9, x_high - x_low) * (width - left - right)
        up = (y - y_low) / max(1e-9, y_high - y_low) * (height - top - bottom)
        return left + across, height - bottom - up

    label = html.escape(f"{y_label} by {x_label}: {', '.join(lines)}")
    svg = [f"<svg class='wide' viewBox='0 0 {width} {height}' width='{width}' role='img' aria-label='{label}'>"]
    for tick in np.linspace(y_low, y_high, 5):
        x, y = place(x_low, float(tick))
        svg.append(f"<line x1='{x:.0f}' y1='{y:.1f}' x2='{width - right}' y2='{y:.1f}' class='grid'/>")
        svg.append(f"<text x='{x - 6:.0f}' y='{y + 4:.1f}' text-anchor='end'>{tick:.1f}</text>")
    for tick in np.linspace(x_low, x_high, 5):
        x, y = place(float(tick), y_low)
        svg.append(f"<text x='{x:.0f}' y='{y + 16:.0f}' text-anchor='middle'>{tick:.0f}</text>")
    labels = []
    for (name, line), colour in zip(lines.items(), cycle(_LINE_CLASSES)):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in line))
        svg.append(f"<polyline points='{path}' class='line {colour}'/>")
        x, y = place(*line[-1])
        labels.append((y, x, name, colour))
    lowest = -math.inf
    for y, x, name, colour in sorted(labels):
        lowest = max(y, lowest + _LABEL_HEIGHT)  # labels must not overlap
        svg.append(f"<text x='{x + 6:.0f}' y='{lowest + 4:.1f}' class='{colour}'>{html.escape(name)}</text>")
    svg.append(f"<text x='{left - 40}' y='12'>{html.escape(y_label)}</text>")
    middle = (left + width - right) / 2
    svg.append(f"<text x='{middle:.0f}' y='{height - 6}' text-anchor='middle'>{html.escape(x_label)}</text></svg>")
    return "".join(svg)

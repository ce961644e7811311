"""Building blocks of a self-contained HTML page: images, audio players and line charts are embedded in it."""

import base64
import html
import io
import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from PIL import Image

from triptych.tokenizers.audio import resample
from triptych.tokenizers.mel import MelConfig
from triptych.utils.media import Audio

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1 { font-weight: 600; } section { border-top: 1px solid #ddd; padding: 1rem 0; } h2 { margin: 0 0 .5rem; }
.row { display: flex; gap: 1.5rem; flex-wrap: wrap; align-items: flex-start; }
figure { margin: 0; } figcaption { font-size: .85rem; color: #555; max-width: 20rem; }
img.image + figcaption { max-width: 162px; }
img.image { width: 160px; height: 160px; image-rendering: pixelated; border: 1px solid #ddd; }
img.thumbnail { width: 88px; height: 88px; image-rendering: pixelated; border: 1px solid #ddd; }
img.spectrogram { width: 320px; height: 80px; display: block; }
audio { width: 322px; height: 32px; display: block; }
.right { color: #1a7f37; } .wrong { color: #b42318; } q { font-style: italic; }
svg { max-width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: #555; }
"""


def page(title: str, body: str) -> str:
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'>"
        f"<meta name='viewport' content='width=device-width, initial-scale=1'><title>{html.escape(title)}</title>"
        f"<style>{_STYLE}</style>{body}</html>"
    )


def section(title: str, *parts: str) -> str:
    return f"<section><h2>{html.escape(title)}</h2>{''.join(parts)}</section>"


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


def image(item: Image.Image, css_class: str = "image") -> str:
    """CSS classes: image (160 px), thumbnail (88 px), spectrogram."""
    buffer = io.BytesIO()
    item.save(buffer, format="PNG")
    return (
        f"<img class='{css_class}' alt='' src='data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}'>"
    )


def audio(item: Audio) -> str:
    """A spectrogram above an audio player."""
    import soundfile

    buffer = io.BytesIO()
    soundfile.write(buffer, item.samples, item.sample_rate, format="WAV", subtype="PCM_16")
    player = f"<audio controls src='data:audio/wav;base64,{base64.b64encode(buffer.getvalue()).decode()}'></audio>"
    return image(_spectrogram(item), "spectrogram") + player


def _spectrogram(item: Audio) -> Image.Image:
    """Log-mel spectrogram: low frequencies at the bottom, loud parts dark."""
    mel = MelConfig()
    log_mel = mel.log_mel(torch.from_numpy(resample(item, mel.rate).samples)).numpy()
    level = (log_mel - np.log(mel.floor)) / max(1e-6, log_mel.max() - np.log(mel.floor))
    return Image.fromarray(np.round(255 * (1 - level.T[::-1])).clip(0, 255).astype(np.uint8))


_LABEL_HEIGHT = 13
_COLOURS = ("#222222", "#1f6feb", "#d1242f", "#1a7f37")


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

    svg = [f"<svg viewBox='0 0 {width} {height}' width='{width}' role='img'>"]
    for tick in np.linspace(y_low, y_high, 5):
        x, y = place(x_low, float(tick))
        svg.append(f"<line x1='{x:.0f}' y1='{y:.1f}' x2='{width - right}' y2='{y:.1f}' stroke='#eee'/>")
        svg.append(f"<text x='{x - 6:.0f}' y='{y + 4:.1f}' text-anchor='end'>{tick:.1f}</text>")
    for tick in np.linspace(x_low, x_high, 5):
        x, y = place(float(tick), y_low)
        svg.append(f"<text x='{x:.0f}' y='{y + 16:.0f}' text-anchor='middle'>{tick:.0f}</text>")
    labels = []
    for (name, line), colour in zip(lines.items(), _COLOURS):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in line))
        svg.append(f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='1.8'/>")
        x, y = place(*line[-1])
        labels.append((y, x, name, colour))
    lowest = -math.inf
    for y, x, name, colour in sorted(labels):
        lowest = max(y, lowest + _LABEL_HEIGHT)  # labels must not overlap
        svg.append(f"<text x='{x + 6:.0f}' y='{lowest + 4:.1f}' style='fill:{colour}'>{html.escape(name)}</text>")
    svg.append(f"<text x='{left - 40}' y='12'>{html.escape(y_label)}</text>")
    middle = (left + width - right) / 2
    svg.append(f"<text x='{middle:.0f}' y='{height - 6}' text-anchor='middle'>{html.escape(x_label)}</text></svg>")
    return "".join(svg)

"""Pieces of an HTML page that needs no other file: pictures, sounds, curves."""

import base64
import html
import io
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
img.picture { width: 160px; height: 160px; image-rendering: pixelated; border: 1px solid #ddd; }
img.step { width: 88px; height: 88px; image-rendering: pixelated; border: 1px solid #ddd; }
img.spectrogram { width: 320px; height: 80px; display: block; }
audio { width: 322px; height: 32px; display: block; }
.right { color: #1a7f37; } .wrong { color: #b42318; } q { font-style: italic; }
svg { max-width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: #555; }
"""


def page(title: str, body: str) -> str:
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{html.escape(title)}</title>"
        f"<style>{_STYLE}</style>{body}</html>"
    )


def section(title: str, *parts: str) -> str:
    return f"<section><h2>{html.escape(title)}</h2>{''.join(parts)}</section>"


def paragraph(text: str) -> str:
    return f"<p>{text}</p>"


def quote(text: str) -> str:
    return f"<q>{html.escape(text)}</q>"


def verdict(is_right: bool, text: str) -> str:
    return f"<span class='{'right' if is_right else 'wrong'}'>{'✓' if is_right else '✗'} {html.escape(text)}</span>"


def row(*figures: str) -> str:
    return f"<div class='row'>{''.join(figures)}</div>"


def figure(content: str, caption: str) -> str:
    """`caption` is HTML: escape what comes from outside."""
    return f"<figure>{content}<figcaption>{caption}</figcaption></figure>"


def picture(image: Image.Image, kind: str = "picture") -> str:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return f"<img class='{kind}' alt='' src='data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}'>"


def sound(item: Audio) -> str:
    """The sound's spectrogram above a player."""
    import soundfile

    buffer = io.BytesIO()
    soundfile.write(buffer, item.samples, item.rate, format="WAV", subtype="PCM_16")
    player = f"<audio controls src='data:audio/wav;base64,{base64.b64encode(buffer.getvalue()).decode()}'></audio>"
    return picture(_spectrogram(item), "spectrogram") + player


def _spectrogram(item: Audio) -> Image.Image:
    """Log-mels, low tones at the bottom, loud ones dark."""
    mel = MelConfig()
    log_mel = mel.log_mel(torch.from_numpy(resample(item, mel.rate).samples)).numpy()
    level = (log_mel - np.log(mel.floor)) / max(1e-6, log_mel.max() - np.log(mel.floor))
    return Image.fromarray(np.round(255 * (1 - level.T[::-1])).clip(0, 255).astype(np.uint8))


_COLOURS = ("#222222", "#1f6feb", "#d1242f", "#1a7f37")


def curves(lines: Mapping[str, Sequence[tuple[float, float]]], x_label: str, y_label: str) -> str:
    """Lines of (x, y), each named at its end."""
    width, height, left, bottom, top, right = 720, 300, 50, 40, 12, 90
    points = [point for line in lines.values() for point in line]
    x_low, x_high = min(x for x, _ in points), max(x for x, _ in points)
    y_low, y_high = 0.0, max(y for _, y in points) * 1.05

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_low) / max(1e-9, x_high - x_low) * (width - left - right)
        up = (y - y_low) / max(1e-9, y_high - y_low) * (height - top - bottom)
        return left + across, height - bottom - up

    drawn = [f"<svg viewBox='0 0 {width} {height}' width='{width}' role='img'>"]
    for tick in np.linspace(y_low, y_high, 5):
        x, y = place(x_low, float(tick))
        drawn.append(f"<line x1='{x:.0f}' y1='{y:.1f}' x2='{width - right}' y2='{y:.1f}' stroke='#eee'/>")
        drawn.append(f"<text x='{x - 6:.0f}' y='{y + 4:.1f}' text-anchor='end'>{tick:.1f}</text>")
    for tick in np.linspace(x_low, x_high, 5):
        x, y = place(float(tick), y_low)
        drawn.append(f"<text x='{x:.0f}' y='{y + 16:.0f}' text-anchor='middle'>{tick:.0f}</text>")
    ends: list[float] = []
    for (name, line), colour in zip(lines.items(), _COLOURS):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in line))
        drawn.append(f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='1.8'/>")
        x, y = place(*line[-1])
        while any(abs(y - other) < 13 for other in ends):  # names must not cover each other
            y -= 13
        ends.append(y)
        drawn.append(f"<text x='{x + 6:.0f}' y='{y + 4:.1f}' style='fill:{colour}'>{html.escape(name)}</text>")
    drawn.append(f"<text x='{left}' y='{height - 6}'>{html.escape(x_label)}</text>")
    drawn.append(f"<text x='{width - right}' y='{height - 6}' text-anchor='end'>{html.escape(y_label)}</text></svg>")
    return "".join(drawn)

"""Draw docs/images/strip.png, images and speech of the demo model: `python docs/scripts/draw_strip.py`.

Every result has seed 0: none is chosen among several.
"""

import textwrap
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot as plt
from scipy.signal import stft

from triptych import Audio, Pipeline

TARGET = Path(__file__).parent.parent / "images" / "strip.png"
PROMPTS = [
    "two cats left of a red heart",
    "three foxes",
    "a rocket above a whale",
    "a penguin and two umbrellas",
    "three blue hats",
    "an octopus right of a clock",
]
SPOKEN = "a picture of three foxes"
INK = "#768390"  # readable on white and on black


def spectrogram(audio: Audio) -> np.ndarray:
    """[frequencies up to 5 kHz, frames] in decibels below the loudest."""
    frequencies, _, values = stft(audio.samples, audio.sample_rate, nperseg=512, noverlap=384)
    decibels = 20 * np.log10(np.abs(values[frequencies <= 5_000]) + 1e-5)
    return np.maximum(decibels - decibels.max(), -60)


def draw(target: Path, model: str = "scenes") -> None:
    pipe = Pipeline.from_pretrained(model, device="cpu")
    images = [pipe.text_to_image(prompt, seed=0) for prompt in PROMPTS]
    audio = pipe.text_to_speech(SPOKEN, seed=0)
    figure, axes = plt.subplots(
        1, len(images) + 1, figsize=(13.2, 2.15), width_ratios=[1] * len(images) + [1.75], layout="constrained"
    )
    for axis, image, prompt in zip(axes, images, PROMPTS):
        axis.imshow(image, interpolation="nearest")
        _label(axis, "\n".join(textwrap.wrap(prompt, 18)))
    axes[-1].imshow(spectrogram(audio), origin="lower", aspect="auto", cmap="magma")
    axes[-1].set_box_aspect(1 / 1.75)
    _label(axes[-1], f"speech: “{SPOKEN}”,\n{audio.seconds:.1f} s, 0 to 5 kHz")
    figure.savefig(target, dpi=150, transparent=True)
    plt.close(figure)


def _label(axis: plt.Axes, text: str) -> None:
    axis.set_xlabel(text, color=INK, fontsize=10, labelpad=5)
    axis.set_xticks([])
    axis.set_yticks([])
    for side in axis.spines.values():
        side.set_color(INK)
        side.set_linewidth(0.6)


if __name__ == "__main__":
    draw(TARGET)
    print(TARGET)

"""Matplotlib set up to draw into files, with the style that all figures share."""

from pathlib import Path
from typing import Any

from triptych.errors import require


def pyplot() -> Any:
    require("matplotlib", "hpo", "a figure").use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(
        {
            "figure.dpi": 130,
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.alpha": 0.25,
            "lines.linewidth": 1.4,
            "legend.frameon": False,
        }
    )
    return plt


def save(figure: Any, path: Path) -> None:
    figure.savefig(path, bbox_inches="tight")
    pyplot().close(figure)

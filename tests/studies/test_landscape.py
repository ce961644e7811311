"""The landscape finds the optimum, estimates noise, and its figure is complete."""

import json
import math
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from triptych.errors import UserError
from triptych.studies import landscape as module
from triptych.studies.landscape import draw, fit
from triptych.studies.search_global import NAMES, Ranges

OPTIMUM = {"lr": 1.6e-3, "alpha1": 0.08, "alpha2": 0.03, "eps": 3e-9, "decay": 0.1}
WEIGHTS = {"lr": 0.9, "alpha1": 0.25, "alpha2": 0.12, "eps": 0.01, "decay": 0.08}
NOISE = 0.02


def bowl(values: dict[str, float]) -> float:
    """Lowest at the optimum, where it is 3.2."""
    logs = {name: math.log10(values[name] / OPTIMUM[name]) for name in NAMES}
    return 3.2 + sum(WEIGHTS[name] * logs[name] ** 2 for name in NAMES) + 0.3 * logs["lr"] * logs["alpha1"]


def trials(count: int, cliff: float = 1.2e-2, seed: int = 1) -> list[dict]:
    """Random ones; they diverge where the learning rate is too high for the momentum."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        values = {name: math.exp(rng.uniform(*np.log(pair))) for name, pair in asdict(Ranges()).items()}
        diverged = values["lr"] * values["alpha1"] ** -0.3 > cliff
        found.append({**values, "loss": None if diverged else bowl(values) + NOISE * rng.standard_normal()})
    return found


@pytest.fixture(scope="module")
def records() -> list[dict]:
    found = trials(140)
    assert 10 < sum(record["loss"] is None for record in found) < 50
    return found


@pytest.fixture(scope="module")
def fitted(records):
    return fit(records)


def test_the_optimum_is_found_beside_a_cliff(records, fitted) -> None:
    best_trial = min((record for record in records if record["loss"] is not None), key=lambda record: record["loss"])
    assert bowl(fitted.optimum) - 3.2 < 0.01 < bowl(best_trial) - 3.2
    assert 0.75 < fitted.optimum["lr"] / OPTIMUM["lr"] < 1.35
    assert 0.5 < fitted.optimum["alpha1"] / OPTIMUM["alpha1"] < 2


def test_predictions_agree_with_fresh_points(fitted) -> None:
    assert abs(fitted.predicted - bowl(fitted.optimum)) < 4 * fitted.uncertainty + 0.01
    assert 0.3 < fitted.noise / NOISE < 3
    fresh = [record for record in trials(300, seed=2) if record["loss"] is not None and bowl(record) < fitted.cap - 0.1]
    points = np.log10([[record[name] for name in NAMES] for record in fresh])
    mean, std = fitted.predict(points)
    true = np.array([bowl(record) for record in fresh])
    assert len(fresh) > 30
    assert np.corrcoef(mean, true)[0, 1] > 0.9
    assert np.sqrt(np.mean((mean - true) ** 2)) < 0.6 * true.std()
    assert np.mean(np.abs(mean - true) < 1.96 * std) > 0.8


def test_diverged_trials_count_as_the_cap(records, fitted) -> None:
    """Where all trials diverge, the prediction is near the cap."""
    over = {**OPTIMUM, "lr": 9e-3}
    assert over["lr"] * over["alpha1"] ** -0.3 > 1.2e-2
    at = np.log10([[over[name] for name in NAMES]])
    height = fitted.cap - fitted.predicted
    assert fitted.predict(at)[0][0] > fitted.cap - 0.2 * height
    assert np.isinf(fitted.losses).sum() == sum(record["loss"] is None for record in records)
    # Losses above the cap all count the same.
    worse = [{**r, "loss": 1e6} if r["loss"] is not None and r["loss"] > fitted.cap else r for r in records]
    assert fit(worse).optimum == pytest.approx(fitted.optimum, rel=1e-6)


def test_a_fit_is_deterministic(records, fitted) -> None:
    again = fit(json.loads(json.dumps(records)))
    assert again.optimum == fitted.optimum
    assert again.predicted == fitted.predicted


def test_length_scales_from_a_subset_and_the_fit_from_all_trials(records, fitted, monkeypatch) -> None:
    monkeypatch.setattr(module, "_MAX_FOR_LENGTHS", 90)
    found = fit(records)
    assert found.process.X_train_.shape == (140, 5)
    assert bowl(found.optimum) - 3.2 < 0.1


def test_a_landscape_of_one_value() -> None:
    rng = np.random.default_rng(0)
    some = [
        {"width": w, "loss": math.log10(w / 30) ** 2 + 0.01 * rng.standard_normal()} for w in np.geomspace(1, 1e3, 25)
    ]
    found = fit(some, names=("width",))
    assert 22 < found.optimum["width"] < 40


def test_the_figure_shows_every_cut_with_a_star(tmp_path: Path, fitted) -> None:
    path = tmp_path / "figures" / "landscape.png"
    draw(fitted, path, "Global values")
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB")).astype(int)
    assert pixels.shape[0] > 600
    assert pixels.shape[1] > 1500
    star = np.abs(pixels - [0xD1, 0x49, 0x5B]).sum(2) < 12
    line = np.abs(pixels - [0x1F, 0x5F, 0x8B]).sum(2) < 12
    half = len(star) // 2
    for column in range(5):  # panels are about as wide as the figure allows
        part = slice(column * star.shape[1] // 5, (column + 1) * star.shape[1] // 5)
        assert star[:half, part].sum() > 40, f"cut {column}"
        assert star[half:, part].sum() > 40, f"plane or legend {column}"
        assert line[:half, part].sum() > 150, f"cut {column}"


def test_a_figure_of_one_value(tmp_path: Path) -> None:
    some = [{"width": w, "loss": math.log10(w / 30) ** 2} for w in np.geomspace(1, 1e3, 12)]
    draw(fit(some, names=("width",)), tmp_path / "one.svg")
    assert "<svg" in (tmp_path / "one.svg").read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda records: records[:8], "at least 12 trials"),
        (lambda records: [{**record, "loss": None} for record in records], "got 0"),
        (lambda records: [], "got 0"),
        (lambda records: [{**record, "lr": 1e-3} for record in records], "same lr"),
        (lambda records: [{**record, "eps": 0.0} for record in records], "positive"),
        (lambda records: [{**record, "loss": 1.0} for record in records], "same loss"),
        (lambda records: [{k: v for k, v in record.items() if k != "decay"} for record in records], "lacks 'decay'"),
    ],
)
def test_records_without_a_landscape_are_refused(records, change, message) -> None:
    with pytest.raises(UserError, match=message):
        fit(change(records))


@pytest.mark.parametrize("missing", ["sklearn.gaussian_process", "matplotlib.figure"])
def test_without_its_libraries_the_install_command_is_shown(fitted, records, tmp_path, monkeypatch, missing) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(UserError, match=r"pip install .*\[hpo\]"):
        draw(fit(records), tmp_path / "figure.png") if missing.startswith("sk") else draw(fitted, tmp_path / "a.png")

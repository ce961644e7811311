"""Findings and figures of synthetic records with a known answer."""

import argparse
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from triptych.cli.args import positive_floats, positive_ints
from triptych.recipes.proxy import BASE_BATCH, BASE_LAYERS, BASE_STEPS, BASE_WIDTH, proxy, scaled_proxy
from triptych.studies import batch_size, coordinates, gamma, lr_transfer


def options(study, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    study.STUDY.add_arguments(parser)
    return parser.parse_args(words)


def drawn(study, records: list[dict], tmp_path: Path) -> Image.Image:
    study.STUDY.draw(records, tmp_path / "figure.png")
    return Image.open(tmp_path / "figure.png")


# -- the proxy --------------------------------------------------------------------------------------------------------


def test_scaled_proxies_differ_only_as_requested() -> None:
    run = proxy()
    wide = scaled_proxy(run, width=256, layers=8, rule="completed_p", seed=3)
    assert (wide.model.width, wide.model.num_layers, wide.model.num_heads, wide.model.d_ff) == (256, 8, 16, 640)
    assert wide.resolved.ratios == (4, 4, 1)
    assert wide.resolved.kappa == 1
    assert (wide.seed, wide.loader.seed, wide.corrupt.seed) == (3, 3, 3)
    assert wide.num_steps == BASE_STEPS
    large = scaled_proxy(run, batch=4 * BASE_BATCH, tokens=2.0)
    assert large.num_steps == BASE_STEPS // 2
    assert large.resolved.kappa == pytest.approx(4 * 2**-0.44)
    assert scaled_proxy(run).resolved.kappa == 1


# -- coordinates ------------------------------------------------------------------------------------------------------


def coordinate_records() -> list[dict]:
    """Standard grows as width^0.5 and layers^0.25; the other rule is flat but for width^0.02."""
    found = []
    for trial in coordinates.trials(options(coordinates, "--steps", "2", "--seeds", "2"), proxy()):
        settings = trial.settings
        power = {("standard", "width"): 0.5, ("standard", "layers"): 0.25, ("completed_p", "width"): 0.02}
        size = settings[settings["axis"]] ** power.get((settings["rule"], settings["axis"]), 0.0) * (
            1 + 0.01 * settings["seed"]
        )
        rows = [
            {"steps": steps, "part": part, "size": size, "change": 2 * size}
            for steps in range(3)
            for part in coordinates.PARTS
        ]
        found.append({"key": trial.key, **settings, "sizes": rows})
    return found


def test_slopes_are_recovered(tmp_path: Path) -> None:
    records = coordinate_records()
    mine = [r for r in records if (r["rule"], r["axis"]) == ("standard", "width")]
    assert coordinates.slope(mine, "width", "mlp", "size", 1) == pytest.approx(0.5)
    lines = coordinates.STUDY.findings(records)
    starts = [line.split(" (")[0] for line in lines]
    assert starts[:3] == [
        "standard, over width: largest slope +0.500",
        "completed_p, over width: largest slope +0.020",
        "standard, over layers: largest slope +0.250",
    ]
    assert starts[3].replace("-0.000", "+0.000") == "completed_p, over layers: largest slope +0.000"
    assert min(drawn(coordinates, records, tmp_path).size) > 500


def test_trials_cover_widths_and_depths_under_both_rules() -> None:
    found = coordinates.trials(options(coordinates, "--widths", "64,128", "--depths", "2,4", "--seeds", "1"), proxy())
    assert len({trial.key for trial in found}) == len(found) == 8
    shapes = {(t.settings["rule"], t.settings["width"], t.settings["layers"]) for t in found}
    assert ("completed_p", 128, BASE_LAYERS) in shapes
    assert ("standard", BASE_WIDTH, 4) in shapes


# -- learning rates ---------------------------------------------------------------------------------------------------


def test_the_shift_of_the_best_rate_is_recovered(tmp_path: Path) -> None:
    records = []
    for trial in lr_transfer.trials(options(lr_transfer, "--rates", "1e-3,2e-3,4e-3,8e-3,16e-3,32e-3"), proxy()):
        settings = trial.settings
        shift = settings["width"] / BASE_WIDTH if settings["rule"] == "standard" else 1.0
        best = 8e-3 / shift
        diverged = settings["lr"] > 3 * best
        loss = None if diverged else 1 + 0.1 * abs(settings["lr"] / best - 1)
        records.append({"key": trial.key, **settings, "loss": loss})
    lines = lr_transfer.STUDY.findings(records)
    standard = next(line for line in lines if line.startswith("standard, width 256"))
    ours = next(line for line in lines if line.startswith("completed_p, width 256"))
    assert "best learning rate 0.002, -2 factors of 2 from the proxy's (-2.00 interpolated)" in standard
    assert (
        "best learning rate 0.008, +0 factors of 2 from the proxy's (+0.00 interpolated); loss 1.0000, 0.0000 higher"
        in ours
    )
    assert min(drawn(lr_transfer, records, tmp_path).size) > 300


def test_the_best_rate_is_interpolated() -> None:
    curve = {lr: 1 + 0.3 * np.log(lr / 3e-3) ** 2 for lr in (1e-3, 2e-3, 4e-3, 8e-3)}
    assert lr_transfer.best_rate(curve) == 4e-3
    assert lr_transfer.interpolated_rate(curve) == pytest.approx(3e-3)
    assert lr_transfer.interpolated_rate({1e-3: 1.0, 2e-3: 2.0}) == 1e-3


def test_the_proxy_is_run_once_for_both_rules() -> None:
    found = lr_transfer.trials(options(lr_transfer), proxy())
    at_base = [t for t in found if (t.settings["width"], t.settings["layers"]) == (BASE_WIDTH, BASE_LAYERS)]
    assert len(at_base) == 2 * 8
    assert len(found) == 2 * 5 * 8
    only = lr_transfer.trials(options(lr_transfer, "--rules", "completed_p"), proxy())
    assert {t.key for t in only} < {t.key for t in found}
    assert len(only) == 2 * 3 * 8


# -- batch sizes ------------------------------------------------------------------------------------------------------


def batch_records(critical: float) -> list[dict]:
    """With the rule, flat up to a bend; without, a valley at the base's batch."""
    import math

    found = []
    for trial in batch_size.trials(options(batch_size), proxy()):
        settings = trial.settings
        steps = round(settings["tokens"] * BASE_BATCH * BASE_STEPS / settings["batch"])
        crossing = settings["tokens"] * BASE_BATCH * BASE_STEPS / critical
        loss = 0.5 + math.log1p(0.01 * (crossing / steps) ** 2) + 0.0005 * settings["seed"]
        if settings["way"] != "sde":
            loss += 0.05 * math.log2(settings["batch"] / BASE_BATCH) ** 2
        found.append({"key": trial.key, **settings, "loss": loss, "num_steps": steps})
    return found


def test_the_critical_batch_and_the_spread_are_recovered(tmp_path: Path) -> None:
    records = batch_records(critical=40)
    lines = batch_size.STUDY.findings(records)
    value = float(lines[0].removeprefix("critical batch size at 1%, in sequences: ").split()[0])
    assert value == pytest.approx(40, rel=0.2)
    spreads = {line.split(":")[0]: float(line.split("spread of the mean losses ")[1].split()[0]) for line in lines[3:]}
    assert spreads["sde"] < 0.05
    assert spreads["none"] > 0.15
    assert min(drawn(batch_size, records, tmp_path).size) > 300


def test_all_ways_agree_at_the_batch_of_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def fake(config, bundle):
        seen.append(config)

        return SimpleNamespace(as_json={"loss": 1.0})

    monkeypatch.setattr(batch_size, "train_in_memory", fake)
    for trial in batch_size.trials(
        options(batch_size, "--batches", f"{BASE_BATCH},{4 * BASE_BATCH}", "--seeds", "1"), proxy()
    ):
        batch_size.run_trial(trial, proxy(), None)
    values = [_values(config) for config in seen]
    assert values[0] == pytest.approx(values[1])
    assert values[0] == pytest.approx(values[2])
    none, no_decay, sde = values[3:]
    assert none == pytest.approx(values[0])
    assert sde[0] == pytest.approx(2 * none[0])
    assert no_decay[:4] == pytest.approx(sde[:4])
    assert no_decay[4] == pytest.approx(none[4])


def _values(config) -> list[float]:
    """Of a hidden matrix: what the optimizer gets, and the limit of the gradient's norm."""
    import torch

    from triptych.model.transformer import Transformer, tagged_parameters
    from triptych.vocab import Vocabulary

    with torch.device("meta"):
        model = Transformer(config.model, Vocabulary(text=11, image=7, audio=5))
    weight = next(tagged for tagged in tagged_parameters(model) if tagged.role == "mlp_gate")
    found = config.resolved.hyperparameters(weight)
    return [found.lr, found.beta1, found.beta2, found.eps, found.decay, config.clip]


# -- gamma ------------------------------------------------------------------------------------------------------------


def test_gamma_of_a_known_law_is_recovered(tmp_path: Path) -> None:
    records = []
    grid = ["--tokens", "0.5,1,2,4", "--virtual", "1,2,4,8,16,32,64,128", "--seeds", "1"]
    for trial in gamma.trials(options(gamma, *grid), proxy()):
        settings = trial.settings
        steps = settings["tokens"] * BASE_BATCH * BASE_STEPS / settings["virtual_batch"]
        loss = 0.3 + 8.0 * steps**-0.5 + 0.5 * settings["virtual_batch"] ** -0.75
        records.append({"key": trial.key, **settings, "loss": loss, "virtual_steps": steps})
    lines = gamma.STUDY.findings(records)
    assert float(lines[0].split(": ")[1].split()[0]) == pytest.approx(0.4, abs=0.01)
    assert min(drawn(gamma, records, tmp_path).size) > 300


# -- arguments --------------------------------------------------------------------------------------------------------


def test_lists_are_parsed_and_wrong_ones_refused() -> None:
    assert positive_ints("64,128") == [64, 128]
    assert positive_floats("1e-3,2") == [0.001, 2.0]
    for parse, text in (
        (positive_ints, "64,x"),
        (positive_ints, "0"),
        (positive_floats, "nan"),
        (positive_floats, "-1"),
    ):
        with pytest.raises(argparse.ArgumentTypeError, match="separated by commas, got"):
            parse(text)

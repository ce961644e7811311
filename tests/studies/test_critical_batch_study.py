"""The study of the critical batch size: its trials, its findings on planted records, its verdicts."""

import argparse
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from triptych.recipes.proxy import BASE_BATCH, BASE_STEPS, BASE_WIDTH, proxy, proxy_per_module
from triptych.studies import critical_batch

SEQUENCE = 70


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    critical_batch.STUDY.add_arguments(parser)
    return parser.parse_args(words)


def records(
    nu: float = 0.0, xi: float = 0.8, noise: float = 0.05, seed: int = 0, cliff: float | None = None
) -> list[dict]:
    """Runs of a planted law; with a `cliff`, of learning rates that become unstable at that kappa instead."""
    rng, made = np.random.default_rng(seed), []
    for trial in critical_batch.trials(options(), proxy()):
        settings = trial.settings
        steps = max(1, round(settings["horizon"] * BASE_BATCH * BASE_STEPS / settings["batch"]))
        size = (settings["width"] / BASE_WIDTH) ** 3
        s0 = 130 * settings["horizon"] ** xi * size**nu
        kappa = critical_batch.configure(trial, proxy()).resolved.kappa
        rise = (s0 / steps) ** 2 if cliff is None else 0.1 * (kappa / cliff) ** 2
        loss = 2 - 0.2 * np.log(settings["horizon"] * size) + np.log1p(rise)
        diverged = settings["batch"] > 350 and settings["seed"] == 1
        made.append(
            {
                "key": trial.key,
                **settings,
                "N": round(24_000 * size),
                "D": steps * settings["batch"] * SEQUENCE,
                "num_steps": steps,
                "kappa": kappa,
                "loss": None if diverged else loss + noise * rng.standard_normal(),
            }
        )
    return made


def test_trials_sweep_kappa_for_each_size_and_number_of_tokens() -> None:
    trials = critical_batch.trials(options("--seeds", "1"), proxy())
    assert len({trial.key for trial in trials}) == len(trials) == 9 * (5 + 2)
    cells = {(trial.settings["width"], trial.settings["horizon"]) for trial in trials}
    assert cells == {(64, 0.25), (64, 0.5), (64, 1.0), (64, 2.0), (64, 4.0), (32, 1.0), (96, 1.0)}
    for trial in trials:
        run = critical_batch.configure(trial, proxy())
        assert 0.2 < run.resolved.kappa < 14
        assert run.loader.global_batch == trial.settings["batch"]
        planned = trial.settings["horizon"] * BASE_BATCH * BASE_STEPS
        assert run.num_steps * run.loader.global_batch == pytest.approx(planned, rel=0.05)
        assert run.warmup_steps == pytest.approx(run.num_steps / 8, abs=1)
        assert run.resolved.ratios[0] == trial.settings["width"] / BASE_WIDTH


def test_planted_exponents_are_found_and_decide_the_claims(tmp_path: Path) -> None:
    made = records()
    lines = critical_batch.STUDY.findings(made)
    assert lines[0].startswith("126 runs in 7 sweeps, 1 diverged")
    assert any(line.startswith("S_crit grows as D^0.8") or line.startswith("S_crit grows as D^0.7") for line in lines)
    verdicts = {claim.place: claim.verdict for claim in critical_batch.STUDY.claims(made)}
    assert verdicts == {"Figure 5": "agrees", "Figure 6": "agrees", "Figure 7": "agrees"}
    critical_batch.STUDY.draw(made, tmp_path / "figure.png")
    assert min(Image.open(tmp_path / "figure.png").size) > 800


def test_a_dependence_on_the_size_and_a_growth_in_proportion_are_noticed() -> None:
    growing = {claim.place: claim.verdict for claim in critical_batch.STUDY.claims(records(nu=0.5))}
    assert growing["Figure 5"] == "disagrees"
    steep = {claim.place: claim.verdict for claim in critical_batch.STUDY.claims(records(xi=1.4))}
    assert (steep["Figure 6"], steep["Figure 7"]) == ("disagrees", "disagrees")


def test_learning_rates_that_become_unstable_at_one_kappa_decide_nothing() -> None:
    made = records(cliff=3.0)
    claims = critical_batch.STUDY.claims(made)
    assert [claim.verdict for claim in claims] == ["undecided"] * 3
    assert all("unstable learning rates" in claim.ours for claim in claims)
    assert "would look like xi = 0.5" in critical_batch.STUDY.findings(made)[-1]


def test_the_base_run_is_the_proxy_that_is_tuned_per_module() -> None:
    assert critical_batch.STUDY.base() == proxy_per_module()  # its losses differ least between seeds


def test_few_sizes_decide_nothing() -> None:
    made = [record for record in records() if record["width"] >= BASE_WIDTH]
    verdicts = {claim.place: claim.verdict for claim in critical_batch.STUDY.claims(made)}
    assert verdicts["Figure 5"] == "undecided"
    assert verdicts["Figure 6"] == "agrees"

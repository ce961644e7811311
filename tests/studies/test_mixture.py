"""The study of mixtures: planted synergy, optima and noise come back from synthetic records."""

import argparse
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from train_fakes import world_changes

from triptych.cli.main import main
from triptych.errors import UserError
from triptych.recipes.proxy import proxy
from triptych.scaling.simplex import CENTRE
from triptych.studies import mixture
from triptych.studies.ternary import ternary_xy


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    mixture.STUDY.add_arguments(parser)
    return parser.parse_args(words)


def records(*, synergy: float = 0.0, noise: float = 0.003, seeds: int = 2) -> list[dict]:
    """Text, image and audio lose 0.2, 0.15 and 0.3 log(own share); text also depends on images to audio."""
    rng, made = np.random.default_rng(0), []
    for trial in mixture.trials(options("--seeds", str(seeds)), proxy()):
        shares = np.array(trial.settings["shares"])
        losses = np.array([1.6, 1.2, 2.4]) - np.array([0.2, 0.15, 0.3]) * np.log(3 * shares)
        losses[0] += synergy / 2 * np.log2(shares[1] / shares[2])
        losses += 0.02 * trial.settings["seed"] + noise * rng.normal(size=3)
        held_out = dict(zip(mixture.TERMS, losses.tolist())) | {"all": 1.0}
        made.append({"key": trial.key, **trial.settings, "loss": 1.0, "held_out": held_out})
    return made


def test_trials_are_the_fifteen_mixtures_with_equal_hyperparameters() -> None:
    trials = mixture.trials(options(), proxy())
    assert len({trial.key for trial in trials}) == len(trials) == 60
    runs = [mixture.configure(trial, proxy()) for trial in trials]
    for trial, run in zip(trials, runs):
        assert min(run.loader.task_weights.values()) >= 0.2 - 1e-9
        assert sum(run.loader.task_weights.values()) == pytest.approx(1)
        assert list(run.loader.task_weights.values()) == trial.settings["shares"]
        assert run.seed == run.loader.seed == trial.settings["seed"]
    base = proxy()
    assert {run.num_steps for run in runs} == {2 * base.num_steps}
    assert len({(run.resolved.kappa, run.optimizer, run.loader.global_batch) for run in runs}) == 1
    assert runs[0].resolved.kappa == pytest.approx(2**-0.44), "more tokens by the rule"


def test_without_synergy_the_claim_agrees_and_the_fits_are_recovered() -> None:
    lines = mixture.STUDY.findings(records())
    assert lines[0] == "30 runs of 15 mixtures, 0 diverged; shares count sequences"
    assert lines[1].startswith("text: 1.6")
    assert float(lines[1].split("falls by ")[1].split()[0]) == pytest.approx(0.2 * np.log(3), abs=0.01)
    assert float(lines[3].split("falls by ")[1].split()[0]) == pytest.approx(0.3 * np.log(3), abs=0.01)
    runs = mixture.MixtureRuns(records())
    for fit, at_centre in zip(runs.fits, (1.61, 1.21, 2.41)):
        assert fit.loss(np.array(CENTRE))[0] == pytest.approx(at_centre, abs=0.006)
        assert fit.error < 0.01
    own, synergy, equal = mixture.STUDY.claims(records())
    assert (own.verdict, synergy.verdict, equal.verdict) == ("agrees", "agrees", "agrees")
    assert own.place == "Figure 16"


def test_planted_synergy_is_found_in_its_modality_only() -> None:
    planted = records(synergy=0.06)
    text, image, audio = mixture.STUDY.findings(planted)[4:7]
    assert float(text.split("changes the loss by ")[1].split()[0]) == pytest.approx(0.06, abs=0.008)
    assert float(text.split("p = ")[1].split()[0]) < 1e-4
    assert float(image.split("p = ")[1].split()[0]) > 0.01
    assert float(audio.split("p = ")[1].split()[0]) > 0.01
    assert text.startswith("text, at the same share of text: image-text to audio-text as 2:1 instead of 1:2")
    assert mixture.STUDY.claims(planted)[1].verdict == "disagrees"


def test_noise_leaves_the_claims_undecided() -> None:
    _, synergy, equal = mixture.STUDY.claims(records(noise=0.3))
    assert synergy.verdict == "undecided"
    assert equal.verdict == "undecided"


def test_a_mixture_far_from_equal_shares_disagrees() -> None:
    lopsided = records()
    for record in lopsided:
        record["held_out"]["text"] += 2 * (0.6 - record["shares"][0])
    assert mixture.STUDY.claims(lopsided)[2].verdict == "disagrees"


def test_the_recommended_mixture_follows_the_weights() -> None:
    made = records()
    equal, text, image, audio = mixture.STUDY.findings(made)[7:]
    shares = {name: _recommended(line) for name, line in zip(("equal", *mixture.TERMS), (equal, text, image, audio))}
    # A relative change of loss by its sensitivity over its value: 0.125 each.
    assert shares["equal"] == pytest.approx([1 / 3] * 3, abs=0.06)
    for part, term in enumerate(mixture.TERMS):
        assert shares[term][part] == pytest.approx(0.5, abs=0.06)
    assert mixture.STUDY.answers(options("--weights", "2,1,1"), made) == [text]
    assert mixture.STUDY.answers(options(), made) == []


def _recommended(line: str) -> list[float]:
    return [float(word.split("%")[0]) / 100 for word in line.split(": ")[1].split("), ")[:3]]


def test_incomplete_and_diverged_runs(tmp_path: Path) -> None:
    made = records()
    made[3] |= {"loss": None, "held_out": {}}
    assert mixture.STUDY.findings(made)[0] == "29 runs of 15 mixtures, 1 diverged; shares count sequences"
    once = [record for record in made if record["seed"] == 1]
    assert "p unknown with one seed" in mixture.STUDY.findings(once)[4]
    mixture.STUDY.draw(once, tmp_path / "figure.png")
    with pytest.raises(UserError, match="at least 7 mixtures, got 4"):
        mixture.STUDY.findings(once[:4])
    with pytest.raises(UserError, match="no run has a finite loss yet"):
        mixture.STUDY.findings([made[3]])
    for record in made:
        record["held_out"].pop("audio", None)
    with pytest.raises(UserError, match="runs have none of audio: add validation data"):
        mixture.STUDY.findings(made)


def test_the_figure_has_three_triangles(tmp_path: Path) -> None:
    mixture.STUDY.draw(records(), tmp_path / "figure.png")
    pixels = np.asarray(Image.open(tmp_path / "figure.png").convert("RGB")).astype(int)
    height, width, _ = pixels.shape
    assert width > 2.5 * height
    for third in np.array_split(pixels, 3, axis=1):
        blue, red = third[..., 2] - third[..., 0], third[..., 0] - third[..., 2]
        assert (blue > 60).mean() > 0.02
        assert (red > 60).mean() > 0.02


def test_from_command_to_figure(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["study", "mixture", "--out", str(tmp_path), "--divisions", "3", "--tokens", "0.003", "--seeds", "1"]
    assert main([*words, *world_changes(world), "validation.sequences=8"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("10 runs to do, ")
    assert "10 runs of 10 mixtures, 0 diverged" in said
    assert min(Image.open(tmp_path / "figure.png").size) > 300
    assert main([*words[:4], "--plot-only", "--weights", "1,5,1"]) == 0
    assert "best mixture if the losses count as text 1, image 5, audio 1: " in capsys.readouterr().out


def test_corners_of_the_triangle() -> None:
    corners = ternary_xy(0.2 + 0.4 * np.eye(3), 0.2)
    assert corners == pytest.approx(np.array([[0, 0], [1, 0], [0.5, 3**0.5 / 2]]))
    assert ternary_xy(np.array(CENTRE), 0.2)[0] == pytest.approx([0.5, 3**0.5 / 6])


@pytest.mark.parametrize("words", [("--weights", "1,2"), ("--weights", "1,2,-1"), ("--divisions", "0")])
def test_wrong_options(words: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options(*words)
    assert "expected" in capsys.readouterr().err


def test_a_smallest_share_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(UserError, match=r"below 1/3, got 4 and 0\.4"):
        mixture.trials(options("--smallest", "0.4"), proxy())

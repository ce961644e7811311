"""The study of anti-masking: runs are matched, planted gains come back, and variances are those of the gradients."""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from train_fakes import CPU, TINY, first_step, make_world, world_changes

from triptych.cli.main import main
from triptych.data.loader import Loader
from triptych.errors import DataError, UserError
from triptych.recipes import changed
from triptych.recipes.proxy import proxy
from triptych.studies import anti_masking
from triptych.studies.anti_masking import ARMS
from triptych.studies.gradient_variance import ALL, GradientMoments, gradient_variance_ratios, mean_gradient
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.config import RunConfig
from triptych.training.step import build_model
from triptych.utils.trials import Trial


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    changes = world_changes(make_world(tmp_path_factory.mktemp("world")))
    return changed(proxy(), [*changes, "validation.sequences=16"])


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    anti_masking.STUDY.add_arguments(parser)
    return parser.parse_args(words)


def pair(run: RunConfig, tasks: str = "mixed", tokens: float = 0.01) -> list[RunConfig]:
    """The configurations of both kinds of runs."""
    args = options("--tasks", tasks, "--tokens", str(tokens), "--seeds", "1")
    return [anti_masking.configure(trial, run) for trial in anti_masking.trials(args, run)]


# -- matched runs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [0.01, 4.0])
def test_both_kinds_have_equal_steps_copies_data_and_hyperparameters(tokens: float) -> None:
    complements, two_epochs = pair(proxy(), tokens=tokens)
    assert (complements.complementary_masks, two_epochs.complementary_masks) == (True, False)
    assert complements.num_steps == two_epochs.num_steps
    assert complements.masked_copies == two_epochs.masked_copies == proxy().loader.global_batch
    assert complements.resolved.kappa == two_epochs.resolved.kappa
    assert (complements.clip, complements.warmup_steps) == (two_epochs.clip, two_epochs.warmup_steps)
    assert complements.resolved.values == two_epochs.resolved.values
    assert complements.loader.unique_sequences == two_epochs.loader.unique_sequences
    # One epoch against two.
    assert complements.loader.unique_sequences == complements.num_steps * complements.loader.global_batch
    assert 2 * two_epochs.loader.unique_sequences == two_epochs.num_steps * two_epochs.loader.global_batch


def test_a_base_run_with_complementary_masks_is_compared_at_the_same_copies() -> None:
    base = proxy()
    paired = replace(base, complementary_masks=True, loader=replace(base.loader, global_batch=8))
    for one, other in zip(pair(base), pair(paired)):
        assert (one.loader, one.num_steps, one.resolved.kappa) == (other.loader, other.num_steps, other.resolved.kappa)
    with pytest.raises(UserError, match="must have an even batch, to halve it; got 15"):
        pair(replace(base, loader=replace(base.loader, global_batch=15)))


def test_both_kinds_see_the_same_sequences(run: RunConfig) -> None:
    seen = []
    for config in pair(run):
        with Loader(list(config.data), config.loader, num_steps=config.num_steps) as loader:
            ids = [sample for step in loader for batch in step.micro_batches for sample in batch.sample_ids.tolist()]
        seen.append(ids)
    once, twice = seen
    assert len(set(once)) == len(once) == 32
    assert len(twice) == 2 * len(once)
    assert set(twice) == set(once)


def test_runs_on_one_task_have_its_data_only(run: RunConfig) -> None:
    for config in pair(run, tasks="text"):
        assert [Path(folder).name for folder in config.data] == ["text"]
        assert [Path(folder).name for folder in config.validation_data] == ["text"]
        assert config.loader.task_weights == {"text": 1.0}
    without = replace(run, data=run.data[1:])
    with pytest.raises(UserError, match="no data of the task 'text': add some, or leave it out of --tasks"):
        pair(without, tasks="text")


def test_too_little_data_is_said_before_training(run: RunConfig) -> None:
    config = pair(run, tokens=1.0)[0]
    with pytest.raises(DataError, match=r"needs 320 different sequences of .*text, which has 40: choose fewer"):
        Loader(list(config.data), config.loader)
    with pytest.raises(UserError, match="at least 2 draws, got --draws 1"):
        anti_masking.trials(options("--draws", "1"), run)
    with pytest.raises(argparse.ArgumentTypeError, match=r"unknown tasks 'texts'\. Did you mean 'text'"):
        anti_masking._tasks("mixed,texts")


@pytest.mark.parametrize("arm", ARMS)
def test_a_trial_runs(arm: str, run: RunConfig) -> None:
    settings = {"tasks": "mixed", "tokens": 0.005, "arm": arm, "draws": 2, "seed": 0}
    result = anti_masking.run_trial(Trial("x", settings), run, TokenizerBundle.load(run.tokenizers))
    assert 0 < result["loss"] < 10
    assert ("variance_ratios" in result) == (arm == "two epochs")


# -- gradients --------------------------------------------------------------------------------------------------------


def test_variances_of_known_gradients_are_recovered(run: RunConfig) -> None:
    model = build_model(run, TINY)
    moments, rng = GradientMoments(model), np.random.default_rng(0)
    shapes = {name: weight.shape for name, weight in model.named_parameters()}
    draws = [
        {name: torch.from_numpy(3 + 2 * rng.normal(size=shape)).float() for name, shape in shapes.items()}
        for _ in range(6)
    ]
    for draw in draws:
        moments.add(draw)
    variances = moments.variances
    expected = sum(float(torch.stack([draw[name] for draw in draws]).var(dim=0).sum()) for name in shapes)
    assert variances[ALL] == pytest.approx(expected, rel=1e-4)
    assert sum(value for module, value in variances.items() if module != ALL) == pytest.approx(variances[ALL])
    assert set(variances) == {"embed", "attn", "mlp", "norm", "unembed", ALL}


def test_complementary_masks_lower_the_variance_over_masks(run: RunConfig) -> None:
    """A pair of complementary masks predicts every token of a sequence exactly once, an independent pair does not."""
    plain = pair(run)[1]
    assert plain.norm == "masked", "its weights have no heavy tail, so few draws suffice"
    model = build_model(plain, TINY)
    ratios = gradient_variance_ratios(model, plain, TINY, 12, CPU)
    assert set(ratios) == {"masks", "steps"}
    assert all(value < 0.8 for value in ratios["masks"].values())
    assert ratios["steps"][ALL] > 1.5 * ratios["masks"][ALL], "half as many sequences have more noise of the data"
    assert all(weight.grad is None for weight in model.parameters())
    assert gradient_variance_ratios(model, plain, TINY, 12, CPU) == ratios


def test_the_gradient_of_a_pair_is_the_mean_of_two(run: RunConfig) -> None:
    one, other = (replace(run, corrupt=replace(run.corrupt, seed=seed)) for seed in range(2))
    model, step = build_model(run, TINY), first_step(run)

    def gradient(*runs: RunConfig) -> dict[str, torch.Tensor]:
        return mean_gradient(model, step, runs, TINY, CPU)

    both, first, second = gradient(one, other), gradient(one), gradient(other)
    for name, value in both.items():
        assert torch.allclose(value, (first[name] + second[name]) / 2, atol=1e-7), name
    assert any(not torch.allclose(first[name], second[name]) for name in both)


# -- findings ---------------------------------------------------------------------------------------------------------


def records(*, gain: float, variance: float = 0.8, seeds: int = 4) -> list[dict]:
    """A gain in every loss, noise between pairs of 0.002, and a much larger difference between seeds."""
    rng, made = np.random.default_rng(0), []
    for trial in anti_masking.trials(options("--seeds", str(seeds)), proxy()):
        settings = trial.settings
        lower = gain if settings["arm"] == "complements" else 0.0
        held_out = {
            term: value - lower + 0.2 * settings["seed"] + 0.002 * rng.normal()
            for term, value in {"all": 1.5, "text": 2.0, "image": 1.2, "audio": 2.5}.items()
        }
        record = {"key": trial.key, **settings, "loss": held_out["all"], "held_out": held_out}
        if settings["arm"] == "two epochs":
            modules = ("embed", "attn", "mlp", "norm", "unembed", ALL)
            record["variance_ratios"] = {
                name: {module: value * np.exp(0.02 * rng.normal()) for module in modules}
                for name, value in (("masks", variance), ("steps", 1.1))
            }
        made.append(record)
    return made


def test_a_planted_gain_is_recovered_from_pairs() -> None:
    made = records(gain=0.02)
    comparisons = anti_masking.comparisons(made)
    assert [each.name for each in comparisons] == [
        "mixed, 1 x tokens",
        "mixed, 4 x tokens",
        "text, 1 x tokens",
        "text, 4 x tokens",
    ]
    for each in comparisons:
        assert each.gain().low < 0.02 < each.gain().high
        assert each.gain().low > 0.01
        assert each.variance_ratio("masks").value == pytest.approx(0.8, abs=0.04)
        assert each.variance_ratio("masks").high < 1 < each.variance_ratio("steps").low
    lines = anti_masking.STUDY.findings(made)
    assert lines[0].startswith("mixed, 1 x tokens: loss 1.7")
    assert "over 4 seeds" in lines[0]
    assert lines[1].startswith("mixed, 1 x tokens, gain by modality: text +0.0")
    assert float(lines[2].split("independent pairs: ")[1].split()[0]) == pytest.approx(0.8, abs=0.04)
    claims = anti_masking.STUDY.claims(made)
    assert [claim.verdict for claim in claims] == ["agrees"] * 4
    assert [claim.place for claim in claims] == ["Table 1", "Table 2", "Section 7.4", "Section 7.4"]


def test_no_gain_a_loss_and_a_higher_variance() -> None:
    assert [claim.verdict for claim in anti_masking.STUDY.claims(records(gain=0.0, variance=1.0))[:2]] == [
        "undecided",
        "undecided",
    ]
    worse = anti_masking.STUDY.claims(records(gain=-0.02, variance=1.2))
    assert [claim.verdict for claim in worse] == ["disagrees"] * 4


def test_diverged_and_incomplete_pairs(tmp_path: Path) -> None:
    made = records(gain=0.02)
    made[0] |= {"loss": None, "held_out": {}, "diverged": True}
    line = anti_masking.STUDY.findings(made)[0]
    assert line.endswith("over 3 seeds (1 diverged with complements)")
    alone = [record for record in made if record["seed"] == 1]
    assert "(no interval) nats per token" in anti_masking.STUDY.findings(alone)[0]
    assert {claim.verdict for claim in anti_masking.STUDY.claims(alone)} == {"undecided"}
    anti_masking.STUDY.draw(alone, tmp_path / "figure.png")
    with pytest.raises(UserError, match="no seed has finite losses of both kinds"):
        anti_masking.STUDY.findings([record for record in made if record["arm"] == "complements"])


def test_from_command_to_figure(run: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["study", "anti-masking", "--out", str(tmp_path), "--tasks", "text", "--tokens", "0.005", "--seeds", "1"]
    world = world_changes(Path(run.tokenizers).parent)
    assert main([*words, "--draws", "2", *world, "validation.sequences=8"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("2 runs to do, ")
    assert "text, 0.005 x tokens: loss " in said
    assert min(Image.open(tmp_path / "figure.png").size) > 200
    assert main([*words[:4], "--plot-only"]) == 0
    assert "text, 0.005 x tokens: loss " in capsys.readouterr().out


def test_the_figure(tmp_path: Path) -> None:
    anti_masking.STUDY.draw(records(gain=0.02), tmp_path / "figure.png")
    assert min(Image.open(tmp_path / "figure.png").size) > 300

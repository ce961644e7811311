"""The size of a run by a law: repeated data, the choice, the prediction from pilots, the command."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from train_fakes import random_pairs, write_set

from triptych.cli import train_budget
from triptych.cli.main import main
from triptych.data.shards import Manifest
from triptych.recipes import configure
from triptych.scaling import choose
from triptych.scaling.choose import BUILT_IN_LAW, Chooser, Epochs, Pilots, describe, predict
from triptych.scaling.fit_file import SavedFit, read_fit
from triptych.scaling.law import ADDITIVE, Law
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.config import RunConfig
from triptych.training.in_memory import Outcome
from triptych.vocab import Task

CPU = torch.device("cpu")
LAW = Law.from_raw(ADDITIVE, E=1.0, A=20.0, B=100.0, a=0.3, b=0.4)
FIT = SavedFit("a law", LAW, [])


@pytest.fixture
def base(tmp_path: Path, world: Path) -> list[str]:
    for task in Task:
        folder = tmp_path / "data" / task.label
        write_set(folder, task, random_pairs(task, 400, 3))
        replace(Manifest.load(folder), settings={"tokenizers": str(world / "tokenizers")}).save(folder)
    return [f"data={tmp_path / 'data'}", "threads=1"]


def test_repeated_tokens_count_less() -> None:
    assert Epochs("x", 0.5, 100.0).effective == 100.0
    assert Epochs("x", 1.0, 100.0).effective == pytest.approx(100.0)
    four = Epochs("x", 4.0, 400.0).effective
    assert 350 < four < 400, "up to four epochs, repeated data are nearly as good as new"
    assert Epochs("x", 1e6, 1e8).effective == pytest.approx(100 * (1 + choose.REPEAT_CONSTANT), rel=1e-3)


def test_the_choice_has_the_lowest_loss_of_its_family(base: list[str]) -> None:
    config = configure("own", base)
    chooser = Chooser(config, TokenizerBundle.load(config.tokenizers).vocabulary, FIT)
    point = chooser.point(1e11)
    mine = LAW.excess(point.N, chooser.effective(point))
    for member in chooser.members:
        other = choose.grid_point(member, chooser.vocabulary, chooser.lengths, 1e11)
        if other is not None:
            assert mine <= LAW.excess(other.N, chooser.effective(other))
    assert pytest.approx(1e11, rel=0.1) == point.C
    assert chooser.point(1e13).N > point.N
    assert point.config.resolved.sde is not None
    assert point.config.resolved.sde.kappa == pytest.approx(1.0, rel=0.15)


def test_less_data_means_a_larger_model(base: list[str]) -> None:
    """With few unique tokens, more of the same tokens are worth little."""
    config = configure("own", base)
    chooser = Chooser(config, TokenizerBundle.load(config.tokenizers).vocabulary, FIT)
    few = chooser.point(1e13)
    chooser._datasets = [replace(each, size=10**9) for each in chooser._datasets]
    assert few.N > chooser.point(1e13).N


def test_epochs_are_those_of_the_loader(base: list[str]) -> None:
    config = configure("own", [*base, "loader.task_weights.text=2"])
    chooser = Chooser(config, TokenizerBundle.load(config.tokenizers).vocabulary, FIT)
    by_name = {each.name: each for each in chooser.epochs(4000)}
    trained = 400 * (1 - config.loader.held_out)
    assert by_name["text"].epochs == pytest.approx(2000 / trained, rel=0.06)
    assert by_name["image-text"].epochs == pytest.approx(1000 / trained, rel=0.06)


@pytest.mark.parametrize("factor", [0.3, 0.5, 1.0])
@pytest.mark.parametrize("level", [0.0, 1.5])
def test_pilots_of_a_law_with_other_exponents_predict_its_loss(factor: float, level: float) -> None:
    """Runs drawn from the law with all exponents times `factor`, at another level and scale."""
    sizes, tokens = np.array([1e4, 2e4, 5e4]), np.array([1e5, 3e5, 1e6])
    losses = level + 3.0 * LAW.excess(sizes, tokens) ** factor
    truth = level + 3.0 * float(LAW.excess(3e5, 1e7)) ** factor
    found = predict(FIT, list(zip(sizes, tokens, losses)), 3e5, 1e7)
    assert found is not None
    assert found.low < truth < found.high
    assert found.loss == pytest.approx(truth, rel=0.15)


def test_without_pilots_nothing_is_predicted() -> None:
    assert predict(FIT, [(1e4, 1e5, 3.0)], 1e5, 1e6) is None


def test_the_built_in_law_is_of_n_and_d() -> None:
    fit = read_fit(BUILT_IN_LAW)
    assert fit.law.excess(1e5, 1e7) > fit.law.excess(1e6, 1e8)
    assert len(fit.laws) >= 10


def test_budgets_come_from_measured_speed(base: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    config = configure("own", base)
    bundle = TokenizerBundle.load(config.tokenizers)
    chooser = Chooser(config, bundle.vocabulary, FIT)
    monkeypatch.setattr(choose, "_PROBE_SECONDS", 0.05)
    assert 1e6 < chooser.flops_per_second(config, bundle, CPU) < 1e13
    monkeypatch.setattr(Chooser, "flops_per_second", lambda *_: 1e9)
    lines: list[str] = []
    assert chooser.budget_of_hours(0.5, bundle, CPU, lines.append) == pytest.approx(choose.TRAINING_SHARE * 1800 * 1e9)
    assert "tokens/s" in lines[0]


def test_the_command_chooses_trains_and_compares(
    base: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """With invented pilots, and a run cut to a few steps."""
    monkeypatch.setattr(choose, "train_in_memory", lambda *_: Outcome({"all": 3.0}, seconds=1.0))
    monkeypatch.setattr(choose, "_MIN_PILOT_STEPS", 1)
    words = ["train", "own", *base, "--budget", "3e9", "--out", str(tmp_path / "run"), "--device", "cpu"]
    assert main([*words, "--stop-after", "1"]) == 0
    first = capsys.readouterr().err
    assert "pilot run" in first
    for what in ("model: ", "training: ", "memory: ", "data: text is seen", "predicted validation loss: "):
        assert what in first
    choice = json.loads((tmp_path / "run" / train_budget.CHOICE).read_text())
    assert len(choice["pilots"]) == 3
    assert main(words) == 0
    again = capsys.readouterr().err
    assert "resuming it with the size that was chosen then" in again
    assert "pilot" not in again
    assert main([*words, "seed=3"]) == 2
    assert "was begun with changes" in capsys.readouterr().err
    assert "validation loss: predicted 3.000" in again
    assert "reached" in again


def test_pilots_survive_a_stop(base: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configure("own", base)
    bundle = TokenizerBundle.load(config.tokenizers)
    chooser, trained = Chooser(config, bundle.vocabulary, FIT), []
    monkeypatch.setattr(choose, "_MIN_PILOT_STEPS", 1)

    def run(config: RunConfig, *_: object) -> Outcome:
        if len(trained) == 2:
            trained.append("stopped")
            raise KeyboardInterrupt
        trained.append(config.num_steps)
        return Outcome({"all": 4.0 - 0.1 * len(trained)})

    monkeypatch.setattr(choose, "train_in_memory", run)
    pilots = Pilots(bundle, CPU, tmp_path / "pilots.json", lambda line: None)
    with pytest.raises(KeyboardInterrupt):
        pilots.run(chooser, 1e11)
    results = pilots.run(chooser, 1e11)
    assert [loss for _, _, loss in results] == pytest.approx([3.9, 3.8, 3.6])
    assert len(trained) == 4, "two before the stop, the stop, and the last one"


def test_a_run_of_another_kind_is_not_taken_over(
    base: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    assert main(["train", "own", *base, "--budget", "1e9", "--out", str(tmp_path / "run")]) == 2
    assert "holds a run whose size was not chosen by --hours or --budget" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["checkpoints"]


def test_the_largest_model_of_the_family_is_said(base: list[str]) -> None:
    config = configure("own", base)
    vocabulary = TokenizerBundle.load(config.tokenizers).vocabulary
    choice = Chooser(config, vocabulary, FIT).choose(1e22)
    assert any("largest model of the family" in line for line in describe(choice, vocabulary))


def test_many_repeats_are_said(base: list[str]) -> None:
    config = configure("own", base)
    vocabulary = TokenizerBundle.load(config.tokenizers).vocabulary
    choice = Chooser(config, vocabulary, FIT).choose(1e12)
    assert choice.prediction is None
    assert any("more data would help more than more time" in line for line in describe(choice, vocabulary))
    assert math.isfinite(choice.point.D)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--hours", "1", "--budget", "1e9"], "give --hours or --budget, not both"),
        (["--hours", "1", "model.width=64"], "model.width follows from --hours or --budget"),
        (["--hours", "1", "--nproc", "2", "--nnodes", "2"], "the size is chosen by one machine"),
        (["--budget", "1e9", "--gpus", "8"], "--gpus turns --hours into FLOPs"),
        (["--hours", "1", "--gpu", "h100"], "--gpu and --mfu need --gpus N"),
        (["--hours", "1", "--gpus", "8", "--gpu", "h10"], "unknown GPU 'h10'. Did you mean 'h100'"),
        (["--hours", "1", "--gpus", "8", "--gpu", "cpu"], "this machine's speed is measured"),
        (["--hours", "1", "--gpus", "8", "--mfu", "2"], "--mfu is a share of the peak"),
        (["--gpus", "8"], "--gpus chooses a size for --hours or --budget"),
        (["--budget", "1e9", "loader.held_out=0"], "the size is chosen by validation losses"),
        (["--budget", "1e9", "init_from=scenes"], "a saved model has a size"),
        (["--budget", "1"], "less than one training step of the smallest model"),
        (["--budget", "1e9", "--law", "nowhere.json"], "there is no file nowhere.json"),
    ],
)
def test_mistakes_are_named(words: list[str], message: str, base: list[str], capsys: pytest.CaptureFixture) -> None:
    assert main(["train", "own", *base, *words]) == 2
    assert message in capsys.readouterr().err


def test_gpus_elsewhere_are_planned_for_without_training(
    base: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(choose, "train_in_memory", lambda *_: pytest.fail("a pilot was trained"))
    monkeypatch.chdir(tmp_path)
    words = ["train", "own", *base, "--hours", "2e-9", "--gpus", "8", "--gpu", "a100", "--mfu", "0.5"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    budget = 0.8 * 2e-9 * 3600 * 8 * 312e12 * 0.5
    assert f"{budget:.3g} FLOPs" in shown
    assert f"--budget {budget:.3g} --nproc 8 --device cuda" in shown
    assert not (tmp_path / "runs").exists()


def test_several_processes_train_the_size_that_one_chose(
    base: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processes get the same command, and find the choice in the folder of the run."""
    launched: list[list[str]] = []
    monkeypatch.setattr("triptych.training.launch.launch", lambda words, *_: launched.append(words) or 0)
    out = tmp_path / "run"
    command = ["train", "own", *base, "--budget", "2e9", "--out", str(out)]
    assert main([*command, "--nproc", "2"]) == 0
    assert [path.name for path in out.iterdir()] == ["choice.json"]
    (words,) = launched
    monkeypatch.setattr(choose.Chooser, "choose", lambda *_: pytest.fail("chosen twice"))
    assert main(words) == 0
    assert (out / "checkpoints").exists()

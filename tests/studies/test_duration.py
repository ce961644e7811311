"""The duration of a study: FLOPs of its runs, and a line through the times of two steps."""

import argparse
from pathlib import Path

import pytest
from train_fakes import make_world, world_changes

from triptych.cli.study import STUDIES
from triptych.recipes.proxy import proxy, scaled_proxy
from triptych.studies import batch_size, coordinates, gamma, lr_transfer, modules
from triptych.studies.duration import StepTime, StudyDuration, estimate_duration
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.config import RunConfig
from triptych.utils.config import override
from triptych.utils.trials import TrialRecords


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    changes = [*world_changes(make_world(tmp_path_factory.mktemp("world"))), "validation.sequences=16"]
    return override(proxy(), changes)


def test_overhead_and_speed_from_two_steps() -> None:
    line = StepTime.from_two((1e6, 0.003), (1e8, 0.102))
    assert (line.overhead, line.flops_per_second) == (pytest.approx(0.002), pytest.approx(1e9))
    assert line.seconds(2e6, 100) == pytest.approx(100 * 0.004)


@pytest.mark.parametrize(
    ("small", "large"),
    [
        ((1e8, 0.1), (1e8, 0.1)),  # one size only
        ((1e6, 0.2), (1e8, 0.1)),  # noise: the small step was the slower one
        ((9e7, 0.01), (1e8, 0.1)),  # noise: the line has a negative overhead
    ],
)
def test_times_that_show_no_overhead(small: tuple[float, float], large: tuple[float, float]) -> None:
    assert StepTime.from_two(small, large) == StepTime(0.0, pytest.approx(1e9))


def test_flops_of_all_runs_are_summed(run: RunConfig) -> None:
    bundle = TokenizerBundle.load(run.tokenizers)
    short, wide = scaled_proxy(run, tokens=0.01), scaled_proxy(run, width=128, tokens=0.01)
    one, three, both = (estimate_duration(runs, bundle) for runs in ([short], [short] * 3, [short, wide]))
    assert (one.num_runs, three.num_runs) == (1, 3)
    assert three.flops == pytest.approx(3 * one.flops)
    assert both.flops > 3 * one.flops
    assert min(one.seconds, three.seconds, both.seconds) > 0
    # Without validation, FLOPs are proportional to the number of steps.
    plain, longer = (
        estimate_duration([override(run, ["validation_data=", f"num_steps={steps}"])], bundle) for steps in (10, 20)
    )
    assert longer.flops == pytest.approx(2 * plain.flops)


@pytest.mark.parametrize(
    ("study", "count"), [(coordinates, 48), (lr_transfer, 80), (batch_size, 48), (gamma, 48), (modules, 392)]
)
def test_runs_without_a_record_are_counted(study, count: int, run: RunConfig, tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    study.STUDY.add_arguments(parser)
    args = parser.parse_args([])
    args.out = tmp_path
    bundle = TokenizerBundle.load(run.tokenizers)
    assert len(study.STUDY.missing_runs(args, run, bundle)) == count
    key = "round0-0" if study is modules else study.trials(args, run)[3].key
    TrialRecords(tmp_path).add({"key": key})
    assert len(study.STUDY.missing_runs(args, run, bundle)) == count - 1


def test_the_estimate_in_words() -> None:
    text = str(StudyDuration(40, 1.5e13, 2100))
    assert text.startswith("40 runs to do, 1.5e+13 FLOPs: about 35 minutes of one process")


@pytest.mark.parametrize("name", STUDIES)
def test_help_says_how_long_it_takes(name: str, capsys) -> None:
    from triptych.cli.main import main

    with pytest.raises(SystemExit):
        main(["study", name, "--help"])
    assert f"about {STUDIES[name][2]} minutes of one CPU core" in capsys.readouterr().out

"""Times of steps: findings on planted speed-ups, the modelled grid, and a real measurement on two processes."""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from train_fakes import TINY, tiny_run

from triptych.data.pack import Packed
from triptych.errors import UserError
from triptych.plan.machines import GPUS
from triptych.recipes import recipe
from triptych.studies import runtime
from triptych.studies.runtime_findings import efficiency, measured_times, run_seconds
from triptych.studies.step_times import step_times

BATCHES = (1, 4, 16, 64)


def measured(speed_up: float, saturation: float = 8.0, noise: float = 0.02, cores: int = 2) -> list[dict]:
    """Every doubling of the ranks is `speed_up` times as fast; small batches waste `saturation` sequences' time."""
    rng, made = np.random.default_rng(0), []
    for start in range(3):
        for ranks in (1, 2, 4):
            rows = []
            for batch in BATCHES:
                tokens = 100.0 * batch * ranks
                seconds = (batch + saturation) / 1000 * (2 / speed_up) ** np.log2(ranks) * np.exp(noise * rng.normal())
                rows.append({"batch": batch, "step_seconds": seconds, "tokens": tokens, "flops": 1e5 * tokens})
            made.append(
                {"key": f"{ranks} ranks start {start}", "ranks": ranks, "start": start, "rows": rows}
                | {"peak": 2e10, "cores": cores}
            )
    return made


def modelled() -> dict:
    settings = {"key": "model", "gpu": "h100", "recipe": "paper_base", "horizon": 13e9}
    return {**settings, **runtime.modelled(recipe("paper_base"), GPUS["h100"])}


def test_planted_speed_ups_are_found(tmp_path: Path) -> None:
    records = [*measured(1.85), modelled()]
    times = measured_times(records)
    assert (times.ranks, times.batches) == ([1, 2], list(BATCHES))  # four ranks share two cores
    ratio = times.ratio("tokens_per_second", (2, 64), (1, 64))
    assert ratio.low < 1.85 < ratio.high
    assert times.ratio("efficiency", (1, 64), (1, 1)).value == pytest.approx(64 / 72 * 9, rel=0.1)
    lines = runtime.STUDY.findings(records)
    assert any(line.startswith("4 ranks, which share 2 cores: ") for line in lines)
    assert any(line.startswith("2 ranks are as many times as fast as 1, by batch of a rank: 1: 1.") for line in lines)
    assert sum("assumption" in line for line in lines) == 3
    runtime.STUDY.draw(records, tmp_path / "figure.png")
    assert min(Image.open(tmp_path / "figure.png").size) > 700


def test_verdicts_follow_the_planted_speed_ups() -> None:
    def verdicts(speed_up: float, saturation: float = 8.0) -> list[str]:
        return [claim.verdict for claim in runtime.STUDY.claims(measured(speed_up, saturation))]

    assert verdicts(1.85) == ["agrees", "agrees", "agrees", "agrees"]
    assert verdicts(1.02)[1] == "disagrees"
    assert verdicts(1.02, saturation=200.0)[0] == "disagrees"
    assert verdicts(1.85, saturation=1e-9)[3] != "agrees"
    shared = [claim.place for claim in runtime.STUDY.claims(measured(1.85, cores=1))]
    assert shared == ["Figure 20 c"]  # with one core nothing is said about ranks


def test_the_modelled_grid_has_the_shape_of_the_papers_panels() -> None:
    record = modelled()
    rows = {(row["nodes"], row["batch"]): row for row in record["rows"]}
    for batch in (1, 4, 16):
        seconds = [run_seconds(record, rows[nodes, batch]) for nodes in (1, 2, 4, 8, 16, 32)]
        halvings = np.divide(seconds[:-1], seconds[1:])
        assert (halvings > 1.2).all()
        assert (halvings < 2.01).all()  # never more than in proportion
    for nodes in (1, 32):
        shares = [efficiency(record, rows[nodes, batch]) for batch in (1, 2, 4, 8, 16, 32)]
        assert shares == sorted(shares)
        assert shares[-1] < GPUS["h100"].matmul_share
    assert efficiency(record, rows[32, 1]) < efficiency(record, rows[1, 1])


def test_real_steps_are_timed_on_two_processes(world: Path) -> None:
    config = tiny_run(world, layout=Packed(row_length=20), ema_decay=None)
    runs = [runtime.configure(config, batch, 2) for batch in (1, 4)]
    assert [run.loader.global_batch for run in runs] == [2, 8]
    (first, fewer), (second, more) = step_times(runs, TINY, 2)
    assert min(first, second) > 0
    assert 2 < fewer < more <= 8 * 20


def test_a_process_that_fails_is_reported_in_one_line(world: Path) -> None:
    config = tiny_run(world, layout=Packed(row_length=20))
    broken = replace(config, data=(str(world / "nothing"),))
    with pytest.raises(UserError, match="one of 1 processes ended before"):
        step_times([runtime.configure(broken, 1, 1)], TINY, 1)


def test_the_cpu_is_not_modelled(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    runtime.STUDY.add_arguments(parser)
    args = parser.parse_args(["--gpu", "cpu"])
    with pytest.raises(UserError, match="measured, not modelled"):
        runtime.STUDY.run(args, recipe("proxy"), None)

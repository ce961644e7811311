"""Time, memory and JSON of an estimate."""

import json
from pathlib import Path
from typing import Any

import pytest
from train_fakes import TINY, make_world, tiny_run

from triptych.plan.estimate import RunEstimate, estimate
from triptych.plan.machines import GPUS, Machine
from triptych.recipes import recipe
from triptych.training.config import RunConfig
from triptych.utils.config import override
from triptych.vocab import paper_vocabulary

READY = ("parallel.precision=bfloat16", "loader.layout=padded", "loader.layout.micro_batch_rows=1")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("planned"))


def planned_on(name: str, *changes: str, ranks: int, gpu: str = "h100", **options: Any) -> RunEstimate:
    config = override(recipe(name), list(changes))
    return estimate(config, paper_vocabulary(), GPUS[gpu], ranks, **options)


def test_complementary_masks_and_recomputation_cost_time() -> None:
    plain = planned_on("paper_base", ranks=8)
    twice = planned_on("paper_base", "complementary_masks=true", ranks=8)
    assert (twice.tokens, twice.flops) == (plain.tokens, 2 * plain.flops)
    assert twice.hours == pytest.approx(2 * plain.hours, rel=1e-3)  # 0.5005 is masked by one view, 0.5 by two
    assert twice.memory.inputs.accumulates
    again = planned_on("paper_base", "parallel.checkpoint_activations=true", ranks=8)
    head = 3 * 2 * 117_698 * 1024 * plain.batches.predicted * plain.step_layout.tokens
    assert again.step_flops - head == pytest.approx((plain.step_flops - head) * 4 / 3)
    assert again.flops == plain.flops
    assert again.memory.total < plain.memory.total


def test_memory_inputs_come_from_the_step_layout() -> None:
    run = planned_on("paper_3b", READY[0], ranks=64)
    inputs, step_layout = run.memory.inputs, run.step_layout
    assert (inputs.rows, inputs.row_length, inputs.filled) == (
        step_layout.micro_batch_rows,
        step_layout.row_length,
        step_layout.max_fill,
    )
    assert (inputs.context, step_layout.has_mask) == (step_layout.context, True)
    text = ("loader.task_weights.image-text=0", "loader.task_weights.audio-text=0")
    whole = planned_on("paper_3b", *READY, *text, ranks=64)  # nothing but full rows
    assert (whole.memory.inputs.context, whole.step_layout.has_mask, whole.step_layout.context) == (None, False, 3256)


def test_estimate_is_plain_json(world: Path) -> None:
    config: RunConfig = tiny_run(world)
    run = estimate(config, TINY, Machine("cpu", 1e9, 1e10), 2).as_json
    assert json.loads(json.dumps(run)) == run
    assert run["step"]["origin"] == "measured"
    assert run["padding"] == pytest.approx(1 - run["tokens"] / run["positions"])
    assert run["time"]["cost"] is None

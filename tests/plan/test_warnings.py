"""Warnings name the problem and a remedy that works."""

from typing import Any

import pytest

from triptych.plan.estimate import RunEstimate, estimate
from triptych.plan.machines import GPUS
from triptych.plan.warnings import warnings_for
from triptych.recipes import recipe
from triptych.scaling.published import PAPER
from triptych.utils.config import override
from triptych.vocab import paper_vocabulary

FLOAT32 = "parallel.precision=float32"
READY = ("parallel.precision=bfloat16", "loader.layout=padded", "loader.layout.micro_batch_rows=1")


def planned_on(name: str, *changes: str, ranks: int, gpu: str = "h100", **options: Any) -> RunEstimate:
    config = override(recipe(name), list(changes))
    return estimate(config, paper_vocabulary(), GPUS[gpu], ranks, **options)


def warnings_for_paper(run: RunEstimate) -> list[str]:
    """With the compute-optimal number of tokens by the paper's law, as `triptych plan` asks for them."""
    return warnings_for(run, float(PAPER.tokens(run.count.blocks)))


@pytest.mark.parametrize(
    ("name", "changes", "ranks", "gpu", "parts"),
    [
        (
            "aspect_8",
            (*READY, "loader.global_batch=1024"),
            8,
            "h100",
            ["kappa is 2.17", "batches of 471.1 sequences, not 1,024", "the paper gives no number", "10 % at 2.3"],
        ),
        ("paper_3b", (*READY, "num_steps=1000"), 8, "h200", ["are fewer than the 3.76e+11 that are compute-optimal"]),
        (
            "paper_3b",
            (*READY[1:], FLOAT32),
            8,
            "b200",
            ["the run computes in float32", "set parallel.precision=bfloat16"],
        ),
        (
            "paper_3b",
            (*READY, "loader.global_batch=3000"),
            256,
            "h200",
            [
                "do not divide evenly: 3,000 are padded to 3,072 for 256 ranks",
                "loader.global_batch=2816 or 3072 would divide evenly",
            ],
        ),
        ("paper_3b", READY, 4096, "h200", ["3,072 rows for 4,096 ranks, so 1,024 ranks are idle"]),
        (
            "paper_3b",
            (READY[0], "loader.layout.micro_batch_rows=1"),
            256,
            "h100",
            ["so 14% are empty", "loader.layout.row_length=6512 would take 11% fewer positions"],
        ),
        (
            "paper_3b",
            READY[:2],
            64,
            "h100",
            [
                "does not fit in the 80.0 GB of a rank",
                "most of it activations",
                "It fits with loader.layout.micro_batch_rows=",
            ],
        ),
        (
            "paper_3b",
            READY,
            1,
            "rtx4090",
            ["most of it optimizer (23.0 GB)", "No setting makes it fit: use more ranks"],
        ),
        (
            "paper_3b",
            (*READY[:2], "loader.layout.micro_batch_rows=2"),
            2,
            "l40s",
            ["memory is tight, 4", "It fits with loader.layout.micro_batch_rows=1 (35.4 GB)"],
        ),
    ],
)
def test_warnings(name: str, changes: tuple[str, ...], ranks: int, gpu: str, parts: list[str]) -> None:
    (line,) = [
        line for line in warnings_for_paper(planned_on(name, *changes, ranks=ranks, gpu=gpu)) if parts[0] in line
    ]
    for part in parts:
        assert part in line
    assert "\n" not in line


def test_a_run_that_fits_has_no_warnings() -> None:
    assert warnings_for_paper(planned_on("paper_3b", *READY, ranks=64)) == []
    (line,) = warnings_for_paper(planned_on("paper_base", *READY, ranks=8, gpu="h200"))
    assert "compute-optimal" in line  # 8.5B of 25B


@pytest.mark.parametrize("gpu", ["a100", "rtx4090"])
@pytest.mark.parametrize("layout", ["packed", "padded", "grouped"])
@pytest.mark.parametrize("name", ["aspect_16", "paper_3b"])
def test_proposed_memory_settings_fit(name: str, layout: str, gpu: str) -> None:
    run = planned_on(name, f"loader.layout={layout}", ranks=8, gpu=gpu)
    assert not run.fits or layout == "grouped"  # whose micro-batches have 16,384 positions at most
    for line in warnings_for_paper(run):
        if "It fits with " in line:
            changes, _, size = line.partition("It fits with ")[2].partition(" (")
            changed = planned_on(name, f"loader.layout={layout}", *changes.split(), ranks=8, gpu=gpu)
            assert changed.needed <= 0.9 * changed.machine.memory
            assert f"{changed.needed / 1e9:,.1f} GB)." == size
            break
    else:
        assert run.fits


def test_without_a_scaling_law_the_number_of_tokens_is_not_judged() -> None:
    assert warnings_for(planned_on("paper_base", *READY, ranks=8, gpu="h200")) == []

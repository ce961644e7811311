"""Hardware by name: nominal GPUs, and shares of this machine."""

from dataclasses import replace
from pathlib import Path

import pytest

import triptych.plan.machines
from triptych.errors import UserError
from triptych.plan.estimate import estimate
from triptych.plan.machines import GPUS, find_machine
from triptych.recipes import recipe
from triptych.training.peak import products_dtype
from triptych.utils.config import override
from triptych.vocab import paper_vocabulary


def test_nominal_memory_and_peak_of_gpus() -> None:
    table = {gpu.name: (gpu.memory / 1e9, gpu.peak / 1e12) for gpu in GPUS.values()}
    assert table == {
        "h100": (80, 989),
        "h200": (141, 989),
        "a100": (80, 312),
        "b200": (192, 2250),
        "l40s": (48, 362),
        "rtx4090": (24, 165),
    }


def test_ranks_share_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triptych.plan.machines, "matmul_peak", lambda device, dtype: 16e12 / dtype.itemsize)
    alone, four = find_machine("cpu", 1), find_machine("cpu", 4)
    assert find_machine("cpu", 1, products_dtype("bfloat16-products")).peak == 8e12
    pages = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    assert alone.memory == pytest.approx(1024 * int(pages.split()[1]), rel=0.01)
    assert (alone.peak, four.peak, four.memory) == (4e12, 1e12, alone.memory / 4)
    assert not alone.is_gpu
    # A CPU rank also holds the copy that a checkpoint is written from.
    config = override(recipe("paper_base"), ["loader.layout.micro_batch_rows=1"])
    run = estimate(config, paper_vocabulary(), replace(alone, memory=1e12), 2)
    assert run.needed == run.memory.total + run.checkpoint_bytes // 2


@pytest.mark.parametrize("name", ["A100", "a100", "H200", "RTX4090"])
def test_gpu_names_ignore_case(name: str) -> None:
    assert find_machine(name, 8) is GPUS[name.lower()]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("h10", "unknown GPU 'h10'. Did you mean 'h100'? Known: a100, b200, cpu, h100, h200, l40s, rtx4090."),
        ("rtx409", "unknown GPU 'rtx409'. Did you mean 'rtx4090'? Known:"),
        ("tpu", "unknown GPU 'tpu'."),
        ("mi300x", "unknown GPU 'mi300x'. Known: a100,"),
    ],
)
def test_only_similar_names_are_suggested(name: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        find_machine(name, 8)
    assert str(error.value).startswith(message)

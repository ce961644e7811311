"""Advice for a run that does not fit names the largest item and the settings that reduce it."""

from dataclasses import replace

import pytest

from triptych.model.memory import Memory, MemoryInputs
from triptych.model.memory_advice import memory_advice


def memory_with(**items: int) -> Memory:
    sizes = dict.fromkeys(("weights", "gradients", "optimizer", "ema", "gathered", "activations", "head"), 10**9)
    return Memory(inputs=MemoryInputs(rows=8, row_length=100), phase="head", **(sizes | items))


@pytest.mark.parametrize(
    ("inputs", "item", "settings"),
    [
        (
            MemoryInputs(rows=8, row_length=100),
            "activations",
            "parallel.checkpoint_activations=true, loader.layout.micro_batch_rows=4 (loader.layout.max_tokens=400 if "
            "grouped) or parallel.precision=bfloat16",
        ),
        (
            MemoryInputs(rows=3, row_length=100, checkpoint_activations=True, compute_bytes=2),
            "activations",
            "loader.layout.micro_batch_rows=1 (loader.layout.max_tokens=100 if grouped)",
        ),
        (
            MemoryInputs(rows=1, row_length=1000, checkpoint_activations=True, compute_bytes=2),
            "activations",
            "rows shorter than 1,000 positions (every setting that reduces it is already in use)",
        ),
        (MemoryInputs(rows=1, row_length=9), "optimizer", "more ranks to shard it over (parallel.shard=none)"),
        (
            MemoryInputs(rows=1, row_length=9),
            "ema",
            "ema_decay=none or more ranks to shard it over (parallel.shard=none)",
        ),
        (
            MemoryInputs(rows=1, row_length=9, reshard_after_forward=False),
            "gathered",
            "parallel.reshard_after_forward=true or parallel.precision=bfloat16",
        ),
        (
            MemoryInputs(rows=1, row_length=9, compute_bytes=2),
            "gathered",
            "a narrower model (every setting that reduces it is already in use)",
        ),
        (
            MemoryInputs(rows=1, row_length=9, compute_bytes=2),
            "head",
            "model.softmax_scope=modality (a different model, with a smaller softmax)",
        ),
    ],
)
def test_advice_names_the_largest_item_and_settings_that_reduce_it(
    inputs: MemoryInputs, item: str, settings: str
) -> None:
    needed = replace(memory_with(**{item: 34 * 10**9}), inputs=inputs)
    assert memory_advice(needed) == f"40.0 GB, most of it {item} (34.0 GB); try {settings}."

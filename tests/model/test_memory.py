"""Predicted memory equals what autograd saves, what a step allocates, and what a training process uses."""

import importlib.util
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from measure import peak_bytes
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from triptych.model.memory import Memory, MemoryInputs, activation_bytes, memory
from triptych.model.segments import Segments, find_segments, whole_rows
from triptych.model.transformer import ModelConfig, Targets, Transformer, initialise
from triptych.recipes import recipe
from triptych.training.config import ParallelConfig
from triptych.vocab import Vocabulary

SMALL = Vocabulary(text=50, image=30, audio=20)


# -- activations ------------------------------------------------------------------------------------------------------


def row_segments(rows: int, length: int, has_segments: bool) -> Segments:
    """Rows of one sequence each, or of two."""
    if not has_segments:
        return whole_rows(rows, length, torch.device("cpu"))
    ids = np.broadcast_to(np.arange(length) < length // 2, (rows, length)) + 1
    return find_segments(ids, torch.device("cpu"))


def saved_bytes(model: Transformer, rows: int, length: int, has_segments: bool, num_queries: int) -> int:
    """Bytes saved by autograd for the backward pass: every storage once, weights excluded."""
    tokens = torch.randint(0, SMALL.size, (rows, length))
    positions = torch.arange(length).expand(rows, length)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    saved: dict[int, torch.Tensor] = {}  # holds the tensors, because a freed address may be reused

    def record(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            saved.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with saved_tensors_hooks(record, lambda tensor: tensor):
        segments = row_segments(rows, length, has_segments)
        model.hidden_states(tokens, positions, segments, query_idx=torch.arange(num_queries))
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


@pytest.mark.parametrize("has_segments", [False, True], ids=["whole rows", "segments"])
@pytest.mark.parametrize("predicted", [1.0, 0.25])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("config", "rows", "length"),
    [
        (ModelConfig(num_layers=1, width=64, num_heads=4, d_ff=176), 2, 32),
        (ModelConfig(num_layers=6, width=256, num_heads=4, d_ff=640), 4, 100),
        (ModelConfig(num_layers=3, width=96, num_heads=2, d_ff=64), 1, 700),
        (ModelConfig(num_layers=2, width=96, num_heads=6, d_ff=200), 2, 192),
        (ModelConfig(num_layers=2, width=96, num_heads=6, d_ff=200), 2, 194),
    ],
)
def test_activations_equal_what_autograd_saves(
    config: ModelConfig, rows: int, length: int, dtype: torch.dtype, predicted: float, has_segments: bool
) -> None:
    model = Transformer(config, SMALL)
    initialise(model, 0)
    context = length / 2 if has_segments else None
    inputs = MemoryInputs(
        rows=rows, row_length=length, context=context, predicted=predicted, compute_bytes=dtype.itemsize
    )
    expected = activation_bytes(config, inputs)
    # Of the inputs, autograd saves the two indices of the buckets.
    indices = 16 * rows * length if has_segments else 0
    assert saved_bytes(model.to(dtype), rows, length, has_segments, inputs.num_predicted) == pytest.approx(
        expected.all - expected.inputs + indices, rel=0.01
    )


# -- a training step --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training step, and the phase in which its memory peaks."""

    phase: str
    layers: int = 2
    width: int = 128
    heads: int = 4
    d_ff: int = 320
    ids: int = 320
    rows: int = 4
    length: int = 128
    scope: str = "full"
    predicted: float = 0.5
    micro_batches: int = 1
    has_segments: bool = False
    is_checkpointed: bool = False


TRAININGS = {
    "a large vocabulary": Training(phase="head", ids=20_000),
    "a large vocabulary, two micro-batches": Training(phase="head", ids=20_000, micro_batches=2),
    "a softmax per modality": Training(phase="head", ids=80_000, length=16, scope="modality", micro_batches=2),
    "all positions predicted": Training(phase="last norm", d_ff=32, ids=20, rows=8, length=256, predicted=1.0),
    "wide MLPs": Training(phase="last MLP", d_ff=768, rows=8),
    "wide MLPs, two micro-batches": Training(phase="last MLP", d_ff=768, rows=8, micro_batches=2),
    "long rows": Training(phase="last MLP", rows=2, length=512),
    "long rows, segmented": Training(phase="last MLP", rows=2, length=512, has_segments=True),
    "narrow MLPs": Training(phase="last attention", d_ff=128, ids=40, rows=8),
    "narrow MLPs, segmented rows": Training(phase="last attention", d_ff=128, ids=40, length=384, has_segments=True),
    "narrow MLPs, long segmented rows": Training(
        phase="last attention", d_ff=128, ids=40, length=512, has_segments=True
    ),
    "narrow MLPs, long rows": Training(phase="last attention", d_ff=64, ids=40, rows=2, length=512),
    "narrow MLPs, two micro-batches": Training(phase="last attention", d_ff=128, length=192, heads=8, micro_batches=2),
    "few positions predicted": Training(phase="inner MLP", layers=3, d_ff=1280, ids=40, length=512, predicted=0.1),
    "checkpointed": Training(phase="inner MLP", layers=12, rows=8, is_checkpointed=True, micro_batches=2),
    "few positions, checkpointed": Training(phase="first MLP", d_ff=768, rows=1, is_checkpointed=True),
    "long softmaxes, checkpointed": Training(
        phase="first attention", layers=4, d_ff=128, heads=8, length=192, is_checkpointed=True
    ),
    "very few positions": Training(phase="embedding", layers=4, rows=1, length=16),
}


def peak_of_step(model: Transformer, case: Training) -> int:
    """Peak bytes of a step beyond weights and optimizer moments, from the profiler's record of allocations."""
    vocabulary, num_positions = model.vocabulary, case.rows * case.length
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    count = round(num_positions * case.predicted)
    targets = Targets(
        query_idx=torch.arange(count),
        ids_n=torch.randint(vocabulary.text, (count,)),
        loss_weight_n=torch.full((count,), 1 / count),
        z_loss_weight_n=torch.zeros(count),
        counts=(count, 0, 0),
    )

    def step() -> None:
        for _ in range(case.micro_batches):
            tokens = torch.randint(vocabulary.size, (case.rows, case.length))
            positions = torch.arange(case.length).expand(case.rows, -1)
            segments = row_segments(case.rows, case.length, case.has_segments)
            model.loss(tokens, positions, segments, targets).total.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()  # allocates the optimizer moments
    return peak_bytes(step)


@pytest.mark.parametrize("case", TRAININGS.values(), ids=list(TRAININGS))
def test_memory_equals_what_a_step_allocates(case: Training) -> None:
    vocabulary = Vocabulary(text=case.ids, image=10, audio=10)
    config = ModelConfig(
        num_layers=case.layers,
        width=case.width,
        num_heads=case.heads,
        d_ff=case.d_ff,
        softmax_scope=case.scope,  # type: ignore[arg-type]
    )
    model = Transformer(config, vocabulary)
    initialise(model, 0)
    if case.is_checkpointed:
        for block in model.blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)  # type: ignore[method-assign]
    expected = memory(
        config,
        vocabulary,
        MemoryInputs(
            rows=case.rows,
            row_length=case.length,
            context=case.length / 2 if case.has_segments else None,
            predicted=case.predicted,
            accumulates=case.micro_batches > 1,
            checkpoint_activations=case.is_checkpointed,
        ),
    )
    assert expected.phase == case.phase
    assert expected.total - expected.weights - expected.optimizer == pytest.approx(peak_of_step(model, case), rel=0.03)


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    path = Path(__file__).parents[2] / "bench/memory.py"
    spec = importlib.util.spec_from_file_location("bench_memory", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("name", ["small", "small, checkpointed"])
def test_memory_equals_what_a_training_process_uses(bench: ModuleType, name: str) -> None:
    """The real training loop in a new process. `python bench/memory.py` checks larger shapes, to within 15 %."""
    shape = bench.SHAPES[name]
    measured = bench.measure(shape, returns_freed=True)
    assert bench.predict(shape).total == pytest.approx(measured, rel=0.25)


def test_bytes_of_weights_and_optimizer() -> None:
    config = recipe("nano").model
    model = Transformer(config, SMALL)
    initialise(model, 0)
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    inputs = MemoryInputs(rows=1, row_length=10)
    needed = memory(config, SMALL, inputs)
    weights = sum(p.nbytes for p in model.parameters())
    moments = sum(t.nbytes for state in optimizer.state.values() for t in state.values() if t.ndim)
    assert needed.phase == "embedding"
    assert (needed.weights, needed.gradients, needed.optimizer, needed.ema) == (weights, weights, moments, 0)
    assert needed.total == 2 * weights + moments + needed.activations + needed.head
    assert memory(config, SMALL, replace(inputs, has_ema=True)).total == needed.total + weights


def test_bytes_of_the_loss_head() -> None:
    config = ModelConfig(num_layers=1, width=64, num_heads=4, d_ff=64)
    large = Vocabulary(text=5000, image=30, audio=20)
    needed = memory(config, large, MemoryInputs(rows=1, row_length=100))
    assert needed.phase == "head"
    columns = 5000 + 30 + 20 + 6  # BOS and EOS of every modality
    hidden = 2 * 100 * 64 * 4  # hidden states of predicted positions (here all), and their gradients
    tables = large.size * 64 * 4  # gradients of the tables, including ids that are never predicted
    assert needed.head == hidden + tables + 100 * columns * 4


def test_fsdp_shards_weights_and_gathers_those_in_use() -> None:
    config = ModelConfig(num_layers=5, width=64, num_heads=4, d_ff=320)
    with torch.device("meta"):
        model = Transformer(config, SMALL)
    total = sum(p.numel() for p in model.parameters())
    block = sum(p.numel() for p in model.blocks[0].parameters())
    root = total - 5 * block
    unembedding = sum(p.numel() for p in model.unembed.parameters())

    def needed(world_size: int, rows: int, length: int, accumulates: bool = False, **settings: object) -> Memory:
        parallel = ParallelConfig(**settings)  # type: ignore[arg-type]
        inputs = MemoryInputs(rows=rows, row_length=length, accumulates=accumulates, has_ema=True)
        return memory(config, SMALL, inputs.with_parallel(parallel, world_size))

    alone = needed(1, 1, 8)
    assert (alone.weights, alone.gathered) == (4 * total, 0)
    four = needed(4, 1, 8)
    assert (four.weights, four.optimizer, four.ema) == (4 * total // 4, 2 * (4 * total // 4), 4 * total // 4)
    assert four.gathered == 4 * (root + 2 * block)
    assert needed(4, 1, 8, reshard_after_forward=False).gathered == 4 * (root + 5 * block)
    assert needed(4, 1, 8, precision="bfloat16").gathered == 2 * (root + 2 * block)
    assert needed(1, 1, 8, precision="bfloat16").gathered == 2 * (root + 2 * block)
    assert needed(1, 1, 8, precision="bfloat16").weights == 4 * total
    assert needed(4, 1, 8, shard=2).weights == 4 * total // 2
    assert needed(4, 1, 8, shard=1).weights == 4 * total

    # In the last block's backward pass: full gradients of the unembedding, and two copies of the block's.
    many = needed(4, 8, 256)
    assert many.phase == "last MLP"
    assert many.gradients == 4 * unembedding + 8 * block
    assert needed(4, 8, 256, accumulates=True).gradients == many.gradients + 4 * total // 4
    halves = needed(4, 8, 256, precision="bfloat16", checkpoint_activations=True)
    assert halves.phase == "last MLP"
    assert halves.gradients == 2 * unembedding + 6 * block


def test_a_gpu_saves_less() -> None:
    config = ModelConfig(num_layers=4, width=64, num_heads=4, d_ff=176)

    def block(**changes: object) -> float:
        """Bytes per position."""
        return activation_bytes(config, MemoryInputs(rows=2, row_length=25, **changes)).block(0) / 50  # type: ignore[arg-type]

    # No softmax and no copy of the output for the output projection, but a log-sum-exp per head.
    assert block() - block(on_gpu=True) == 4 * (4 * 25 + 64 - 4)
    # Below float32, norms save their input as it is, not in float32 and normed; QK-norm saves nothing more.
    assert block(compute_bytes=2) - block(compute_bytes=2, on_gpu=True) == 2 * 6 * 64 + 16 * 64
    # The kernel for sequences of different lengths needs no copies; there is none for float32.
    assert block(compute_bytes=2, on_gpu=True, context=9) == block(compute_bytes=2, on_gpu=True)
    assert block(on_gpu=True, context=9) - block(on_gpu=True) == 4 * 2 * 64


def test_padding_is_computed_on_a_gpu_only() -> None:
    cpu = MemoryInputs(rows=4, row_length=50, context=30, filled=0.6, predicted=0.25)
    assert (cpu.num_computed, cpu.num_predicted) == (120, 30)
    gpu = replace(cpu, on_gpu=True)
    assert (gpu.num_computed, gpu.num_predicted) == (200, 50)
    config = ModelConfig(num_layers=4, width=64, num_heads=4, d_ff=176)
    padded, full = (activation_bytes(config, inputs) for inputs in (cpu, replace(cpu, filled=1.0)))
    assert padded.all - padded.inputs == pytest.approx(0.6 * (full.all - full.inputs))
    assert padded.inputs == full.inputs  # inputs include padding

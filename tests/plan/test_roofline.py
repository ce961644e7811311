"""The model of a step on GPUs: limits by hand, and throughput that others have published."""

from dataclasses import replace

import numpy as np
import pytest

from triptych.model.flops import count_parameters
from triptych.model.transformer import ModelConfig
from triptych.plan.collectives import BANDWIDTH_SHARE, LINK_LATENCY, NETWORK_LATENCY, Ring
from triptych.plan.machines import GPUS, Machine
from triptych.plan.roofline import Workload, assumptions, step_seconds
from triptych.vocab import Vocabulary

MODEL = ModelConfig(num_layers=4, width=512, num_heads=4, d_ff=1024)
VOCABULARY = Vocabulary(text=50_348, image=1, audio=1)
GPU = Machine("test", 1e11, 1e14, 1e12, 0.5, 1e11, 1e10, per_node=4)


def work(**changes: object) -> Workload:
    return replace(Workload(MODEL, VOCABULARY, 4096, 2048, VOCABULARY.size, 1024), **changes)


# -- collectives ------------------------------------------------------------------------------------------------------


def test_a_gather_is_limited_by_the_links_of_a_node_and_by_the_network_between_nodes() -> None:
    assert Ring(GPU, 1).gather_seconds(1e9) == 0
    within = 1e9 * 3 / 4 / (BANDWIDTH_SHARE * 1e11) + 3 * LINK_LATENCY
    assert Ring(GPU, 4).gather_seconds(1e9) == pytest.approx(within)
    # Two nodes: each receives half of the data over its four cards.
    between = 1e9 / 2 / (BANDWIDTH_SHARE * 4 * 1e10) + 3 * LINK_LATENCY + NETWORK_LATENCY
    assert Ring(GPU, 8).gather_seconds(1e9) == pytest.approx(between)
    assert Ring(GPU, 8).all_reduce_seconds(1e9) == pytest.approx(2 * between)


def test_copies_of_a_sharded_model_are_on_different_nodes() -> None:
    copies = Ring(GPU, 2, stride=4)
    assert copies.nodes == 2
    assert copies.gather_seconds(1e9) == pytest.approx(1e9 / 2 / (BANDWIDTH_SHARE * 1e10) + NETWORK_LATENCY)


# -- a step -----------------------------------------------------------------------------------------------------------


def test_large_batches_are_limited_by_flops_and_small_ones_by_bytes() -> None:
    """A machine whose memory is infinitely fast reaches its share of the peak; with slow memory, bytes decide."""
    fast = replace(GPU, bandwidth=1e20)
    count = count_parameters(MODEL, VOCABULARY)
    matrices = 2 * (count.blocks - MODEL.width - MODEL.num_layers * (2 * 512 + 2 * 128)) * 1e6
    all_predicted = work(positions=1e6, predicted=1e6, context=1e-9)
    seconds = step_seconds(all_predicted, fast)
    assert seconds.blocks == pytest.approx(3 * matrices / (1e14 * 0.5), rel=1e-2)
    assert seconds.head == pytest.approx(3 * 2 * 1e6 * 512 * VOCABULARY.size / (1e14 * 0.5), rel=1e-6)
    slow = step_seconds(work(positions=1, predicted=1, context=1), replace(GPU, peak=1e20, bandwidth=1e9))
    assert slow.blocks > 3 * 2 * count.blocks / 1e9  # at least every weight, in two bytes, three times
    assert slow.optimizer == pytest.approx(28 * count.total / 1e9)


def test_recomputation_costs_a_forward_pass_and_the_ema_bytes() -> None:
    plain, again = step_seconds(work(), GPU), step_seconds(work(recomputes=True), GPU)
    assert 1.25 < again.blocks / plain.blocks < 1.34
    assert again.head == plain.head
    assert step_seconds(work(has_ema=True), GPU).optimizer == pytest.approx(plain.optimizer * 40 / 28)
    assert step_seconds(work(micro_batches=3), GPU).blocks == pytest.approx(3 * plain.blocks)


def test_communication_is_hidden_behind_enough_compute_only() -> None:
    alone = step_seconds(work(), GPU)
    assert (alone.exposed, alone.hidden) == (0, 0)
    small, large = (step_seconds(work(positions=n, predicted=n / 2, shards=16), GPU) for n in (256, 65_536))
    assert small.exposed > large.exposed > 0  # the weights outside the blocks are never hidden
    assert large.hidden > small.hidden
    assert small.total > small.blocks + small.head + small.optimizer
    held = step_seconds(work(shards=16, reshards=False), GPU)
    gathered = step_seconds(work(shards=16), GPU)
    assert held.exposed + held.hidden < gathered.exposed + gathered.hidden


def test_more_ranks_are_never_more_efficient() -> None:
    totals = [step_seconds(work(shards=ranks), GPU).total - 28 * 1 / GPU.bandwidth for ranks in (4, 8, 16, 64, 256)]
    optimizer = [step_seconds(work(shards=ranks), GPU).optimizer for ranks in (4, 8, 16, 64, 256)]
    assert list(np.subtract(totals, optimizer)) == sorted(np.subtract(totals, optimizer))


def test_every_gpu_has_all_its_speeds_and_says_what_is_assumed() -> None:
    for gpu in GPUS.values():
        assert min(gpu.bandwidth, gpu.matmul_share, gpu.link, gpu.network) > 0
        assert gpu.network < gpu.link < gpu.bandwidth
        assert len(assumptions(gpu)) == 3


# Tokens per second and GPU of MPT models under FSDP, as MosaicML measured them (llm-foundry,
# scripts/train/benchmarking, "H100 80GB BF16" and "A100 80GB"): layers, width, heads, sequence length, GPUs, rows of a
# micro-batch, micro-batches, whether activations are recomputed, tokens per second. Attention is causal, so its mean
# context is half of a row.
PUBLISHED = {
    "h100": [
        (80, 8192, 64, 2048, 64, 8, 4, True, 1039),
        (40, 5120, 40, 2048, 64, 2, 1, False, 4800),
        (32, 4096, 32, 2048, 8, 6, 1, False, 10643),
        (32, 2560, 20, 2048, 64, 6, 3, False, 22525),
        (24, 2048, 16, 2048, 8, 14, 1, False, 45455),
        (24, 1536, 12, 2048, 32, 24, 1, False, 67971),
    ],
    "a100": [
        (80, 8192, 64, 2048, 64, 8, 4, True, 410),
        (48, 7168, 56, 2048, 8, 3, 21, True, 916),
        (32, 4096, 32, 2048, 8, 6, 2, False, 4641),
        (32, 2560, 20, 8192, 8, 3, 6, False, 7695),
        (24, 2048, 16, 4096, 8, 7, 4, False, 17807),
        (24, 1536, 12, 2048, 8, 24, 2, False, 32434),
    ],
}


@pytest.mark.parametrize("gpu", PUBLISHED)
def test_published_throughput_is_reproduced(gpu: str) -> None:
    """Each within a quarter, and without bias; a model of 1B to 70B parameters on 8 to 64 GPUs."""
    ratios = []
    for layers, width, heads, row, ranks, rows, micro_batches, recomputes, measured in PUBLISHED[gpu]:
        shape = ModelConfig(num_layers=layers, width=width, num_heads=heads, d_ff=8 * width // 3)  # as two of 4 x width
        load = Workload(
            shape, VOCABULARY, row * rows, row * rows, VOCABULARY.size, row / 2,
            micro_batches=micro_batches, shards=ranks, recomputes=recomputes, is_compiled=False,
        )  # fmt: skip
        ratios.append(row * rows * micro_batches / step_seconds(load, GPUS[gpu]).total / measured)
    assert np.abs(np.log(ratios)).max() < np.log(1.25)
    assert np.exp(np.log(ratios).mean()) == pytest.approx(1, abs=0.07)

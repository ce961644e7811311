"""Counted parameters and FLOPs equal those of built models, of torch's counter and of published tables."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from triptych.model.flops import count_parameters, flops
from triptych.model.transformer import ModelConfig, Targets, Transformer, initialise, tagged_parameters
from triptych.recipes import recipe
from triptych.vocab import Vocabulary, paper_vocabulary

SMALL = Vocabulary(text=50, image=30, audio=20)
NEVER_PREDICTED = 7  # ids without a logit: MASK of three modalities, PAD, TASK of three tasks
SEQ_LEN = 3256
RECIPES = ["scenes", "nano", "paper_base", "paper_3b", "aspect_1", "aspect_3", "aspect_8", "aspect_13", "aspect_40"]


def shape(num_layers: int, width: int, d_ff: int) -> ModelConfig:
    """A shape of the paper, with heads of width 128."""
    return ModelConfig(num_layers=num_layers, width=width, num_heads=width // 128, d_ff=d_ff)


# -- parameters -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("vocabulary", [SMALL, paper_vocabulary()], ids=["small", "paper"])
def test_parameters_equal_those_of_the_built_model(name: str, vocabulary: Vocabulary) -> None:
    config = recipe(name).model
    with torch.device("meta"):
        model = Transformer(config, vocabulary)
    count = count_parameters(config, vocabulary)
    assert count.total == sum(p.numel() for p in model.parameters())
    embedding = [t for t in tagged_parameters(model) if t.role.startswith("embed_")]
    assert count.embedding == sum(t.parameter.numel() for t in embedding)
    inside = [t for t in tagged_parameters(model) if t.layer is not None or t.role == "unembed_norm"]
    assert count.blocks == sum(t.parameter.numel() for t in inside)


@pytest.mark.parametrize(
    ("config", "blocks", "total"),
    [
        (shape(8, 1024, 2816), 102.8e6, 343.8e6),
        (shape(8, 1024, 1877), 79.7e6, 320.7e6),
        (shape(24, 3072, 8448), 2.774e9, 3.498e9),
        (shape(24, 3072, 5632), 2.152e9, 2.875e9),
    ],
)
def test_parameters_of_the_papers_shapes(config: ModelConfig, blocks: float, total: float) -> None:
    """The paper's sizes, recomputed by hand (2.7747B is truncated, not rounded)."""
    count = count_parameters(config, paper_vocabulary())
    digit = 0.1e6 if blocks < 1e9 else 1e6
    assert abs(count.blocks - blocks) < digit
    assert abs(count.total - total) < digit
    assert count.embedding == count.unembedding == 117_698 * config.width


# -- FLOPs ------------------------------------------------------------------------------------------------------------


def added_product(total, left, right, *, out_shape=None, **_) -> int:
    """FLOPs of total += left @ right, from the shapes."""
    return 2 * left[0] * left[1] * right[1]


@pytest.mark.parametrize(
    ("config", "rows", "length"),
    [
        (ModelConfig(num_layers=2, width=64, num_heads=4, d_ff=176), 3, 20),
        (ModelConfig(num_layers=3, width=48, num_heads=2, d_ff=80), 2, 37),
    ],
)
def test_flops_equal_those_counted_by_torch(config: ModelConfig, rows: int, length: int) -> None:
    model = Transformer(config, SMALL)
    initialise(model, 0)
    tokens = torch.zeros(rows, length, dtype=torch.int64)
    positions = torch.arange(length).expand(rows, length)
    num_tokens = rows * length
    targets = Targets(
        query_idx=torch.arange(num_tokens),
        ids_n=torch.zeros(num_tokens, dtype=torch.int64),
        loss_weight_n=torch.ones(num_tokens),
        z_loss_weight_n=torch.zeros(num_tokens),
        counts=(num_tokens, 0, 0),
    )
    # The counter supports neither the CPU's fused attention nor in-place addmm.
    with sdpa_kernel(SDPBackend.MATH):
        with torch.no_grad(), FlopCounterMode(display=False) as hidden_only:
            model(tokens, positions)
        with torch.no_grad(), FlopCounterMode(display=False) as forward:
            model.loss(tokens, positions, None, targets)
        with FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: added_product}) as training:
            model.loss(tokens, positions, None, targets).total.backward()
    per_token = flops(config, SMALL, length)
    assert hidden_only.get_total_flops() == num_tokens * (per_token.matrices + per_token.attention)
    # The unembedding skips ids that are never predicted; scaling laws count the whole vocabulary.
    exact = 2.0 * (SMALL.size - NEVER_PREDICTED) * config.width
    assert forward.get_total_flops() == num_tokens * (per_token.matrices + per_token.attention + exact)
    assert per_token.unembedding == exact * SMALL.size / (SMALL.size - NEVER_PREDICTED)
    # The backward pass of QK-norm multiplies by both gains: 2 H x 2 numbers per position.
    in_qk_norm = config.num_layers * num_tokens * 2 * config.width * 2 * 2
    assert training.get_total_flops() - in_qk_norm == 3 * forward.get_total_flops()
    assert per_token.training == 3 * per_token.forward
    assert flops(config, SMALL, length, predicted=0.25).unembedding == per_token.unembedding / 4
    assert flops(config, SMALL, length, count_causal=True).attention == per_token.attention / 2


@pytest.mark.parametrize(
    ("config", "training", "to_6n"), [(shape(8, 1024, 1877), 1.52e9, 3.2), (shape(24, 3072, 5632), 17.96e9, 1.39)]
)
def test_training_flops_of_the_papers_shapes(config: ModelConfig, training: float, to_6n: float) -> None:
    vocabulary = paper_vocabulary()
    per_token = flops(config, vocabulary, SEQ_LEN).training
    assert abs(per_token - training) <= 0.005e9
    assert per_token / (6 * count_parameters(config, vocabulary).blocks) == pytest.approx(to_6n, abs=0.05)
    causal = flops(config, vocabulary, SEQ_LEN, count_causal=True)
    bidirectional = flops(config, vocabulary, SEQ_LEN)
    share = (bidirectional.forward - causal.forward) / bidirectional.forward
    assert share == pytest.approx({8: 0.105, 24: 0.080}[config.num_layers], abs=5e-4)


# Busbridge et al. train on rows of 4,096 with 32,768 ids: the only round numbers that give both entries of their Table
# 13 below (two equations in two unknowns, which fix the context to within 8 and the vocabulary to within 80).
TABLE_13_CONTEXT, TABLE_13_IDS = 4096, 32_768


def with_ids(total: int) -> Vocabulary:
    vocabulary = Vocabulary(text=total - 15, image=1, audio=1)
    assert vocabulary.size == total
    return vocabulary


@pytest.mark.parametrize(("config", "forward"), [(shape(24, 3072, 8192), 6.241e9), (shape(8, 1024, 2816), 0.3398e9)])
def test_forward_flops_of_busbridge_table_13(config: ModelConfig, forward: float) -> None:
    """2 N + 2 layers n_ctx d + 2 V d, where N includes norms."""
    per_token = flops(config, with_ids(TABLE_13_IDS), TABLE_13_CONTEXT, count_causal=True)
    norms = config.num_layers * (2 * config.width + 2 * config.head_width) + config.width
    assert float(f"{per_token.forward + 2 * norms:.4g}") == forward
    assert per_token.forward == pytest.approx(forward, rel=3e-4)

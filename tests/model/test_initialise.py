"""Roles of the parameters, and initial weights."""

import re
from dataclasses import replace

import pytest
import torch

from triptych.model.transformer import ModelConfig, Transformer, initialise, tagged_parameters
from triptych.vocab import Modality, Vocabulary

VOCABULARY = Vocabulary(text=50, image=30, audio=20)
SMALL = ModelConfig(num_layers=2, width=48, num_heads=3, d_ff=80, init_std=0.1)
# Rows of the paper's table of per-module multipliers, and the embeddings per modality.
IN_BLOCKS = {
    "norm1",
    "attn_qkv",
    "attn_proj",
    "attn_q_norm",
    "attn_k_norm",
    "norm2",
    "mlp_gate",
    "mlp_fc1",
    "mlp_fc2",
}
OUTSIDE = {f"{kind}_{m.name.lower()}" for kind in ("embed", "unembed") for m in Modality} | {"unembed_norm"}


def test_every_parameter_has_a_role_from_the_papers_table() -> None:
    model = Transformer(ModelConfig(num_layers=11, width=16, num_heads=2, d_ff=8), VOCABULARY)
    tagged = list(tagged_parameters(model))
    assert [t.name for t in tagged] == [name for name, _ in model.named_parameters()]
    assert all(t.parameter is parameter for t, parameter in zip(tagged, model.parameters(), strict=True))
    for t in tagged:
        block = re.match(r"blocks\.(\d+)\.", t.name)
        assert t.layer == (int(block[1]) if block else None), t.name
        assert t.role in (IN_BLOCKS if block else OUTSIDE), t.name
        assert t.is_matrix == ("norm" not in t.role), t.name
    for layer in range(11):
        assert sorted(t.role for t in tagged if t.layer == layer) == sorted(IN_BLOCKS)
    assert sorted(t.role for t in tagged if t.layer is None) == sorted(OUTSIDE)


def test_learned_positions_have_roles() -> None:
    model = Transformer(replace(SMALL, max_learned_positions=4), VOCABULARY)
    roles = {tagged.role for tagged in tagged_parameters(model)}
    assert roles == IN_BLOCKS | OUTSIDE | {f"embed_place_{m.name.lower()}" for m in Modality}


def test_roles_describe_what_the_weights_do() -> None:
    """By shapes and by the MLP's output, not by names."""
    model = Transformer(SMALL, VOCABULARY)
    initialise(model, 0)
    block = model.blocks[0]
    by_role = {t.role: t.parameter for t in tagged_parameters(model) if t.layer == 0}
    assert by_role["attn_qkv"].shape == (3 * SMALL.width, SMALL.width)
    assert by_role["mlp_fc2"].shape == (SMALL.width, SMALL.d_ff)
    assert by_role["attn_q_norm"].shape == by_role["attn_k_norm"].shape == (SMALL.head_width,)
    x = torch.randn(1, 3, SMALL.width)
    with torch.no_grad():
        by_role["mlp_fc1"][0] = 0
        hidden = torch.nn.functional.linear(x, by_role["mlp_gate"])
        linear = torch.nn.functional.linear(x, by_role["mlp_fc1"])
        expected = (hidden * hidden.sigmoid() * linear) @ by_role["mlp_fc2"].T
        torch.testing.assert_close(block.mlp(x), expected)


@torch.no_grad()
def test_initial_weights_follow_their_distribution() -> None:
    config = ModelConfig(num_layers=2, width=128, num_heads=2, d_ff=256, init_std=0.03)
    model = Transformer(config, VOCABULARY)
    initialise(model, 7)
    for t in tagged_parameters(model):
        if t.is_matrix:
            # The standard deviation of an estimate of a standard deviation is sigma / sqrt(2 n).
            margin = 4 * 0.03 / (2 * t.parameter.numel()) ** 0.5
            assert float(t.parameter.std()) == pytest.approx(0.03, abs=margin), t.name
            assert abs(float(t.parameter.mean())) < 4 * 0.03 / t.parameter.numel() ** 0.5, t.name
        else:
            assert (t.parameter == 1).all(), t.name
    standardised = model.blocks[0].mlp.gate.flatten() / 0.03
    assert float(standardised.abs().max()) > 3.5  # not truncated at two standard deviations
    assert float((standardised**4).mean()) == pytest.approx(3.0, abs=0.15)


@torch.no_grad()
def test_the_scale_can_depend_on_the_weight() -> None:
    model = Transformer(
        ModelConfig(num_layers=1, width=128, num_heads=2, d_ff=256, max_learned_positions=9), VOCABULARY
    )
    initialise(model, 7, lambda t: 0.5 if t.role.startswith("embed_") else 0.03 if t.is_matrix else 2.0)
    for t in tagged_parameters(model):
        if t.is_matrix:
            expected = 0.5 if t.role.startswith("embed_") else 0.03
            assert float(t.parameter.std()) == pytest.approx(expected, rel=0.1), t.name
        else:
            assert (t.parameter == 2).all(), t.name


def test_initial_weights_depend_on_the_seed_and_the_name_only() -> None:
    def weights(config: ModelConfig, seed: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(int(torch.randint(1000, (1,))))  # the global generator must not matter
        model = Transformer(config, VOCABULARY)
        initialise(model, seed)
        return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    first, again, other = weights(SMALL, 1), weights(SMALL, 1), weights(SMALL, 2)
    deeper = weights(ModelConfig(num_layers=4, width=48, num_heads=3, d_ff=80, init_std=0.1), 1)
    for name, weight in first.items():
        assert torch.equal(weight, again[name])
        assert torch.equal(weight, deeper[name])
        assert weight.ndim == 1 or not torch.equal(weight, other[name])
    matrices = [weight.flatten()[:100] for weight in deeper.values() if weight.ndim == 2]
    assert all(not torch.equal(a, b) for i, a in enumerate(matrices) for b in matrices[:i])
    # The initial weights of different blocks are uncorrelated.
    pair = torch.stack([deeper["blocks.0.mlp.gate"].flatten(), deeper["blocks.1.mlp.gate"].flatten()])
    assert abs(float(torch.corrcoef(pair)[0, 1])) < 4 / pair.shape[1] ** 0.5

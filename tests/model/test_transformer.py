"""The network agrees with an outside implementation, keeps segments apart, and knows what every weight is for."""

import copy
import re
from dataclasses import replace

import pytest
import torch

from triptych.errors import UserError
from triptych.model.fused import turn
from triptych.model.layers import rotary_angles
from triptych.model.segments import Segments, find_segments, whole_rows
from triptych.model.transformer import ModelConfig, Transformer, initialise, tagged_parameters
from triptych.vocab import Modality, Task, Vocabulary

VOCABULARY = Vocabulary(text=50, image=30, audio=20)
SMALL = ModelConfig(num_layers=2, width=48, num_heads=3, d_ff=80, init_std=0.1)
# The rows of the paper's table of per-module multipliers, and the per-modality embeddings.
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


def build(config: ModelConfig = SMALL, seed: int = 0) -> Transformer:
    """Random norm gains, too: with all ones, a forgotten or misplaced gain would not show."""
    model = Transformer(config, VOCABULARY)
    initialise(model, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tagged in tagged_parameters(model):
            if not tagged.is_matrix:
                tagged.parameter.copy_(torch.rand(tagged.parameter.shape, generator=generator) + 0.5)
    return model.eval()


def random_tokens(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, VOCABULARY.size, (rows, length), generator=torch.Generator().manual_seed(seed))


def from_zero(tokens: torch.Tensor) -> torch.Tensor:
    return torch.arange(tokens.shape[1]).expand_as(tokens)


# -- an outside implementation ----------------------------------------------------------------------------------------


def as_qwen3(model: Transformer):
    """The same weights in transformers' Qwen3."""
    transformers = pytest.importorskip("transformers")
    config = model.config
    theirs = (
        transformers.Qwen3Model(
            transformers.Qwen3Config(
                vocab_size=VOCABULARY.size,
                hidden_size=config.width,
                intermediate_size=config.d_ff,
                num_hidden_layers=config.num_layers,
                num_attention_heads=config.num_heads,
                num_key_value_heads=config.num_heads,
                head_dim=config.head_width,
                rms_norm_eps=config.norm_eps,
                rope_parameters={"rope_type": "default", "rope_theta": config.rope_base},
                attn_implementation="eager",
            )
        )
        .double()
        .eval()
    )
    weights = {"embed_tokens.weight": torch.cat(model.embed.blocks), "norm.weight": model.norm.weight}
    for number, block in enumerate(model.blocks):
        q, k, v = block.attention.qkv.chunk(3)
        parts = {
            "input_layernorm": block.norm1.weight,
            "self_attn.q_proj": q,
            "self_attn.k_proj": k,
            "self_attn.v_proj": v,
            "self_attn.o_proj": block.attention.proj * block.residual_scale,
            "self_attn.q_norm": block.attention.q_norm.weight,
            "self_attn.k_norm": block.attention.k_norm.weight,
            "post_attention_layernorm": block.norm2.weight,
            "mlp.gate_proj": block.mlp.gate,
            "mlp.up_proj": block.mlp.fc1,
            "mlp.down_proj": block.mlp.fc2 * block.residual_scale,
        }
        weights |= {f"layers.{number}.{name}.weight": weight for name, weight in parts.items()}
    theirs.load_state_dict({name: weight.detach() for name, weight in weights.items()}, strict=True)
    return theirs


@pytest.mark.parametrize(
    ("config", "rows", "length", "segments"),
    [
        (SMALL, 3, 17, None),
        (SMALL, 2, 12, [[1] * 5 + [2] * 4 + [0] * 3, [3] * 10 + [0] * 2]),
        (ModelConfig(num_layers=3, width=64, num_heads=2, d_ff=96, rope_base=500.0, init_std=0.05), 2, 33, None),
        (
            ModelConfig(
                num_layers=4, width=32, num_heads=4, d_ff=56, norm_eps=1e-2, residual_scale=1 / 3, init_std=0.3
            ),
            1,
            9,
            None,
        ),
    ],
    ids=["whole rows", "segments", "other base", "residual scale"],
)
def test_hidden_states_are_those_of_qwen3(config: ModelConfig, rows: int, length: int, segments) -> None:
    model = build(config)
    tokens = random_tokens(rows, length)
    # In float64 all but their norms and both angles, which are rounded to about 1e-7 of the position.
    model.double()
    positions = torch.randint(0, 200, (rows, length), generator=torch.Generator().manual_seed(1))
    ids = torch.ones(rows, length) if segments is None else torch.tensor(segments)
    may_see = ids[:, None, :, None] == ids[:, None, None, :]
    with torch.no_grad():
        ours = model(tokens, positions, None if segments is None else found(ids))
        theirs = as_qwen3(model)(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=torch.zeros(may_see.shape, dtype=torch.float64).masked_fill(~may_see, -torch.inf),
        ).last_hidden_state
    assert ours.std() > 0.3  # not a comparison of nothing with nothing
    torch.testing.assert_close(ours[ids > 0], theirs[ids > 0], atol=1e-5, rtol=0)


def test_rotation_keeps_lengths_and_sees_only_distances() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 1, 1, 16, generator=generator)

    def score(at: int, of: int) -> float:
        turned = [turn(x, *rotary_angles(torch.tensor([p]), 16, 10_000.0)) for x, p in ((q, at), (k, of))]
        torch.testing.assert_close(turned[0].norm(), q.norm())
        return float((turned[0] * turned[1]).sum())

    assert score(3, 10) == pytest.approx(score(103, 110), abs=1e-4)
    assert abs(score(3, 10) - score(3, 11)) > 1e-3
    assert abs(score(3, 10) - score(10, 3)) > 1e-3
    assert score(7, 7) == pytest.approx(float((q * k).sum()), abs=1e-5)


# -- segments ---------------------------------------------------------------------------------------------------------


def packed(lengths: list[int], padding: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One row of sequences one behind another: tokens, positions, segment ids."""
    tokens = random_tokens(1, sum(lengths) + padding, seed)
    tokens[0, sum(lengths) :] = VOCABULARY.pad
    positions = torch.cat([*(torch.arange(n) for n in lengths), torch.zeros(padding, dtype=torch.int64)])[None]
    ids = [number for number, n in enumerate(lengths, start=1) for _ in range(n)] + [0] * padding
    return tokens, positions, torch.tensor([ids])


def found(ids: torch.Tensor) -> Segments:
    return find_segments(ids.numpy(), torch.device("cpu"))


@torch.no_grad()
def test_a_sequence_does_not_know_its_neighbours() -> None:
    model, lengths = build(), [7, 12, 1, 9]
    tokens, positions, segments = packed(lengths, padding=6)
    together = model(tokens, positions, found(segments))
    assert together.isfinite().all()
    exact = copy.deepcopy(model).double()
    exactly_together = exact(tokens, positions, found(segments))
    start = 0
    for number, length in enumerate(lengths, start=1):
        here = slice(start, start + length)
        alone = exact(tokens[:, here], from_zero(tokens[:, here]))
        torch.testing.assert_close(exactly_together[:, here], alone, atol=1e-12, rtol=1e-12)
        torch.testing.assert_close(together[:, here].double(), alone, atol=1e-5, rtol=1e-5)
        others = tokens.clone()
        outside = segments != number  # neighbours and padding
        others[outside] = random_tokens(1, int(outside.sum()), seed=5)[0]
        changed = model(others, positions, found(segments))
        assert torch.equal(changed[:, here], together[:, here])
        assert not torch.allclose(changed[outside], together[outside])
        assert not changed[segments == 0].any()  # nothing is computed there
        start += length


@torch.no_grad()
def test_padding_changes_nothing_and_makes_no_nan() -> None:
    model = build().double()
    tokens, positions, segments = packed([11], padding=0)
    alone = model(tokens, positions, found(segments))
    # Beside a full row and an empty one, as the loader makes them.
    longer = torch.full((3, 20), VOCABULARY.pad)
    longer[0, :11], longer[1] = tokens[0], random_tokens(1, 20, 3)[0]
    ids = torch.zeros(3, 20, dtype=torch.int64)
    ids[0, :11], ids[1] = 1, 2
    hidden = model(longer, from_zero(longer) * (ids > 0), found(ids))
    assert hidden.isfinite().all()
    torch.testing.assert_close(hidden[:1, :11], alone, atol=1e-12, rtol=1e-12)


@torch.no_grad()
def test_attention_looks_both_ways() -> None:
    model, tokens = build(), random_tokens(1, 10)
    before = model(tokens, from_zero(tokens))
    for changed_at, seen_at in ((9, 0), (0, 9)):
        other = tokens.clone()
        other[0, changed_at] = (other[0, changed_at] + 1) % VOCABULARY.size
        assert (model(other, from_zero(tokens)) - before)[0, seen_at].abs().max() > 1e-3


@torch.no_grad()
def test_order_is_known_by_positions_alone() -> None:
    model, tokens = build(), random_tokens(1, 10)
    shuffled = torch.randperm(10, generator=torch.Generator().manual_seed(2))
    found = model(tokens[:, shuffled], from_zero(tokens)[:, shuffled])
    torch.testing.assert_close(found, model(tokens, from_zero(tokens))[:, shuffled], atol=1e-5, rtol=1e-5)
    elsewhere = model(tokens[:, shuffled], from_zero(tokens))
    assert not torch.allclose(elsewhere, found, atol=1e-3)


# -- embeddings -------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_an_id_reads_its_row_of_its_block() -> None:
    model = build()
    for modality, ids in zip(Modality, VOCABULARY.embedding_blocks):
        block = getattr(model.embed, modality.name.lower())
        assert len(block) == len(ids)
        assert torch.equal(model.embed(torch.tensor(ids)), block)
    assert VOCABULARY.task(2) in VOCABULARY.embedding_blocks[0]  # type: ignore[arg-type]


@torch.no_grad()
def test_places_are_counted_from_the_bos_before() -> None:
    """In a row of two packed sequences, a picture with its text and a text that is longer than the table."""
    model = build(replace(SMALL, max_learned_positions=4))
    v, (text, image, _) = VOCABULARY, (VOCABULARY.ids(m)[0] for m in Modality)
    picture = [v.task(Task.IMAGE_TEXT), v.bos(Modality.IMAGE), image, v.mask(Modality.IMAGE), v.eos(Modality.IMAGE)]
    words = [v.bos(Modality.TEXT), text, text + 1, v.mask(Modality.TEXT), text, v.eos(Modality.TEXT)]
    tokens = torch.tensor([[*picture, *words, v.task(Task.TEXT), *words]])
    tables = dict(model.places.named_parameters())
    zero = torch.zeros(SMALL.width)
    expected = [zero, *tables["image"], *tables["text"], zero, zero, zero, *tables["text"], zero, zero]
    segments = whole_rows(1, len(expected), tokens.device)
    assert torch.equal(model.places(tokens, segments), torch.stack(expected))
    with torch.no_grad():
        before = model(tokens, from_zero(tokens))
        tables["text"][3] += 1
        assert not torch.allclose(model(tokens, from_zero(tokens)), before)
    roles = {tagged.role for tagged in tagged_parameters(model)}
    assert roles == IN_BLOCKS | OUTSIDE | {f"embed_place_{m.name.lower()}" for m in Modality}


def test_logits_are_over_data_bos_and_eos_of_one_modality() -> None:
    model = build()
    hidden = torch.randn(4, SMALL.width, generator=torch.Generator().manual_seed(0))
    for modality in Modality:
        ids = [*VOCABULARY.data_ids(modality), VOCABULARY.bos(modality), VOCABULARY.eos(modality)]
        table = torch.cat(model.unembed.blocks)[ids]
        torch.testing.assert_close(model.logits(hidden, modality), torch.einsum("nd,vd->nv", hidden, table))


# -- roles and beginnings ---------------------------------------------------------------------------------------------


def test_every_parameter_has_a_role_of_the_papers_table() -> None:
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


def test_roles_name_what_the_weights_do() -> None:
    """By what changes when a weight is taken away, not by its name."""
    model = build()
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
def test_beginnings() -> None:
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
    tall = model.blocks[0].mlp.gate.flatten() / 0.03
    assert float(tall.abs().max()) > 3.5  # not cut at two standard deviations
    assert float((tall**4).mean()) == pytest.approx(3.0, abs=0.15)


@torch.no_grad()
def test_every_weight_can_have_a_beginning_of_its_own() -> None:
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


def test_beginnings_depend_on_the_seed_and_the_name_alone() -> None:
    def weights(config: ModelConfig, seed: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(int(torch.randint(1000, (1,))))  # the global generator has no part in it
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
    # No block begins as another: seeds that differ by a little must not give weights that are alike.
    pair = torch.stack([deeper["blocks.0.mlp.gate"].flatten(), deeper["blocks.1.mlp.gate"].flatten()])
    assert abs(float(torch.corrcoef(pair)[0, 1])) < 4 / pair.shape[1] ** 0.5


# -- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_layers": 0}, "num_layers must be a positive integer, got 0"),
        ({"d_ff": 2.5}, r"d_ff must be a positive integer, got 2\.5"),
        ({"width": 50}, r"width=50 must be a multiple of 2 \* num_heads=6"),
        ({"width": 45}, r"width=45 must be a multiple of 2 \* num_heads=6"),
        ({"logit_scale": 0.0}, r"logit_scale must be positive and finite, got 0\.0"),
        ({"softmax_scope": "modal"}, "unknown softmax_scope 'modal'. Did you mean 'modality'?"),
    ],
)
def test_wrong_shapes_are_refused(changes: dict, message: str) -> None:
    fields = {"num_layers": 2, "width": 48, "num_heads": 3, "d_ff": 80}
    with pytest.raises(UserError, match=message):
        ModelConfig(**(fields | changes))

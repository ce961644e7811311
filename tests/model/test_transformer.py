"""Hidden states equal those of transformers' Qwen3; sequences in one row are independent; embeddings and logits."""

import copy
from dataclasses import replace

import pytest
import torch

from triptych.errors import UserError
from triptych.model.fused import rotate
from triptych.model.layers import rotary_angles
from triptych.model.segments import Segments, find_segments, whole_rows
from triptych.model.transformer import ModelConfig, Transformer, initialise, tagged_parameters
from triptych.vocab import Modality, Task, Vocabulary

VOCABULARY = Vocabulary(text=50, image=30, audio=20)
SMALL = ModelConfig(num_layers=2, width=48, num_heads=3, d_ff=80, init_std=0.1)


def build(config: ModelConfig = SMALL, seed: int = 0) -> Transformer:
    """A model with random norm gains: with ones, a missing or misplaced gain would not fail."""
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


# -- Qwen3 ------------------------------------------------------------------------------------------------------------


def as_qwen3(model: Transformer):
    """transformers' Qwen3 with the same weights."""
    transformers = pytest.importorskip("transformers")
    config = model.config
    qwen3 = (
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
    qwen3.load_state_dict({name: weight.detach() for name, weight in weights.items()}, strict=True)
    return qwen3


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
def test_hidden_states_equal_those_of_qwen3(config: ModelConfig, rows: int, length: int, segments) -> None:
    model = build(config)
    tokens = random_tokens(rows, length)
    # In float64, except Qwen3's norms and the angles of both, which round to about 1e-7 of the position.
    model.double()
    positions = torch.randint(0, 200, (rows, length), generator=torch.Generator().manual_seed(1))
    ids = torch.ones(rows, length) if segments is None else torch.tensor(segments)
    may_see = ids[:, None, :, None] == ids[:, None, None, :]
    with torch.no_grad():
        ours = model(tokens, positions, None if segments is None else segments_of(ids))
        expected = as_qwen3(model)(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=torch.zeros(may_see.shape, dtype=torch.float64).masked_fill(~may_see, -torch.inf),
        ).last_hidden_state
    assert ours.std() > 0.3  # the comparison is not of zeros
    torch.testing.assert_close(ours[ids > 0], expected[ids > 0], atol=1e-5, rtol=0)


def test_rotation_keeps_norms_and_scores_depend_on_distance_only() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 1, 1, 16, generator=generator)

    def score(at: int, of: int) -> float:
        rotated = [rotate(x, *rotary_angles(torch.tensor([p]), 16, 10_000.0)) for x, p in ((q, at), (k, of))]
        torch.testing.assert_close(rotated[0].norm(), q.norm())
        return float((rotated[0] * rotated[1]).sum())

    assert score(3, 10) == pytest.approx(score(103, 110), abs=1e-4)
    assert abs(score(3, 10) - score(3, 11)) > 1e-3
    assert abs(score(3, 10) - score(10, 3)) > 1e-3
    assert score(7, 7) == pytest.approx(float((q * k).sum()), abs=1e-5)


# -- segments ---------------------------------------------------------------------------------------------------------


def packed(lengths: list[int], padding: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One packed row of sequences: tokens, positions, segment ids."""
    tokens = random_tokens(1, sum(lengths) + padding, seed)
    tokens[0, sum(lengths) :] = VOCABULARY.pad
    positions = torch.cat([*(torch.arange(n) for n in lengths), torch.zeros(padding, dtype=torch.int64)])[None]
    ids = [number for number, n in enumerate(lengths, start=1) for _ in range(n)] + [0] * padding
    return tokens, positions, torch.tensor([ids])


def segments_of(ids: torch.Tensor) -> Segments:
    return find_segments(ids.numpy(), torch.device("cpu"))


@torch.no_grad()
def test_sequences_of_a_row_are_independent() -> None:
    model, lengths = build(), [7, 12, 1, 9]
    tokens, positions, segments = packed(lengths, padding=6)
    together = model(tokens, positions, segments_of(segments))
    assert together.isfinite().all()
    exact = copy.deepcopy(model).double()
    exactly_together = exact(tokens, positions, segments_of(segments))
    start = 0
    for number, length in enumerate(lengths, start=1):
        here = slice(start, start + length)
        alone = exact(tokens[:, here], from_zero(tokens[:, here]))
        torch.testing.assert_close(exactly_together[:, here], alone, atol=1e-12, rtol=1e-12)
        torch.testing.assert_close(together[:, here].double(), alone, atol=1e-5, rtol=1e-5)
        others = tokens.clone()
        outside = segments != number  # neighbours and padding
        others[outside] = random_tokens(1, int(outside.sum()), seed=5)[0]
        changed = model(others, positions, segments_of(segments))
        assert torch.equal(changed[:, here], together[:, here])
        assert not torch.allclose(changed[outside], together[outside])
        assert not changed[segments == 0].any()  # padding is not computed
        start += length


@torch.no_grad()
def test_padding_has_no_influence_and_gives_no_nan() -> None:
    model = build().double()
    tokens, positions, segments = packed([11], padding=0)
    alone = model(tokens, positions, segments_of(segments))
    # In a batch with a full row and an empty one, as the loader may give.
    longer = torch.full((3, 20), VOCABULARY.pad)
    longer[0, :11], longer[1] = tokens[0], random_tokens(1, 20, 3)[0]
    ids = torch.zeros(3, 20, dtype=torch.int64)
    ids[0, :11], ids[1] = 1, 2
    hidden = model(longer, from_zero(longer) * (ids > 0), segments_of(ids))
    assert hidden.isfinite().all()
    torch.testing.assert_close(hidden[:1, :11], alone, atol=1e-12, rtol=1e-12)


@torch.no_grad()
def test_attention_is_bidirectional() -> None:
    model, tokens = build(), random_tokens(1, 10)
    before = model(tokens, from_zero(tokens))
    for changed_at, seen_at in ((9, 0), (0, 9)):
        other = tokens.clone()
        other[0, changed_at] = (other[0, changed_at] + 1) % VOCABULARY.size
        assert (model(other, from_zero(tokens)) - before)[0, seen_at].abs().max() > 1e-3


@torch.no_grad()
def test_order_matters_through_positions_only() -> None:
    model, tokens = build(), random_tokens(1, 10)
    shuffled = torch.randperm(10, generator=torch.Generator().manual_seed(2))
    permuted = model(tokens[:, shuffled], from_zero(tokens)[:, shuffled])
    torch.testing.assert_close(permuted, model(tokens, from_zero(tokens))[:, shuffled], atol=1e-5, rtol=1e-5)
    other_positions = model(tokens[:, shuffled], from_zero(tokens))
    assert not torch.allclose(other_positions, permuted, atol=1e-3)


# -- embeddings -------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_every_id_has_its_row_in_the_block_of_its_modality() -> None:
    model = build()
    for modality, ids in zip(Modality, VOCABULARY.embedding_blocks):
        block = getattr(model.embed, modality.name.lower())
        assert len(block) == len(ids)
        assert torch.equal(model.embed(torch.tensor(ids)), block)
    assert VOCABULARY.task(2) in VOCABULARY.embedding_blocks[0]  # type: ignore[arg-type]


@torch.no_grad()
def test_learned_positions_count_from_the_last_bos() -> None:
    """A row of two packed sequences: an image with its text, and a text longer than the table."""
    model = build(replace(SMALL, max_learned_positions=4))
    v, (text, image, _) = VOCABULARY, (VOCABULARY.ids(m)[0] for m in Modality)
    image_part = [v.task(Task.IMAGE_TEXT), v.bos(Modality.IMAGE), image, v.mask(Modality.IMAGE), v.eos(Modality.IMAGE)]
    words = [v.bos(Modality.TEXT), text, text + 1, v.mask(Modality.TEXT), text, v.eos(Modality.TEXT)]
    tokens = torch.tensor([[*image_part, *words, v.task(Task.TEXT), *words]])
    tables = dict(model.places.named_parameters())
    zero = torch.zeros(SMALL.width)
    expected = [zero, *tables["image"], *tables["text"], zero, zero, zero, *tables["text"], zero, zero]
    segments = whole_rows(1, len(expected), tokens.device)
    assert torch.equal(model.places(tokens, segments), torch.stack(expected))
    with torch.no_grad():
        before = model(tokens, from_zero(tokens))
        tables["text"][3] += 1
        assert not torch.allclose(model(tokens, from_zero(tokens)), before)


def test_logits_cover_data_bos_and_eos_of_one_modality() -> None:
    model = build()
    hidden = torch.randn(4, SMALL.width, generator=torch.Generator().manual_seed(0))
    for modality in Modality:
        ids = [*VOCABULARY.data_ids(modality), VOCABULARY.bos(modality), VOCABULARY.eos(modality)]
        table = torch.cat(model.unembed.blocks)[ids]
        torch.testing.assert_close(model.logits(hidden, modality), torch.einsum("nd,vd->nv", hidden, table))


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_layers": 0}, "num_layers must be a positive integer, got 0"),
        ({"d_ff": 2.5}, r"d_ff must be a whole number, got 2\.5"),
        ({"width": 50}, r"width=50 must be a multiple of 2 \* num_heads=6"),
        ({"width": 45}, r"width=45 must be a multiple of 2 \* num_heads=6"),
        ({"logit_scale": 0.0}, r"logit_scale must be positive and finite, got 0\.0"),
        ({"softmax_scope": "modal"}, "softmax_scope must be 'full' or 'modality', got 'modal'"),
    ],
)
def test_invalid_shapes_are_rejected(changes: dict, message: str) -> None:
    fields = {"num_layers": 2, "width": 48, "num_heads": 3, "d_ff": 80}
    with pytest.raises(UserError, match=message):
        ModelConfig(**(fields | changes))

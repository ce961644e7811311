"""Hyperparameters of every weight, compared with the papers' tables and between rules."""

import math
from dataclasses import replace

import pytest
import torch

from triptych.errors import UserError
from triptych.model.transformer import ModelConfig, Targets, Transformer, initialise, tagged_parameters
from triptych.recipes import recipe
from triptych.training.config import RunConfig
from triptych.training.step import build_optimizer
from triptych.transfer.groups import BaseHyperparameters, Transfer, TransferConfig, build_param_groups
from triptych.transfer.per_module import MULTIPLIER_TABLES, Multipliers, MultiplierTable
from triptych.transfer.rules import RULES, kind_of
from triptych.transfer.sde import Sde
from triptych.utils.config import override
from triptych.vocab import Modality, Vocabulary

VOCABULARY = Vocabulary(text=11, image=7, audio=5)
PAPER = BaseHyperparameters(lr=9e-4, beta1=0.9, beta2=0.95, eps=1e-8, decay=0.1)
ROLES = [
    "embed_text", "embed_image", "embed_audio", "embed_place_text", "embed_place_image", "embed_place_audio", "norm1",
    "attn_qkv", "attn_proj", "attn_q_norm", "attn_k_norm", "norm2", "mlp_gate", "mlp_fc1", "mlp_fc2", "unembed_norm",
    "unembed_text", "unembed_image", "unembed_audio",
]  # fmt: skip


def transfer(m_n: int, m_l: int, rule: str = "completed_p", kappa: float = 1.0, **changes: object) -> Transfer:
    shape = ModelConfig(
        num_layers=2 * m_l, width=16 * m_n, num_heads=m_n, d_ff=24 * m_n, init_std=0.02, max_learned_positions=3
    )
    config = TransferConfig(rule=rule, base_width=16, base_layers=2, **changes)  # type: ignore[arg-type]
    return Transfer(config, shape, PAPER, Sde(kappa, 1, 1, 1, gamma=0.0))


def by_role(resolved: Transfer, layer: int = 0) -> dict:
    model = Transformer(resolved.scaled_shape, VOCABULARY)
    return {t.role: resolved.hyperparameters(t) for t in tagged_parameters(model) if t.layer in (None, layer)}


def test_every_role_of_the_model_has_a_kind() -> None:
    assert sorted(by_role(transfer(1, 1))) == sorted(ROLES)
    assert {kind_of(role) for role in ROLES} == set(RULES["completed_p"].rows)


@pytest.mark.parametrize("rule", RULES)
def test_no_rule_changes_the_base_values_at_the_base_size(rule: str) -> None:
    resolved = transfer(1, 1, rule)
    assert resolved.scaled_shape == resolved.shape
    for role, values in by_role(resolved).items():
        is_norm = "norm" in role
        assert (values.lr, values.beta1, values.beta2, values.eps) == pytest.approx((9e-4, 0.9, 0.95, 1e-8)), role
        assert values.decay == (0.0 if is_norm else 0.1), role
        assert values.init == (1.0 if is_norm else 0.02), role


def test_values_of_the_papers_3b_model() -> None:
    """The numbers of a model three times as wide and as deep as its base."""
    resolved = transfer(3, 3)
    values = by_role(resolved)
    assert resolved.scaled_shape.residual_scale == pytest.approx(1 / 3)
    assert resolved.scaled_shape.logit_scale == 1
    for role in ("attn_qkv", "attn_proj", "mlp_gate", "mlp_fc1", "mlp_fc2"):
        assert values[role].lr == pytest.approx(3e-4), role
        assert values[role].decay == pytest.approx(0.3), role
        assert values[role].eps == pytest.approx(1.1111e-9, rel=1e-4), role
        assert values[role].init == pytest.approx(0.011547, rel=1e-4), role
    for role in ("unembed_text", "unembed_image", "unembed_audio"):
        assert values[role].lr == pytest.approx(3e-4), role
        assert values[role].decay == pytest.approx(0.3), role
        assert values[role].eps == pytest.approx(1e-8), role
        assert values[role].init == pytest.approx(0.02 / 3), role
    for role in ("embed_text", "embed_image", "embed_audio", "embed_place_text"):
        assert values[role].lr == pytest.approx(9e-4), role
        assert values[role].decay == pytest.approx(0.1), role
        assert values[role].eps == pytest.approx(3.3333e-9, rel=1e-4), role
        assert values[role].init == pytest.approx(0.02), role
    for role, eps in (("norm1", 1e-8 / 9), ("norm2", 1e-8 / 9), ("attn_q_norm", 1e-8 / 3), ("unembed_norm", 1e-8)):
        assert (values[role].lr, values[role].init, values[role].decay) == (pytest.approx(9e-4), 1.0, 0.0), role
        assert values[role].eps == pytest.approx(eps), role


def test_depth_exponent_one_half() -> None:
    values = by_role(transfer(1, 4, depth_exponent=0.5))
    assert values["attn_qkv"].lr == pytest.approx(9e-4 / 2)
    assert values["norm1"].lr == pytest.approx(9e-4 / 2)
    assert values["embed_text"].lr == values["unembed_norm"].lr == pytest.approx(9e-4)
    assert values["attn_qkv"].eps == pytest.approx(1e-8 / 2)
    assert transfer(1, 4, depth_exponent=0.5).scaled_shape.residual_scale == pytest.approx(0.5)


def test_kappa_scales_every_hyperparameter() -> None:
    for role, values in by_role(transfer(1, 1, kappa=4.0)).items():
        assert values.lr == pytest.approx(2 * 9e-4)
        assert values.eps == pytest.approx(1e-8 / 2)
        assert (values.beta1, values.beta2) == pytest.approx((0.9**4, 0.95**4))
        assert values.decay == pytest.approx(0.0 if "norm" in role else 0.2)
    assert by_role(transfer(1, 1, kappa=4.0, scales_decay=False))["mlp_fc1"].decay == pytest.approx(0.1)


def first_change_of_logits(rule: str, m_n: int, m_l: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Initial logits, and their change after one step; epsilon is too small to matter."""
    resolved = transfer(m_n, m_l, rule)
    resolved = replace(resolved, values=replace(PAPER, eps=1e-30, decay=0.5))
    model = Transformer(resolved.scaled_shape, VOCABULARY).double()
    initialise(model, 3, lambda weight: resolved.hyperparameters(weight).init)
    optimizer = build_optimizer(model, resolved)
    tokens = torch.randint(0, VOCABULARY.size, (2, 9), generator=torch.Generator().manual_seed(0))
    positions = torch.arange(9).expand(2, 9)
    ids = torch.cat([torch.tensor(VOCABULARY.data_ids(m))[:4] for m in Modality])
    targets = Targets(torch.arange(12), ids, torch.ones(12) / 12, torch.zeros(12), (4, 4, 4))

    def logits() -> torch.Tensor:
        with torch.no_grad():
            hidden = model(tokens, positions).flatten(0, 1)
            return torch.cat([model.logits(hidden, m) for m in Modality], dim=1)

    before = logits()
    model.loss(tokens, positions, None, targets).total.backward()
    optimizer.step()
    return before, logits() - before


def test_completep_and_completed_p_give_the_same_logits_and_first_update() -> None:
    before, change = first_change_of_logits("completed_p", 3, 2)
    same, same_change = first_change_of_logits("completep", 3, 2)
    torch.testing.assert_close(same, before, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(same_change, change, rtol=1e-4, atol=1e-7)
    other, _ = first_change_of_logits("standard", 3, 2)
    assert not torch.allclose(other, before, rtol=0.1)


# -- tables -----------------------------------------------------------------------------------------------------------


def test_the_papers_table() -> None:
    values = by_role(replace(transfer(1, 2), config=TransferConfig(per_module="paper")), layer=0)
    later = by_role(replace(transfer(1, 2), config=TransferConfig(per_module="paper")), layer=3)
    assert values["embed_text"].lr == pytest.approx(9e-4 * 3.937)
    assert values["embed_text"].init == pytest.approx(0.02 * 0.379)
    assert values["unembed_norm"].beta1 == pytest.approx(0.5492)
    assert values["unembed_norm"].init == pytest.approx(2.175)
    assert values["mlp_fc1"].beta2 == pytest.approx(1 - 0.05 * 3.309 * 3.053)
    assert values["attn_qkv"].lr == pytest.approx(9e-4 * 1.714 * 1.102)
    assert later["attn_qkv"].lr == pytest.approx(9e-4 * 1.714 * 0.877)
    assert later["norm1"].decay == pytest.approx(0.1 * 1.105 * 1.018)  # norms decay too
    assert len(MULTIPLIER_TABLES["paper"].roles) == 16


def test_depth_multipliers_cover_equal_parts_of_the_layers() -> None:
    table = MultiplierTable(depth=(Multipliers(lr=2.0), Multipliers(lr=3.0)))
    assert [table.at("mlp_fc1", layer, 5).lr for layer in range(5)] == [2, 2, 2, 3, 3]
    assert table.at("embed_text", None, 5).lr == 1
    assert table.at("norm1", 0, 1).lr == 2


def test_beta_multipliers_apply_before_kappa() -> None:
    resolved = replace(transfer(1, 1, kappa=3.0), config=TransferConfig(multipliers={"mlp": {"alpha1": 4.0}}))
    assert by_role(resolved)["mlp_gate"].beta1 == pytest.approx(0.6**3)
    with pytest.raises(UserError, match=r"the multipliers of mlp_gate give a beta of -0\.1"):
        by_role(replace(resolved, config=TransferConfig(multipliers={"mlp": {"alpha1": 11.0}})))


def test_the_longest_matching_role_prefix_is_used_and_unknown_roles_are_rejected() -> None:
    changes = {"embed": {"lr": 2.0}, "embed_place": {"lr": 3.0}, "embed_place_text": {"lr": 5.0}}
    resolved = replace(transfer(1, 1), config=TransferConfig(multipliers=changes))
    rates = {role: values.lr / 9e-4 for role, values in by_role(resolved).items()}
    assert rates["embed_text"] == pytest.approx(2)
    assert rates["embed_place_image"] == pytest.approx(3)
    assert rates["embed_place_text"] == pytest.approx(5)
    assert rates["unembed_text"] == pytest.approx(1)
    model = Transformer(resolved.shape, VOCABULARY)
    wrong = replace(resolved, config=TransferConfig(multipliers={"embd": {"lr": 2.0}}))
    with pytest.raises(UserError, match=r"unknown role 'embd' in a table of multipliers. Did you mean 'embed'"):
        build_param_groups(wrong, tagged_parameters(model))
    with pytest.raises(UserError, match=r"unknown key 'transfer.multipliers.embed.ler'. Did you mean 'lr'"):
        TransferConfig(multipliers={"embed": {"ler": 2.0}})


# -- in a run ---------------------------------------------------------------------------------------------------------


def test_every_weight_is_in_one_param_group_with_its_values() -> None:
    resolved = replace(transfer(2, 2, kappa=2.0), config=TransferConfig(rule="completed_p", per_module="paper"))
    model = Transformer(resolved.scaled_shape, VOCABULARY)
    optimizer = build_optimizer(model, resolved)
    rows = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    assert len(rows) == sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters()))
    for t in tagged_parameters(model):
        values, group = resolved.hyperparameters(t), rows[id(t.parameter)]
        assert (values.lr, values.eps, values.decay) == (group["full_lr"], group["eps"], group["weight_decay"])
        assert (values.beta1, values.beta2) == group["betas"]


def run(*assignments: str) -> RunConfig:
    return override(recipe("nano"), list(assignments))


def test_ratios_of_a_run() -> None:
    base = run()
    wide = run(
        "transfer.rule=completed_p", f"transfer.base_width={base.model.width}", f"model.width={2 * base.model.width}",
        "transfer.base_layers=3", "model.num_layers=6", "transfer.base_batch=16", "transfer.base_steps=300",
        "loader.global_batch=64", "num_steps=300", "transfer.gamma=0.5", "optimizer.clip=3",
        "optimizer.warmup_steps=60", "transfer.warmup_mode=sde",
    )  # fmt: skip
    assert wide.resolved.ratios == (2, 2, 1)
    assert wide.resolved.kappa == pytest.approx(4 / 4**0.5)
    assert wide.clip == pytest.approx(3 / math.sqrt(2))
    assert wide.warmup_steps == 30
    longer = override(wide, ["transfer.warmup_mode=share", "num_steps=900"])
    assert longer.warmup_steps == 180  # a fifth, as in the base run
    plain = recipe("paper_base")
    with pytest.raises(UserError, match=r"warmup_mode=share needs transfer\.base_batch and transfer\.base_steps"):
        override(plain, ["transfer.warmup_mode=share"])
    assert plain.resolved.kappa == 1
    assert override(plain, ["optimizer.clip=2"]).clip == 2
    assert run("transfer.multipliers.mlp.lr=2.5").resolved.config.table.roles["mlp"].lr == 2.5


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("transfer.rule=completedp", "transfer.rule must be one of standard, completep, completed_p"),
        ("transfer.base_width=0", "transfer.base_width must be positive, or none, got 0"),
        ("transfer.base_steps=none", "base_batch and transfer.base_steps must be set together"),
        ("transfer.multipliers.mlp=2", "transfer.multipliers.mlp cannot be set as a whole"),
        ("transfer.multipliers.mlp.lr=-2", "of lr must be finite and not negative, got -2"),
        ("transfer.multipliers.mlp.alpha1=0", "of alpha1 must be finite and positive, got 0"),
        ("transfer.per_module=papr", "'papr' is neither a file nor a preset of multipliers. Did you mean 'paper'"),
        ("transfer.warmup_mode=time", "transfer.warmup_mode must be 'steps', 'sde' or 'share'"),
    ],
)
def test_invalid_transfer_settings_are_rejected(assignment: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        run(assignment).resolved.config.table  # noqa: B018

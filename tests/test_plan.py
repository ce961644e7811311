"""`triptych plan`: the numbers that training then uses, and what made them."""

import json

import pytest
import torch

from triptych.cli import main
from triptych.model.transformer import tagged_parameters
from triptych.recipes import recipe
from triptych.train.config import override
from triptych.train.step import build_model, build_optimizer
from triptych.vocab import paper_vocabulary


def planned(capsys: pytest.CaptureFixture, *words: str) -> dict:
    assert main(["plan", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_paper_s_3b_model(capsys: pytest.CaptureFixture) -> None:
    found = planned(capsys, "paper_3b")
    assert found["parameters"] == pytest.approx(2.875e9, rel=1e-3)
    assert (found["m_N"], found["m_L"], found["kappa"]) == (3, 3, 1)
    assert found["residual_scale"] == pytest.approx(1 / 3)
    by_role = {group["role"]: group for group in found["groups"]}
    assert by_role["attn_qkv"]["lr"] == pytest.approx(3e-4)
    assert by_role["attn_qkv"]["made_by"]["lr"] == "m_N^-1 m_L^(a-1)"
    assert by_role["embed_text"]["eps"] == pytest.approx(1e-8 / 3)
    assert by_role["unembed_text"]["init"] == pytest.approx(0.02 / 3)
    assert sum(group["count"] for group in found["groups"]) == found["parameters"]


def test_it_shows_what_training_uses(capsys: pytest.CaptureFixture) -> None:
    changes = [
        "model.width=128", "model.num_heads=1", "model.num_layers=4", "model.d_ff=64",
        "transfer.base_width=32", "transfer.base_layers=2", "loader.global_batch=64",
    ]  # fmt: skip
    found = planned(capsys, "aspect_8", *changes)
    run = override(recipe("aspect_8"), changes)
    with torch.device("meta"):
        model = build_model(run, paper_vocabulary())
    groups = build_optimizer(model, run.resolved).param_groups
    by_parameter = {id(p): group for group in groups for p in group["params"]}
    parts = {None: "", 0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}
    lines = {(line["role"], line["layers"]): line for line in found["groups"]}
    for weight in tagged_parameters(model):
        group, line = by_parameter[id(weight.parameter)], lines[weight.role, parts[weight.layer]]
        assert (group["lr"], group["eps"], group["weight_decay"]) == (line["lr"], line["eps"], line["decay"])
        assert group["betas"] == (line["beta1"], line["beta2"])
    assert {line["layers"] for line in found["groups"]} == {"", "0-1", "2-3"}
    assert model.config.residual_scale == found["residual_scale"] == 0.5
    kappa = (256 / 64) ** 0.44 * 64 / 256  # as many steps of a quarter of the sequences
    assert found["kappa"] == pytest.approx(kappa)
    assert found["virtual_batch"] * found["virtual_steps"] == pytest.approx(64 * run.num_steps)


def test_people_get_a_table_and_the_formulas(capsys: pytest.CaptureFixture) -> None:
    assert main(["plan", "paper_3b"]) == 0
    said = capsys.readouterr().out
    assert "completed_p, m_N 3, m_L 3, a 1" in said
    row = next(line for line in said.splitlines() if line.startswith("mlp_fc2 "))
    assert row.split() == ["mlp_fc2", "all", "415,236,096", "0.01155", "0.0003", "0.9", "0.95", "1.111e-09", "0.3"]
    assert "attn_qkv, attn_proj, mlp_gate, mlp_fc1, mlp_fc2:\n      init m_N^-0.5   lr m_N^-1 m_L^(a-1)" in said
    assert main(["plan", "paper_base", "optimizer.weight_decay=0"]) == 0
    assert "m_N 1, m_L 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("transfer.multipliers.embd.lr=3", "unknown role 'embd' in a table of multipliers. Did you mean 'embed'?"),
        ("transfer.multipliers.embed.l=3", "unknown key 'transfer.multipliers.embed.l'"),
        ("transfer.per_module=papr", "Did you mean 'paper'?"),
        ("transfer.rule=complete", "must be one of standard, completep, completed_p"),
        ("transfer.base_steps=none", "are set together"),
        ("transfer.gamma=2", "gamma"),
    ],
)
def test_mistakes_are_one_line(change: str, message: str, capsys: pytest.CaptureFixture) -> None:
    words = ["plan", "nano", change] + (["transfer.base_batch=8", "transfer.base_steps=9"] if "gamma" in change else [])
    assert main(words) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""

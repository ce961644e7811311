"""`triptych plan`: hyperparameters and estimates of a recipe, and the compute-optimal model for a budget."""

import json

import numpy as np
import pytest

from triptych.cli.main import main
from triptych.model.transformer import tagged_parameters
from triptych.recipes import recipe
from triptych.scaling.family import model_family
from triptych.scaling.published import CHINCHILLA, PAPER
from triptych.training.step import build_model, build_optimizer
from triptych.utils.config import override
from triptych.vocab import paper_vocabulary


def planned(capsys: pytest.CaptureFixture, *words: str) -> dict:
    assert main(["plan", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_plan_of_the_papers_3b_model(capsys: pytest.CaptureFixture) -> None:
    plan = planned(capsys, "paper_3b")
    assert plan["parameters"] == pytest.approx(2.875e9, rel=1e-3)
    assert (plan["m_N"], plan["m_L"], plan["kappa"]) == (3, 3, 1)
    assert plan["residual_scale"] == pytest.approx(1 / 3)
    by_role = {group["role"]: group for group in plan["groups"]}
    assert by_role["attn_qkv"]["lr"] == pytest.approx(3e-4)
    assert by_role["attn_qkv"]["made_by"]["lr"] == "m_N^-1 m_L^(a-1)"
    assert by_role["embed_text"]["eps"] == pytest.approx(1e-8 / 3)
    assert by_role["unembed_text"]["init"] == pytest.approx(0.02 / 3)
    assert sum(group["count"] for group in plan["groups"]) == plan["parameters"]


def test_plan_shows_batch_lengths_schedule_and_mixture(capsys: pytest.CaptureFixture) -> None:
    plan = planned(capsys, "paper_3b")
    assert (plan["global_batch"], plan["seq_len"], plan["num_steps"]) == (3072, 3256, 1_000_000)
    assert (plan["warmup_steps"], plan["z_loss_weight"], plan["clip"]) == (2000, 1e-5, None)
    assert plan["min_lr_ratio"] * 9e-4 == pytest.approx(1e-6)
    assert plan["task_shares"] == {task: pytest.approx(1 / 3) for task in ("text", "image-text", "audio-text")}
    assert main(["plan", "paper_3b", "loader.task_weights.text=2", "loader.task_weights.audio-text=0"]) == 0
    output = capsys.readouterr().out
    assert "3,072 sequences of up to 3,256 positions: 66.7% text, 33.3% image-text\n" in output
    assert (
        "1,000,000 steps, warm-up 2,000 steps, learning rate falls to 0.001111 of its peak, z-loss weight 1e-05, "
        "no gradient clipping\n" in output
    )
    assert main(["plan", "nano", "optimizer.clip=2", "transfer.scales_clip=false", "z_loss_weight=0"]) == 0
    assert "z-loss weight 0, gradient clipping 2\n" in capsys.readouterr().out


def test_plan_shows_kappa_of_the_batch_size_rule_that_a_recipe_does_not_apply(capsys: pytest.CaptureFixture) -> None:
    plan = planned(capsys, "paper_3b")
    assert plan["kappa"] == 1
    assert plan["if_scaled"]["kappa"] == pytest.approx(0.785, abs=5e-4)
    assert planned(capsys, "paper_3b", *plan["if_scaled"]["changes"])["kappa"] == plan["if_scaled"]["kappa"]
    assert main(["plan", "paper_3b"]) == 0
    assert "transfer.base_steps=24375, the paper's base run, kappa is 0.785\n" in capsys.readouterr().out
    assert "if_scaled" not in planned(capsys, "aspect_8")
    assert "if_scaled" not in planned(capsys, "nano")


def test_plan_shows_the_hyperparameters_that_training_uses(capsys: pytest.CaptureFixture) -> None:
    changes = [
        "model.width=128", "model.num_heads=1", "model.num_layers=4", "model.d_ff=64",
        "transfer.base_width=32", "transfer.base_layers=2", "loader.global_batch=64", "transfer.per_module=paper",
    ]  # fmt: skip
    plan = planned(capsys, "aspect_8", *changes)
    run = override(recipe("aspect_8"), changes)
    model = build_model(run, paper_vocabulary())
    groups = build_optimizer(model, run.resolved).param_groups
    by_parameter = {id(p): group for group in groups for p in group["params"]}
    parts = {None: "", 0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}
    lines = {(line["role"], line["layers"]): line for line in plan["groups"]}
    for weight in tagged_parameters(model):
        group, line = by_parameter[id(weight.parameter)], lines[weight.role, parts[weight.layer]]
        assert (group["lr"], group["eps"], group["weight_decay"]) == (line["lr"], line["eps"], line["decay"])
        assert group["betas"] == (line["beta1"], line["beta2"])
    assert {line["layers"] for line in plan["groups"]} == {"", "0-1", "2-3"}
    assert model.config.residual_scale == plan["residual_scale"] == 0.5
    kappa = (256 / 64) ** 0.44 * 64 / 256  # as many steps of a quarter of the sequences
    assert plan["kappa"] == pytest.approx(kappa)
    assert plan["virtual_batch"] * plan["virtual_steps"] == pytest.approx(64 * run.num_steps)


def test_text_output_has_a_table_and_formulas(capsys: pytest.CaptureFixture) -> None:
    assert main(["plan", "paper_3b"]) == 0
    output = capsys.readouterr().out
    assert "completed_p, m_N 3, m_L 3, a 1" in output
    row = next(line for line in output.splitlines() if line.startswith("mlp_fc2 "))
    assert row.split() == ["mlp_fc2", "all", "415,236,096", "0.01155", "0.0003", "0.9", "0.95", "1.111e-09", "0.3"]
    assert "attn_qkv, attn_proj, mlp_gate, mlp_fc1, mlp_fc2:\n      init m_N^-0.5   lr m_N^-1 m_L^(a-1)" in output
    assert main(["plan", "paper_base", "optimizer.weight_decay=0"]) == 0
    assert "m_N 1, m_L 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "transfer.multipliers.embd.lr=3",
            "unknown role 'embd' in a table of multipliers. Did you mean 'embed'",
        ),
        ("transfer.multipliers.embed.l=3", "unknown key 'transfer.multipliers.embed.l'"),
        ("transfer.per_module=papr", "Did you mean 'paper'?"),
        ("transfer.rule=complete", "must be one of standard, completep, completed_p"),
        ("transfer.base_steps=none", "must be set together"),
        ("transfer.gamma=2", "gamma"),
    ],
)
def test_wrong_overrides_are_reported_in_one_line(change: str, message: str, capsys: pytest.CaptureFixture) -> None:
    words = ["plan", "nano", change] + (["transfer.base_batch=8", "transfer.base_steps=9"] if "gamma" in change else [])
    assert main(words) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_estimate_of_the_papers_3b_model_on_256_gpus(capsys: pytest.CaptureFixture) -> None:
    """Every number by hand, from the paper's sizes."""
    words = ("--gpus", "256", "--gpu", "l40s", "--mfu", "0.5", "--price-per-hour", "2")
    all_at_once = ("loader.layout=packed", "parallel.precision=bfloat16")
    estimate = planned(capsys, "paper_3b", *all_at_once, *words)["estimate"]
    layers, d, d_ff, ids = 24, 3072, 5632, 117_698
    blocks = layers * (4 * d**2 + 3 * d * d_ff + 2 * d + 2 * 128) + d
    weights = blocks + 2 * ids * d

    assert estimate["num_steps"] == 1_000_000
    assert estimate["tokens"] == pytest.approx(6.4e12, rel=0.01)  # the abstract's
    assert estimate["step"]["sequences"] * 1_000_000 == 3.072e9
    assert estimate["optimal_tokens"] == pytest.approx(7754 * blocks ** (0.14 / 0.17))
    assert estimate["optimal_tokens"] == pytest.approx(376e9, rel=1e-3)
    assert estimate["optimal_tokens_of_total"] == pytest.approx(7754 * weights ** (0.14 / 0.17))
    assert estimate["optimal_tokens_of_total"] == pytest.approx(480e9, rel=0.01)  # the paper's, for "3B"

    matrices, context = 2 * layers * (4 * d**2 + 3 * d * d_ff), estimate["step"]["context"]
    attention, head = 4 * layers * context * d, 2 * ids * d
    assert estimate["flops"]["per_token"] == pytest.approx(3 * (matrices + attention + head))
    share = estimate["step"]["predicted"]
    assert share == pytest.approx(0.5, abs=1e-3)
    end = 2 * (d**2 + 3 * d * d_ff)  # of the last block, for positions that are predicted
    assert estimate["flops"]["per_token_predicted"] == pytest.approx(
        3 * (matrices - (1 - share) * end + attention + share * head)
    )
    assert estimate["flops"]["total"] == pytest.approx(estimate["flops"]["per_token"] * estimate["tokens"])
    computed = 3 * (matrices - end + attention) * estimate["positions"] + 3 * share * (head + end) * estimate["tokens"]
    assert estimate["flops"]["computed"] == pytest.approx(computed)

    time = estimate["time"]
    assert time["hours"] == pytest.approx(computed / (256 * 362e12 * 0.5) / 3600)
    assert time["rank_hours"] == pytest.approx(256 * time["hours"])
    assert time["cost"] == pytest.approx(2 * time["rank_hours"])
    assert time["mfu_of_tokens"] == pytest.approx(0.5 * estimate["flops"]["total_predicted"] / computed)

    memory = estimate["memory"]
    items = ("weights", "gradients", "optimizer", "ema", "gathered", "activations", "head")
    assert memory["total"] == sum(memory[name] for name in items)
    assert memory["weights"] == 4 * weights // 256
    assert memory["gathered"] == 2 * (2 * ids * d + d + 2 * (blocks - d) // layers)
    assert memory["fits"] is False
    assert estimate["checkpoint"] == {"bytes": 12 * weights, "bytes_per_rank": 12 * weights / 256, "kept": 2}


def test_text_output_appends_the_estimate(capsys: pytest.CaptureFixture) -> None:
    assert main(["plan", "paper_3b"]) == 0
    without = capsys.readouterr().out
    assert main(["plan", "paper_3b", "--gpus", "256", "--price-per-hour", "2.5"]) == 0
    output = capsys.readouterr().out
    assert output.startswith(without)
    appended = output.removeprefix(without)
    assert "paper_3b on 256 x h100, each 80 GB and 989 TFLOP/s in bfloat16" in appended
    estimate = planned(capsys, "paper_3b", "--gpus", "256", "--price-per-hour", "2.5")["estimate"]
    time = estimate["time"]
    assert (
        f"{time['hours']:,.1f} hours at {time['mfu']:.0%} of the peak; {time['rank_hours']:,.0f} GPU-hours" in appended
    )
    assert 0.3 < time["mfu"] < 0.53  # the share that matrix products alone reach
    seconds = time["step_seconds"]
    assert time["hours"] == pytest.approx(seconds["total"] * 1e6 / 3600)
    assert seconds["total"] == pytest.approx(sum(seconds[name] for name in ("blocks", "head", "optimizer", "exposed")))
    assert f"a step takes       {seconds['total']:.3g} s by a model of the GPU: blocks" in appended
    assert "matrix products reach 53% of the peak of 989 TFLOP/s" in appended
    given = planned(capsys, "paper_3b", "--gpus", "256", "--mfu", "0.4")["estimate"]["time"]
    assert (given["mfu"], given["step_seconds"]) == (0.4, None)
    assert f"GPU-hours, ${time['cost']:,.0f} at $2.5" in appended
    row = next(line for line in appended.splitlines() if line.strip().startswith("activations"))
    assert row.split() == ["activations", f"{estimate['memory']['activations'] / 1e9:.3g}", "GB"]
    assert "6.42T in 7.5T positions and 1,000,000 steps" in appended
    assert "376B tokens by the paper's law for N = 2.15B, without embeddings" in appended
    assert "478B tokens for N = 2.87B, with embeddings, as in the paper's 480B for 3B" in appended
    for line in estimate["warnings"]:
        assert f"  - {line}\n" in appended
    assert "estimate" not in planned(capsys, "paper_3b")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpus", "8", "--gpu", "h10"], "unknown GPU 'h10'. Did you mean 'h100'? Known: a100, b200, cpu, h100"),
        (["--gpus", "0"], "--gpus must be at least 1, got 0."),
        (["--gpus", "many"], "argument --gpus: invalid int value: 'many'"),
        (["--gpu", "h100"], "--gpu needs --gpus N"),
        (["--mfu", "0.4"], "--mfu needs --gpus N"),
        (["--dry-run"], "--dry-run needs --gpus N"),
        (["--price-per-hour", "2"], "--price-per-hour needs --gpus N"),
        (["--gpus", "8", "--mfu", "40"], "--mfu is a share of the peak, above 0 and at most 1, got 40."),
        (["--gpus", "8", "--mfu", "0"], "above 0 and at most 1, got 0."),
        (["--gpus", "8", "--mfu", "nan"], "above 0 and at most 1, got nan."),
        (
            ["--gpus", "8", "--price-per-hour", "-1"],
            "--price-per-hour must be a non-negative number of dollars, got -1.",
        ),
        (["--gpus", "8", "loader.task_weights.text=-1"], "loader.task_weights must not be negative nor all 0"),
        (["--gpus", "8", "parallel.shard=3"], "parallel.shard=3 must divide the number of ranks, 8."),
    ],
)
def test_wrong_gpu_options_are_reported_in_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture
) -> None:
    assert main(["plan", "paper_base", *words]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


# -- plan --budget ----------------------------------------------------------------------------------------------------


def command(*words: object) -> int:
    try:
        return main([str(word) for word in words])
    except SystemExit as end:  # argparse
        return int(end.code or 0)


def test_model_for_a_budget_minimises_the_law_over_the_family(capsys) -> None:
    """Among all models of the family, each with its exact FLOPs, the chosen one has the lowest loss."""
    assert command("plan", "--budget", "1e21", "--json") == 0
    advice = {each["law"]: each for each in json.loads(capsys.readouterr().out)["advice"]}
    family = model_family("aspect_8")
    tokens = 1e21 / np.array(family.exact_flops)
    # A N^-p + B / D with B = K p A, whatever A is:
    by_paper = np.array(family.sizes, float) ** -PAPER.p + PAPER.K * PAPER.p / tokens
    best = family.members[int(by_paper.argmin())].model
    assert advice["paper, a/b = .14/.17"]["model"]["num_layers"] == best.num_layers
    by_chinchilla = CHINCHILLA.loss(family.sizes, tokens)
    best = family.members[int(by_chinchilla.argmin())].model
    assert advice["Chinchilla, corrected"]["model"]["num_layers"] == best.num_layers
    for each in advice.values():
        assert each["model"]["flops"] == pytest.approx(1e21, rel=1e-3)
        assert each["command"].startswith(f"triptych train aspect_{each['model']['num_layers']} ")


def test_budgets_use_global_hyperparameters_unless_a_table_is_asked_for(capsys) -> None:
    assert command("plan", "--budget", "1e21") == 0
    output = capsys.readouterr().out
    assert "hyperparameters the same for all modules" in output
    assert "per_module" not in output
    assert "sequences of up to 3,256 positions, 33.3% text, 33.3% image-text, 33.3% audio-text" in output
    assert "warm-up 1,000 steps, at most a quarter of the run, learning rate falls to 0.001111 of its peak" in output
    assert command("plan", "--budget", "1e21", "transfer.per_module=paper") == 0
    output = capsys.readouterr().out
    assert "multiplied per module by the table 'paper'" in output
    assert "transfer.per_module=paper" in output.splitlines()[-1]  # the command to train the model
    assert command("plan", "--budget", "1e21", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["per_module"], result["seq_len"], result["z_loss_weight"]) == ("none", 3256, 1e-5)
    assert set(result["task_shares"]) == {"text", "image-text", "audio-text"}
    assert command("plan", "proxy", "--budget", "1e13") == 0
    assert "warm-up 0.125 of the run" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan"], "a recipe is missing"),
        (["plan", "--budget", "0"], "expected a positive number, got '0'"),
        (["plan", "--budget", "1e21", "--gpus", "8"], "--budget cannot be combined with --gpus"),
        (["plan", "--budget", "1e21", "--law", "nothing.json"], "triptych fit RUNS --save nothing.json"),
        (["plan", "--budget", "1e21", "aspect_8", "num_steps=4"], "num_steps follows from the budget"),
        (["plan", "scenes", "--law", "x.json"], "--law needs --budget"),
        (["plan", "gird"], "unknown recipe 'gird'"),
    ],
)
def test_wrong_budgets_are_reported_in_one_line(words: list[str], message: str, capsys) -> None:
    assert command(*words) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.err.count("\n") == 1


def test_budgets_beyond_the_family_or_the_law(capsys) -> None:
    assert command("plan", "--budget", "1e12") == 0
    output = capsys.readouterr().out
    assert output.count("no model of this size in the family") == 4
    assert output.count("far from its runs") == 4
    assert command("plan", "proxy", "--budget", "1e6") == 0
    assert capsys.readouterr().out.count("has no optimum for this budget") == 4
    assert command("plan", "--budget", "1e21", "complementary_masks=true") == 0
    assert "aspect_" in capsys.readouterr().out

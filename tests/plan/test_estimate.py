"""`triptych plan`: the numbers that training then uses, what made them, and what they come to on so many GPUs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from train_fakes import TINY, make_world, tiny_run

import triptych.plan.estimate
from triptych.cli.main import main
from triptych.data.loader import Loader
from triptych.data.pack import Grouped, Packed, Padded, RowLayout
from triptych.model.transformer import tagged_parameters
from triptych.plan.estimate import (
    GPUS,
    Machine,
    RunEstimate,
    deal,
    estimate,
    machine_named,
    optimal_tokens,
    warnings,
)
from triptych.plan.lengths import Batches, gather
from triptych.recipes import recipe
from triptych.training.config import RunConfig, override
from triptych.training.ranks import Ranks
from triptych.training.step import build_model, build_optimizer, micro_inputs
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


# -- on so many GPUs --------------------------------------------------------------------------------------------------


def planned_on(name: str, *changes: str, ranks: int, gpu: str = "h100", **options: Any) -> RunEstimate:
    config = override(recipe(name), list(changes))
    return estimate(config, paper_vocabulary(), GPUS[gpu], ranks, **options)


def test_the_paper_s_3b_model_on_256_gpus(capsys: pytest.CaptureFixture) -> None:
    """Every number by hand, from the paper's sizes."""
    words = ("--gpus", "256", "--gpu", "l40s", "--mfu", "0.5", "--price-per-hour", "2")
    all_at_once = ("loader.layout=packed", "parallel.precision=bfloat16")
    found = planned(capsys, "paper_3b", *all_at_once, *words)["estimate"]
    layers, d, d_ff, ids = 24, 3072, 5632, 117_698
    blocks = layers * (4 * d**2 + 3 * d * d_ff + 2 * d + 2 * 128) + d
    weights = blocks + 2 * ids * d

    assert found["num_steps"] == 1_000_000
    assert found["tokens"] == pytest.approx(6.4e12, rel=0.01)  # the abstract's
    assert found["step"]["sequences"] * 1_000_000 == 3.072e9
    assert found["optimal_tokens"] == pytest.approx(7754 * blocks ** (0.14 / 0.17))
    assert found["optimal_tokens"] == pytest.approx(376e9, rel=1e-3)

    matrices, context = 2 * layers * (4 * d**2 + 3 * d * d_ff), found["step"]["context"]
    attention, head = 4 * layers * context * d, 2 * ids * d
    assert found["flops"]["per_token"] == pytest.approx(3 * (matrices + attention + head))
    share = found["step"]["predicted"]
    assert share == pytest.approx(0.5, abs=1e-3)
    end = 2 * (d**2 + 3 * d * d_ff)  # of the last block, for positions that are predicted
    assert found["flops"]["per_token_predicted"] == pytest.approx(
        3 * (matrices - (1 - share) * end + attention + share * head)
    )
    assert found["flops"]["total"] == pytest.approx(found["flops"]["per_token"] * found["tokens"])
    computed = 3 * (matrices - end + attention) * found["positions"] + 3 * share * (head + end) * found["tokens"]
    assert found["flops"]["computed"] == pytest.approx(computed)

    time = found["time"]
    assert time["hours"] == pytest.approx(computed / (256 * 362e12 * 0.5) / 3600)
    assert time["rank_hours"] == pytest.approx(256 * time["hours"])
    assert time["cost"] == pytest.approx(2 * time["rank_hours"])
    assert time["mfu_of_tokens"] == pytest.approx(0.5 * found["flops"]["total_predicted"] / computed)

    memory = found["memory"]
    items = ("weights", "gradients", "optimizer", "ema", "gathered", "activations", "head")
    assert memory["total"] == sum(memory[name] for name in items)
    assert memory["weights"] == 4 * weights // 256
    assert memory["gathered"] == 2 * (2 * ids * d + d + 2 * (blocks - d) // layers)
    assert memory["fits"] is False
    assert found["checkpoint"] == {"bytes": 12 * weights, "bytes_per_rank": 12 * weights / 256, "kept": 2}


def test_people_get_the_estimate_behind_the_table(capsys: pytest.CaptureFixture) -> None:
    assert main(["plan", "paper_3b"]) == 0
    today = capsys.readouterr().out
    assert main(["plan", "paper_3b", "--gpus", "256", "--price-per-hour", "2.5"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(today)
    more = said.removeprefix(today)
    assert "paper_3b on 256 x h100, each 80 GB and 989 TFLOP/s in bfloat16" in more
    found = planned(capsys, "paper_3b", "--gpus", "256", "--price-per-hour", "2.5")["estimate"]
    time = found["time"]
    assert f"{time['hours']:,.1f} hours at 40% of the peak; {time['rank_hours']:,.0f} GPU-hours" in more
    assert f"GPU-hours, ${time['cost']:,.0f} at $2.5" in more
    row = next(line for line in more.splitlines() if line.strip().startswith("activations"))
    assert row.split() == ["activations", f"{found['memory']['activations'] / 1e9:.3g}", "GB"]
    assert "6.42T in 7.5T positions and 1,000,000 steps" in more
    for line in found["warnings"]:
        assert f"  - {line}\n" in more
    assert "estimate" not in planned(capsys, "paper_3b")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpus", "8", "--gpu", "h10"], "unknown GPU 'h10'. Did you mean 'h100'? Known: a100, b200, cpu, h100"),
        (["--gpus", "0"], "--gpus must be at least 1, got 0."),
        (["--gpus", "many"], "argument --gpus: invalid int value: 'many'"),
        (["--gpu", "h100"], "--gpu needs --gpus N"),
        (["--mfu", "0.4"], "--mfu needs --gpus N"),
        (["--rehearse"], "--rehearse needs --gpus N"),
        (["--price-per-hour", "2"], "--price-per-hour needs --gpus N"),
        (["--gpus", "8", "--mfu", "40"], "--mfu is a share of the peak, above 0 and at most 1, got 40."),
        (["--gpus", "8", "--mfu", "0"], "above 0 and at most 1, got 0."),
        (["--gpus", "8", "--mfu", "nan"], "above 0 and at most 1, got nan."),
        (
            ["--gpus", "8", "--price-per-hour", "-1"],
            "--price-per-hour must be a number of dollars that is not negative, got -1.",
        ),
        (["--gpus", "8", "loader.task_weights.text=-1"], "loader.task_weights must not be negative nor all 0"),
        (["--gpus", "8", "parallel.shard=3"], "parallel.shard=3 must divide the number of ranks, 8."),
    ],
)
def test_mistakes_about_gpus_are_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["plan", "paper_base", *words]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_gpus_are_as_they_are_sold() -> None:
    table = {gpu.name: (gpu.memory / 1e9, gpu.peak / 1e12) for gpu in GPUS.values()}
    assert table == {
        "h100": (80, 989),
        "h200": (141, 989),
        "a100": (80, 312),
        "b200": (192, 2250),
        "l40s": (48, 362),
        "rtx4090": (24, 165),
    }


def test_this_machine_is_shared_by_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triptych.plan.estimate, "matmul_peak", lambda device: 1e12)
    alone, four = machine_named("cpu", 1), machine_named("cpu", 4)
    pages = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    assert alone.memory == pytest.approx(1024 * int(pages.split()[1]), rel=0.01)
    assert (alone.peak, four.peak, four.memory) == (1e12, 0.25e12, alone.memory / 4)
    assert not alone.is_gpu
    # It also holds what is being saved.
    config = override(recipe("paper_base"), ["loader.layout.micro_batch_rows=1"])
    found = estimate(config, paper_vocabulary(), replace(alone, memory=1e12), 2)
    assert found.needed == found.memory.total + found.checkpoint_bytes // 2


# -- batches ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("planned"))


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize(
    "layout",
    [Padded(), Padded(micro_batch_rows=2), Packed(row_length=40), Packed(micro_batch_rows=1), Grouped(max_tokens=60)],
    ids=repr,
)
def test_batches_of_data_are_laid_out_as_training_does(world: Path, layout: RowLayout, ranks: int) -> None:
    config = tiny_run(world, layout=layout)
    found = deal(gather(config, TINY), layout, config.loader.seq_len, ranks)
    # The same steps from the ranks' own loaders.
    steps = [list(Loader(config.data, config.loader, rank, ranks, num_steps=114)) for rank in range(ranks)]
    assert found.tokens == np.mean([step.num_tokens for step in steps[0]])
    assert found.positions == np.mean([step.num_positions for step in steps[0]])
    shapes = [batch.tokens.shape for step in steps[0] for batch in step.micro_batches]
    assert found.micro_batch_rows * found.row_length == max(rows * length for rows, length in shapes)
    assert (found.micro_batch_rows, found.row_length) in shapes
    assert found.micro_batches == max(len(step.micro_batches) for step in steps[0])
    batches = [batch for mine in steps for step in mine for batch in step.micro_batches]
    filled = sum(int((batch.segment_ids > 0).any(1).sum()) for batch in batches)
    assert (found.rows, found.rows_dealt) == (filled / 114, sum(len(batch.tokens) for batch in batches) / 114)
    lengths = np.concatenate([np.bincount(b.segment_ids.ravel())[1:] for b in batches if len(b.sample_ids)])
    assert found.context == pytest.approx(np.square(lengths).sum() / lengths.sum())
    assert found.has_mask
    most = max(int((batch.segment_ids > 0).sum()) for batch in batches)
    assert found.filled * found.micro_batch_rows * found.row_length == pytest.approx(most)


@pytest.mark.parametrize("complementary_masks", [False, True])
def test_what_is_predicted_is_what_training_predicts(world: Path, complementary_masks: bool) -> None:
    config = tiny_run(world, layout=Padded(), complementary_masks=complementary_masks)
    found = gather(config, TINY)
    assert (found.origin, len(found.lengths)) == ("measured", 114)  # 1,024 sequences in batches of 9
    counts, passed = np.zeros(3), 0
    for step in Loader(config.data, config.loader, num_steps=114):
        for inputs in micro_inputs(step, config, TINY, torch.device("cpu"), Ranks()):
            counts += inputs.targets.counts
            passed += step.num_tokens
    if complementary_masks:
        # Every token that may be masked is, in one of two views; those that may not be are not told apart here.
        assert found.predicted == 0.5 > counts.sum() / passed
    else:
        assert found.predicted == pytest.approx(counts.sum() / passed)
        columns = [TINY.text + 2, TINY.image + 2, TINY.audio + 2]
        assert found.columns == pytest.approx((counts * columns).sum() / counts.sum())


def test_data_of_other_tokenizers_are_refused(world: Path, capsys: pytest.CaptureFixture) -> None:
    folders = ",".join(tiny_run(world).data)
    words = ["plan", "nano", f"data={folders}", "--gpus", "1"]
    assert main(words) == 2
    assert "was made with other tokenizers than 'scenes': its ids are others." in capsys.readouterr().err


def test_without_data_every_sequence_counts_as_the_longest(world: Path) -> None:
    config = replace(tiny_run(world), data=("nowhere",))
    found = gather(config, TINY)
    assert found.origin == "unknown"
    (lengths,) = found.lengths
    assert lengths.tolist() == [20] * 9
    assert found.predicted == pytest.approx(0.5 * (1 - 0.3 / 2), abs=1e-3)
    laid = deal(found, Padded(), 20, 3)
    assert (laid.tokens, laid.positions, laid.context, laid.has_mask, laid.filled) == (180, 180, 20, False, 1)


def test_the_paper_s_batches_have_the_paper_s_tokens() -> None:
    found = gather(recipe("paper_3b"), paper_vocabulary())
    assert found.origin == "paper"
    assert np.mean([lengths.mean() for lengths in found.lengths]) == pytest.approx(6.4e12 / 3.072e9, rel=0.01)
    no_pairs = ["loader.task_weights.image-text=0", "loader.task_weights.audio-text=0"]
    only_text = gather(override(recipe("paper_3b"), no_pairs), paper_vocabulary())
    assert all((lengths == 3256).all() for lengths in only_text.lengths)
    by_modality = gather(override(recipe("paper_3b"), ["model.softmax_scope=modality"]), paper_vocabulary())
    assert by_modality.columns is not None
    assert 16_386 < by_modality.columns < 100_279


def test_rows_by_hand() -> None:
    lengths = np.array([10, 8, 4, 4, 3])
    batches = Batches("measured", [lengths], 0.5)
    padded = deal(batches, Padded(micro_batch_rows=1), 10, 2)
    assert (padded.tokens, padded.positions, padded.rows, padded.rows_dealt, padded.micro_batches) == (29, 60, 5, 6, 3)
    assert padded.context == pytest.approx((100 + 64 + 16 + 16 + 9) / 29)
    packed = deal(batches, Packed(row_length=10), 10, 2)  # 10 | 8 | 4 + 4 | 3
    assert (packed.rows, packed.rows_dealt, packed.micro_batches, packed.micro_batch_rows) == (4, 4, 1, 2)
    assert packed.positions == 40
    assert packed.filled == (10 + 4 + 4) / 20  # of the first rank
    assert padded.filled == 1
    assert deal(batches, Padded(), 10, 2).filled == (10 + 4 + 3) / 30
    assert not deal(Batches("measured", [np.array([10, 10])], 0.5), Packed(row_length=10), 10, 2).has_mask
    assert deal(Batches("measured", [np.array([10, 9])], 0.5), Packed(row_length=10), 10, 2).has_mask
    assert deal(Batches("measured", [np.array([10, 10])], 0.5), Packed(row_length=20), 10, 1).has_mask


# -- what follows -----------------------------------------------------------------------------------------------------


def test_twice_as_many_views_and_a_second_forward_pass_take_their_time() -> None:
    plain = planned_on("paper_base", ranks=8)
    twice = planned_on("paper_base", "complementary_masks=true", ranks=8)
    assert (twice.tokens, twice.flops) == (plain.tokens, 2 * plain.flops)
    assert twice.hours == pytest.approx(2 * plain.hours, rel=1e-3)  # 0.5005 is masked by one view, 0.5 by two
    assert twice.memory.load.accumulates
    again = planned_on("paper_base", "parallel.checkpoint_activations=true", ranks=8)
    head = 3 * 2 * 117_698 * 1024 * plain.batches.predicted * plain.step_layout.tokens
    assert again.step_flops - head == pytest.approx((plain.step_flops - head) * 4 / 3)
    assert again.flops == plain.flops
    assert again.memory.total < plain.memory.total


def test_memory_is_that_of_the_rows_as_they_are_dealt() -> None:
    found = planned_on("paper_3b", READY[0], ranks=64)
    load, step_layout = found.memory.load, found.step_layout
    assert (load.rows, load.row_length, load.filled) == (
        step_layout.micro_batch_rows,
        step_layout.row_length,
        step_layout.filled,
    )
    assert (load.context, step_layout.has_mask) == (step_layout.context, True)
    text = ("loader.task_weights.image-text=0", "loader.task_weights.audio-text=0")
    whole = planned_on("paper_3b", *READY, *text, ranks=64)  # nothing but full rows
    assert (whole.memory.load.context, whole.step_layout.has_mask, whole.step_layout.context) == (None, False, 3256)


def test_optimal_tokens_are_the_paper_s() -> None:
    assert optimal_tokens(2.875e9) == pytest.approx(477e9, rel=0.005)  # "480B" for its 3B model
    assert optimal_tokens(20e9) == pytest.approx(2.36e12, rel=0.005)


FLOAT32 = "parallel.precision=float32"
READY = ("parallel.precision=bfloat16", "loader.layout=padded", "loader.layout.micro_batch_rows=1")


@pytest.mark.parametrize(
    ("name", "changes", "ranks", "gpu", "parts"),
    [
        (
            "aspect_8",
            (*READY, "loader.global_batch=1024"),
            8,
            "h100",
            ["kappa is 2.17", "batches of 471.1 sequences, not 1,024", "the paper gives no number", "10 % at 2.2"],
        ),
        ("paper_3b", (*READY, "num_steps=1000"), 8, "h200", ["are fewer than the 3.76e+11 that are compute-optimal"]),
        (
            "paper_3b",
            (*READY[1:], FLOAT32),
            8,
            "b200",
            ["the run computes in float32", "set parallel.precision=bfloat16"],
        ),
        (
            "paper_3b",
            (*READY, "loader.global_batch=3000"),
            256,
            "h200",
            ["do not divide evenly: 3,000 are dealt to 256 ranks as 3,072", "loader.global_batch=2816 or 3072 would"],
        ),
        ("paper_3b", READY, 4096, "h200", ["3,072 rows for 4,096 ranks: 1,024 have nothing to do"]),
        (
            "paper_3b",
            (READY[0], "loader.layout.micro_batch_rows=1"),
            256,
            "h100",
            ["of which 14% stay empty", "loader.layout.row_length=6512 would take 11% fewer positions"],
        ),
        (
            "paper_3b",
            READY[:2],
            64,
            "h100",
            [
                "does not fit in the 80.0 GB of a rank",
                "most of it activations",
                "It fits with loader.layout.micro_batch_rows=",
            ],
        ),
        (
            "paper_3b",
            READY,
            1,
            "rtx4090",
            ["most of it optimizer (23.0 GB)", "No setting makes it fit: take more ranks"],
        ),
        (
            "paper_3b",
            (*READY[:2], "loader.layout.micro_batch_rows=2"),
            2,
            "l40s",
            ["memory is tight, 4", "It fits with loader.layout.micro_batch_rows=1 (35.4 GB)"],
        ),
    ],
)
def test_warnings(name: str, changes: tuple[str, ...], ranks: int, gpu: str, parts: list[str]) -> None:
    (line,) = [line for line in warnings(planned_on(name, *changes, ranks=ranks, gpu=gpu)) if parts[0] in line]
    for part in parts:
        assert part in line
    assert "\n" not in line


def test_nothing_is_wrong_with_a_run_that_fits() -> None:
    assert warnings(planned_on("paper_3b", *READY, ranks=64)) == []
    (line,) = warnings(planned_on("paper_base", *READY, ranks=8, gpu="h200"))
    assert "compute-optimal" in line  # 8.5B of 25B


@pytest.mark.parametrize("gpu", ["a100", "rtx4090"])
@pytest.mark.parametrize("layout", ["packed", "padded", "grouped"])
@pytest.mark.parametrize("name", ["aspect_16", "paper_3b"])
def test_what_is_said_to_fit_fits(name: str, layout: str, gpu: str) -> None:
    found = planned_on(name, f"loader.layout={layout}", ranks=8, gpu=gpu)
    assert not found.fits or layout == "grouped"  # whose micro-batches have 16,384 positions at most
    for line in warnings(found):
        if "It fits with " in line:
            changes, _, size = line.partition("It fits with ")[2].partition(" (")
            there = planned_on(name, f"loader.layout={layout}", *changes.split(), ranks=8, gpu=gpu)
            assert there.needed <= 0.9 * there.machine.memory
            assert f"{there.needed / 1e9:,.1f} GB)." == size
            break
    else:
        assert found.fits


def test_an_estimate_is_plain_json(world: Path) -> None:
    config: RunConfig = tiny_run(world)
    found = estimate(config, TINY, Machine("cpu", 1e9, 1e10), 2).as_json
    assert json.loads(json.dumps(found)) == found
    assert found["step"]["origin"] == "measured"
    assert found["padding"] == pytest.approx(1 - found["tokens"] / found["positions"])
    assert found["time"]["cost"] is None

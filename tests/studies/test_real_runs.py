"""Studies from the command to the figure, with real runs of scaled proxies on a few samples."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.stats import truncnorm
from train_fakes import make_world, world_changes

from triptych.cli.main import main
from triptych.errors import UserError
from triptych.recipes.proxy import proxy, scaled_proxy
from triptych.studies.base import join
from triptych.studies.coordinates import sizes
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.config import RunConfig
from triptych.training.in_memory import train_in_memory
from triptych.training.validate import LOSS_VERSION
from triptych.transfer.per_module import load_multiplier_table
from triptych.utils.config import override
from triptych.utils.trials import TrialRecords


@pytest.fixture(scope="module")
def changes(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return [*world_changes(make_world(tmp_path_factory.mktemp("world"))), "validation.sequences=16"]


@pytest.fixture(scope="module")
def run(changes: list[str]) -> RunConfig:
    return override(proxy(), changes)


@pytest.fixture(scope="module")
def bundle(run: RunConfig) -> TokenizerBundle:
    return TokenizerBundle.load(run.tokenizers)


def command(*words: str) -> int:
    try:
        return main(list(words))
    except SystemExit as end:  # argparse
        return int(end.code or 0)


# -- runs in memory ---------------------------------------------------------------------------------------------------


def test_a_short_run_learns_and_is_deterministic(run: RunConfig, bundle: TokenizerBundle) -> None:
    short, longer = scaled_proxy(run, tokens=0.01), scaled_proxy(run, tokens=0.1)
    first = train_in_memory(short, bundle)
    again = train_in_memory(short, bundle)
    assert (first.loss, first.train_loss, first.tokens) == (again.loss, again.train_loss, again.tokens)
    assert train_in_memory(scaled_proxy(run, tokens=0.01, seed=1), bundle).loss != first.loss
    assert train_in_memory(longer, bundle).train_loss < first.train_loss - 0.1
    # The loss of complete sequences lies between those of the modalities.
    terms = [value for name, value in first.validation.items() if "|" not in name and name != "all"]
    assert min(terms) < first.loss < max(terms)


def test_a_diverged_run_is_an_outcome(run: RunConfig, bundle: TokenizerBundle) -> None:
    outcome = train_in_memory(
        override(scaled_proxy(run, tokens=0.05), ["optimizer.lr=1e30", "optimizer.clip=none"]), bundle
    )
    assert outcome.diverged
    assert outcome.loss == float("inf")
    assert outcome.as_json["loss"] is None
    json.dumps(outcome.as_json, allow_nan=False)


# -- coordinates ------------------------------------------------------------------------------------------------------


def test_rms_of_activations_and_their_changes(run: RunConfig, bundle: TokenizerBundle) -> None:
    found = sizes(scaled_proxy(run, rule="completed_p", width=128), bundle, steps=2)
    by_part = {(row["part"], row["steps"]): row for row in found}
    for part in ("embedding", "attention", "mlp", "stream", "logits"):
        assert by_part[part, 0]["change"] == 0
        assert 0 < by_part[part, 1]["change"] < by_part[part, 2]["change"] * 3
    # At initialisation: standard deviation 20 x 0.06, truncated at +-2.
    assert by_part["embedding", 0]["size"] == pytest.approx(1.2 * truncnorm.std(-2 / 1.2, 2 / 1.2), rel=0.05)


def test_twice_the_width_changes_activations_twice_as_much_without_a_rule(
    run: RunConfig, bundle: TokenizerBundle
) -> None:
    def change(rule: str, width: int) -> float:
        rows = sizes(scaled_proxy(run, rule=rule, width=width, lr=1e-3), bundle, steps=2)  # type: ignore[arg-type]
        return next(row["change"] for row in rows if (row["part"], row["steps"]) == ("mlp", 2))

    with_rule = np.log2(change("completed_p", 256) / change("completed_p", 64)) / 2
    without = np.log2(change("standard", 256) / change("standard", 64)) / 2
    assert abs(with_rule) < 0.2
    assert without > 0.7


# -- commands ---------------------------------------------------------------------------------------------------------


def test_a_study_from_command_to_figure_and_again_from_its_records(changes, tmp_path: Path, capsys) -> None:
    out = tmp_path / "study"
    words = ["study", "lr-transfer", "--out", str(out), "--widths", "64,128", "--depths", "2", "--tokens", "0.01"]
    assert command(*words, "--rates", "1e-3,4e-3", *changes) == 0
    said = capsys.readouterr().out
    assert "completed_p, width 128, 2 layers: best learning rate" in said
    assert said.startswith("12 runs to do, ")
    assert min(Image.open(out / "figure.png").size) > 300
    before = (out / "records.jsonl").read_text()
    assert len(before.splitlines()) == 12
    # Nothing is run again.
    assert command(*words, "--rates", "1e-3,4e-3", *changes) == 0
    assert (out / "records.jsonl").read_text() == before
    assert "runs to do" not in capsys.readouterr().out
    # The records and study.json suffice, without data, options or claims.
    kept = tmp_path / "kept"
    kept.mkdir()
    for name in ("records.jsonl", "study.json"):
        shutil.copy(out / name, kept)
    capsys.readouterr()
    assert command("study", "lr-transfer", "--out", str(kept), "--plot-only") == 0
    findings = [line for line in said.splitlines() if line.startswith("  ")]
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")] == findings
    # A study is not mixed with another configuration, or another study.
    assert command(*words, "--rates", "1e-3,4e-3", *changes, "optimizer.beta1=0.8") == 2
    assert "was started with optimizer.beta1 = 0.754" in capsys.readouterr().err
    assert command("study", "gamma", "--out", str(out), "--plot-only") == 2
    assert "holds the study 'lr-transfer'" in capsys.readouterr().err
    assert command("study", "gamma", "--out", str(tmp_path / "nothing"), "--plot-only") == 2
    assert "holds no study" in capsys.readouterr().err


@pytest.mark.slow
def test_a_scaling_study_from_command_to_figure(changes, tmp_path: Path, capsys) -> None:
    out = tmp_path / "study"
    budgets, widths = ["--low", "4e8", "--high", "1.2e9", "--budgets", "4"], ["--widths", "16,32,48"]
    grid = [*budgets, *widths, "--tokens-per-parameter", "0.01,1e6", "--seeds", "1"]
    assert command("study", "scaling", "--out", str(out), *grid, *changes) == 0
    said = capsys.readouterr().out
    assert "12 runs, 0 diverged: 4 budgets of 4e+08 to 1.2e+09 FLOPs" in said
    records = list(TrialRecords(out))
    assert len(records) == 12
    for record in records:
        assert record["C"] == pytest.approx(record["budget"], rel=0.2)  # few steps of few sequences
        assert record["curve"][-1][0] == record["D"] == record["tokens_seen"]
    assert command("study", "scaling", "--out", str(out), "--plot-only") == 0
    findings = [line for line in said.splitlines() if line.startswith("  ")]
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")] == findings
    assert min(Image.open(out / "figure.png").size) > 600
    # Its records are a valid table of runs.
    assert command("fit", str(out / "records.jsonl"), "--law", "additive", "--rounds", "2") == 0
    assert "with the FLOPs of these runs" in capsys.readouterr().out


def test_a_global_search_from_command_to_figure(changes, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("triptych.recipes.proxy.BASE_STEPS", 2)
    out = tmp_path / "search"
    words = ["study", "search", "--out", str(out), "--trials", "13", "--top", "2", "--retest-seeds", "2", *changes]
    assert command(*words) == 0
    said = capsys.readouterr().out
    assert "13 trials, 0 diverged" in said
    assert "retest of the landscape's optimum: " in said
    assert "retest of the values before: " in said
    best = next(line for line in said.splitlines() if "best values" in line).split(": ")[1]
    tuned = override(proxy(), best.split())
    assert 5e-4 <= tuned.optimizer.lr <= 5e-2
    records = list(TrialRecords(out))
    assert len(records) == 13 + 4
    # Retests are sorted, and the best values are the first ones.
    again = [record for record in records if "again" in record]
    assert np.mean(again[0]["again"]) == min(np.mean(record["again"]) for record in again)
    assert tuned.optimizer.lr == pytest.approx(again[0]["lr"], rel=1e-3)
    assert command("study", "search", "--out", str(out), "--plot-only") == 0
    assert min(Image.open(out / "figure.png").size) > 300
    # Records whose trials the storage does not have are not replaced.
    before = (out / "records.jsonl").read_text()
    assert command(*words, "--storage", str(tmp_path / "other.log")) == 2
    assert "would be lost" in capsys.readouterr().err
    assert (out / "records.jsonl").read_text() == before


def test_a_search_by_module_from_command_to_figure(changes, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("triptych.recipes.proxy.BASE_STEPS", 2)
    out = tmp_path / "modules"
    words = ["study", "modules", "--out", str(out), "--rounds", "2", "--proposals", "3", "--seeds", "2", *changes]
    assert command(*words) == 0
    said = capsys.readouterr().out
    assert "gain of found over none:" in said
    table = load_multiplier_table(str(out / "table.json"))
    assert {"embed_audio", "embed_place_text", "attn_q_norm", "unembed_norm"} <= set(table.roles)
    assert len(table.depth) == 2
    records = list(TrialRecords(out))
    assert sum("table" in record for record in records) == 4 * 2
    findings = [line for line in said.splitlines() if line.startswith("  ")]
    assert command("study", "modules", "--out", str(out), "--plot-only") == 0
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")] == findings
    assert min(Image.open(out / "figure.png").size) > 300
    # A third round continues the search; another start is refused.
    assert command(*[word if word != "2" else "3" for word in words[:6]], *words[6:]) == 0
    assert "3 rounds with" in capsys.readouterr().out
    assert command(*words, "--start", "scenes") == 2
    assert "was started with --start" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lr-transfer", "num_steps=9"], "num_steps is set by the study"),
        (["lr-transfer", "model.width=32"], "model.width is set by the study"),
        (["lr-transfer", "--seeds", "0"], "expected a positive whole number, got '0'"),
        (["batch-size", "--tokens", "nan"], "expected a positive number, got 'nan'"),
        (["coordinates", "--widths", "64"], "expected at least two different numbers, got '64'"),
        (["modules", "--radius", "1"], "expected a factor larger than 1, got '1'"),
        (["gamma", "--threads", "0"], "expected a positive whole number"),
        (["search", "--lr", "3,1"], "expected two numbers, the smaller first, got '3,1'"),
    ],
)
def test_wrong_arguments_are_reported_in_one_line_and_write_nothing(
    words, message, changes, tmp_path: Path, capsys
) -> None:
    assert command("study", words[0], "--out", str(tmp_path / "out"), *words[1:], *changes) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["coordinates", "lr-transfer", "batch-size", "modules", "gamma", "search", "scaling"])
def test_a_study_without_records_is_not_drawn(name: str, run: RunConfig, tmp_path: Path, capsys) -> None:
    join(tmp_path, name, run, {})
    assert command("study", name, "--out", str(tmp_path), "--plot-only") == 2
    assert "has no records yet" in capsys.readouterr().err


STARTED = Path(__file__).parents[2] / "studies" / "lr-transfer" / "study.json"


def test_a_study_of_an_earlier_version_can_be_continued(tmp_path: Path) -> None:
    """Its configuration has old keys, the old name of the proxy, and lacks fields that were added since."""
    content = json.loads(STARTED.read_text())
    assert content["config"]["recipe"] == "family"
    (tmp_path / "study.json").write_text(json.dumps(content | {"loss_version": LOSS_VERSION}))
    join(tmp_path, "lr-transfer", proxy(), {"tokens": 1.0})
    # Fields that change no loss may differ.
    unrelated = ["sampling_preset=paper", "log_every=1", "prompts.words=a,b"]
    join(tmp_path, "lr-transfer", override(proxy(), unrelated), {"tokens": 1.0})
    for change in ("z_loss_weight=0", "model.max_learned_positions=7", "validation.sequences=16", "data=elsewhere"):
        with pytest.raises(UserError, match=f"was started with {change.partition('=')[0]} = "):
            join(tmp_path, "lr-transfer", override(proxy(), [change]), {"tokens": 1.0})


def test_losses_of_different_definitions_are_not_mixed(tmp_path: Path) -> None:
    shutil.copy(STARTED, tmp_path)  # by nats of all tokens, whatever the mixture
    with pytest.raises(UserError, match=r"were computed in another way \(version 1, now 2\), so it cannot continue"):
        join(tmp_path, "lr-transfer", proxy(), {"tokens": 1.0})


def test_a_study_refuses_other_options(changes, tmp_path: Path, capsys) -> None:
    out = str(tmp_path / "study")
    words = ["study", "lr-transfer", "--out", out, "--widths", "64", "--depths", "2", "--rates", "1e-3", *changes]
    assert command(*words, "--tokens", "0.01") == 0
    assert command(*words, "--tokens", "0.02") == 2
    assert "was started with --tokens = 0.01 and cannot continue with 0.02" in capsys.readouterr().err


def test_overrides_of_the_proxy_apply_to_scaled_proxies(run: RunConfig) -> None:
    changed = override(run, ["model.init_std=0.02", "model.max_learned_positions=7", "transfer.depth_exponent=0.5"])
    wide = scaled_proxy(changed, width=128)
    assert (wide.model.init_std, wide.model.max_learned_positions, wide.transfer.depth_exponent) == (0.02, 7, 0.5)

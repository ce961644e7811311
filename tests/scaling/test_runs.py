"""Tables of runs: all file formats are read, and errors are reported in one line."""

import json
from pathlib import Path

import numpy as np
import pytest

from triptych.errors import UserError
from triptych.scaling.published import CHINCHILLA
from triptych.scaling.runs import read_runs, runs_from_columns

SIZES = np.repeat([1e8, 3e8, 1e9, 3e9], 4)
TOKENS = np.tile([2e9, 8e9, 3e10, 1e11], 4)
LOSS = CHINCHILLA.loss(SIZES, TOKENS)
ROWS = [dict(zip(("N", "D", "loss"), values)) for values in zip(SIZES.tolist(), TOKENS.tolist(), LOSS.tolist())]


def csv_of(path: Path, rows: list[dict], delimiter: str = ",") -> Path:
    lines = [delimiter.join(rows[0]), *(delimiter.join(str(row[name]) for name in rows[0]) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_all_file_formats_give_the_same_table(tmp_path: Path) -> None:
    jsonl, array = tmp_path / "runs.jsonl", tmp_path / "runs.json"
    jsonl.write_text("".join(json.dumps({"key": str(at), **row}) + "\n\n" for at, row in enumerate(ROWS)))
    array.write_text(json.dumps(ROWS))
    with_mark = tmp_path / "excel.csv"
    with_mark.write_bytes(b"\xef\xbb\xbf" + csv_of(tmp_path / "plain.csv", ROWS).read_bytes().replace(b"\n", b"\r\n"))
    half = tmp_path / "half.jsonl"  # an incomplete last line
    half.write_text(jsonl.read_text() + '{"key": "half", "N": 1e')
    semicolons = csv_of(tmp_path / "semicolons.CSV", ROWS, ";")
    separated = csv_of(tmp_path / "runs.csv", ROWS), csv_of(tmp_path / "runs.tsv", ROWS, "\t"), semicolons
    for path in (*separated, jsonl, array, with_mark, half):
        runs = read_runs(path)
        assert runs.columns[0] == pytest.approx(SIZES)
        assert runs.columns[1] == pytest.approx(TOKENS)
        assert runs.loss == pytest.approx(LOSS)
        assert runs.flops is None


def test_columns_under_other_names_and_units(tmp_path: Path) -> None:
    rows = [{"Params": row["N"] / 1e9, "tokens": row["D"] / 1e9, "final": row["loss"], "note": "x"} for row in ROWS]
    path = csv_of(tmp_path / "runs.csv", rows)
    runs = read_runs(path, called={"loss": "final"}, unit=1e9)
    assert runs.columns[0] == pytest.approx(SIZES)
    with pytest.raises(UserError, match=r"no column for loss: expected loss or L or val_loss, it has Params, tokens"):
        read_runs(path, unit=1e9)
    with pytest.raises(UserError, match=r"has no column 'fnal'\. Did you mean 'final'"):
        read_runs(path, called={"loss": "fnal"}, unit=1e9)
    with pytest.raises(UserError, match="--columns accepts N, D, loss, C, got 'M'"):
        read_runs(path, called={"M": "final"})


def test_nested_fields_are_columns(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text("".join(json.dumps({**row, "held_out": {"audio": 2 * row["loss"]}}) + "\n" for row in ROWS))
    assert read_runs(path, called={"loss": "held_out.audio"}).loss == pytest.approx(2 * LOSS)
    assert read_runs(path).loss == pytest.approx(LOSS)


def test_tokens_follow_from_flops(tmp_path: Path) -> None:
    rows = [{"N": row["N"], "C": 6 * row["N"] * row["D"], "loss": row["loss"]} for row in ROWS]
    runs = read_runs(csv_of(tmp_path / "runs.csv", rows))
    assert runs.columns[1] == pytest.approx(TOKENS)
    assert runs.flops == pytest.approx(6 * SIZES * TOKENS)


@pytest.mark.parametrize("factor", [1e-15, 1e6])
def test_flops_of_another_unit_are_refused(tmp_path: Path, factor: float) -> None:
    rows = [{**row, "C": 6 * row["N"] * row["D"] * factor} for row in ROWS]
    with pytest.raises(UserError, match=r"row 1: C is .*, but 6 N D is .*\. C must be the FLOPs of the whole run"):
        read_runs(csv_of(tmp_path / "runs.csv", rows))


def test_the_highest_losses_can_be_dropped(tmp_path: Path) -> None:
    runs = read_runs(csv_of(tmp_path / "runs.csv", ROWS), drop_worst=3)
    assert sorted(runs.loss) == pytest.approx(sorted(LOSS)[:-3])
    with pytest.raises(UserError, match="holds no runs with a finite loss"):
        read_runs(tmp_path / "runs.csv", drop_worst=40)
    assert list(runs.loss) == [loss for loss in LOSS if loss in runs.loss]  # in the order of the file


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({5: {"loss": "nan"}}, "row 6: the loss is nan. Leave out runs that diverged, or use --skip-diverged"),
        ({5: {"loss": ""}}, "row 6: the loss is nan"),
        ({5: {"loss": "inf"}}, "row 6: the loss is inf"),
        ({5: {"loss": -1.0}}, "row 6: the loss is -1"),
        ({5: {"loss": "1,5"}}, "row 6 has more cells than the header has names"),
        ({5: {"N": "80M"}}, "row 6: N must be a number, got '80M'"),
        ({5: {"N": 0.08}}, r"row 6: N is 0.08, too few parameters for a run. .* if both are in billions"),
        ({5: {"N": "1" * 400}}, "row 6: N must be positive and finite, got inf"),
        ({5: {"D": 300}}, "row 6: D is 300, too few tokens for a run"),
        ({5: {"D": 0}}, "row 6: D must be positive and finite, got 0"),
        ({5: ROWS[2]}, r"row 3 and row 6 are the same run \(N 1e\+08, D 3e\+10, loss "),
    ],
)
def test_errors_in_a_row_are_reported(tmp_path: Path, change: dict, message: str) -> None:
    rows = [{**row, **change.get(at, {})} for at, row in enumerate(ROWS)]
    with pytest.raises(UserError, match=message) as error:
        read_runs(csv_of(tmp_path / "runs.csv", rows))
    assert "\n" not in str(error.value)


def test_diverged_runs_can_be_skipped(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(
        "".join(json.dumps({**row, "loss": None if at == 4 else row["loss"]}) + "\n" for at, row in enumerate(ROWS))
    )
    with pytest.raises(UserError, match="line 5: the loss is nan"):
        read_runs(path)
    assert len(read_runs(path, skip_diverged=True)) == 15


def test_n_in_billions_by_mistake(tmp_path: Path) -> None:
    """The error names the first row, and its remedy works."""
    rows = [{**row, "N": row["N"] / 1e9, "D": row["D"] / 1e9} for row in ROWS]
    path = csv_of(tmp_path / "runs.csv", rows)
    with pytest.raises(UserError, match=r"row 1: N is 0\.1, .* use --unit 1e9"):
        read_runs(path)
    assert read_runs(path, unit=1e9).columns[1] == pytest.approx(TOKENS)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (ROWS[:5], "a law of five coefficients needs at least 10 different runs, got 5"),
        (
            [{**row, "N": (1 + at % 2) * 1e8, "D": (1 + at) * 1e9} for at, row in enumerate(ROWS)],
            "3 different N, got 2",
        ),
        (
            [{**row, "D": (1 + at % 2) * 1e9, "N": (1 + at) * 1e8} for at, row in enumerate(ROWS)],
            "3 different D, got 2",
        ),
        (
            [{**row, "D": 20 * row["N"] * (1 + at * 1e-9), "N": row["N"] + at} for at, row in enumerate(ROWS)],
            "N and D are tied in these runs, as with a fixed ratio",
        ),
    ],
)
def test_runs_that_do_not_determine_a_law_are_refused(tmp_path: Path, rows: list[dict], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_runs(csv_of(tmp_path / "runs.csv", rows))


def runs_of_budgets(budgets: list[float], count: int = 12, scatter: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Sizes and tokens of budgets; small models have a large head, so log D is not linear in log N."""
    rng = np.random.default_rng(0)
    sizes = np.geomspace(1e8, 3e9, count)
    tokens = [budget / (6 * sizes * (1 + 1e6 * sizes ** (-2 / 3))) for budget in budgets]
    columns = np.tile(sizes, len(budgets)), np.concatenate(tokens)
    return columns[0], columns[1] * np.exp(scatter * rng.standard_normal(count * len(budgets)))


@pytest.mark.parametrize("scatter", [0.0, 0.05])
def test_runs_of_a_single_budget_are_refused(scatter: float) -> None:
    sizes, tokens = runs_of_budgets([1e20], scatter=scatter)
    correlation = np.corrcoef(np.log([sizes, tokens]))[0, 1]
    assert -0.9999 < correlation < -0.99
    with pytest.raises(
        UserError, match=r"as with a single budget \(correlation of their logs -0\.99.*add runs with at"
    ):
        runs_from_columns(("N", "D"), sizes, tokens, CHINCHILLA.loss(sizes, tokens))


def test_runs_with_two_tokens_at_each_size_are_enough() -> None:
    for budgets in ([1e20, 2e20], [1e20, 1e21]):
        sizes, tokens = runs_of_budgets(budgets)
        assert len(runs_from_columns(("N", "D"), sizes, tokens, CHINCHILLA.loss(sizes, tokens))) == 24
    sizes = np.repeat(np.geomspace(1e8, 1e10, 8), 2)
    tokens = 20 * sizes * np.tile([1, 2], 8)
    assert len(runs_from_columns(("N", "D"), sizes, tokens, CHINCHILLA.loss(sizes, tokens))) == 16


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("runs.txt", "N D loss", "unknown format: expected .csv, .tsv, .json or .jsonl, got '.txt'"),
        ("runs.csv", "", "holds no runs"),
        ("runs.csv", "N,D,loss\n", "holds no runs"),
        ("runs.jsonl", "{", "line 1 is not JSON"),
        ("runs.jsonl", "[1, 2]", "line 1: expected an object with N, D and loss, got"),
        ("runs.json", "{}", "must hold a list of runs, got dict"),
        ("runs.jsonl", '{"key": "a"}\n{"key": "a"}\n', "no column for N"),
        ("runs.csv", b"\xff\xfe\x00", "is not UTF-8 text"),
    ],
)
def test_other_files_than_tables_are_refused(tmp_path: Path, name: str, content, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=message):
        read_runs(path)
    with pytest.raises(UserError, match="there is no file"):
        read_runs(tmp_path / "nothing.csv")
    with pytest.raises(UserError, match="Give a file of runs"):
        read_runs(tmp_path)


def test_duplicate_keys_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    rows = [{"key": "same" if at in (3, 9) else str(at), **row} for at, row in enumerate(ROWS)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match="line 4 and line 10 are the same run, 'same'"):
        read_runs(path)


def test_runs_with_other_seeds_are_not_duplicates() -> None:
    runs = runs_from_columns(("N", "D"), np.tile(SIZES, 2), np.tile(TOKENS, 2), np.concatenate([LOSS, LOSS * 1.01]))
    assert len(runs) == 32
    assert runs.seed_groups.max() == 15
    with pytest.raises(UserError, match="one number of each kind per run"):
        runs_from_columns(("N", "D"), SIZES, TOKENS[:3], LOSS)

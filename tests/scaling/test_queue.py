"""The grid in a folder: what is read back, and what a hostile one cannot do."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from triptych.cli.main import main
from triptych.errors import DataError, UserError
from triptych.scaling.queue import GridRun, read_grid, write_grid

RUNS = [
    GridRun(f"5e+08 FLOPs {width} x 2 seed 0", "proxy", (f"model.width={width}", "num_steps=9"), 5e8, 100, 2e3, 5e8, 9)
    for width in (64, 128)
]


def written(folder: Path, **changes: Any) -> Path:
    """A grid whose second run has these values."""
    folder.mkdir()
    rows = [asdict(RUNS[0]), {**asdict(RUNS[1]), **changes}]
    (folder / "grid.json").write_text(json.dumps({"runs": rows}))
    return folder


def test_a_grid_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_grid(tmp_path / "grid", RUNS)
    assert read_grid(tmp_path / "grid") == RUNS
    assert RUNS[0].name == "5e+08-64-x-2-seed-0"
    (tmp_path / "grid" / "runs").mkdir()
    (tmp_path / "grid" / "runs" / RUNS[0].name).mkdir()
    assert read_grid(tmp_path / "grid") == RUNS


@pytest.mark.parametrize(
    "changes",
    [
        {"key": "../../../escaped"},
        {"key": "a/../../escaped"},
        {"key": "/tmp/escaped"},
        {"key": ".."},
        {"key": ".hidden"},
        {"key": ""},
        {"key": "a\nb"},
        {"key": "a\x1b[2J"},
        {"key": "a" * 300},
        {"key": 5},
        {"key": None},
        {"changes": ["--out=/tmp/escaped"]},
        {"changes": ["--force"]},
        {"changes": ["-q"]},
        {"changes": ["num_steps"]},
        {"changes": [5]},
        {"changes": 5},
        {"recipe": "--help"},
        {"recipe": "nosuch"},
        {"recipe": 5},
        {"N": "many"},
        {"D": float("nan")},
        {"C": float("inf")},
        {"budget": -1},
        {"num_steps": None},
        {"more": 1},
    ],
)
def test_a_hostile_grid_is_refused(changes: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    folder = written(tmp_path / "grid", **changes)
    with pytest.raises(DataError, match="is not a grid written by"):
        read_grid(folder)
    assert main(["sweep", str(folder)]) == 3
    error = capsys.readouterr().err
    assert error.startswith("triptych: error: ")
    assert error.count("\n") == 1
    assert "\x1b" not in error
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == ["grid", "grid/grid.json"]


def test_two_runs_cannot_share_a_folder(tmp_path: Path) -> None:
    folder = written(tmp_path / "grid", key=RUNS[0].key.replace(" ", "-").replace("-FLOPs", " FLOPs"))
    with pytest.raises(DataError, match="two runs of the same name"):
        read_grid(folder)


@pytest.mark.parametrize("suffix", ["", ".log"])
def test_a_link_out_of_the_folder_is_refused(suffix: str, tmp_path: Path) -> None:
    folder = written(tmp_path / "grid")
    (folder / "runs").mkdir()
    (folder / "runs" / f"{RUNS[1].name}{suffix}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="is a link that leads out of"):
        read_grid(folder)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"runs": 5}', '{"runs": [5]}', '{"runs": [{}]}', "[" * 100_000])
def test_what_is_no_grid_is_one_line(content: str, tmp_path: Path) -> None:
    (tmp_path / "grid.json").write_text(content)
    with pytest.raises(DataError, match=r"is not a grid written by") as raised:
        read_grid(tmp_path)
    assert "\n" not in str(raised.value)
    (tmp_path / "grid.json").write_text('{"runs": []}')
    with pytest.raises(DataError, match="holds no runs"):
        read_grid(tmp_path)
    with pytest.raises(UserError, match="holds no grid"):
        read_grid(tmp_path / "none")

"""A grid in a folder, from which any number of machines take runs until none is left.

FOLDER/grid.json          the runs: what `triptych train` is told for each
FOLDER/records.jsonl      a line for each that is done: N, D, C, loss; `triptych fit` reads it
FOLDER/runs/NAME          its checkpoints and records; a run that was stopped goes on from there
FOLDER/runs/NAME.log      what it printed
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from triptych.data.shards import write_atomically
from triptych.errors import DataError, UserError
from triptych.recipes import recipe
from triptych.scaling.grid import Cell
from triptych.training.config import RunConfig, assignments
from triptych.training.logging import read_records
from triptych.training.setup import need_data
from triptych.training.validate import NelboEstimate, overall

_GRID = "grid.json"


@dataclass(frozen=True)
class GridRun:
    """A run of a grid, as a command."""

    key: str
    recipe: str
    changes: tuple[str, ...]
    budget: float
    N: int
    D: float
    C: float
    num_steps: int

    @property
    def name(self) -> str:
        """Of its folder."""
        return self.key.replace(" FLOPs", "").replace(" ", "-")

    def command(self, folder: Path) -> list[str]:
        return ["train", self.recipe, *self.changes, "--out", str(folder / "runs" / self.name)]


def planned(cell: Cell) -> GridRun:
    """A cell as a change of its recipe."""
    name = cell.config.recipe
    changes = tuple(assignments(recipe(name), cell.config))
    return GridRun(cell.key, name, changes, cell.budget, cell.N, cell.D, cell.C, cell.config.num_steps)


def write_grid(folder: Path, runs: Sequence[GridRun]) -> None:
    """A grid that is there already is not replaced: its records would belong to none."""
    path, content = folder / _GRID, {"runs": [asdict(run) for run in runs]}
    text = json.dumps(content, indent=2) + "\n"
    if path.exists() and path.read_text() != text:
        raise UserError(f"{path} holds another grid. Choose another --out, or delete that folder.")
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.encode())


def read_grid(folder: Path) -> list[GridRun]:
    path = folder / _GRID
    if not path.is_file():
        raise UserError(f"{folder} holds no grid. Plan one with: triptych plan grid RECIPE --out {folder}")
    try:
        content = json.loads(path.read_text())
        found = [GridRun(**{**run, "changes": tuple(run["changes"])}) for run in content["runs"]]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is not a grid that `triptych plan grid` wrote ({error}).") from error
    if not found:
        raise DataError(f"{path} holds no runs.")
    return found


def check_run(config: RunConfig) -> None:
    """A grid is measured on held-out data, and both must be there before anything is trained."""
    need_data(config)
    if not config.validation_data:
        raise UserError("the runs of a grid are compared on held-out data: add validation_data=FOLDER,FOLDER.")


def result(folder: Path, run: GridRun) -> dict[str, Any]:
    """What a run came to that has had all its steps: tokens as they were, and final losses."""
    path = folder / "runs" / run.name / "records.jsonl"
    events = read_records(path)
    tokens = sum(event["tokens"] for event in events if event["kind"] == "step")
    last = [event for event in events if event["kind"] == "validation" and event["step"] == run.num_steps]
    if not last:
        raise DataError(f"{path} has no validation after step {run.num_steps}.")
    estimates = {name: NelboEstimate(**values) for name, values in last[-1]["nelbo"].items()}
    return {
        "D": tokens,
        "C": run.C / run.D * tokens,
        "loss": overall(estimates),
        "held_out": {name: each.nats_per_token for name, each in estimates.items()},
    }

"""A grid stored in a folder, from which any number of machines take runs.

FOLDER/grid.json          the runs, each as the arguments of `triptych train`
FOLDER/records.jsonl      one line per finished run: N, D, C, loss; `triptych fit` reads it
FOLDER/runs/NAME          checkpoints and records of a run; a stopped run resumes from there
FOLDER/runs/NAME.log      output of the run
"""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from triptych.errors import DataError, UserError
from triptych.recipes import recipe
from triptych.scaling.grid import GridPoint
from triptych.training.config import RunConfig
from triptych.training.logging import read_records
from triptych.training.setup import need_data
from triptych.training.validate import MIXTURE, NelboEstimate
from triptych.utils.config import assignments
from triptych.utils.files import write_atomically
from triptych.utils.json_files import read_json
from triptych.utils.legacy import RENAMED_RECIPES, with_current_names

_GRID = "grid.json"
# Grids may come from others: keys become names of folders, and changes become arguments of a command.
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9+. _-]{0,200}")
_CHANGE = re.compile(r"[A-Za-z][A-Za-z0-9_.]*=")


@dataclass(frozen=True)
class GridRun:
    """A run of a grid, as a recipe and overrides."""

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
        """Name of the folder of the run."""
        return self.key.replace(" FLOPs", "").replace(" ", "-")

    def command(self, folder: Path) -> list[str]:
        return ["train", self.recipe, *self.changes, "--out", str(folder / "runs" / self.name)]


def grid_run(point: GridPoint) -> GridRun:
    """A grid point as overrides of its recipe."""
    name = point.config.recipe
    changes = tuple(assignments(recipe(name), point.config))
    return GridRun(point.key, name, changes, point.budget, point.N, point.D, point.C, point.config.num_steps)


def write_grid(folder: Path, runs: Sequence[GridRun]) -> None:
    """Write a new grid. An existing one is not replaced, because its records would not belong to the new runs."""
    path = folder / _GRID
    if path.exists():
        if read_grid(folder) != list(runs):
            raise UserError(f"{path} holds another grid. Choose another --out, or delete that folder.")
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps({"runs": [asdict(run) for run in runs]}, indent=2) + "\n").encode())


def read_grid(folder: Path) -> list[GridRun]:
    path = folder / _GRID
    if not path.is_file():
        raise UserError(f"{folder} holds no grid. Plan one with: triptych plan grid RECIPE --out {folder}")
    try:
        content = read_json(path)
        runs = [
            GridRun(
                **{
                    **run,
                    "recipe": RENAMED_RECIPES.get(run["recipe"], run["recipe"]),
                    "changes": tuple(with_current_names(run["changes"])),
                }
            )
            for run in content["runs"]
        ]
        for run in runs:
            _check_run(folder, run)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is not a grid written by `triptych plan grid` ({error}).") from error
    if not runs:
        raise DataError(f"{path} holds no runs.")
    if len({run.name for run in runs}) < len(runs):
        raise DataError(f"{path} has two runs of the same name, which would share a folder.")
    return runs


def _check_run(folder: Path, run: GridRun) -> None:
    """Raise an error for a run that would leave the grid's folder, or pass options of its own to `triptych train`."""
    if not isinstance(run.key, str) or not _KEY.fullmatch(run.key):
        raise ValueError(f"a key must be like '1e+11 FLOPs 64 x 2 seed 0', got {run.key!r:.100}")
    for change in run.changes:
        if not _CHANGE.match(change):
            raise ValueError(f"a change must be KEY=VALUE, got {change!r:.100}")
    recipe(run.recipe)  # which must be known
    counts = {"N": run.N, "D": run.D, "C": run.C, "budget": run.budget, "num_steps": run.num_steps}
    for name, count in counts.items():
        if not isinstance(count, int | float) or not 0 < count < 1e40:
            raise ValueError(f"{name} must be a positive number, got {count!r:.100}")
    for path in (folder / "runs" / run.name, folder / "runs" / f"{run.name}.log"):
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"{path} is a link that leads out of {folder}")


def check_grid_data(config: RunConfig) -> None:
    """Check, before anything is trained, that the runs have training data and validation data."""
    need_data(config)
    if not config.validation_folders:
        raise UserError("the runs of a grid are compared on validation data: add validation_data=FOLDER,FOLDER.")


def run_result(folder: Path, run: GridRun) -> dict[str, Any]:
    """The record of a finished run: the tokens it has seen, and its final losses."""
    path = folder / "runs" / run.name / "records.jsonl"
    events = read_records(path)
    tokens = sum(event["tokens"] for event in events if event["kind"] == "step")
    last = [event for event in events if event["kind"] == "validation" and event["step"] == run.num_steps]
    if not last:
        raise DataError(f"{path} has no validation after step {run.num_steps}.")
    if MIXTURE not in last[-1]["nelbo"]:
        raise DataError(
            f"{path} has no validation loss of the training mixture: an earlier version wrote it, or no task of the "
            "validation data has a weight in loader.task_weights."
        )
    estimates = {name: NelboEstimate(**values) for name, values in last[-1]["nelbo"].items()}
    return {
        "D": tokens,
        "C": run.C / run.D * tokens,
        "loss": estimates[MIXTURE].nats_per_token,
        "held_out": {name: estimate.nats_per_token for name, estimate in estimates.items()},
    }

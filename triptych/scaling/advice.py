"""Which model of a family suits a budget: by a law of one's own, and by published ones."""

import shlex
from dataclasses import dataclass
from typing import Any

from triptych.recipes import recipe
from triptych.scaling.family import Family
from triptych.scaling.fit_file import SavedFit
from triptych.scaling.grid import Cell
from triptych.scaling.optimal import Frontier, Optimum
from triptych.scaling.published import PUBLISHED, Published
from triptych.scaling.report import Ends, best_for, finite
from triptych.training.config import assignments

_FAR = 10.0  # times beyond the sizes a law was fitted to


@dataclass(frozen=True)
class Advice:
    law: str
    best: Optimum | None
    """None if no size is best for the budget."""
    cell: Cell | None
    """The run of the member that comes nearest; None if all are far too small or too large."""
    intervals: dict[str, Ends]
    note: str = ""

    @property
    def command(self) -> str | None:
        if self.cell is None:
            return None
        config = self.cell.config
        wanted = [] if config.data else ["data=FOLDER,..", "validation_data=FOLDER,.."]
        return shlex.join(["triptych", "train", config.recipe, *assignments(recipe(config.recipe), config), *wanted])

    @property
    def as_json(self) -> dict[str, Any]:
        model = None
        if self.cell is not None:
            shape, run = self.cell.config.model, self.cell.config
            model = {
                "num_layers": shape.num_layers, "width": shape.width, "N": self.cell.N, "D": self.cell.D,
                "batch": run.loader.global_batch, "num_steps": run.num_steps, "flops": self.cell.C,
            }  # fmt: skip
        sizes = {"N": None, "D": None} if self.best is None else {"N": self.best.N, "D": self.best.D}
        ends = {name: finite(each) for name, each in self.intervals.items()}
        return {
            "law": self.law, **sizes, "intervals": ends, "note": self.note, "model": model, "command": self.command
        }  # fmt: skip


def advise(family: Family, budget: float, own: SavedFit | None = None) -> list[Advice]:
    """One's own law first."""
    found = []
    if own is not None:
        best = best_for(own.law, own.laws, budget, family.smooth)
        ends = {} if best is None else dict(best.intervals)
        found.append(_advice(own.name, Frontier.of(own.law), family, budget, ends))
    for name, law in PUBLISHED.items():
        found.append(_advice(name, law.frontier, family, budget, {}, law))
    return found


def _advice(
    name: str, frontier: Frontier, family: Family, budget: float, ends: dict[str, Ends], law: Published | None = None
) -> Advice:
    best, note = frontier.optimum(budget, family.smooth), ""
    if law is not None and best is not None and not law.sizes[0] / _FAR <= best.N <= law.sizes[1] * _FAR:
        note = f"far from its runs, {law.sizes[0]:.2g} to {law.sizes[1]:.2g} parameters"
    return Advice(name, best, None if best is None else family.nearest(best, frontier), ends, note)

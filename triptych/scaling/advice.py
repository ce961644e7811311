"""The compute-optimal model of a family for a budget, by a law fitted to your runs and by published laws."""

import shlex
from dataclasses import dataclass
from typing import Any

from triptych.recipes import recipe
from triptych.scaling.family import ModelFamily
from triptych.scaling.fit_file import SavedFit
from triptych.scaling.grid import GridPoint
from triptych.scaling.optimal import Frontier, Optimum
from triptych.scaling.published import PUBLISHED, PublishedLaw
from triptych.scaling.report import Interval, interval_json, optimum_for_budget
from triptych.utils.config import assignments

_FAR = 10.0  # factor beyond the sizes that a law was fitted to


@dataclass(frozen=True)
class Advice:
    law: str
    best: Optimum | None
    """None if the law has no optimum for the budget."""
    point: GridPoint | None
    """The run of the nearest model of the family; None if all models are far too small or too large."""
    intervals: dict[str, Interval]
    note: str = ""

    @property
    def command(self) -> str | None:
        if self.point is None:
            return None
        config = self.point.config
        missing = [] if config.data else ["data=FOLDER,..", "validation_data=FOLDER,.."]
        return shlex.join(["triptych", "train", config.recipe, *assignments(recipe(config.recipe), config), *missing])

    @property
    def as_json(self) -> dict[str, Any]:
        model = None
        if self.point is not None:
            shape, run = self.point.config.model, self.point.config
            model = {
                "num_layers": shape.num_layers, "width": shape.width, "N": self.point.N, "D": self.point.D,
                "batch": run.loader.global_batch, "num_steps": run.num_steps, "flops": self.point.C,
            }  # fmt: skip
        optimum = {"N": None, "D": None} if self.best is None else {"N": self.best.N, "D": self.best.D}
        intervals = {name: interval_json(interval) for name, interval in self.intervals.items()}
        return {
            "law": self.law, **optimum, "intervals": intervals, "note": self.note, "model": model,
            "command": self.command,
        }  # fmt: skip


def advise(family: ModelFamily, budget: float, own: SavedFit | None = None) -> list[Advice]:
    """Advice by your own law first, then by the published ones."""
    advice = []
    if own is not None:
        best = optimum_for_budget(own.law, own.laws, budget, family.flops_per_token)
        intervals = {} if best is None else dict(best.intervals)
        advice.append(_advice(own.name, Frontier.from_law(own.law), family, budget, intervals))
    for name, law in PUBLISHED.items():
        advice.append(_advice(name, law.frontier, family, budget, {}, law))
    return advice


def _advice(
    name: str,
    frontier: Frontier,
    family: ModelFamily,
    budget: float,
    intervals: dict[str, Interval],
    law: PublishedLaw | None = None,
) -> Advice:
    best, note = frontier.optimum(budget, family.flops_per_token), ""
    if law is not None and best is not None and not law.sizes[0] / _FAR <= best.N <= law.sizes[1] * _FAR:
        note = f"far from its runs, {law.sizes[0]:.2g} to {law.sizes[1]:.2g} parameters"
    return Advice(name, best, None if best is None else family.nearest(best, frontier), intervals, note)

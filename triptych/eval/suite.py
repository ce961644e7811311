"""What every suite of the evaluation gets: the model, where results are kept, and how many processes may be used."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from triptych.errors import UserError
from triptych.eval.metrics import Missing, Result
from triptych.eval.records import Progress, RecordStore
from triptych.hub.pipeline import Pipeline


@dataclass(frozen=True)
class ModelSource:
    """A model that can be loaded again, in another process. Picklable."""

    source: str
    device: str = "auto"

    def load(self) -> Pipeline:
        return Pipeline.from_pretrained(self.source, device=self.device, check_inputs=False)


@dataclass
class Evaluation:
    """One model under evaluation. Suites take it, and their own settings."""

    model: ModelSource | Pipeline
    out: Path
    """Folder of the results; features of generated samples are written here."""
    records: RecordStore
    """Records of single samples, which a stopped evaluation resumes from."""
    progress: Progress
    seed: int = 0
    nproc: int = 1
    """Processes that compute samples; each loads the model."""

    def __post_init__(self) -> None:
        if self.nproc > 1 and isinstance(self.model, Pipeline):
            raise UserError("several processes each load the model: give its name or folder instead of a Pipeline.")

    @cached_property
    def pipe(self) -> Pipeline:
        return self.model if isinstance(self.model, Pipeline) else self.model.load()


Outcomes = Iterator[Result | Missing]
Suite = Callable[..., Outcomes]
"""A function of an `Evaluation` and settings. It computes what is there and yields `Missing` for the rest."""

"""`triptych.evaluate`: one function for every suite, the toy dataset's among them."""

import tempfile
from pathlib import Path
from typing import Any, Literal, overload

from triptych.errors import UserError, did_you_mean
from triptych.eval.metrics import Missing
from triptych.eval.paper_suite import paper_jobs
from triptych.eval.records import Progress
from triptych.eval.run_suites import EvaluationResult, Job, run_suites
from triptych.eval.suites import PAPER, SCENES, SUITE_NAMES, settings_of
from triptych.hub.pipeline import Pipeline
from triptych.scenes.exam import ExamResult
from triptych.scenes.exam import evaluate as evaluate_scenes
from triptych.training.logging import environment
from triptych.utils.arguments import checked


@overload
def evaluate(model: Pipeline | str | Path, suite: Literal["scenes"] = "scenes", **options: Any) -> ExamResult: ...
@overload
def evaluate(
    model: Pipeline | str | Path,
    suite: Literal["text", "image", "audio", "paper"],
    *,
    data: str | Path | None = None,
    out: str | Path | None = None,
    seed: int = 0,
    nproc: int = 1,
    device: str = "auto",
    progress: Progress | None = None,
    **options: Any,
) -> EvaluationResult: ...
@checked
def evaluate(model: Pipeline | str | Path, suite: str = SCENES, **options: Any) -> ExamResult | EvaluationResult:
    """Evaluate a model.

    `model` is a `Pipeline` or anything that `Pipeline.from_pretrained` takes. `suite` is one of

        "scenes"                    the toy dataset, with an exact judge; options of `triptych.scenes.exam.evaluate`
        "text", "image", "audio"    benchmarks on data of yours; options are the fields of the suite's settings
        "paper"                     all three, on the sub-folders of `data` (`triptych eval paper --help`); options are
                                    `text`, `image` and `audio`, each a dictionary of settings

    Options of all but "scenes": `data` is the folder of the data. `out` keeps the results, and the records that a
    stopped evaluation resumes from (default: nothing is kept; "auto" is out/eval/NAME). `seed` is that of the samples.
    `nproc` is the number of processes. `device` is for a model that is loaded here. `progress` gets lines of text.

        result = triptych.evaluate("scenes", directions=["caption"], num_images=60)
        print(result)                            # a table
        triptych.evaluate("runs/mine", "text", data="data/tasks", limit=100, out="out/eval/mine")
    """
    if suite not in SUITE_NAMES:
        raise UserError(f"unknown suite {suite!r}.{did_you_mean(str(suite), list(SUITE_NAMES))}")
    if suite == SCENES:
        return evaluate_scenes(model, **options)
    run = {name: options.pop(name) for name in ("seed", "nproc", "device", "progress", "out") if name in options}
    run = {name: value for name, value in run.items() if value is not None}
    missing: list[tuple[str, Missing]] = []
    if suite == PAPER:
        jobs, missing = paper_jobs(options.pop("data", None), options)
    else:
        jobs = [Job(suite, settings_of(suite, {k: v for k, v in options.items() if not (k == "data" and v is None)}))]
    with tempfile.TemporaryDirectory() as nothing_is_kept:
        out = run.pop("out", nothing_is_kept)
        folder = None if out == "auto" else out
        return run_suites(model, jobs, out=folder, environment=environment(), missing=missing, **run)

"""Run suites on a model: results are stored one by one, a stopped evaluation resumes, what is missing is listed."""

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from triptych.errors import UserError
from triptych.eval.compare import format_score, label_of
from triptych.eval.metrics import Missing, Result
from triptych.eval.records import Progress, RecordStore
from triptych.eval.results import Entry, MissingEntry, ModelInfo, ResultFolder, now, result_folder
from triptych.eval.scores import Score
from triptych.eval.suite import Evaluation, ModelSource, Outcomes
from triptych.eval.suites import suite_named
from triptych.hub.pipeline import Pipeline
from triptych.utils.arguments import checked
from triptych.utils.workers import MOST_WORKERS

RECORDS = "records"


@dataclass(frozen=True)
class Job:
    """A suite with its settings."""

    suite: str
    settings: Any
    """An instance of the suite's settings."""


@dataclass
class EvaluationResult:
    """What suites found out about a model."""

    model: ModelInfo
    folder: Path
    """Where the results are."""
    entries: list[Entry] = field(default_factory=list)
    missing: list[MissingEntry] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """Suites of several that could not run."""

    @property
    def scores(self) -> dict[str, Score]:
        """By the name of the metric; of one that was measured on several data, the last."""
        return {entry.metric.name: entry.score for entry in self.entries}

    @property
    def as_json(self) -> dict[str, Any]:
        hidden = ("model", "samples")
        results = [{k: v for k, v in entry.as_json.items() if k not in hidden} for entry in self.entries]
        return {
            "model": self.model.source,
            "fingerprint": self.model.fingerprint,
            "out": str(self.folder),
            "results": results,
            "missing": [{"metric": each.metric.name, "reason": each.missing.reason} for each in self.missing],
            "failures": self.failures,
        }

    @property
    def table(self) -> str:
        """A Markdown table, and below it what was not measured and why."""
        lines = ["| metric | value | 95 % interval | samples | judge |", "|---|---|---|---|---|"]
        for entry in self.entries:
            score, judge = entry.score, entry.result.judge
            low, high = (format_score(entry.metric, each) for each in (score.low, score.high))
            interval = f"{low} to {high}" if math.isfinite(score.low) else "–"
            arrow = "↑" if entry.metric.higher_is_better else "↓"
            lines.append(
                f"| {label_of(entry)} {arrow} | {format_score(entry.metric, score.value)} | {interval} | {score.n:,} "
                f"| {judge.name if judge else '–'} |"
            )
        return "\n".join((lines if self.entries else []) + self.not_measured)

    @property
    def not_measured(self) -> list[str]:
        """One line per reason: metrics that lack the same thing share one."""
        reasons: dict[str, list[str]] = {}
        for each in self.missing:
            reasons.setdefault(each.missing.reason, []).append(each.metric.title)
        return [
            *(f"not measured: {'; '.join(titles)}: {reason}" for reason, titles in reasons.items()),
            *(f"failed: {failure}" for failure in self.failures),
        ]

    def check(self) -> None:
        """An error if not a single metric was computed."""
        if not self.entries:
            reasons = [line.partition(": ")[2] for line in self.not_measured] or ["the suite has no metrics"]
            more = f" And {len(reasons) - 1} more reasons, above." if len(reasons) > 1 else ""
            raise UserError(f"no metric was computed. {reasons[0]}{more}")

    def __str__(self) -> str:
        return self.table


@checked
def run_suites(
    model: str | Path | Pipeline,
    jobs: Sequence[Job],
    *,
    out: str | Path | None = None,
    seed: int = 0,
    nproc: int = 1,
    device: str = "auto",
    progress: Progress = lambda line: None,
    environment: Mapping[str, Any] | None = None,
    missing: Sequence[tuple[str, Missing]] = (),
) -> EvaluationResult:
    """Run suites and store their results in `out` (default: out/eval/NAME).

    `missing` are metrics, with their suite, that are known to lack data. Of several suites, one that fails does not
    stop the others. Stopped by Ctrl-C, the results so far are reported; they, and records of single samples, are
    kept, so that the same call resumes.
    """
    if seed < 0 or not 1 <= nproc <= MOST_WORKERS:
        raise UserError(f"seed must be at least 0 and nproc from 1 to {MOST_WORKERS}, got {seed} and {nproc}.")
    source = None if isinstance(model, Pipeline) else ModelSource(str(model), device)
    if source is None and nproc > 1:
        raise UserError("several processes each load the model: give its name or folder instead of a Pipeline.")
    pipe = model if isinstance(model, Pipeline) else ModelSource(str(model), device).load()
    info = ModelInfo.of(pipe, None if isinstance(model, Pipeline) else model)
    folder = result_folder(out, info)
    result = EvaluationResult(info, folder.path)
    for name, one in missing:
        _keep_missing(result, folder, MissingEntry(name, one, info, now()))
    weights = next(pipe.model.parameters())
    for job in jobs:
        progress(f"{job.suite}:")
        # Not the settings: suites name their records by what each depends on, so that a judge can be added later.
        identity = {
            "model": info.fingerprint,
            "suite": job.suite,
            "device": weights.device.type,
            "dtype": str(weights.dtype),
        }
        with closing(RecordStore(folder.path / RECORDS, identity)) as records:
            evaluation = Evaluation(source or pipe, folder.path, records, progress, seed, nproc)
            evaluation.pipe = pipe
            try:
                suite, _ = suite_named(job.suite)
                collect(suite(evaluation, job.settings), job.suite, result, folder, progress, seed, environment)
            except UserError as error:
                if len(jobs) == 1:
                    raise
                result.failures.append(f"{job.suite}: {error}")
                progress(f"  failed: {error}")
    measured = {(each.suite, each.metric.name) for each in result.entries}
    lacking = {each.key: each for each in result.missing if (each.suite, each.metric.name) not in measured}
    result.missing = list(lacking.values())
    return result


def collect(
    outcomes: Outcomes,
    suite: str,
    result: EvaluationResult,
    folder: ResultFolder,
    progress: Progress,
    seed: int = 0,
    environment: Mapping[str, Any] | None = None,
) -> None:
    """Take results one by one and store each at once. If they are stopped, those so far are shown."""
    try:
        for outcome in outcomes:
            if isinstance(outcome, Result) and math.isfinite(outcome.score.value):
                entry = Entry(suite, outcome, result.model, seed, environment or {}, now())
                result.entries.append(entry)
                folder.add(entry)
                progress(f"  {label_of(entry)}: {format_score(entry.metric, entry.score.value)}")
                continue
            if isinstance(outcome, Result):
                outcome = Missing(outcome.metric, f"its value is {outcome.score.value}: the model's outputs break it")
            _keep_missing(result, folder, MissingEntry(suite, outcome, result.model, now()))
    except BaseException as stop:
        if not isinstance(stop, Exception):  # Ctrl-C or a signal
            so_far = result.table or "none"
            progress(f"stopped; the results so far:\n{so_far}")
            progress(f"{folder.path} keeps them and the records of samples: the same command resumes")
        raise


def _keep_missing(result: EvaluationResult, folder: ResultFolder, entry: MissingEntry) -> None:
    result.missing.append(entry)
    folder.add(entry)

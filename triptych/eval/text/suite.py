"""The text tasks of the paper as a suite of the evaluation."""

import importlib.metadata
import io
import logging
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from triptych.errors import DataError, UserError, require
from triptych.eval.metrics import Metric, Missing, Result
from triptych.eval.records import Progress
from triptych.eval.scores import ratio_score
from triptych.eval.suite import Evaluation, Outcomes
from triptych.eval.text.generate import GenerationConfig
from triptych.eval.text.likelihood import End, LikelihoodConfig, MaskSharing
from triptych.eval.text.tasks import TASKS, LocalRows, TextTask, chosen_tasks, find_rows, write_yaml
from triptych.eval.text.work import Runner
from triptych.sample.checks import check_count


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """How a model is evaluated on text."""

    tasks: tuple[str, ...] = tuple(TASKS)
    """Names in `TASKS`; "triptych_paper" is all ten."""
    data: str | Path | None = None
    """Folder with a JSONL file for each task; None for the hub."""
    num_fewshot: int | None = None
    """Examples in the prompt; None for those of lm-eval. TruthfulQA and BBH have their own."""
    limit: int | None = None
    """Questions per task, or per part of MMLU and BBH: the first ones. None for all."""
    mc_num: int = 128
    """As in `LikelihoodConfig`, and so are the next six."""
    batch_size: int | None = None
    masks: MaskSharing = "common"
    exact_up_to: int | None = None
    controlled: bool = True
    guidance_scale: float = 1.0
    end: End = "none"
    block_length: int = 32
    """As in `GenerationConfig`, for BBH."""
    tokens_per_step: int = 1

    def __post_init__(self) -> None:
        chosen_tasks(self.tasks)
        if self.num_fewshot is not None and (
            isinstance(self.num_fewshot, bool) or not isinstance(self.num_fewshot, int) or self.num_fewshot < 0
        ):
            raise UserError(f"num_fewshot must be a whole number of at least 0, got {self.num_fewshot!r}.")
        if self.limit is not None:
            check_count("limit", self.limit)
        if self.data is not None and not isinstance(self.data, str | Path):
            raise UserError(f"data must be a folder, got {self.data!r}.")
        if self.data is not None and not Path(self.data).is_dir():
            raise DataError(f"the data {self.data} are not a folder. It has a file NAME.jsonl for each task.")
        self.likelihood(0), self.generation(0)

    def likelihood(self, seed: int) -> LikelihoodConfig:
        return LikelihoodConfig(
            mc_num=self.mc_num,
            batch_size=self.batch_size,
            masks=self.masks,
            exact_up_to=self.exact_up_to,
            controlled=self.controlled,
            guidance_scale=self.guidance_scale,
            end=self.end,
            seed=seed,
        )

    def generation(self, seed: int) -> GenerationConfig:
        return GenerationConfig(
            block_length=self.block_length,
            tokens_per_step=self.tokens_per_step,
            guidance_scale=self.guidance_scale,
            seed=seed,
        )


def text_suite(evaluation: Evaluation, settings: TextSettings = TextSettings()) -> Outcomes:  # noqa: B008 (frozen)
    """Accuracies on the tasks; `Missing` for those without data. Local data are checked before the first result."""
    tasks = chosen_tasks(settings.tasks)
    try:
        require("lm_eval", "lm-eval", "the evaluation on text")
    except UserError as error:
        for task in tasks:
            yield from _missing(task, str(error))
        return
    rows: dict[str, LocalRows | None] = {}
    if settings.data is not None:
        rows = {task.name: find_rows(task, Path(settings.data), settings.num_fewshot) for task in tasks}

    # Imports lm-eval and datasets, which take seconds.
    from triptych.eval.text.harness import TriptychLM

    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(evaluation.records, _loud(evaluation.progress), evaluation.nproc)
        lm = TriptychLM(
            evaluation.model,
            settings.likelihood(evaluation.seed),
            settings.generation(evaluation.seed),
            runner,
            evaluation.pipe,
        )
        # All are loaded before the first is computed, so that mistakes are found at once.
        all_answers = [
            _load_or_miss(task, rows.get(task.name), settings, Path(folder), evaluation.seed) for task in tasks
        ]
        for task, loaded in zip(tasks, all_answers):
            if isinstance(loaded, str):
                yield from _missing(task, loaded)
            else:
                yield from _results(task, loaded, lm, settings, rows.get(task.name), evaluation.seed)


def metric_of(task: TextTask, measured: str) -> Metric:
    """The metric of a task, by its name in lm-eval."""
    title = f"{task.title} (norm)" if measured == "acc_norm" else task.title
    return Metric(f"{task.name}/{measured}", title, "text", higher_is_better=True, bounds=(0.0, 1.0))


def text_metrics() -> dict[str, Metric]:
    """All metrics of the suite by name; the last one of a task is the paper's."""
    metrics = [metric_of(task, measured) for task in TASKS.values() for measured in task.metrics]
    return {metric.name: metric for metric in metrics}


def _missing(task: TextTask, reason: str) -> Iterator[Missing]:
    for measured in task.metrics:
        yield Missing(metric_of(task, measured), reason)


def _load_or_miss(
    task: TextTask, rows: LocalRows | None, settings: TextSettings, folder: Path, seed: int
) -> dict[str, Any] | str:
    """lm-eval's objects for a task, or why there are none."""
    if settings.data is not None and rows is None:
        fields = ", ".join((*task.fields, *([task.part_field] if task.part_field else [])))
        place = Path(settings.data) / f"{task.name}.jsonl"
        return f"no data: write {place}, one JSON object per line with {fields}."
    try:
        with _quiet():
            loaded = _load(task, rows, settings, folder / task.name, seed)
            if rows is not None:
                _check_rows(loaded, settings.limit)
    except Exception as error:  # of any library below lm-eval; on the hub mostly that there is no connection
        if rows is not None:
            raise DataError(f"lm-eval cannot read {rows.questions} as {task.name}: {_line(error)}") from error
        return (
            f"the data set {task.source} cannot be loaded ({_line(error)}). Go online once, or give local data: "
            f"--data FOLDER with {task.name}.jsonl."
        )
    return loaded


def _load(task: TextTask, rows: LocalRows | None, settings: TextSettings, folder: Path, seed: int) -> dict[str, Any]:
    """lm-eval's objects for the parts of a task, by name, in order."""
    from lm_eval.tasks import TaskManager

    names = write_yaml(task, folder, rows, settings.num_fewshot)
    loaded = TaskManager(include_path=str(folder), include_defaults=False).load(names)["tasks"]
    for part in loaded.values():
        if part.get_config("num_fewshot") is None:
            part.set_config(key="num_fewshot", value=0)
        part.set_fewshot_seed(seed=seed)
        if task.name == "truthfulqa_mc2":
            part.set_config(key="process_results", value=truthful_mass)
    return {name: loaded[name] for name in names}


def _check_rows(loaded: Mapping[str, Any], limit: int | None) -> None:
    """Raise an error unless lm-eval can make a question of every row: before the first is computed."""
    for part in loaded.values():
        for number, (_, doc) in enumerate(part.doc_iterator(rank=0, limit=limit, world_size=1), 1):
            text, target = part.doc_to_text(doc), part.doc_to_target(doc)
            if part.OUTPUT_TYPE == "multiple_choice":
                choices = part.doc_to_choice(doc)
                right = text if part.multiple_input else target
                is_number = isinstance(right, int) and not isinstance(right, bool)
                if not choices or not (0 <= right < len(choices) if is_number else right in choices):
                    raise ValueError(f"the answer of question {number} is not among its {len(choices)} choices")


def _results(
    task: TextTask,
    loaded: Mapping[str, Any],
    lm: Any,
    settings: TextSettings,
    rows: LocalRows | None,
    seed: int,
) -> Iterator[Result]:
    from lm_eval.evaluator import evaluate

    lm.truncated.clear()
    with _quiet():
        all_answers = evaluate(lm, {"tasks": dict(loaded)}, limit=settings.limit, bootstrap_iters=0, log_samples=True)
    samples = [sample for name in loaded for sample in all_answers["samples"][name]]
    first = next(iter(loaded.values()))
    is_generated = first.OUTPUT_TYPE == "generate_until"
    details: dict[str, Any] = {
        "task": task.name,
        "lm_eval": importlib.metadata.version("lm_eval"),
        "task_version": first.VERSION,
        "data": task.source if rows is None else _identity(rows, first.get_config("num_fewshot")),
        "num_fewshot": first.get_config("num_fewshot"),
        "limit": settings.limit,
        "guidance_scale": settings.guidance_scale,
        "seed": seed,
    }
    if task.part_field is not None:
        details["parts"] = len(loaded)
    if is_generated:
        details |= {name: getattr(settings, name) for name in ("block_length", "tokens_per_step")}
    else:
        details |= {name: getattr(settings, name) for name in ("mc_num", "masks", "controlled", "end")}
        details["exact_up_to"] = lm.likelihood.longest_exact
    counts = sum(lm.truncated.values(), Counter[str]())
    details |= {"requests": counts["requests"], "truncated_prompts": counts["truncated"]}
    for measured in task.metrics:
        values = np.array([float(sample[measured]) for sample in samples])
        pairs = [(value, 1.0) for value in values.tolist()]
        yield Result(metric_of(task, measured), ratio_score(values.tolist()), details, samples=pairs)


def _identity(rows: LocalRows, num_fewshot: int) -> dict[str, str]:
    """What local rows are known by; examples only if prompts have some of them."""
    files = {"file": rows.questions.name, "sha256": rows.sha256}
    if rows.examples_sha256 is not None and num_fewshot and rows.task.takes_shots:
        files["examples_sha256"] = rows.examples_sha256
    return files


def truthful_mass(doc: Mapping[str, Any], results: Sequence[tuple[float, bool]]) -> dict[str, float]:
    """MC2: the probability of the true answers among all. lm-eval's formula is 0 / 0 for log-likelihoods below -745."""
    nats = np.array([nats for nats, _ in results])
    mass = np.exp(nats - nats.max())
    return {"acc": float(mass[np.array(doc["mc2_targets"]["labels"]) == 1].sum() / mass.sum())}


def _line(error: BaseException) -> str:
    """The kind of an error and its first line."""
    text: Sequence[str] = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__


def _loud(progress: Progress) -> Progress:
    """Progress that is printed although lm-eval is silenced."""
    stderr = sys.stderr

    def printed(line: str) -> None:
        with redirect_stderr(stderr):
            progress(line)

    return printed


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence lm-eval, which reports on stderr in its own way."""
    logger = logging.getLogger("lm_eval")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.setLevel(before)

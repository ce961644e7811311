"""The ten text tasks of the paper in lm-evaluation-harness, from the hub or from local files.

    FOLDER/NAME.jsonl            questions: one JSON object per line, with the fields of the task's data set
    FOLDER/NAME.fewshot.jsonl    examples for few-shot prompts; only needed with `num_fewshot`

Prompts, answers and metrics are always lm-eval's: a task here is a YAML file that includes lm-eval's own, and may
replace where the rows come from. MMLU and BBH are many tasks in one file, told apart by a field of the rows.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from triptych.errors import DataError, UserError, did_you_mean, require

GROUP = "triptych_paper"
"""Name of all ten together, for lm-eval and for `--tasks`."""
TASK_FOLDER = Path(__file__).parents[2] / "assets" / "tasks"
"""The group as YAML, for lm-eval's own command line."""
_ROWS = "rows"


@dataclass(frozen=True)
class TextTask:
    """A task of lm-eval, or many of them under one name."""

    name: str
    title: str
    metrics: tuple[str, ...]
    """What lm-eval measures; the paper reports the last one."""
    yaml: str
    """lm-eval's file in its folder of tasks; {part} stands for the part of a task with several."""
    source: str
    """Data set on the hub."""
    fields: tuple[str, ...]
    """What a row needs."""
    part_field: str | None = None
    """The field that says which part a row belongs to."""
    takes_shots: bool = True
    """Whether the number of examples in the prompt can be chosen; otherwise the task has its own."""

    def lm_eval_name(self, part: str | None) -> str:
        """The name of a part in lm-eval."""
        prefix = {"mmlu": "mmlu_", "bbh": "bbh_cot_fewshot_"}
        return self.name if part is None else f"{prefix[self.name]}{part}"

    def parts(self) -> tuple[str, ...]:
        """All parts that lm-eval has; empty for a task without parts."""
        if self.part_field is None:
            return ()
        pattern = lm_eval_tasks() / self.yaml
        start, end = pattern.name.split("{part}")
        names = (path.name for path in sorted(pattern.parent.glob(f"{start}*{end}")))
        return tuple(name.removeprefix(start).removesuffix(end) for name in names if not name.startswith("_"))


_CHOICE = ("acc", "acc_norm")
_ALL = (
    TextTask(
        "openbookqa",
        "OpenBookQA",
        ("acc_norm", "acc"),
        "openbookqa/openbookqa.yaml",
        "allenai/openbookqa",
        ("question_stem", "choices", "answerKey"),
    ),
    TextTask(
        "truthfulqa_mc2",
        "TruthfulQA MC2",
        ("acc",),
        "truthfulqa/truthfulqa_mc2.yaml",
        "truthfulqa/truthful_qa",
        ("question", "mc2_targets"),
        takes_shots=False,
    ),
    TextTask(
        "bbh",
        "BBH",
        ("exact_match",),
        "bbh/cot_fewshot/{part}.yaml",
        "SaylorTwift/bbh",
        ("input", "target"),
        part_field="task",
        takes_shots=False,
    ),
    TextTask(
        "mmlu",
        "MMLU",
        ("acc",),
        "mmlu/default/mmlu_{part}.yaml",
        "cais/mmlu",
        ("question", "choices", "answer"),
        part_field="subject",
    ),
    TextTask(
        "winogrande",
        "WinoGrande",
        ("acc",),
        "winogrande/default.yaml",
        "allenai/winogrande",
        ("sentence", "option1", "option2", "answer"),
    ),
    TextTask(
        "arc_easy",
        "ARC-Easy",
        _CHOICE,
        "arc/arc_easy.yaml",
        "allenai/ai2_arc",
        ("question", "choices", "answerKey"),
    ),
    TextTask(
        "hellaswag",
        "HellaSwag",
        _CHOICE,
        "hellaswag/hellaswag.yaml",
        "Rowan/hellaswag",
        ("activity_label", "ctx_a", "ctx_b", "endings", "label"),
    ),
    TextTask(
        "logiqa2",
        "LogiQA2",
        _CHOICE,
        "logiqa2/logiqa2.yaml",
        "baber/logiqa2",
        ("text", "question", "options", "answer"),
    ),
    TextTask("piqa", "PIQA", _CHOICE, "piqa/piqa.yaml", "baber/piqa", ("goal", "sol1", "sol2", "label")),
    TextTask(
        "arc_challenge",
        "ARC-Challenge",
        _CHOICE,
        "arc/arc_challenge.yaml",
        "allenai/ai2_arc",
        ("question", "choices", "answerKey"),
    ),
)
TASKS: dict[str, TextTask] = {task.name: task for task in _ALL}
"""In the order of the paper's table."""


def chosen_tasks(names: Sequence[str]) -> list[TextTask]:
    """Tasks by their names; the name of the group stands for all ten."""
    if isinstance(names, str):
        raise UserError(f"tasks must be a list of names, got {names!r}.")
    wanted = [each for name in names for each in (TASKS if name == GROUP else [name])]
    for name in wanted:
        if name not in TASKS:
            raise UserError(f"unknown text task {name!r}.{did_you_mean(str(name), [*TASKS, GROUP])}")
    if not wanted:
        raise UserError(f"name at least one text task. Known: {', '.join(TASKS)}.")
    return [TASKS[name] for name in dict.fromkeys(wanted)]


@cache
def lm_eval_tasks() -> Path:
    """The folder of lm-eval's own tasks."""
    package = require("lm_eval", "lm-eval", "the evaluation on text")
    assert package.__file__ is not None
    return Path(package.__file__).parent / "tasks"


# -- local rows -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LocalRows:
    """The rows of one task in a folder, checked."""

    task: TextTask
    questions: Path
    examples: Path | None
    """For few-shot prompts."""
    parts: tuple[str, ...]
    """Parts with questions, in the order of lm-eval."""

    @property
    def sha256(self) -> str:
        """Of the questions."""
        with open(self.questions, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def find_rows(task: TextTask, data: Path, num_fewshot: int | None = None) -> LocalRows | None:
    """The rows of a task; None if its file is not there. Rows that do not fit the task are refused."""
    questions, examples = data / f"{task.name}.jsonl", data / f"{task.name}.fewshot.jsonl"
    if not questions.is_file():
        return None
    seen = set()
    for path in (questions, examples):
        if not path.is_file():
            continue
        parts_in_file = {_part_of(task, row, where) for row, where in read_rows(task, path)}
        if not parts_in_file:
            raise DataError(f"{path} has no rows.")
        seen |= parts_in_file if path == questions else set()
        if path == examples and task.part_field and num_fewshot and (lacking := sorted(seen - parts_in_file, key=str)):
            raise DataError(
                f"{path} has no examples for {', '.join(map(str, lacking))}: add some for every {task.part_field}."
            )
    shots = num_fewshot if task.takes_shots else None
    if shots and not examples.is_file():
        raise DataError(f"num_fewshot={shots} needs examples that are not asked: put rows into {examples}.")
    parts = tuple(part for part in task.parts() if part in seen)
    return LocalRows(task, questions, examples if examples.is_file() else None, parts)


def read_rows(task: TextTask, path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """Every row with its place, for messages."""
    fields = (*task.fields, *([task.part_field] if task.part_field else []))
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            where = f"line {number} of {path}"
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise DataError(f"{where} is not JSON ({error}).") from None
            lacking = [name for name in fields if not isinstance(row, dict) or name not in row]
            if lacking:
                raise DataError(
                    f"{where} lacks {', '.join(lacking)}: {task.title} needs a JSON object with {', '.join(fields)}."
                )
            yield row, where


def _part_of(task: TextTask, row: dict[str, Any], where: str) -> str | None:
    if task.part_field is None:
        return None
    part = row[task.part_field]
    if part not in task.parts():
        raise DataError(f"{where}: unknown {task.part_field} {part!r}.{did_you_mean(str(part), task.parts())}")
    return part


# -- YAML -------------------------------------------------------------------------------------------------------------


def write_yaml(
    task: TextTask, folder: Path, rows: LocalRows | None = None, num_fewshot: int | None = None
) -> list[str]:
    """Write the YAML files of a task into a folder that lm-eval can include; returns lm-eval's names of its parts.

    With `rows`, the questions come from there; their files must stay where they are.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts: Sequence[str | None] = (rows.parts if rows else task.parts()) or (None,)
    names = []
    for part in parts:
        name = task.lm_eval_name(part)
        config: dict[str, Any] = {"include": str(lm_eval_tasks() / task.yaml.format(part=part)), "task": name}
        if num_fewshot is not None and task.takes_shots:
            config["num_fewshot"] = num_fewshot
        if rows is not None:
            config |= _local_source(rows, part, folder)
        # JSON is YAML, whatever the names of files contain.
        (folder / f"{name}.yaml").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        names.append(name)
    return names


def write_group(name: str, members: Sequence[str], metrics: Sequence[str], folder: Path) -> None:
    """Write a group of lm-eval; `metrics` are averaged over all questions of its members."""
    config = {
        "group": name,
        "task": list(members),
        "aggregate_metric_list": [{"metric": metric, "weight_by_size": True} for metric in metrics],
        "metadata": {"version": 1.0},
    }
    (folder / f"{name}.yaml").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _local_source(rows: LocalRows, part: str | None, folder: Path) -> dict[str, Any]:
    """What replaces the data set of a task."""
    files = {"test": _rows_of(rows, rows.questions, part, folder)}
    if rows.examples is not None:
        files["fewshot"] = _rows_of(rows, rows.examples, part, folder)
    return {
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {
            "data_files": {split: str(path) for split, path in files.items()},
            "cache_dir": str(folder / "cache"),
        },
        "training_split": None,
        "validation_split": None,
        "test_split": "test",
        "fewshot_split": "fewshot" if "fewshot" in files else None,
    }


def _rows_of(rows: LocalRows, path: Path, part: str | None, folder: Path) -> Path:
    """A file with the rows of one part, and only with the fields of the task: rows may differ in others."""
    target = folder / _ROWS / f"{rows.task.lm_eval_name(part)}.{path.name}"
    target.parent.mkdir(exist_ok=True)
    kept = (
        {name: row[name] for name in rows.task.fields}
        for row, where in read_rows(rows.task, path)
        if _part_of(rows.task, row, where) == part
    )
    target.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
    return target.resolve()

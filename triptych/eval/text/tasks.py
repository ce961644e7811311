"""The ten text tasks of the paper in lm-evaluation-harness, from the hub or from local files.

    FOLDER/NAME.jsonl            questions: one JSON object per line, with the fields of the task's data set
    FOLDER/NAME.fewshot.jsonl    examples for few-shot prompts; only needed with `num_fewshot`

Prompts, answers and metrics are always lm-eval's: a task here is a YAML file that includes lm-eval's own, and may
replace where the rows come from. MMLU and BBH are many tasks in one file, told apart by a field of the rows.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeGuard

from triptych.errors import DataError, UserError, did_you_mean, require
from triptych.utils.json_files import parse_json

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
        return _parts_of(self.yaml)


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
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
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


@cache
def _parts_of(yaml: str) -> tuple[str, ...]:
    pattern = lm_eval_tasks() / yaml
    start, end = pattern.name.split("{part}")
    names = (path.name for path in sorted(pattern.parent.glob(f"{start}*{end}")))
    return tuple(name.removeprefix(start).removesuffix(end) for name in names if not name.startswith("_"))


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
        return _sha256(self.questions)

    @property
    def examples_sha256(self) -> str | None:
        """Of the examples for few-shot prompts."""
        return None if self.examples is None else _sha256(self.examples)


def _sha256(path: Path) -> str:
    """Of the file as it is now: it may be written again while the process runs."""
    with open(path, "rb") as file:
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
        parts_in_file = set()
        for row, where in read_rows(task, path):
            parts_in_file.add(_part_of(task, row, where))
            _check_row(task, row, where)
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
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            where = f"line {number} of {path}"
            if not line.strip():
                continue
            try:
                row = parse_json(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{where} is not UTF-8 (byte {error.start + 1}: {error.reason}): save the file as UTF-8."
                ) from None
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


# -- what lm-eval takes without a word, and judges wrongly ------------------------------------------------------------

_Problem = tuple[str, str] | None
"""A field, and what is wrong with it."""


def _check_row(task: TextTask, row: Mapping[str, Any], where: str) -> None:
    """Raise an error unless a row is a question with a right answer among its choices."""
    problem = _ROW_CHECKS[task.name](row)
    if problem is not None:
        field, expected = problem
        got = json.dumps(row[field], ensure_ascii=False)
        raise DataError(
            f"{where}, field {field}: {task.title} needs {expected}, got {got if len(got) < 80 else got[:77] + '...'}."
        )


def _not_texts(row: Mapping[str, Any], *fields: str) -> _Problem:
    bad = [name for name in fields if not isinstance(row[name], str)]
    return (bad[0], "a text") if bad else None


def _not_asked(row: Mapping[str, Any], *fields: str) -> _Problem:
    bad = [name for name in fields if not isinstance(row[name], str) or not row[name].strip()]
    return (bad[0], "a text that is not empty") if bad else None


def _are_texts(values: Any) -> TypeGuard[list[str]]:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _is_index(value: Any, count: int, *, may_be_text: bool = False) -> bool:
    """Whether this is a number from 0 to count - 1."""
    if may_be_text and isinstance(value, str):
        return value in map(str, range(count))
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < count


def _check_labelled(question: str) -> Callable[[Mapping[str, Any]], _Problem]:
    def check(row: Mapping[str, Any]) -> _Problem:
        choices, answer = row["choices"], row["answerKey"]
        texts, labels = (choices.get(name) if isinstance(choices, dict) else None for name in ("text", "label"))
        if not _are_texts(texts) or not _are_texts(labels) or len(texts) < 2:
            return "choices", "an object with lists text and label of at least 2 texts"
        if len(labels) != len(texts) or len(set(labels)) != len(labels):
            return "choices", "one label for each text, all different"
        if not isinstance(answer, str) or answer not in labels:
            return "answerKey", f"one of the labels {', '.join(labels)}"
        return _not_asked(row, question)

    return check


def _check_mmlu(row: Mapping[str, Any]) -> _Problem:
    if not _are_texts(row["choices"]) or len(row["choices"]) != 4:
        return "choices", "a list of 4 texts"
    if not _is_index(row["answer"], 4) and row["answer"] not in ("A", "B", "C", "D"):
        return "answer", "a number from 0 to 3 or a letter from A to D"
    return _not_asked(row, "question")


def _check_logiqa2(row: Mapping[str, Any]) -> _Problem:
    if not _are_texts(row["options"]) or not 2 <= len(row["options"]) <= 4:
        return "options", "a list of 2 to 4 texts"
    if not _is_index(row["answer"], len(row["options"]), may_be_text=True):
        return "answer", f"a number from 0 to {len(row['options']) - 1}, as there are options"
    return _not_texts(row, "text", "question")


def _check_hellaswag(row: Mapping[str, Any]) -> _Problem:
    if not _are_texts(row["endings"]) or len(row["endings"]) < 2:
        return "endings", "a list of at least 2 texts"
    if not _is_index(row["label"], len(row["endings"]), may_be_text=True):
        return "label", f"a number from 0 to {len(row['endings']) - 1}, as there are endings"
    return _not_texts(row, "activity_label", "ctx_a", "ctx_b")


def _check_piqa(row: Mapping[str, Any]) -> _Problem:
    if not _is_index(row["label"], 2):
        return "label", "the answer among its 2 choices, the number 0 or 1"
    return _not_asked(row, "goal", "sol1", "sol2")


def _check_winogrande(row: Mapping[str, Any]) -> _Problem:
    if row["answer"] not in ("1", "2"):
        return "answer", 'the text "1" or "2"'
    if not isinstance(row["sentence"], str) or "_" not in row["sentence"]:
        return "sentence", "a text with _ where an option goes"
    return _not_asked(row, "option1", "option2")


def _check_truthfulqa(row: Mapping[str, Any]) -> _Problem:
    targets = row["mc2_targets"]
    choices, labels = (targets.get(name) if isinstance(targets, dict) else None for name in ("choices", "labels"))
    if not _are_texts(choices) or not isinstance(labels, list) or len(choices) != len(labels):
        return "mc2_targets", "an object with lists choices and labels of equal length"
    if not all(_is_index(label, 2) for label in labels) or set(labels) != {0, 1}:
        return "mc2_targets", "labels 1 for true and 0 for false choices, and at least one of each"
    return _not_asked(row, "question")


_ROW_CHECKS: dict[str, Callable[[Mapping[str, Any]], _Problem]] = {
    "openbookqa": _check_labelled("question_stem"),
    "truthfulqa_mc2": _check_truthfulqa,
    "bbh": lambda row: _not_asked(row, "input", "target"),
    "mmlu": _check_mmlu,
    "winogrande": _check_winogrande,
    "arc_easy": _check_labelled("question"),
    "hellaswag": _check_hellaswag,
    "logiqa2": _check_logiqa2,
    "piqa": _check_piqa,
    "arc_challenge": _check_labelled("question"),
}


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
    files = _split_rows(rows, folder) if rows is not None else {}
    for part in parts:
        name = task.lm_eval_name(part)
        config: dict[str, Any] = {"include": str(lm_eval_tasks() / task.yaml.format(part=part)), "task": name}
        if num_fewshot is not None and task.takes_shots:
            config["num_fewshot"] = num_fewshot
        if rows is not None:
            config |= _local_source({split: paths[part] for split, paths in files.items()}, folder)
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


def _local_source(files: Mapping[str, Path], folder: Path) -> dict[str, Any]:
    """What replaces the data set of a task."""
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


def _split_rows(rows: LocalRows, folder: Path) -> dict[str, dict[str | None, Path]]:
    """Files with the rows of each part, by split, and only with the fields of the task: rows may differ in others."""
    (folder / _ROWS).mkdir(exist_ok=True)
    files: dict[str, dict[str | None, Path]] = {}
    for split, path in (("test", rows.questions), ("fewshot", rows.examples)):
        if path is None:
            continue
        lines: dict[str | None, list[str]] = {part: [] for part in rows.parts or (None,)}
        for row, where in read_rows(rows.task, path):
            part = _part_of(rows.task, row, where)
            if part in lines:  # examples may be of more parts than questions
                lines[part].append(json.dumps({name: row[name] for name in rows.task.fields}) + "\n")
        files[split] = {}
        for part, own in lines.items():
            target = folder / _ROWS / f"{rows.task.lm_eval_name(part)}.{path.name}"
            target.write_text("".join(own), encoding="utf-8")
            files[split][part] = target.resolve()
    return files

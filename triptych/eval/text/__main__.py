"""lm-evaluation-harness with the model "triptych" and the group of tasks "triptych_paper". All options are lm-eval's:

    python -m triptych.eval.text --model_args pretrained=runs/mine,mc_num=128 --tasks triptych_paper --limit 100
    python -m triptych.eval.text --model_args pretrained=scenes --tasks arc_easy,piqa --data questions/

Two options are ours. With `--data FOLDER` the tasks read FOLDER/NAME.jsonl instead of the hub. `--write-tasks FOLDER`
writes the tasks for lm-eval's own command, and prints it.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from triptych.errors import DataError, UserError, require
from triptych.eval.text.tasks import GROUP, TASK_FOLDER, TASKS, find_rows, write_group, write_yaml

_DEFAULTS = {"--model": "triptych", "--batch_size": "auto"}
_SHORT = {"--model": "-M", "--batch_size": "-b"}
_MODEL_FILE = "triptych_model.yaml"


def main(argv: Sequence[str] | None = None) -> None:
    """Run lm-eval's command line with the model registered."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--write-tasks", type=Path)
    own, options = parser.parse_known_args(argv)
    require("lm_eval", "lm-eval", "the evaluation on text")
    if own.write_tasks is not None:
        folder = write_tasks(own.write_tasks, own.data).resolve()
        print(
            f"lm_eval --include_path {folder} --model triptych --model_args pretrained=MODEL --batch_size auto "
            f"--tasks {GROUP},{folder / _MODEL_FILE}"
        )
        return
    from lm_eval.__main__ import cli_evaluate

    import triptych.eval.text.harness  # noqa: F401 (registers the model)

    with tempfile.TemporaryDirectory() as scratch:
        tasks = write_tasks(Path(scratch), own.data)
        if options and options[0] not in ("ls", "validate"):
            for name, value in _DEFAULTS.items():
                if not any(option.partition("=")[0] in (name, _SHORT[name]) for option in options):
                    options += [name, value]
            if not any(option.partition("=")[0] == "--include_path" for option in options):
                options += ["--include_path", str(tasks)]
        before, sys.argv = sys.argv, ["lm_eval", *options]
        try:
            cli_evaluate()
        finally:
            sys.argv = before


def write_tasks(folder: Path, data: Path | None = None) -> Path:
    """Write a folder that lm-eval can include: the group, and with `data` the tasks that have rows there."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(TASK_FOLDER / _MODEL_FILE, folder / _MODEL_FILE)
    if data is None:
        shutil.copyfile(TASK_FOLDER / f"{GROUP}.yaml", folder / f"{GROUP}.yaml")
        return folder
    if not data.is_dir():
        raise DataError(f"the data {data} are not a folder. It has a file NAME.jsonl for each task.")
    members = []
    for task in TASKS.values():
        rows = find_rows(task, data)
        if rows is None:
            continue
        names = write_yaml(task, folder, rows)
        if task.part_field is not None:
            write_group(task.name, names, task.metrics, folder)
        members.append(task.name)
    if not members:
        raise DataError(f"{data} has no rows for any task; expected {', '.join(f'{name}.jsonl' for name in TASKS)}.")
    write_group(GROUP, members, (), folder)
    return folder


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        print(f"triptych: {error}", file=sys.stderr)
        sys.exit(error.exit_code)

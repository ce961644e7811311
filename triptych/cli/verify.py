"""`triptych verify`: look for damage, whatever a folder holds."""

import argparse
from pathlib import Path

from triptych.cli.command import DATA, Command
from triptych.errors import CheckpointError, UserError


def _describe(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Compare every file of datasets, runs, checkpoints and saved models with the checksums that were written. Nothing is
changed.

examples:
  triptych verify data/scenes                     all datasets below a folder
  triptych verify runs/scenes                     all checkpoints of a run
  triptych verify runs/scenes/checkpoints/step-00001000
  triptych verify models/scenes                   a saved model

exit codes: 0 intact, 2 wrong argument, 3 damaged data, 4 damaged checkpoint or model"""
    parser.add_argument("folders", nargs="+", metavar="FOLDER", type=Path)


def _run(args: argparse.Namespace) -> None:
    damaged: list[UserError] = []
    for folder in args.folders:
        if not folder.is_dir():
            raise UserError(f"no such folder: {folder}")
        try:
            _verify(folder)
        except UserError as error:  # the other folders are checked all the same
            damaged.append(error)
    if damaged:
        raise type(damaged[0])("\n".join(map(str, damaged)))


def _verify(folder: Path) -> None:
    if (folder / "checkpoints").is_dir():
        folder = folder / "checkpoints"
    if folder.name == "checkpoints" or (folder / "state.json").exists() or folder.name.startswith("step-"):
        _verify_checkpoints(folder)
    elif (folder / "config.json").exists() and (folder / "model.safetensors").exists():
        from triptych.hub.format import read_model

        read_model(folder)
        print(f"{folder}: a saved model, intact")
    else:
        from rich.console import Console

        from triptych.data.show import find_datasets, verify

        verify(find_datasets([folder]), Console())


def _verify_checkpoints(folder: Path) -> None:
    from triptych.training.checkpoint import list_checkpoints, verify

    checkpoints = list_checkpoints(folder) if folder.name == "checkpoints" else [folder]
    if not checkpoints:
        raise CheckpointError(f"{folder} holds no checkpoint.")
    problems = []
    for path in checkpoints:
        try:
            verify(path)
            print(f"{path}: intact", flush=True)
        except CheckpointError as error:
            problems.append(str(error))
            print(f"{path}: damaged", flush=True)
    if problems:
        raise CheckpointError(
            "\n  ".join(["damaged checkpoints:", *problems])
            + "\nTraining sets them aside and resumes from the newest intact one."
        )


COMMANDS = {"verify": Command("check datasets, checkpoints and models for damage", _describe, _run, DATA)}

"""The verb that looks for damage, whatever a folder holds."""

import argparse
from pathlib import Path

from triptych.cli.command import Command
from triptych.errors import CheckpointError, UserError


def _describe(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Compare every file of data sets, runs, checkpoints and saved models with what was written. Nothing is changed.

examples:
  triptych verify data/scenes                     all data sets below a folder
  triptych verify runs/scenes                     all checkpoints of a run
  triptych verify runs/scenes/checkpoints/step-00001000
  triptych verify models/scenes                   a saved model

exit codes: 3 for damaged data, 4 for damaged checkpoints and models"""
    parser.add_argument("folders", nargs="+", metavar="FOLDER", type=Path)


def _run(args: argparse.Namespace) -> None:
    damaged: list[UserError] = []
    for folder in args.folders:
        if not folder.is_dir():
            raise UserError(f"no such folder: {folder}")
        try:
            _verify(folder)
        except UserError as error:  # the other folders are looked at all the same
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

    found = list_checkpoints(folder) if folder.name == "checkpoints" else [folder]
    if not found:
        raise CheckpointError(f"{folder} holds no checkpoint.")
    bad = []
    for path in found:
        try:
            verify(path)
        except CheckpointError as error:
            bad.append(str(error))
        print(f"{path}: {'damaged' if bad and bad[-1].startswith(str(path)) else 'intact'}", flush=True)
    if bad:
        raise CheckpointError(
            "\n  ".join(["damaged checkpoints:", *bad]) + "\nTraining sets them aside and uses the one before."
        )


COMMANDS = {"verify": Command("check data sets, checkpoints and models for damage", _describe, _run)}

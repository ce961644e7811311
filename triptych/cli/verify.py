"""`triptych verify`: look for damage, whatever a folder holds."""

import argparse
from pathlib import Path

from triptych.cli.command import DATA, Command
from triptych.errors import CheckpointError, UserError
from triptych.utils.terminal import say


def _describe(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Compare every file of datasets, runs, checkpoints, tokenizers and saved models with the checksums that were written, and
look for contents that cannot be used. Nothing is changed, except by --update.

examples:
  triptych verify data/scenes                     all datasets below a folder
  triptych verify runs/scenes                     all checkpoints of a run
  triptych verify runs/scenes/checkpoints/step-00001000
  triptych verify models/scenes                   a saved model
  triptych verify scenes                          the built-in model
  triptych verify models/scenes --update          accept the files of a model as they are, after an edit by hand

exit codes: 0 intact, 2 wrong argument, 3 damaged data, 4 damaged checkpoint or model"""
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="a folder, or the name of a built-in model")
    parser.add_argument(
        "--update", action="store_true", help="write new checksums of saved models and tokenizers that can be used"
    )


def _run(args: argparse.Namespace) -> None:
    from triptych.hub.source import BUILTIN_MODELS

    damaged: list[UserError] = []
    for name in args.folders:
        folder = BUILTIN_MODELS.get(name, Path(name))
        if not folder.is_dir():
            raise UserError(f"no such folder: {name}")
        try:
            if args.update:
                _update(name, folder)
            else:
                _verify(name, folder)
        except UserError as error:  # the other folders are checked all the same
            damaged.append(error)
    if damaged:
        raise type(damaged[0])("\n  ".join(map(str, damaged)))


def _verify(name: str, folder: Path) -> None:
    if (folder / "checkpoints").is_dir():
        folder = folder / "checkpoints"
    if folder.name == "checkpoints" or (folder / "state.json").exists() or folder.name.startswith("step-"):
        _verify_checkpoints(folder)
    elif _is_model(folder):
        _verify_model(name, folder)
    elif _is_bundle(folder):
        from triptych.tokenizers.bundle import TokenizerBundle

        TokenizerBundle.load(folder).verify()
        say(f"{name}: tokenizers, intact")
    else:
        from triptych.data.show import find_datasets, verify

        verify(find_datasets([folder]))


def _is_model(folder: Path) -> bool:
    # A folder with one of the two is a damaged model; the configuration of an image tokenizer has another name beside.
    return (folder / "model.safetensors").exists() or ((folder / "config.json").exists() and not _is_bundle(folder))


def _is_bundle(folder: Path) -> bool:
    return (folder / "vocab.json").exists()


def _verify_model(name: str, folder: Path) -> None:
    from triptych.hub.format import read_config, verify_model
    from triptych.hub.integrity import has_checksums

    notes = verify_model(folder)
    if has_checksums(read_config(folder)):
        say("; ".join([f"{name}: a saved model, intact", *notes]))
    else:
        say(
            f"{name}: a saved model without checksums, as earlier versions wrote it. Its parts fit together, but other "
            "damage cannot be noticed; --update adds checksums."
        )


def _update(name: str, folder: Path) -> None:
    if _is_model(folder):
        from triptych.hub.format import accept_files

        accept_files(folder)
    elif _is_bundle(folder):
        from triptych.tokenizers.bundle import write_bundle_checksums

        write_bundle_checksums(folder)
    else:
        raise UserError(f"{name} is no saved model and holds no tokenizers; --update is for these.")
    say(f"{name}: checksums written")


def _verify_checkpoints(folder: Path) -> None:
    from triptych.training.checkpoint import list_checkpoints, verify

    checkpoints = list_checkpoints(folder) if folder.name == "checkpoints" else [folder]
    if not checkpoints:
        raise CheckpointError(f"{folder} holds no checkpoint.")
    problems = []
    for path in checkpoints:
        try:
            verify(path)
            say(f"{path}: intact")
        except CheckpointError as error:
            problems.append(str(error))
            say(f"{path}: damaged")
    if problems:
        raise CheckpointError(
            "\n  ".join(["damaged checkpoints:", *problems])
            + "\n  Training sets them aside and resumes from the newest intact one."
        )


COMMANDS = {"verify": Command("check datasets, checkpoints and models for damage", _describe, _run, DATA)}

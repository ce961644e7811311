"""Recipes: functions that return a `RunConfig`, found by name or in a file."""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from triptych.data.shards import find_dataset_folders
from triptych.errors import UserError, did_you_mean
from triptych.recipes import paper, proxy, scenes
from triptych.recipes.own import REPLAY, REPLAY_SHARE, fine_tuned, own, with_replay
from triptych.training.config import RunConfig
from triptych.utils.arguments import shown
from triptych.utils.config import override
from triptych.utils.legacy import RENAMED_RECIPES

OWN = "own"

RECIPES: dict[str, Callable[[], RunConfig]] = {
    "scenes": scenes.scenes,
    "scenes_full": scenes.scenes_full,
    "nano": scenes.nano,
    "proxy": proxy.proxy,
    "paper_base": paper.paper_base,
    "paper_3b": paper.paper_3b,
}


def recipe(name: str) -> RunConfig:
    """The configuration of a recipe; `aspect_N` is the paper's model with N layers and width 128 N."""
    name = RENAMED_RECIPES.get(name, name)
    if name in RECIPES:
        return RECIPES[name]()
    prefix, _, layers = name.partition("aspect_")
    if not prefix and layers.isdecimal() and len(layers) <= 4 and int(layers):
        return paper.fixed_aspect(int(layers))
    raise UserError(f"unknown recipe {shown(name)}.{did_you_mean(name, [OWN, *RECIPES, 'aspect_8'])}")


def configure(name: str, changes: Sequence[str] = ()) -> RunConfig:
    """The configuration of a recipe with changes: a name, `own` for anyone's data, or a Python file.

    A file defines `recipe()`, which returns a `RunConfig`. A folder of data may hold several datasets.
    """
    if name.endswith(".py"):
        base = _from_file(Path(name))
    elif name == OWN:
        given = dict(change.partition("=")[::2] for change in changes)
        changes = [change for change in changes if change.partition("=")[0] not in (REPLAY, REPLAY_SHARE)]
        held_apart = find_dataset_folders(_listed(given.get("validation_data", "")))
        replay = _without(find_dataset_folders(_listed(given.get(REPLAY, ""))), held_apart)
        folders = _without(find_dataset_folders(_listed(given.get("data", ""))), held_apart)
        base = own((*folders, *replay) if folders else (), given.get("tokenizers"), given.get("loader.seq_len"))
        if given.get("init_from", "none") != "none":
            base = fine_tuned(base, given["init_from"])
    else:
        base = recipe(name)
    if name != OWN:
        return changed(base, changes)
    config = override(base, changes)
    if config.validation_data and not any(change.startswith("loader.held_out=") for change in changes):
        config = replace(config, loader=replace(config.loader, held_out=0.0))
    return with_replay(_with_datasets(config), replay, given.get(REPLAY_SHARE))


def changed(base: RunConfig, changes: Sequence[str]) -> RunConfig:
    """A configuration with changes, in which a folder may hold several datasets."""
    return _with_datasets(override(base, changes))


def _with_datasets(config: RunConfig) -> RunConfig:
    validation = find_dataset_folders(config.validation_data)
    return replace(config, data=_without(find_dataset_folders(config.data), validation), validation_data=validation)


def _listed(text: str) -> list[str]:
    return [] if text.lower() == "none" else [name for name in text.split(",") if name]


def _without(folders: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    """A folder of data may hold a folder of validation data, which is not trained on."""
    resolved = {Path(other).resolve() for other in others}
    return tuple(folder for folder in folders if Path(folder).resolve() not in resolved)


def _from_file(path: Path) -> RunConfig:
    if not path.is_file():
        raise UserError(f"no such recipe file: {path}.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(f"{path} cannot be run ({type(error).__name__}: {error}).") from error
    function = getattr(module, "recipe", None)
    try:
        config = function() if callable(function) else None
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"recipe() of {path} failed ({type(error).__name__}: {error}).") from error
    if not isinstance(config, RunConfig):
        raise UserError(f"{path} must define recipe(), which returns a RunConfig (docs/configuration.md).")
    return config

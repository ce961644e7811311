"""Recipes: functions that return a `RunConfig`, found by name."""

from collections.abc import Callable

from triptych.errors import UserError, did_you_mean
from triptych.recipes import paper, proxy, scenes
from triptych.training.config import RunConfig
from triptych.utils.legacy import RENAMED_RECIPES

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
    if not prefix and layers.isdecimal() and int(layers):
        return paper.fixed_aspect(int(layers))
    raise UserError(f"unknown recipe {name!r}.{did_you_mean(name, [*RECIPES, 'aspect_8'])}")

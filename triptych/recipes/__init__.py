"""Recipes: functions that return a `RunConfig`, by name."""

from collections.abc import Callable

from triptych.errors import UserError, did_you_mean
from triptych.recipes.family import family
from triptych.recipes.paper import fixed_aspect, paper_3b, paper_base
from triptych.recipes.scenes import nano, scenes
from triptych.train.config import RunConfig

RECIPES: dict[str, Callable[[], RunConfig]] = {
    "scenes": scenes,
    "nano": nano,
    "family": family,
    "paper_base": paper_base,
    "paper_3b": paper_3b,
}


def recipe(name: str) -> RunConfig:
    """The run of that name; `aspect_N` is the model of N layers and width 128 N."""
    if name in RECIPES:
        return RECIPES[name]()
    kind, _, number = name.partition("aspect_")
    if not kind and number.isdecimal() and int(number):
        return fixed_aspect(int(number))
    raise UserError(f"unknown recipe {name!r}.{did_you_mean(name, [*RECIPES, 'aspect_8'])}")

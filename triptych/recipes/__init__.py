"""Recipes: functions that return a `RunConfig`, by name."""

from collections.abc import Callable

from triptych.errors import UserError, did_you_mean
from triptych.recipes.paper import fixed_aspect, paper_3b, paper_base
from triptych.recipes.proxy import HEAD_WIDTH, by_module, family, of_width
from triptych.recipes.scenes import nano, scenes
from triptych.training.config import RunConfig

RECIPES: dict[str, Callable[[], RunConfig]] = {
    "scenes": scenes,
    "nano": nano,
    "family": family,
    "paper_base": paper_base,
    "paper_3b": paper_3b,
}

_MOST_LAYERS, _MOST_WIDTH = 96, 768  # of families: width 12,288, and as much as a CPU bears


def recipe(name: str) -> RunConfig:
    """The run of that name; `aspect_N` is the model of N layers and width 128 N."""
    if name in RECIPES:
        return RECIPES[name]()
    kind, _, number = name.partition("aspect_")
    if not kind and number.isdecimal() and int(number):
        return fixed_aspect(int(number))
    raise UserError(f"unknown recipe {name!r}.{did_you_mean(name, [*RECIPES, 'aspect_8'])}")


def family_of(name: str) -> list[RunConfig]:
    """The models of one aspect that a recipe belongs to, the smallest first; `recipe` of each is what it changes.

    What the paper tuned at 8 x 1024 or what was found at 2 x 64 on a CPU is carried to all of them.
    """
    if recipe(name).tokenizers == "paper":
        return [fixed_aspect(layers) for layers in range(1, _MOST_LAYERS + 1)]
    return [of_width(by_module(), width) for width in range(HEAD_WIDTH, _MOST_WIDTH + 1, HEAD_WIDTH)]

"""The shape of the package: imports point one way, and a light import stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import triptych

ROOT = Path(triptych.__file__).parent
# Modules that stand lower or higher than the rest of their package, and the part they belong to.
APART = {
    "cli.args": "cli.args",
    **{
        f"hub.{name}": "pipeline"
        for name in (
            "base",
            "boxes",
            "checker",
            "directions",
            "format",
            "input_checks",
            "inputs",
            "integrity",
            "items",
            "keywords",
            "load",
            "measures",
            "pipeline",
            "readers",
            "requests",
            "source",
            "surprise",
            "voices",
            "weights",
            "words",
        )
    },
    "recipes.scenes": "recipes.scenes",
    "eval.evaluate": "evaluate function",
    "training.run": "train function",
    "training.tensorboard": "train function",
}
# What each part may import from the package, besides itself. Data flows down this table.
_BASE = {"errors", "utils", "vocab"}
_CORE = {*_BASE, "tokenizers", "data", "diffusion", "model", "transfer", "sample", "pipeline", "training"}
MAY_IMPORT = {
    # core: what anyone with data needs
    "errors": set(),
    "utils": {"errors"},
    "vocab": {"errors", "utils"},
    "tokenizers": _BASE,
    "data": {*_BASE, "tokenizers"},
    "diffusion": {*_BASE, "data"},
    "model": {*_BASE, "data"},
    "transfer": {*_BASE, "model"},
    "sample": {*_BASE, "data", "diffusion"},
    "pipeline": {*_BASE, "data", "tokenizers", "model", "sample", "hub"},  # hub: runs are read by a late import
    "training": _CORE,
    "train function": {*_CORE, "recipes"},  # recipes are looked up by a late import
    "recipes": {*_CORE, "recipes.scenes"},
    "hub": {*_CORE, "recipes"},
    "plan": _CORE,
    "eval": {*_BASE, "tokenizers", "data", "model", "sample", "pipeline"},
    "evaluate function": {*_BASE, "eval", "pipeline", "scenes", "training"},  # of all suites, the toy dataset's too
    # lab
    "scaling": {*_CORE, "recipes", "plan"},
    "studies": {*_CORE, "cli.args", "recipes", "scaling", "plan", "eval", "evaluate function"},
    # the toy dataset
    "scenes": {*_CORE, "train function", "recipes", "hub", "eval"},
    "recipes.scenes": {*_CORE, "recipes", "scenes"},
    "serve": {*_BASE, "tokenizers", "model", "sample", "pipeline"},
}
CORE = [part for part in list(MAY_IMPORT)[: list(MAY_IMPORT).index("scaling")] if part != "recipes"]
EVERYTHING = set(MAY_IMPORT)
MAY_IMPORT |= {
    "cli.args": {"errors"},
    "cli": {*EVERYTHING, "cli.args"},
    "__main__": {"cli"},
    "__init__": EVERYTHING,  # the public names, imported when they are used
}


def part_of(name: str) -> str:
    """The part that a module belongs to, by its dotted name below the package."""
    first, _, rest = name.partition(".")
    return APART.get(f"{first}.{rest.partition('.')[0]}", first)


def parts_imported(path: Path) -> set[str]:
    parts = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        parts |= {part_of(name.removeprefix("triptych.")) for name in names if name.startswith("triptych.")}
    return parts


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path):
    part = part_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
    assert part in MAY_IMPORT, f"{part} is not in the table of this test: where does it stand?"
    assert parts_imported(path) <= MAY_IMPORT[part] | {part}


@pytest.mark.parametrize(
    "module", ["triptych.cli.main", "triptych.vocab", "triptych.tokenizers.text", "triptych.data.shards"]
)
def test_light_modules_do_not_import_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_relative_imports_are_not_used():
    for path in ROOT.rglob("*.py"):
        assert not [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ImportFrom) and n.level], path

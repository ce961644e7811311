"""The shape of the package: imports point one way, and a light import stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import triptych

ROOT = Path(triptych.__file__).parent
# What each part may import from the package, besides itself; a part is a package, or a module of one that stands apart
# from the rest of it. Data flows down this table.
_BASE = {"errors", "utils", "vocab"}
_CORE = {*_BASE, "tokenizers", "data", "diffusion", "model", "transfer", "hub.format", "training"}
MAY_IMPORT = {
    "errors": set(),
    "cli.args": {"errors"},
    "utils": {"errors"},
    "utils.media": {"errors", "tokenizers", "data"},
    "vocab": {"errors"},
    "tokenizers": _BASE,
    "data": {*_BASE, "tokenizers"},
    "diffusion": {*_BASE, "data"},
    "model": {*_BASE, "data"},
    "transfer": {*_BASE, "model"},
    "sample": {*_BASE, "data", "diffusion"},
    "hub.format": {*_BASE, "data", "tokenizers", "model"},
    "hub.pipeline": {*_BASE, "tokenizers", "model", "sample", "hub.format"},
    "training": {*_CORE},
    "training.tensorboard": {*_CORE, "hub", "hub.pipeline"},
    "recipes": _CORE,
    "hub": {*_CORE, "recipes", "hub.format", "hub.pipeline", "scenes"},
    "plan": {*_CORE, "recipes", "scaling"},
    "scaling": {*_CORE, "recipes", "plan"},
    "studies": {*_CORE, "cli.args", "recipes", "scaling", "plan"},
    "eval": {*_BASE, "tokenizers", "data", "hub.pipeline"},
    "scenes": {*_CORE, "recipes", "sample", "hub.pipeline", "eval"},
    "cli": set(),  # filled below: commands may use everything
    "__main__": {"cli"},
    "__init__": set(),
}
MAY_IMPORT["cli"] = set(MAY_IMPORT) - {"__main__", "__init__"}


def part_of(name: str) -> str:
    """The longest name in the table that a module's dotted name begins with."""
    parts = name.split(".")
    return next((key for n in (2, 1) if (key := ".".join(parts[:n])) in MAY_IMPORT), parts[0])


def parts_imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {part_of(name.removeprefix("triptych.")) for name in names if name.startswith("triptych.")}
    return found


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

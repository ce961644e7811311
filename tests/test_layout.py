"""The shape of the package: imports point one way, and a light import stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import triptych

ROOT = Path(triptych.__file__).parent
# What each part may import from the package, besides itself. Data flows down this table.
MAY_IMPORT = {
    "errors": set(),
    "arguments": set(),
    "trials": {"errors"},
    "vocab": {"errors"},
    "tokenizers": {"errors", "vocab"},
    "data": {"errors", "vocab", "tokenizers"},
    "diffusion": {"errors", "vocab", "data"},
    "model": {"errors", "vocab", "data"},
    "transfer": {"errors", "model"},
    "train": {"errors", "vocab", "tokenizers", "data", "diffusion", "model", "transfer", "saved"},
    "recipes": {"errors", "data", "diffusion", "model", "transfer", "train"},
    "figure": {"errors"},
    "scaling": {"errors", "trials", "vocab", "tokenizers", "data", "model", "train", "recipes", "figure"},
    "studies": {
        "errors",
        "arguments",
        "trials",
        "vocab",
        "tokenizers",
        "data",
        "model",
        "transfer",
        "train",
        "recipes",
        "scaling",
        "figure",
    },
    "sample": {"errors", "vocab", "data", "diffusion"},
    "files": {"errors", "tokenizers", "data"},
    "saved": {"data", "errors", "vocab", "tokenizers", "model"},
    "pipeline": {"errors", "vocab", "tokenizers", "model", "sample", "saved"},
    "board": {"errors", "tokenizers", "model", "train", "pipeline", "export"},
    "scenes": {"errors", "vocab", "tokenizers", "data"},
    "export": {"errors", "tokenizers", "model", "train", "recipes", "scenes", "saved", "pipeline"},
    "eval": {"errors", "vocab", "tokenizers", "data", "scenes", "pipeline"},
    "report": {"tokenizers"},
    "demo": {"vocab", "tokenizers", "scenes", "eval", "recipes", "train", "pipeline", "report"},
    "plan": {"errors", "vocab", "data", "model", "train", "scaling"},
    "verbs": set(),  # filled below: they may use everything
    "cli": {"errors", "verbs"},
    "__main__": {"cli"},
    "__init__": set(),
}
MAY_IMPORT["verbs"] = set(MAY_IMPORT) - {"cli", "__main__", "__init__"}


def parts_imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = (
                [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "triptych" else [node.module]
            )
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("triptych.")}
    return found


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path):
    part = path.relative_to(ROOT).parts[0].removesuffix(".py")
    assert part in MAY_IMPORT, f"{part} is not in the table of this test: where does it stand?"
    assert parts_imported(path) <= MAY_IMPORT[part] | {part}


@pytest.mark.parametrize(
    "module", ["triptych.cli", "triptych.vocab", "triptych.tokenizers.text", "triptych.data.shards"]
)
def test_light_modules_do_not_import_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_relative_imports_are_not_used():
    for path in ROOT.rglob("*.py"):
        assert not [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ImportFrom) and n.level], path

"""What the documents say exists: every command parses, every link leads somewhere."""

import re
import shlex
from pathlib import Path

import pytest

from triptych.cli.main import parse

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def commands():
    for document in DOCUMENTS:
        for block in re.findall(r"^```\w*\n(.*?)^```", document.read_text(), flags=re.DOTALL | re.MULTILINE):
            for line in block.replace("\\\n", " ").splitlines():
                if line.startswith("triptych "):
                    yield pytest.param(line, id=f"{document.name}: {line[:50]}")


@pytest.mark.parametrize("line", commands())
def test_commands_parse(line):
    words = shlex.split(line, comments=True)[1:]
    if "INPUT" not in words:  # a form, not an example
        parse(words)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text()):
        if "://" not in link:
            assert (document.parent / link).exists(), link


def test_make_targets_named_in_the_readme_exist():
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = set(re.findall(r"\bmake (\w+) ", (ROOT / "README.md").read_text() + (ROOT / "CONTRIBUTING.md").read_text()))
    assert {"demo", "test"} <= named <= targets


def test_every_fault_names_tests_that_exist():
    rows = re.findall(r"^\| (\d+) \|.*\| (`.*`) \|$", (ROOT / "docs" / "faults.md").read_text(), flags=re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 29))
    for number, tests in rows:
        for file, name in re.findall(r"`(\w+\.py)::(\w+)`", tests):
            (path,) = (ROOT / "tests").rglob(file)
            assert f"def {name}(" in path.read_text(), f"{number}: {file}::{name}"

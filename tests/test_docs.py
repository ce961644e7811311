"""Documentation: commands parse, links, anchors and paths exist, examples run, and the site builds without warnings."""

import ast
import importlib
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from triptych.cli.main import COMMANDS, parse, parser_of

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "studies").rglob("*.md")),
]
SCRIPTS = [*sorted((ROOT / "examples").glob("*.sh")), *sorted((ROOT / "launch").glob("*.sh"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def name_of(path):
    return str(path.relative_to(ROOT))


def blocks(page, language=None):
    """Code blocks of a page."""
    return [code for kind, code in FENCE.findall(page.read_text()) if language in (None, kind)]


def prose(page):
    """A page without its code blocks."""
    return FENCE.sub("", page.read_text())


# -- commands ---------------------------------------------------------------------------------------------------------


def with_defaults(script):
    """A shell script with the default numbers of its variables in their places: STEPS=${STEPS:-2000}."""
    for name, number in re.findall(r"^(\w+)=\$\{\1:-([\d.]+)\}", script, re.MULTILINE):
        script = script.replace(f"${name}", number)
    return re.sub(r"\$\(\(.*?\)\)\)?", "1", script)  # sums of them


def commands():
    texts = [(page, "\n".join(blocks(page))) for page in PAGES]
    texts += [(script, with_defaults(script.read_text())) for script in SCRIPTS]
    for path, text in texts:
        for line in text.replace("\\\n", " ").splitlines():
            if line.startswith("triptych "):
                yield pytest.param(line, id=f"{name_of(path)}: {line[:50]}")


@pytest.mark.parametrize("line", commands())
def test_commands_parse(line):
    words = shlex.split(line, comments=True)[1:]
    if "INPUT" not in words:  # a form, not an example
        parse(words)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_in_prose_and_their_options_exist(page):
    for code in re.findall(r"`triptych ([^`]+)`", prose(page)):
        words = code.split()
        if words[0].startswith("-"):  # triptych --help
            continue
        name = next((name for name in (" ".join(words[:2]), words[0]) if name in COMMANDS), None)
        if name is None:
            assert any(command.startswith(f"{words[0]} ") for command in COMMANDS), code
            assert len(words) == 1 or words[1].isupper() or words[1].startswith(("-", "...")), code
            continue
        known = {option for action in parser_of(name)._actions for option in action.option_strings}
        assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known, code


def test_make_targets_exist():
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = {target for page in PAGES for target in re.findall(r"(?:`|^)make (\w+)", page.read_text(), re.MULTILINE)}
    assert {"demo", "test", "docs"} <= named <= targets


# -- links and paths --------------------------------------------------------------------------------------------------


def anchors(page):
    """Anchors of a page's headings, as GitHub makes them."""
    slugs = []
    for heading in re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        slugs.append(f"{slug}-{slugs.count(slug)}" if slug in slugs else slug)
    return slugs


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_and_anchors_exist(page):
    text = prose(page)
    links = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'\b(?:href|src|srcset)="([^"]+)"', text)
    for link in links:
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), f"{link}: the anchors are {anchors(target)}"


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/paper-map.md"])
def test_named_files_exist(page):
    """Paths in code spans are relative to the repository, to triptych/, or to the folder of the path named before."""
    folder = ROOT
    for path in re.findall(r"`([\w\-./]+(?:\.(?:py|md|yml|toml|sh|txt)|/))`", prose(ROOT / page)):
        places = [ROOT / path, ROOT / "triptych" / path, folder / path]
        exists = [place for place in places if place.exists()]
        assert exists, path
        folder = exists[0] if exists[0].is_dir() else exists[0].parent


def test_every_decision_is_listed_with_its_title():
    folder = ROOT / "docs" / "decisions"
    titles = {path.name: path.read_text().splitlines()[0] for path in sorted(folder.glob("0*.md"))}
    listed = re.findall(r"^(\d+\. )\[(.+)\]\((\S+)\)$", (folder / "README.md").read_text(), flags=re.MULTILINE)
    assert {file: f"# {number}{title}" for number, title, file in listed} == titles


def test_every_fault_names_tests_that_exist():
    page = (ROOT / "docs" / "faults.md").read_text()
    rows = re.findall(r"^\| (\d+) \|.*\| (`.*`) \|$", page, flags=re.MULTILINE)
    assert [int(number) for number, _ in rows] == [*range(1, 29), *range(46, 51)]  # those between: docs/serving.md
    hardened = re.findall(r"^\| (H\d+) \|.*\| (`.*`) \|$", page, flags=re.MULTILINE)
    assert [number for number, _ in hardened] == [f"H{number}" for number in range(1, len(hardened) + 1)]
    assert len(hardened) > 20
    for number, tests in rows + hardened:
        for file, name in re.findall(r"`(\w+\.py)::(\w+)`", tests):
            (path,) = (ROOT / "tests").rglob(file)
            assert f"def {name}(" in path.read_text(), f"{number}: {file}::{name}"


# -- Python -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name_of)
def test_python_examples_use_names_that_exist(page):
    from triptych import Pipeline

    for node in (node for code in blocks(page, "python") for node in ast.walk(ast.parse(code))):
        match node:
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] == "triptych":
                for alias in node.names:
                    assert hasattr(importlib.import_module(module), alias.name), f"{module}.{alias.name}"
            case ast.Attribute(value=ast.Name(id="pipe"), attr=name):
                assert hasattr(Pipeline, name) or name in ("model", "bundle", "limits"), f"pipe.{name}"


# -- examples and figures ---------------------------------------------------------------------------------------------


def run_example(name: str, **settings: str) -> None:
    environment = {**os.environ, **settings, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run([ROOT / "examples" / name], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_example_goes_from_folders_to_a_model(tmp_path):
    run_example(
        "train_on_your_data.sh",
        WORK=str(tmp_path),
        HOURS="0.002",
        OPTIONS="--audio-steps 5",
        EXAMPLE_OPTIONS="--images 30 --clips 8 --texts 40",
    )
    assert (tmp_path / "model" / "model.safetensors").exists()
    assert (tmp_path / "tokenizers" / "report" / "images.png").exists()
    assert {path.name for path in (tmp_path / "data").iterdir()} >= {"photos", "notes"}


@pytest.mark.slow
def test_the_example_of_fine_tuning_trains_on_responses(tmp_path):
    run_example(
        "finetune.sh",
        WORK=str(tmp_path),
        STEPS="2",
        EXAM="3",
        EXAMPLE_OPTIONS="--train 12 --test 4",
        OLDER="--text 12 --images 16 --speech 8 --validation 4",
    )
    manifest = json.loads((tmp_path / "data" / "manifest.json").read_text())
    assert manifest["longest_prompted"] > 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert sum(weight for name, weight in config["loader"]["dataset_weights"].items() if name != "data") == 0.5


@pytest.mark.slow
def test_the_speedrun_makes_the_built_in_world_from_nothing(tmp_path):
    sizes = {"STEPS": "2", "IMAGES": "16", "TEXTS": "16", "SPEECH": "8", "VALIDATION": "4", "EXAM": "1"}
    run_example("speedrun.sh", WORK=str(tmp_path), **sizes)
    assert "text-to-image" in (tmp_path / "scenes.json").read_text()
    assert (tmp_path / "hearts.png").exists()


def test_the_diagrams_are_what_their_script_draws():
    spec = importlib.util.spec_from_file_location("draw_architecture", ROOT / "docs/scripts/draw_architecture.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    for name, theme in (("light", script.LIGHT), ("dark", script.DARK)):
        assert (ROOT / f"docs/images/architecture-{name}.svg").read_text() == script.draw(theme)


# -- the site ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="needs the extra `docs`")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_has_the_home_page_the_studies_and_the_api(site):
    assert "One masked-diffusion" in (site / "index.html").read_text()
    assert (site / "studies" / "scaling" / "figure.png").exists()
    api = (site / "api.html").read_text()
    for name in (
        "Pipeline.text_to_image",
        "Pipeline.__call__",
        "SamplingConfig.num_steps",
        "run.train",
        "exam.evaluate",
    ):
        assert f'.{name}"' in api, name


def test_the_site_loads_nothing_from_other_hosts(site):
    for page in site.rglob("*.html"):
        text = page.read_text()
        loaded = re.findall(r"<(?:script|img|iframe|source)\b[^>]*\bsrc(?:set)?=\"?([^\"\s>]+)", text)
        loaded += re.findall(r"<link\b[^>]*\brel=\"?(?:stylesheet|preconnect)[^>]*\bhref=\"?([^\"\s>]+)", text)
        loaded += re.findall(r"<link\b[^>]*\bhref=\"?([^\"\s>]+)[^>]*\brel=\"?(?:stylesheet|preconnect)", text)
        assert loaded
        assert not [address for address in loaded if re.match(r"(?:https?:)?//", address)], page

"""The curl lines of docs/serving.md, pasted against a real server."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from server_process import ServerProcess, running

PAGE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
LINES = re.search(r"## With curl\n\n```\n(.*?)```", PAGE, flags=re.DOTALL)[1]  # type: ignore[index]
STRICT = 'set -e -o pipefail\ncurl() { echo; echo "> $*"; command curl -sS --fail-with-body "$@"; }\n'


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with running() as process:
        yield process


def test_every_line_works_as_pasted(server: ServerProcess, tmp_path: Path) -> None:
    script = STRICT + LINES.replace("http://127.0.0.1:8000", server.address)
    ran = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr
    assert (tmp_path / "cats.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "cats.wav").read_bytes().startswith(b"RIFF")
    assert "event: canvas.completed" in ran.stdout
    assert '"text":"two cats"' in ran.stdout  # what was spoken


def test_every_route_has_a_line(server: ServerProcess) -> None:
    paths = json.loads(server.client.get("/openapi.json").content)["paths"]
    missing = [path for path in paths if f"$URL{path.removesuffix('/{name}')}" not in LINES]
    assert missing == []

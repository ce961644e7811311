"""Keys, names and pages that are allowed, several models, metrics, logs, and the table of limits."""

import base64
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from server_process import ServerProcess, read_answer, running

from triptych.cli.main import main
from triptych.errors import UserError
from triptych.hub.integrity import read_raw_config, write_checksums
from triptych.hub.pipeline import Pipeline
from triptych.serve.app import create_app
from triptych.serve.auth import KeyCheck, read_keys
from triptych.serve.limits import ServeLimits, numbers
from triptych.serve.service import Service

ROOT = Path(__file__).parents[2]
KEY, OTHER = "correct-horse-battery", "another key".replace(" ", "-")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    keys = tmp_path_factory.mktemp("keys") / "keys.txt"
    keys.write_text(f"# of the team\n{KEY}\n\n")
    options = ("--api-key-file", str(keys), "--allowed-host", "models.test", "--allowed-origin", "https://pages.test")
    models = ("--model", "first=scenes", "--model", "scenes")
    with running(*options, *models, TRIPTYCH_API_KEY=OTHER) as process:
        yield process
        assert KEY not in process.log
        assert '"trace"' not in process.log


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def routes(service: Service) -> list[tuple[str, str]]:
    """Every route that the application has, with a method of it."""
    app = create_app(service)
    paths = [(method, path) for path, item in app.openapi()["paths"].items() for method in item]
    return [*paths, ("get", "/"), ("get", "/docs"), ("get", "/playground/index.html"), ("get", "/openapi.json")]


def test_every_route_but_health_needs_a_key(server: ServerProcess) -> None:
    listed = routes(Service({}, ServeLimits()))
    assert {("get", "/health"), ("get", "/metrics"), ("post", "/v1/canvas"), ("get", "/ready")} <= set(listed)
    wrong: list[dict[str, str]] = [
        {},
        {"Authorization": "Bearer"},
        bearer("wrong-key-wrong-key"),
        bearer(KEY[:-1]),
        bearer(KEY + "x"),
        {"Authorization": KEY},
        {"Authorization": "Basic " + base64.b64encode(b"user:wrong").decode()},
        {"Authorization": "Basic ???"},
        {"Authorization": "Bearer \xe9\xff".encode("latin-1")},  # type: ignore[dict-item]
    ]
    for method, path in [*listed, ("get", "/no/such/route"), ("delete", "/v1/models")]:
        for headers in wrong:
            answer = server.client.request(method.upper(), path.replace("{name}", "scenes"), headers=headers)
            if path == "/health":
                assert answer.status_code == 200
            else:
                assert answer.status_code == 401, (method, path)
                assert answer.json()["error"]["code"] == "invalid_api_key"
                assert "WWW-Authenticate" in answer.headers


def test_a_body_that_comes_without_a_key_ends_the_connection(server: ServerProcess) -> None:
    start = b"POST /v1/canvas HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    for head in (b"Content-Length: 1000000000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n10\r\n"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
            connection.sendall(start + head + b"{")
            answer = read_answer(connection)
            assert (answer.status, answer.headers["connection"]) == (401, "close")
            assert connection.recv(1) == b""
    assert "connection" not in server.client.get("/v1/models").headers  # nothing comes after its head


def test_a_key_of_the_file_or_of_the_environment_is_accepted(server: ServerProcess) -> None:
    for key in (KEY, OTHER):
        assert server.client.get("/v1/models", headers=bearer(key)).status_code == 200
    # Browsers ask for a password by themselves.
    page = server.client.get("/", auth=("", KEY))
    assert page.status_code == 200
    assert "Basic" in server.client.get("/").headers["WWW-Authenticate"]


def test_all_keys_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def compare(given: bytes, expected: bytes) -> bool:
        assert len(given) == len(expected) == 32
        compared.append(expected)
        return given == expected

    monkeypatch.setattr("triptych.serve.auth.hmac.compare_digest", compare)
    check = KeyCheck(None, ["key-number-1", "key-number-2", "key-number-3"])  # type: ignore[arg-type]
    for key, accepted in (("key-number-1", True), ("key-number-3", True), ("", False), ("k" * 10_000, False)):
        compared.clear()
        assert check._accepts(key) is accepted
        assert len(set(compared)) == 3


def test_keys_are_checked_before_a_model_is_loaded(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    empty, keys = tmp_path / "empty", tmp_path / "keys"
    empty.write_text("# none yet\n")
    keys.write_text("short\n")
    for words, message in (
        (["--api-key", "short"], "8 to 512"),
        (["--api-key", "two words here"], "8 to 512"),
        (["--api-key-file", str(empty)], "holds no key"),
        (["--api-key-file", str(keys)], "8 to 512"),
        (["--api-key-file", str(tmp_path / "missing")], "cannot be read"),
    ):
        assert main(["serve", "--model", "no-such-model", *words]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert read_keys([], None, {"TRIPTYCH_API_KEY": ""}) == ()


def test_a_port_that_is_taken_is_said_before_a_model_is_loaded(capsys: pytest.CaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", "--model", "no-such-model", "--port", str(taken.getsockname()[1])]) == 2
    error = capsys.readouterr().err
    assert "choose another --port" in error
    assert error.count("\n") == 1


def test_damaged_tokenizers_are_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """With the checksums of the damaged files, so that they are seen only when they are read."""
    folder = Pipeline.from_pretrained("scenes").save_pretrained(tmp_path / "model")
    (folder / "tokenizers" / "audio" / "mel_rvq.safetensors").write_bytes(b"nothing")
    write_checksums(folder, read_raw_config(folder))
    assert main(["serve", "--model", str(folder), "--port", "0"]) == 4
    error = capsys.readouterr().err
    assert "is not a usable mel-rvq tokenizer" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["--allowed-host", "a b"],
        ["--allowed-origin", "example.org"],
        ["--allowed-origin", "https://example.org/path"],
        ["--allow-media-host", "http://example.org"],
        ["--port", "70000"],
        ["--max-queue", "0"],
    ],
)
def test_wrong_options_are_one_line(words: list[str], capsys: pytest.CaptureFixture) -> None:
    assert main(["serve", *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_models_by_name(server: ServerProcess) -> None:
    listed = server.client.get("/v1/models", headers=bearer(KEY)).json()["data"]
    assert [model["id"] for model in listed] == ["first", "scenes"]
    body = {"modality": "text", "content": "a cat"}
    for name in ("first", "scenes"):
        answer = server.client.post("/v1/encode", json={**body, "model": name}, headers=bearer(KEY))
        assert answer.status_code == 200
        assert server.requests()[-1]["model"] == name


def test_names_of_the_server(server: ServerProcess) -> None:
    for host in (
        "models.test",
        "Models.Test.:8000",
        "localhost",
        "127.0.0.1:1",
        "[::1]:80",
        f"127.0.0.1:{server.port}",
    ):
        assert server.client.get("/v1/models", headers={**bearer(KEY), "Host": host}).status_code == 200
    assert server.client.get("/v1/models", headers={**bearer(KEY), "Host": "other.test"}).status_code == 403
    assert server.client.get("/health", headers={"Host": "10.0.0.7:8000"}).status_code == 200  # as probes ask


def test_pages_of_allowed_origins(server: ServerProcess) -> None:
    allowed = {"Origin": "https://pages.test"}
    answer = server.client.get("/v1/models", headers={**bearer(KEY), **allowed})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://pages.test"
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    assert server.client.options("/v1/canvas", headers={**allowed, **asks}).status_code == 200
    other = {"Origin": "https://other.test", **asks}
    assert server.client.options("/v1/canvas", headers=other).status_code == 403
    own = {**bearer(KEY), "Origin": f"http://127.0.0.1:{server.port}"}
    assert server.client.get("/v1/models", headers=own).status_code == 200


def test_request_ids_are_answered_and_logged(server: ServerProcess) -> None:
    answer = server.client.get("/v1/models", headers={**bearer(KEY), "X-Request-ID": "my-id.1"})
    assert answer.headers["X-Request-ID"] == "my-id.1"
    line = server.requests()[-1]
    assert (line["id"], line["method"], line["route"], line["status"]) == ("my-id.1", "GET", "/v1/models", 200)
    assert line["seconds"] >= 0
    for strange in ("a b", "x" * 65, "a\tb", '"'):
        made = server.client.get("/health", headers={"X-Request-ID": strange}).headers["X-Request-ID"]
        assert re.fullmatch("[0-9a-f]{32}", made)


def test_two_requests_with_one_id(server: ServerProcess) -> None:
    """Clients choose ids; the engine has names of its own."""
    body = {"segments": [{"modality": "text", "length": 3}], "num_steps": 1}
    made = [
        server.client.post("/v1/canvas", json=body, headers={**bearer(KEY), "X-Request-ID": "same"}).json()["id"]
        for _ in range(2)
    ]
    assert made[0] != made[1]


def test_metrics_count_requests_rounds_and_tokens(server: ServerProcess) -> None:
    server.client.headers.update(bearer(KEY))
    try:
        names = ("triptych_batch_size_count", "triptych_tokens_total", "triptych_requests_total")
        before = [server.metric(name) for name in names]
        body = {"segments": [{"modality": "text", "length": 4}], "num_steps": 2, "model": "scenes"}
        assert server.client.post("/v1/canvas", json=body).status_code == 200
        after = [server.metric(name) for name in names]
        text = server.client.get("/metrics").text
    finally:
        del server.client.headers["Authorization"]
    assert after[0] == before[0] + 2  # a round for each step
    assert after[1] >= before[1] + 2 * 4
    assert after[2] > before[2]
    assert 'triptych_requests_total{method="POST",route="/v1/canvas",status="200"}' in text
    for gauge in ("queued", "running", "ready"):
        assert f'triptych_{gauge}{{model="first"}}' in text
    assert 'triptych_round_seconds_bucket{le="+Inf"}' in text
    assert "process_resident_memory_bytes" in text


def test_the_table_of_limits_is_that_of_the_code() -> None:
    page = (ROOT / "docs" / "serving.md").read_text()
    rows = re.findall(r"^\| `--max-([\w-]+)` \| (.+?) \| ([\d,.]+) \|$", page, flags=re.MULTILINE)
    source = (ROOT / "triptych" / "serve" / "limits.py").read_text()
    described = dict(re.findall(r'^    (\w+): \w+ = .*\n    """(.+)\."""$', source, flags=re.MULTILINE))
    assert rows == [(field.name.replace("_", "-"), described[field.name], f"{field.default:,}") for field in numbers()]


def test_launch_files_restart_a_server_and_give_it_time_to_stop() -> None:
    unit = (ROOT / "launch" / "triptych.service").read_text()
    assert "\nRestart=on-failure\n" in unit
    assert int(re.search(r"TimeoutStopSec=(\d+)", unit)[1]) > ServeLimits().drain_seconds  # type: ignore[index]
    pod = (ROOT / "launch" / "kubernetes-serve.yaml").read_text()
    assert "restartPolicy" not in pod  # Always
    grace, pause = (
        int(re.search(pattern, pod)[1])  # type: ignore[index]
        for pattern in (r"terminationGracePeriodSeconds: (\d+)", r'preStop: .*sleep, "(\d+)"')
    )
    assert grace > pause + ServeLimits().drain_seconds


def test_limits_are_positive() -> None:
    with pytest.raises(UserError, match="queue must be positive"):
        ServeLimits(queue=0)


def test_every_fault_and_bad_input_names_tests_that_exist() -> None:
    page = (ROOT / "docs" / "serving.md").read_text()
    rows = re.findall(r"^\| (\d+) \|.*\| (`.*`) \|$", page, flags=re.MULTILINE)
    assert [int(number) for number, _ in rows] == [*range(29, 35), *range(1, 41)]
    for number, tests in rows:
        named = re.findall(r"`(\w+\.py)::(\w+)`", tests)
        assert named, number
        for file, name in named:
            assert any(f"def {name}(" in path.read_text() for path in (ROOT / "tests").rglob(file)), f"{file}::{name}"

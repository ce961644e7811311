"""Fetching media from allowed hosts: bad inputs 2 to 5, by a real server whose internet is a server of this test."""

import io
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from PIL import Image
from server_process import FAULTY, ServerProcess, running

from triptych.errors import UserError
from triptych.serve import remote
from triptych.serve.limits import ServeLimits

ALLOWED = (
    *("public.test", "private.test", "metadata.test", "mapped.test", "nat64.test", "both.test", "rebinding.test"),
    *("127.0.0.1", "169.254.169.254", "2130706433", "0x7f.1", "localhost"),
)


def png_file() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (32, 32), "red").save(buffer, "PNG")
    return buffer.getvalue()


class Internet(BaseHTTPRequestHandler):
    """Everything that the server of `faulty_server.py` reaches as a public host."""

    asked: list[tuple[str, str]]
    redirects: dict[str, str]

    def do_GET(self) -> None:
        self.asked.append((self.headers["Host"], self.path))
        if self.path in self.redirects:
            self._start(302, Location=self.redirects[self.path])
        elif self.path == "/slow.png":
            self._start(200)
            for _ in range(100):
                self.wfile.write(b"x")
                time.sleep(0.2)
        elif self.path == "/slow-head.png":
            for letter in "HTTP/1.1 200 OK\r\nX-A: " + "b" * 100:
                self.wfile.write(letter.encode())
                time.sleep(0.2)
        elif self.path == "/large.png":
            self._start(200)
            for _ in range(100):
                self.wfile.write(bytes(65_536))
        elif self.path == "/cut.png":
            self._start(200, **{"Content-Length": "100000"})
            self.wfile.write(png_file())
        elif self.path == "/gzip.png":
            self._start(200, **{"Content-Encoding": "gzip"})
        elif self.path == "/image.png":
            self._start(200)
            self.wfile.write(png_file())
        else:
            self._start(404)

    def _start(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def internet() -> Iterator[ThreadingHTTPServer]:
    Internet.asked = []
    Internet.redirects = {
        "/to-private": "http://private.test/a.png",
        "/to-loopback": "http://127.0.0.1/a.png",
        "/to-metadata": "http://169.254.169.254/latest/meta-data",
        "/to-stranger": "http://stranger.test/a.png",
        "/to-file": "file:///etc/passwd",
        "/to-rebinding": "http://rebinding.test/image.png",
        "/loop": "/loop",
        "/once": "/image.png",
        "/nowhere": "",
    }
    with ThreadingHTTPServer(("127.0.0.1", 0), Internet) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield served
        served.shutdown()


@pytest.fixture(scope="module")
def server(internet: ThreadingHTTPServer) -> Iterator[ServerProcess]:
    options = [f"--allow-media-host={host}" for host in ALLOWED]
    options += ["--max-fetch-seconds=3", "--max-body-bytes=2000000"]
    with running(*options, program=[FAULTY], MEDIA_PORT=str(internet.server_address[1])) as process:
        yield process
        assert '"trace"' not in process.log


def ask(server: ServerProcess, url: str) -> tuple[int, str]:
    """Status and message of an answer to an image at this address."""
    Internet.asked.clear()
    answer = server.client.post("/v1/encode", json={"modality": "image", "content": url})
    return answer.status_code, answer.json().get("error", {}).get("message", "")


@pytest.mark.parametrize("url", ["http://public.test/image.png", "HTTP://Public.Test./image.png"])
def test_an_allowed_host_is_fetched(server: ServerProcess, url: str) -> None:
    assert ask(server, url) == (200, "")
    assert [(host.rstrip(".").lower(), path) for host, path in Internet.asked] == [("public.test", "/image.png")]


def test_a_redirect_within_an_allowed_host_is_followed(server: ServerProcess) -> None:
    assert ask(server, "http://public.test/once") == (200, "")
    assert [path for _, path in Internet.asked] == ["/once", "/image.png"]


@pytest.mark.parametrize(
    "host",
    [host for host in ALLOWED if host not in ("public.test", "rebinding.test")] + ["[::1]", "[::ffff:127.0.0.1]"],
)
def test_private_addresses_are_refused_even_if_their_host_is_allowed(server: ServerProcess, host: str) -> None:
    status, message = ask(server, f"http://{host}/image.png")
    assert status == 400
    assert "private" in message or "expected an address" in message
    assert Internet.asked == []


@pytest.mark.parametrize("path", ["/to-private", "/to-loopback", "/to-metadata", "/to-stranger", "/to-file", "/loop"])
def test_redirects_are_checked_at_each_hop(server: ServerProcess, path: str) -> None:
    status, message = ask(server, f"http://public.test{path}")
    assert status == 400
    assert message
    assert {asked for _, asked in Internet.asked} == {path}


def test_a_name_that_changes_its_address_is_resolved_once_for_each_connection(server: ServerProcess) -> None:
    """The name is public when it is checked, and loopback ever after; the connection goes to what was checked."""
    assert ask(server, "http://rebinding.test/image.png") == (200, "")
    status, message = ask(server, "http://rebinding.test/image.png")
    assert (status, "private" in message) == (400, True)
    status, message = ask(server, "http://public.test/to-rebinding")
    assert (status, "private" in message) == (400, True)


@pytest.mark.parametrize(
    "url",
    [
        "http://public.test\\@stranger.test/image.png",
        "http://public.test@stranger.test/image.png",
        "http://user:password@public.test/image.png",
        "http://stranger.test/image.png",
        "http://public.test.stranger.test/image.png",
        "http://public.test../image.png",
        "http://public.test:81/image.png",
        "http://public.test:99999/image.png",
        "http://public.test/a b",
        "http://public.test/a\r\nHost: x",
        "http://public.test\t/image.png",
        "http:public.test/image.png",
        "http:///public.test/image.png",
        "http://püblic.test/image.png",
        "http://ⓟublic.test/image.png",
        "http://public.test#@stranger.test/",
        "https://",
        "http://" + "a" * 100_000,
    ],
    ids=lambda url: ascii(url)[:45],
)
def test_ambiguous_addresses_and_other_hosts_are_refused(server: ServerProcess, url: str) -> None:
    status, message = ask(server, url)
    assert status == 400
    assert "form http" in message or "allow-media-host" in message
    assert Internet.asked == []


@pytest.mark.parametrize(
    "path", ["/slow.png", "/slow-head.png", "/large.png", "/cut.png", "/gzip.png", "/missing", "/nowhere"]
)
def test_what_is_slow_large_cut_or_missing_is_refused(server: ServerProcess, path: str) -> None:
    start = time.monotonic()
    status, message = ask(server, f"http://public.test{path}")
    assert status == 400
    assert message
    assert time.monotonic() - start < 20
    assert server.client.get("/ready").status_code == 200


@pytest.mark.parametrize(
    ("address", "is_public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.0.1", False),
        ("100.64.0.1", False),
        ("127.0.0.1", False),
        ("0.0.0.0", False),
        ("169.254.169.254", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("ff02::1", False),
        ("::ffff:10.0.0.1", False),
        ("2002:7f00:1::", False),
        ("2001:0:0:0:0:0:80ff:fffe", False),
        ("64:ff9b::a00:1", False),
    ],
)
def test_which_addresses_are_public(address: str, is_public: bool) -> None:
    assert remote._is_public(address) is is_public


def test_the_owner_of_the_server_allows_hosts_and_ports() -> None:
    assert remote._checked("http://a.test:81/x", ("a.test:81",)).port == 81
    for url in ("http://a.test/x", "https://a.test:81x/", "http://a.test:82/x"):
        with pytest.raises(UserError):
            remote._checked(url, ("a.test:81",))
    with pytest.raises(UserError, match="fetches no files"):
        remote.bytes_of_url("https://a.test/x", "image", ServeLimits())

"""Bad inputs 1 to 29 and 37 to 40 of docs/serving.md, sent to a real server, also under `python -O`.

After each the server is healthy, its memory is bounded, and nothing unexpected stands in its log.
"""

import base64
import gzip
import io
import json
import re
import socket
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image
from server_process import Answer, ServerProcess, read_answer, running

import triptych

MIB = 2**20
BODY_BYTES = 4 * MIB
HEAD_SECONDS = 2.0
MEMORY = 400 * MIB
"""How much memory all of these inputs may take together."""
OPTIONS = (
    f"--max-body-bytes={BODY_BYTES}",
    f"--max-head-seconds={HEAD_SECONDS}",
    "--max-audio-seconds=5",
    "--max-pixels=4000000",
)


@pytest.fixture(scope="module", params=[(), ("-O",)], ids=["python", "python -O"])
def server(request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    with running(*OPTIONS, python=request.param) as process:
        encode(process, "text", "a cat")  # what is loaded late
        yield process
        assert '"trace"' not in process.log
        assert list(process.folder.iterdir()) == []  # no file name of a client was used


@pytest.fixture(scope="module")
def memory(server: ServerProcess) -> int:
    return server.resident


@pytest.fixture(autouse=True)
def _healthy(server: ServerProcess, memory: int) -> Iterator[None]:
    yield
    assert server.client.get("/health").json() == {"status": "ok"}
    assert server.client.get("/ready").status_code == 200
    assert server.resident < memory + MEMORY


def post(server: ServerProcess, path: str, body: Any) -> Answer:
    answer = server.client.post(path, json=body)
    return Answer(answer.status_code, dict(answer.headers), answer.content)


def encode(server: ServerProcess, modality: str, content: str) -> Answer:
    return post(server, "/v1/encode", {"modality": modality, "content": content})


def chat(server: ServerProcess, *parts: dict[str, Any]) -> Answer:
    return post(server, "/v1/chat/completions", {"messages": [{"role": "user", "content": list(parts)}]})


def image_part(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def send(server: ServerProcess, path: str, content: bytes, **headers: str) -> Answer:
    """A body as it is."""
    answer = server.client.post(
        path, content=content, headers={key.replace("_", "-"): value for key, value in headers.items()}
    )
    return Answer(answer.status_code, dict(answer.headers), answer.content)


def send_json(server: ServerProcess, text: str | bytes) -> Answer:
    content = text if isinstance(text, bytes) else text.encode()
    return send(server, "/v1/images/generations", content, Content_Type="application/json")


def head(path: str, *lines: str, method: str = "POST") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode()


def refused(answer: Answer, *statuses: int) -> str:
    """Check that an answer is an error of the client in OpenAI's shape that tells nothing of the server."""
    assert answer.status in (statuses or (400,)), answer.body[:500]
    error = answer.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert len(answer.body) < 2000
    text = answer.body.decode()
    for private in ("Traceback", 'File \\"', "site-packages", ".py", str(Path(triptych.__file__).parent)):
        assert private not in text
    return error["message"]


def data_uri(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def image_file(format: str, size: tuple[int, int] = (32, 32), **options: Any) -> bytes:
    buffer = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (size[1], size[0], 3), np.uint8)
    Image.fromarray(noise).save(buffer, format, **options)
    return buffer.getvalue()


def png(width: int, height: int, *chunks: tuple[bytes, bytes], pixels: bytes = b"") -> bytes:
    """A PNG of these chunks, whatever they say."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    made = b"\x89PNG\r\n\x1a\n"
    for name, data in ((b"IHDR", header), *chunks, (b"IDAT", zlib.compress(pixels)), (b"IEND", b"")):
        made += struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    return made


def audio_file(seconds: float, format: str = "WAV", subtype: str = "PCM_16", rate: int = 8000) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, np.zeros(int(seconds * rate), np.float32), rate, format=format, subtype=subtype)
    return buffer.getvalue()


def wav(rate: int = 8000, channels: int = 1, length: int | None = None, bits: int = 16, data: bytes = b"") -> bytes:
    """A WAV whose header says this."""
    kind, frame = (3 if bits == 32 else 1), channels * bits // 8
    fields = struct.pack("<HHIIHH", kind, channels, rate, rate * frame % 2**32, frame % 2**16, bits)
    size = len(data) if length is None else length
    return (
        b"RIFF"
        + struct.pack("<I", 2**32 - 1)
        + b"WAVEfmt "
        + struct.pack("<I", 16)
        + fields
        + b"data"
        + (struct.pack("<I", size) + data)
    )


def transcribe(server: ServerProcess, data: bytes, name: str = "a.wav") -> Answer:
    answer = server.client.post("/v1/audio/transcriptions", files={"file": (name, data)})
    return Answer(answer.status_code, dict(answer.headers), answer.content)


# -- remote media (2 to 5 in test_remote.py) --------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["http://example.org/a.png", "HTTPS://example.org/a.png", "http://127.0.0.1/a.png"])
def test_remote_media_are_off(server: ServerProcess, url: str) -> None:
    assert "fetches no files" in refused(chat(server, image_part(url)))
    assert "fetches no files" in refused(encode(server, "image", url))


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://example.org/a.png", "gopher://example.org:70/_x", "/etc/passwd", "\\\\host\\a"]
)
def test_other_schemes_are_refused(server: ServerProcess, url: str) -> None:
    message = refused(chat(server, image_part(url)))
    assert "data URI" in message
    assert "root:" not in message


# -- images -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "uri",
    [
        "data:image/png;base64",
        "data:image/png;base64,",
        "data:image/png,abc",
        "data:image/png;base64,@@@@",
        "data:image/png;base64,QUJ",
        "data:text/html;base64,QUJD",
        "data:;base64,QUJD",
        "data:audio/wav;base64,QUJD",
        "data:image/png;base64," + "A" * 1001,
        "data:" + ";a=b" * 20_000,
        "",
    ],
    ids=lambda uri: uri[:30],
)
def test_bad_data_uris_are_refused(server: ServerProcess, uri: str) -> None:
    refused(chat(server, image_part(uri)))
    refused(encode(server, "image", uri))


def test_a_huge_image_is_refused_before_it_is_decoded(server: ServerProcess) -> None:
    start = time.monotonic()
    assert "pixels" in refused(encode(server, "image", data_uri(png(60_000, 60_000))))
    assert time.monotonic() - start < 30


def test_compressed_bombs_are_refused(server: ServerProcess) -> None:
    zeros = zlib.compress(bytes(200 * MIB), 9)
    ztxt = png(2, 2, (b"zTXt", b"Comment\0\0" + zeros), pixels=bytes(14))
    iccp = png(2, 2, (b"iCCP", b"profile\0\0" + zeros), pixels=bytes(14))
    for bomb in (ztxt, iccp):
        answer = encode(server, "image", data_uri(bomb))
        assert answer.status == 200 or refused(answer)
    pixels = png(2000, 2001, pixels=bytes(2001 * 6001))
    assert len(pixels) < 20_000
    assert "2000 x 2001" in refused(encode(server, "image", data_uri(pixels)))


@pytest.mark.parametrize("format", ["GIF", "PNG", "TIFF"])
def test_of_several_frames_one_is_read(server: ServerProcess, format: str) -> None:
    frames = [Image.new("RGB", (32, 32), color) for color in ("red", "green", "blue")]
    buffer = io.BytesIO()
    frames[0].save(buffer, format, save_all=True, append_images=frames[1:])
    several = encode(server, "image", data_uri(buffer.getvalue()))
    first = io.BytesIO()
    frames[0].save(first, format)
    one = encode(server, "image", data_uri(first.getvalue()))
    assert several.status == one.status == 200
    assert several.json["tokens"] == one.json["tokens"]


@pytest.mark.parametrize(
    "data",
    [
        b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) (r) file\n",
        b"\x89HDF\r\n\x1a\n" + bytes(100),
        b"%PDF-1.4\n",
        b"\x89PNG\r\n\x1a\n",
        b"not an image",
    ],
    ids=["svg", "ps", "hdf5", "pdf", "png without chunks", "text"],
)
def test_other_formats_that_pose_as_png_are_refused(server: ServerProcess, data: bytes) -> None:
    refused(encode(server, "image", data_uri(data)))


def test_thin_and_empty_images(server: ServerProcess) -> None:
    refused(encode(server, "image", data_uri(png(0, 10))))
    refused(encode(server, "image", data_uri(png(10, 0))))
    thin = encode(server, "image", data_uri(image_file("PNG", (1, 100_000))))
    assert thin.status == 200 or refused(thin)


def test_a_truncated_jpeg_is_refused(server: ServerProcess) -> None:
    data = image_file("JPEG", (64, 64))
    for length in (10, 200, len(data) // 2):
        refused(encode(server, "image", data_uri(data[:length], "image/jpeg")))


# -- audio ------------------------------------------------------------------------------------------------------------


def test_long_audio_stops_at_the_limit(server: ServerProcess) -> None:
    opus = audio_file(300, "OGG", "OPUS")
    assert len(opus) < MIB
    start = time.monotonic()
    assert "5" in refused(transcribe(server, opus))
    assert "5" in refused(encode(server, "audio", data_uri(opus, "audio/ogg")))
    assert time.monotonic() - start < 60


@pytest.mark.parametrize(
    "data",
    [
        wav(rate=0, data=bytes(100)),
        wav(rate=2**31, data=bytes(100)),
        wav(rate=1, data=bytes(100)),
        wav(channels=0, data=bytes(100)),
        wav(channels=65_535, data=bytes(100)),
        wav(length=2**31, data=bytes(100)),
        wav(length=2**32 - 2, data=bytes(100)),
        wav(bits=0, data=bytes(100)),
    ],
)
def test_forged_wav_headers_are_refused(server: ServerProcess, data: bytes) -> None:
    refused(transcribe(server, data))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"RIFF",
        b"not audio at all",
        wav(),
        wav(bits=32, data=np.full(800, np.nan, np.float32).tobytes()),
        wav(bits=32, data=np.full(800, np.inf, np.float32).tobytes()),
        image_file("PNG"),
    ],
    ids=["empty", "four bytes", "text", "no samples", "NaN", "infinite", "an image"],
)
def test_what_is_no_audio_is_refused(server: ServerProcess, data: bytes) -> None:
    refused(transcribe(server, data))
    refused(encode(server, "audio", data_uri(data, "audio/wav")))
    part = {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": "wav"}}
    refused(chat(server, part))


# -- bodies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [BODY_BYTES + 1, 10**12, 10**30])
def test_a_declared_large_body_is_refused_before_it_is_sent(server: ServerProcess, size: int) -> None:
    answer = server.raw(head("/v1/canvas", f"Content-Length: {size}", "Content-Type: application/json"))
    refused(answer, 413, 400)
    assert answer.headers["connection"] == "close"


def test_an_unknown_key_is_not_sent_back(server: ServerProcess) -> None:
    for body in ({"x" * MIB: 1}, {"segments": [{"y" * MIB: 1}]}, {"segments": {"z" * MIB: 1}}):
        answer = send(server, "/v1/canvas", json.dumps(body).encode(), Content_Type="application/json")
        refused(answer, 400)
        assert len(answer.body) < 2000


def test_a_large_body_in_chunks_is_refused_on_the_way(server: ServerProcess) -> None:
    chunk = b"10000\r\n" + bytes(65_536) + b"\r\n"
    start = head("/v1/canvas", "Transfer-Encoding: chunked", "Content-Type: application/json")
    refused(server.raw(start, *[chunk] * (BODY_BYTES // 65_536 + 2)), 413)


def test_a_client_that_sends_all_of_a_large_body_sees_the_answer(server: ServerProcess) -> None:
    refused(send(server, "/v1/canvas", bytes(BODY_BYTES + 200_000), Content_Type="application/json"), 413)


def multipart(fields: int = 0, size: int = 1) -> bytes:
    part = b'--b\r\nContent-Disposition: form-data; name="f%d"\r\n\r\n%b\r\n'
    return b"".join(part % (i, b"x" * size) for i in range(fields)) + b"--b--\r\n"


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("multipart/form-data; boundary=b", multipart(10_000)),
        ("multipart/form-data; boundary=b", multipart(1, 2 * MIB)),
        ("multipart/form-data", multipart(1)),
        ("multipart/form-data; boundary=", multipart(1)),
        ("multipart/form-data; boundary=" + "b" * 5000, multipart(1)),
        ("multipart/form-data; boundary=other", multipart(3)),
        ("multipart/form-data; boundary=b", b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--\r\n"),
        ("multipart/form-data; boundary=b", b"--b\r\n" + b"X-A: b\r\n" * 10_000 + b"\r\nx\r\n--b--\r\n"),
        ("multipart/form-data; boundary=b", b"--b\r\nX-A: " + b"b" * MIB + b"\r\n\r\nx\r\n--b--\r\n"),
        ("multipart/form-data; boundary=b", multipart(1)[:-8]),
        ("multipart/form-data; boundary=b; charset=no-such", multipart(1)),
    ],
    ids=["fields", "field", "none", "empty", "long", "other", "no name", "headers", "header", "cut", "charset"],
)
def test_bad_forms_are_refused(server: ServerProcess, kind: str, body: bytes) -> None:
    for path in ("/v1/audio/transcriptions", "/v1/images/edits"):
        refused(send(server, path, body, Content_Type=kind), 400)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "gzip, identity"])
def test_compressed_bodies_are_refused(server: ServerProcess, coding: str) -> None:
    bomb = gzip.compress(bytes(20 * MIB))
    answer = send(server, "/v1/canvas", bomb, Content_Type="application/json", Content_Encoding=coding)
    refused(answer, 415)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 10_000 + "]" * 10_000,
        '{"prompt": ' * 500 + "1" + "}" * 500,
        '{"prompt": "a cat", "user": ' + "[" * 40 + "]" * 40 + "}",
        "[" + "[]," * 1_000_000 + "[]]",
        '{"prompt": "a cat", "temperature": NaN}',
        '{"prompt": "a cat", "temperature": -Infinity}',
        '{"prompt": "a cat", "temperature": 1e400}',
        '{"prompt": "a cat", "seed": ' + "1" * 10_000 + "}",
        '{"prompt": "a cat", "prompt": "a dog"}',
        '{"prompt": "a cat", "user": {"a": 1, "a": 2}}',
        '{"prompt": "a cat"',
        "{'prompt': 'a cat'}",
        "null",
        "[]",
        '"a cat"',
        "\ufeff{}",
    ],
    ids=lambda text: text[:40],
)
def test_bad_json_is_refused(server: ServerProcess, text: str) -> None:
    refused(send_json(server, text))


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "application/xml", "x" * 5000, ""])
def test_other_content_types_are_refused(server: ServerProcess, kind: str) -> None:
    refused(send(server, "/v1/images/generations", b'{"prompt": "a cat"}', Content_Type=kind), 415)


# -- values -----------------------------------------------------------------------------------------------------------

NUMBERS = (10**9, -1, 0, "abc", 1.5, 10**30, True, None, [], {})


@pytest.mark.parametrize(
    ("path", "field", "allowed"),
    [
        ("/v1/images/generations", "n", (True, None)),
        ("/v1/images/generations", "num_steps", (True, None)),
        ("/v1/images/generations", "size", (None,)),
        ("/v1/images/generations", "best_of", (True, None)),
        ("/v1/images/generations", "seed", (10**9, 0, True, None)),
        ("/v1/images/generations", "partial_images", (0, True, None)),
        ("/v1/completions", "n", (True, None)),
        ("/v1/completions", "num_tokens", (True, None)),
    ],
)
def test_numbers_out_of_range_are_refused(server: ServerProcess, path: str, field: str, allowed: tuple) -> None:
    for value in NUMBERS:
        if not any(value is each or (type(value) is type(each) and value == each) for each in allowed):
            refused(post(server, path, {"prompt": "a cat", field: value}))


@pytest.mark.parametrize("tokens", [10**9, -1, 0, "abc"])
def test_absurd_lengths_are_refused_or_change_nothing(server: ServerProcess, tokens: Any) -> None:
    body = {"prompt": "there are", "max_tokens": tokens, "num_steps": 1, "best_of": 1}
    answer = post(server, "/v1/completions", body)
    # The model chooses the length; a limit above it is no error.
    assert tokens == 10**9 or refused(answer)
    assert answer.status == 200 or refused(answer)
    segment = {"modality": "audio", "length": tokens}
    refused(post(server, "/v1/canvas", {"segments": [segment]}))


def test_too_many_images_or_messages_are_refused(server: ServerProcess) -> None:
    small = image_part(data_uri(image_file("PNG")))
    refused(chat(server, *[small] * 50))
    messages = [{"role": "user", "content": "a cat"}] * 10_000
    refused(post(server, "/v1/chat/completions", {"messages": messages}))


@pytest.mark.parametrize("text", ["<mask>", "[MASK]", "<|endoftext|>", "<s>", "<bos>", "<task_text>", "\x00", "<pad>"])
def test_names_of_special_tokens_are_plain_text(server: ServerProcess, text: str) -> None:
    """This model has a word list; what is not in it is refused, and what is has ids of data only."""
    answer = encode(server, "text", f"a cat {text}")
    if answer.status == 200:
        assert answer.json["tokens"][:2] == encode(server, "text", "a cat").json["tokens"][:2]
        assert all(isinstance(each, int) for each in answer.json["tokens"])
        assert answer.json["content"] == f"a cat {text}"
    else:
        refused(answer)


@pytest.mark.parametrize(
    "text",
    ["a \x00 cat", "\u202ea cat", "\u2066a cat\u2069", "a" * MIB, "a " * (MIB // 2), "\U0001f600" * 1000, "\r\n\r\n"],
    ids=["NUL", "RTL", "isolate", "1 MB word", "1 MB of words", "emoji", "lines"],
)
def test_strange_texts(server: ServerProcess, text: str) -> None:
    answer = encode(server, "text", text)
    assert answer.status == 200 or refused(answer)
    refused(post(server, "/v1/images/generations", {"prompt": text}))


@pytest.mark.parametrize(
    "text", [rb'{"prompt": "\ud800"}', b'{"prompt": "\xed\xa0\x80"}', b'{"\\udc00": 1}', b"\xff{}"]
)
def test_half_characters_are_refused(server: ServerProcess, text: bytes) -> None:
    refused(send_json(server, text))


@pytest.mark.parametrize("name", ["../../x", "/etc/cron.d/x", "..\\x", "a\x00b", "C:\\x", "x" * 5000])
def test_file_names_are_never_paths(server: ServerProcess, name: str) -> None:
    """Nothing appears in the working folder of the server, which the fixture checks too."""
    message = refused(transcribe(server, b"not audio", name))
    assert name not in message
    assert not (server.folder.parent / "x").exists()


@pytest.mark.parametrize(
    "name", ["../../etc", "/etc/passwd", "hf://a/b", "scenes/../scenes", "", "Scenes", "x" * 10_000, "a\nb", "<b>"]
)
def test_models_are_names_not_paths(server: ServerProcess, name: str) -> None:
    assert "there is no model" in refused(
        post(server, "/v1/images/generations", {"prompt": "a cat", "model": name}), 404
    )


# -- connections ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["example.org", "localhost.example.org", "127.0.0.1.example.org", "[::2]", "0", "a b"])
def test_requests_for_other_hosts_are_refused(server: ServerProcess, host: str) -> None:
    request = f"GET /v1/models HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
    refused(server.raw(request), 403, 400)


@pytest.mark.parametrize("origin", ["http://example.org", "null", "http://localhost", "https://localhost.example.org"])
def test_requests_from_other_pages_are_refused(server: ServerProcess, origin: str) -> None:
    body = b'{"prompt": "a cat"}'
    answer = send(server, "/v1/images/generations", body, Origin=origin, Content_Type="text/plain")
    refused(answer, 403)
    assert "access-control-allow-origin" not in answer.headers
    preflight = server.client.options("/v1/canvas", headers={"Origin": origin})
    assert preflight.status_code == 403


@pytest.mark.parametrize(
    ("start", "drip"),
    [
        (b"POST /v1/canvas HTTP/1.1\r\nHost: localhost\r\n", b"X-A: b\r\n"),
        (b"", b""),
        (head("/v1/canvas", "Content-Length: 1000", "Content-Type: application/json"), b" "),
        (head("/v1/canvas", "Transfer-Encoding: chunked", "Content-Type: application/json"), b"1\r\n \r\n"),
    ],
    ids=["head", "silence", "body", "chunks"],
)
def test_a_slow_request_has_an_end(server: ServerProcess, start: bytes, drip: bytes) -> None:
    begin = time.monotonic()
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(start)
        connection.settimeout(0.3)
        answer = None
        while answer is None:
            assert time.monotonic() - begin < 20 * HEAD_SECONDS
            try:
                answer = read_answer(connection)
            except TimeoutError:
                connection.sendall(drip)
    refused(answer, 408)
    assert time.monotonic() - begin > HEAD_SECONDS / 2


def test_what_is_not_http_is_refused(server: ServerProcess) -> None:
    refused(server.raw(b"\x16\x03\x01\x02\x00\r\n\r\n"))
    refused(server.raw(b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n"))
    refused(server.raw(b"POST /v1/canvas HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"))
    refused(server.raw(head("/v1/canvas", "Content-Length: -1")))
    refused(server.raw(head("/v1/canvas", "Content-Length: 5", "Content-Length: 6")))


# -- logs, pages and paths --------------------------------------------------------------------------------------------


def test_logs_stay_lines_and_labels_stay_few(server: ServerProcess) -> None:
    secret = "a purple secret"
    forged = 'x\n{"message": "forged"}'
    refused(post(server, "/v1/images/generations", {"prompt": secret, "model": forged}), 404)
    refused(server.raw(head("/%0a%7b%22message%22", "X-Request-ID: a b", method="GET")), 404)
    refused(server.raw(head("/x", "X-Request-ID: " + "a" * 1000, method="GET")), 404)
    before = server.client.get("/metrics").text.count("\n")
    for number in range(30):
        assert server.client.get(f"/no/such/{number}").status_code == 404
        assert server.client.request(f"M{number}", "/health").status_code == 405
    after = server.client.get("/metrics").text.count("\n")
    assert after < before + 60
    lines = server.log.splitlines()
    assert all(isinstance(json.loads(line), dict) for line in lines)
    assert "forged" not in server.log
    assert secret not in server.log
    assert all(re.fullmatch(r"[A-Za-z0-9._-]{1,64}", line["id"]) for line in server.requests())


def test_html_is_data(server: ServerProcess) -> None:
    script = "<script>alert(1)</script>"
    answer = post(server, "/v1/images/generations", {"prompt": script, "model": script})
    refused(answer, 404)
    assert answer.headers["content-type"] == "application/json"
    page = server.client.get("/")
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    folder = Path(triptych.__file__).parent / "serve" / "playground"
    scripts = "".join(path.read_text() for path in folder.glob("*.js"))
    assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", scripts) == []


@pytest.mark.parametrize(
    "path",
    [
        "//",
        "/file=/etc/passwd",
        "/static//etc/passwd",
        "//etc/passwd",
        "/playground/..%2f..%2fapp.py",
        "/playground/../app.py",
        "/playground/%2e%2e/app.py",
        "/playground//etc/passwd",
        "/v1/models/..%2f..%2fetc%2fpasswd",
        "/v1/models/%00",
        "/.git/config",
        "/%ff",
        "/v1/../../etc/passwd",
    ],
)
def test_path_probes_are_not_found(server: ServerProcess, path: str) -> None:
    refused(server.raw(head(path, method="GET")), 404)


def test_every_answer_to_a_wrong_method_has_the_shape(server: ServerProcess) -> None:
    for method, path in (("GET", "/v1/canvas"), ("PUT", "/v1/models"), ("TRACE", "/"), ("CONNECT", "/")):
        refused(server.raw(head(path, method=method)), 405, 404)

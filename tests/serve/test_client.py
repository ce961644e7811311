"""The client of `/v1/canvas`, and the example of OpenAI's client."""

import runpy
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from triptych.errors import UserError
from triptych.serve.client import CanvasClient, CanvasError
from triptych.serve.media import encode_audio, encode_image

ROOT = Path(__file__).parents[2]
TEXT, IMAGE = {"modality": "text", "content": "two cats"}, {"modality": "image"}


@pytest.fixture(scope="module")
def canvas(server):
    return CanvasClient(server, model="scenes", timeout=60)


def test_fill_draws_as_offline(canvas, pipe):
    filled = canvas.fill([TEXT, IMAGE], seed=3, num_steps=4, sampler="random_order")
    assert filled.image == encode_image(pipe.text_to_image("two cats", seed=3, num_steps=4, sampler="random_order"))
    assert (filled.text, filled.audio, filled.seed) == ("two cats", None, 3)


def test_prompts_are_read_and_questions_are_left_alone(canvas, pipe):
    typed = canvas.fill([{"modality": "text", "content": "2 kitties please!"}, IMAGE], seed=3, num_steps=2)
    drawn = pipe.text_to_image("two cats", seed=3, num_steps=2)
    assert (typed.text, typed.image) == ("two cats", encode_image(drawn))
    flagged = canvas.fill([{"modality": "text", "content": "a purple cat"}, IMAGE], num_steps=2)
    assert "cats come in no other colour" in flagged.warnings[0]["message"]
    question = {"modality": "text", "content": "how many cats are there?", "open": True}
    asked = canvas.fill([question, {**IMAGE, "content": encode_image(drawn)}])
    assert asked.text.startswith("how many cats are there?")
    assert not any(each["reason"] for each in asked.warnings)


def test_a_prompt_is_encoded_as_it_is_read(canvas, pipe):
    assert canvas.encode("text", "2 kitties", prompt=True)["tokens"] == canvas.encode("text", "two cats")["tokens"]
    assert canvas.encode("text", "cat")["tokens"] == pipe.bundle.text.encode(["cat"])[0].tolist()
    with pytest.raises(CanvasError, match="does not know the word 'kitties'"):
        canvas.encode("text", "two kitties")


def test_files_may_be_bytes_or_paths(canvas, pipe, tmp_path):
    image, audio = pipe.text_to_image("a cat", seed=1), pipe.text_to_speech("a cat", seed=1)
    path = audio.save(tmp_path / "cat.flac")
    drawn = canvas.fill([{"modality": "text", "open": True}, {**IMAGE, "content": encode_image(image)}])
    assert drawn.text
    spoken = canvas.fill([{"modality": "text", "open": True}, {"modality": "audio", "content": path}])
    assert spoken.text == pipe.transcribe(path)
    assert spoken.audio.startswith(b"RIFF")


def test_the_steps_of_a_stream_make_up_the_result(canvas):
    fields = {"seed": 5, "num_steps": 6, "sampler": "random_order"}
    events = list(canvas.stream([TEXT, IMAGE], top_k=3, **fields))
    assert [each["type"] for each in events[:2]] == ["canvas.created", "canvas.start"]
    assert events[-1]["type"] == "canvas.completed"
    ids = [list(segment["tokens"]) for segment in events[1]["segments"]]
    for event in events:
        for delta in event.get("deltas", []):
            ids[delta["segment"]][delta["position"]] = delta["id"]
    assert ids == [segment["tokens"] for segment in events[-1]["segments"]]
    assert ids[1] == list(canvas.fill([TEXT, IMAGE], **fields).segments[1]["tokens"])


def test_encode_and_decode(canvas, pipe):
    image = pipe.text_to_image("a cat", seed=1)
    encoded = canvas.encode("image", encode_image(image))
    assert encoded["tokens"] == pipe.bundle.image.encode([image])[0].tolist()
    assert canvas.decode("image", encoded["tokens"])["content"] == encoded["content"]
    assert canvas.decode("text", canvas.encode("text", "two cats")["tokens"])["content"] == "two cats"
    audio = pipe.text_to_speech("a cat", seed=1)
    tokens = pipe.bundle.audio.encode([audio])[0]
    close = np.mean(np.array(canvas.encode("audio", encode_audio(audio))["tokens"]) == tokens)
    assert close > 0.9  # 16 bits


def test_models(canvas, pipe):
    (model,) = canvas.models()
    assert model["id"] == "scenes"
    assert model["triptych"]["words"] == list(pipe.words)


def test_errors_have_the_servers_message(canvas, server):
    with pytest.raises(CanvasError, match="unknown word 'submarine'") as error:
        canvas.fill([{"modality": "text", "content": "a submarine"}, IMAGE])
    assert (error.value.status, error.value.type) == (400, "invalid_request_error")
    with pytest.raises(CanvasError, match="there is no model"):
        CanvasClient(server, model="other").fill([TEXT, IMAGE])
    with pytest.raises(UserError, match="expected the address of a server"):
        CanvasClient("127.0.0.1:8000")


def test_an_error_in_a_stream_is_raised(canvas, monkeypatch):
    class Response:
        def __enter__(self):
            return iter([b"event: error\n", b'data: {"error": {"message": "too late", "code": "deadline"}}\n'])

        def __exit__(self, *_):
            return None

    monkeypatch.setattr(CanvasClient, "_open", lambda *_: Response())
    with pytest.raises(CanvasError, match="too late") as error:
        list(canvas.stream([TEXT, IMAGE]))
    assert (error.value.status, error.value.code) == (None, "deadline")


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """A server that sends these bytes to whoever connects, and closes the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    with listener.accept()[0] as connection:
                        connection.recv(65_536)
                        connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


EVENTS = b'data: {"type": "canvas.created"}\n\ndata: {"type": "canvas.step"}\n\n'


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\n\r\n" + EVENTS,
        b"HTTP/1.1 200 OK\r\n\r\n" + EVENTS + b'data: {"type": "canv',
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + EVENTS,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % len(EVENTS) + EVENTS + b"\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfff\r\n" + EVENTS,
        b"",
        b"no HTTP\r\n",
    ],
)
def test_an_answer_that_is_cut_off_is_an_error(answer):
    with answering(answer) as address:
        events = []
        with pytest.raises(CanvasError) as error:
            events += CanvasClient(address).stream([TEXT, IMAGE])
        assert error.value.status is None
        with pytest.raises(CanvasError):
            CanvasClient(address).fill([TEXT, IMAGE])


def test_a_server_that_cannot_be_reached_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    for ask in (lambda client: client.models(), lambda client: list(client.stream([TEXT, IMAGE]))):
        with pytest.raises(CanvasError, match=r"cannot be reached: .*refused"):
            ask(CanvasClient(address))


def test_the_example_of_openais_client_runs(server, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["openai_client.py", "--url", server, "--folder", str(tmp_path)])
    runpy.run_path(str(ROOT / "examples" / "openai_client.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert printed.count("image_generation.partial_image\n") == 2
    assert "transcript: two cats" in printed
    assert {path.name for path in tmp_path.iterdir()} == {"cats.png", "cats.wav", "edited.png", "drawn.png"}

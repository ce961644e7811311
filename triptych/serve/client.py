"""A client for `/v1/canvas` that needs the standard library only.

    from triptych.serve.client import CanvasClient

    client = CanvasClient("http://127.0.0.1:8000")
    filled = client.fill([{"modality": "text", "content": "two cats"}, {"modality": "image"}], num_steps=8)
    Path("cats.png").write_bytes(filled.image)

For the other routes, use the `openai` client (examples/openai_client.py).
"""

import base64
import json
import mimetypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request as HttpRequest
from urllib.request import urlopen

from triptych.errors import UserError


class CanvasError(Exception):
    """An error of the server, or of the way to it."""

    def __init__(self, status: int | None, error: Mapping[str, Any]):
        super().__init__(error.get("message", "the server gave no reason"))
        self.status = status
        """None for an error inside a stream, and if there is no answer."""
        self.type, self.param, self.code = (error.get(key) for key in ("type", "param", "code"))


@dataclass(frozen=True)
class FilledCanvas:
    """What comes back from `fill`."""

    segments: Sequence[Mapping[str, Any]]
    """In the order of the request, each with its modality, tokens and content."""
    seed: int
    warnings: Sequence[Mapping[str, Any]]
    """Inputs that are unlike the training data."""

    @property
    def text(self) -> str | None:
        return self._content("text")

    @property
    def image(self) -> bytes | None:
        """A PNG file."""
        return _bytes_of_data_uri(self._content("image"))

    @property
    def audio(self) -> bytes | None:
        """A WAV file."""
        return _bytes_of_data_uri(self._content("audio"))

    def _content(self, modality: str) -> str | None:
        return next((each["content"] for each in self.segments if each["modality"] == modality), None)


class CanvasClient:
    """Fills canvases on a server."""

    def __init__(
        self,
        base_url: str = "http://127.0.0.1:8000",
        *,
        api_key: str | None = None,
        model: str | None = None,
        timeout: float = 300.0,
    ):
        """`model` is the name of one of the server's models; by default its first."""
        if not base_url.startswith(("http://", "https://")):
            raise UserError(f"expected the address of a server, such as http://127.0.0.1:8000, got {base_url!r}.")
        self.base_url, self.model, self.timeout = base_url.rstrip("/"), model, timeout
        self._api_key = api_key

    def models(self) -> list[dict[str, Any]]:
        """The models of the server, with their directions and limits."""
        return self._json("/v1/models")["data"]

    def fill(self, segments: Sequence[Mapping[str, Any]], **sampling: Any) -> FilledCanvas:
        """Generate everything that is masked.

        A segment has a modality, and what is known of it: `content` (a text; of an image or audio the bytes of a file,
        its path, or a data URI) or `tokens` (ids, None where masked), `mask` (ranges of tokens to generate again, or
        "all"), `length`, and `open` if the model is to choose the length. `sampling` are fields such as `num_steps`,
        `temperature`, `guidance_scale` and `seed`.

            client.fill([{"modality": "text", "open": True}, {"modality": "image", "content": Path("cats.png")}])
        """
        answer = self._json("/v1/canvas", self._body(segments, sampling))
        return FilledCanvas(answer["segments"], answer["seed"], answer["warnings"])

    def stream(self, segments: Sequence[Mapping[str, Any]], **sampling: Any) -> Iterator[dict[str, Any]]:
        """The events of a canvas as it is filled: canvas.created, start, step, preview, completed.

        Besides the fields of `fill`, `top_k` asks for the likeliest ids of every masked position, and `preview_every`
        for the content as expected after every so many steps.

            for event in client.stream(segments, top_k=5):
                print(event["type"], event.get("deltas"))
        """
        with self._open("/v1/canvas", {**self._body(segments, sampling), "stream": True}) as response:
            is_complete = False
            with _connection_errors():
                for line in response:
                    if line.startswith(b"data: "):
                        event = json.loads(line.removeprefix(b"data: "))
                        if "error" in event:
                            raise CanvasError(None, event["error"])
                        is_complete |= event["type"] == "canvas.completed"
                        yield event
            if not is_complete:
                raise CanvasError(None, {"message": "the stream has ended before the canvas was complete"})

    def encode(self, modality: str, content: str | bytes | Path, *, prompt: bool = False) -> dict[str, Any]:
        """The tokens of a text, an image or audio; with `prompt`, of a text as it is read to be drawn."""
        segment = _segment({"modality": modality, "content": content})
        return self._json("/v1/encode", self._with_model({**segment, "prompt": prompt}))

    def decode(self, modality: str, tokens: Sequence[int | None]) -> dict[str, Any]:
        """The content of tokens."""
        return self._json("/v1/decode", self._with_model({"modality": modality, "tokens": list(tokens)}))

    def _body(self, segments: Sequence[Mapping[str, Any]], sampling: Mapping[str, Any]) -> dict[str, Any]:
        return self._with_model({"segments": [_segment(each) for each in segments], **sampling})

    def _with_model(self, body: dict[str, Any]) -> dict[str, Any]:
        return body if self.model is None else {"model": self.model, **body}

    def _json(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        with self._open(path, body) as response, _connection_errors():
            return json.load(response)

    def _open(self, path: str, body: Mapping[str, Any] | None = None) -> HTTPResponse:
        headers = {"Content-Type": "application/json"}
        if self._api_key is not None:
            headers["Authorization"] = f"Bearer {self._api_key}"
        data = None if body is None else json.dumps(body).encode()
        with _connection_errors():
            try:
                return urlopen(HttpRequest(f"{self.base_url}{path}", data, headers), timeout=self.timeout)
            except HTTPError as error:
                raise CanvasError(error.code, _error_in(error.read())) from None


@contextmanager
def _connection_errors() -> Iterator[None]:
    """Errors of the connection as those of this client."""
    try:
        yield
    except URLError as error:
        raise CanvasError(None, {"message": f"the server cannot be reached: {error.reason}"}) from error
    except (OSError, HTTPException, ValueError) as error:  # cut off, or no JSON
        raise CanvasError(None, {"message": f"the answer was cut off: {error!r}"}) from error


def _segment(segment: Mapping[str, Any]) -> dict[str, Any]:
    """A segment with its file as a data URI."""
    content, modality = segment.get("content"), segment["modality"]
    if not isinstance(content, bytes | Path):
        return dict(segment)
    name = content.name if isinstance(content, Path) else ""
    content_type = mimetypes.guess_type(name)[0] or ""
    if not content_type.startswith(f"{modality}/"):
        content_type = f"{modality}/{'png' if modality == 'image' else 'wav'}"  # the server goes by the content
    data = content.read_bytes() if isinstance(content, Path) else content
    return {**segment, "content": f"data:{content_type};base64,{base64.b64encode(data).decode()}"}


def _bytes_of_data_uri(uri: str | None) -> bytes | None:
    return None if uri is None else base64.b64decode(uri.partition(",")[2])


def _error_in(body: bytes) -> dict[str, Any]:
    try:
        error = json.loads(body)["error"]
        return error if isinstance(error, dict) else {"message": str(error)}
    except (ValueError, LookupError, TypeError):
        return {"message": body[:200].decode(errors="replace")}

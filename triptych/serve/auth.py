"""API keys: every route but /health needs one, if the server has any."""

import hashlib
import hmac
import re
from base64 import b64decode
from collections.abc import Iterable, Mapping
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from triptych.errors import UserError
from triptych.serve.asgi import header, refuse
from triptych.serve.errors import ApiError
from triptych.utils.json_files import read_text

PUBLIC = frozenset({"/health"})
_KEY = re.compile(r"[!-~]{8,512}")
_VARIABLE = "TRIPTYCH_API_KEY"


def read_keys(given: Iterable[str], file: str | None, environment: Mapping[str, str]) -> tuple[str, ...]:
    """The keys of the command line, of a file with one on each line, and of the environment."""
    keys = [*given, *([environment[_VARIABLE]] if environment.get(_VARIABLE) else [])]
    if file is not None:
        try:
            lines = [line.strip() for line in read_text(Path(file)).splitlines()]
        except (OSError, ValueError) as error:
            raise UserError(f"--api-key-file {file!r} cannot be read ({getattr(error, 'strerror', error)}).") from None
        listed = [line for line in lines if line and not line.startswith("#")]
        if not listed:
            raise UserError(f"--api-key-file {file!r} holds no key: write one on each line.")
        keys += listed
    for number, key in enumerate(keys, 1):
        if not _KEY.fullmatch(key):
            raise UserError(f"an API key has 8 to 512 visible ASCII characters; key {number} of {len(keys)} does not.")
    return tuple(keys)


class KeyCheck:
    """Answers 401 to requests without one of the keys.

    A key comes as `Authorization: Bearer KEY`, or as the password of `Basic`, which browsers ask for by themselves.
    """

    def __init__(self, app: ASGIApp, keys: Iterable[str]):
        self._app, self._digests = app, [_digest(key) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PUBLIC or self._accepts(_given_key(scope)):
            await self._app(scope, receive, send)
            return
        is_api = scope["path"].startswith("/v1/")
        error = ApiError(
            401,
            "expected an API key: `Authorization: Bearer KEY`.",
            type="authentication_error",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer" if is_api else 'Basic realm="triptych", charset="UTF-8"'},
        )
        await refuse(error, scope, receive, send)

    def _accepts(self, key: str) -> bool:
        # Digests have one length, and all are compared: the time tells nothing of a key.
        given = _digest(key)
        return sum(hmac.compare_digest(given, each) for each in self._digests) > 0


def _given_key(scope: Scope) -> str:
    scheme, _, value = (header(scope, b"authorization") or "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":
        try:
            return b64decode(value, validate=True).decode().partition(":")[2]
        except ValueError:
            return ""
    return ""


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()

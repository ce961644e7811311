"""Which names and pages a server answers to, so that a web page elsewhere cannot use a server on this machine.

A page can point a name of its own at 127.0.0.1, so the Host header must be a name of this server. A page can also
send requests to http://localhost from its own origin, so the Origin header must be ours, or one that is allowed.
"""

from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from triptych.serve.asgi import header, refuse
from triptych.serve.auth import PUBLIC
from triptych.serve.errors import ApiError

_LOCAL = ("localhost", "127.0.0.1", "::1")
ANY = "*"


class HostCheck:
    """Answers 403 to requests for other hosts or from other origins."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str], origins: Iterable[str] = ()):
        self._app = app
        self._hosts = {_name(host) for host in (*_LOCAL, *hosts)}
        self._origins = {origin.lower() for origin in origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in PUBLIC and (error := self._error(scope)) is not None:
            await refuse(error, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _error(self, scope: Scope) -> ApiError | None:
        host = header(scope, b"host") or ""
        # The address that the client connected to is no name that someone else could own.
        own = (scope.get("server") or ("",))[0]
        if ANY not in self._hosts and _name(host) not in {*self._hosts, own}:
            hint = "this server does not answer to this Host; --allowed-host adds one."
            return ApiError(403, hint, type="permission_error", code="host_not_allowed")
        origin = header(scope, b"origin")
        if origin is None or origin.lower() in self._origins:
            return None
        scheme, separator, authority = origin.lower().partition("://")
        if scheme in ("http", "https") and separator and authority == host.lower():
            return None
        hint = "this server does not answer to pages of other origins; --allowed-origin adds one."
        return ApiError(403, hint, type="permission_error", code="origin_not_allowed")


def _name(host: str) -> str:
    """The name or address in a Host header, without port, brackets and trailing dot."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return (host if host.count(":") > 1 else host.partition(":")[0]).lower().removesuffix(".")

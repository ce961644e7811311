"""What our ASGI middleware has in common. All of it is plain ASGI: starlette's BaseHTTPMiddleware breaks streams."""

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from triptych.serve.errors import ApiError


def header(scope: Scope, name: bytes) -> str | None:
    """The value of a header; of several, the first."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), None)


async def send_error(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    await JSONResponse(error.body, error.status, error.headers)(scope, receive, send)

"""Errors of the API, in the shape that clients of OpenAI's API read."""

from typing import Any

from triptych.errors import UserError
from triptych.serve.job import CancelledError, DeadlineError, EngineStoppedError, QueueFullError, SlowReaderError

RETRY_SECONDS = 1


class ServerError(UserError):
    """The end of a server by itself: a service manager is to start another one."""

    exit_code = 1


class ApiError(Exception):
    """An error with its HTTP status. The message is shown to clients."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ):
        super().__init__(message)
        self.status, self.message, self.type, self.param, self.code = status, message, type, param, code
        self.headers = headers or {}

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


def as_api_error(error: BaseException) -> ApiError:
    """What a client is told of an error. The text of an unexpected one stays in the log."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, UserError):
        return ApiError(400, str(error))
    if isinstance(error, QueueFullError):
        headers = {"Retry-After": str(RETRY_SECONDS)}
        return ApiError(
            429, "the server is busy: try again", type="rate_limit_error", code="queue_full", headers=headers
        )
    if isinstance(error, DeadlineError | TimeoutError):
        return ApiError(504, "the request took too long", type="timeout_error", code="deadline")
    if isinstance(error, SlowReaderError):
        return ApiError(408, "the answer is read too slowly", type="timeout_error", code="slow_reader")
    if isinstance(error, EngineStoppedError):
        return unavailable()
    if isinstance(error, CancelledError):
        return ApiError(499, "the request was cancelled", type="server_error", code="cancelled")
    return ApiError(500, "an error inside the server", type="server_error", code="internal_error")


def unavailable() -> ApiError:
    """The server starts, stops, or has no engine."""
    headers = {"Retry-After": str(RETRY_SECONDS)}
    return ApiError(503, "the server is not available", type="server_error", code="unavailable", headers=headers)

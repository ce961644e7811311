"""What a route knows of the HTTP request it answers."""

import asyncio
import itertools
import time
import uuid
from collections.abc import Awaitable
from typing import TypeVar

from starlette.requests import Request as HttpRequest

from triptych.serve.job import CancelledError
from triptych.serve.service import Call, Service

T = TypeVar("T")

_serial = itertools.count()


def service_of(http: HttpRequest) -> Service:
    return http.app.state.service


def call_of(http: HttpRequest) -> Call:
    """The call of a request: its id, and its deadline from when it came."""
    arrived = http.scope.get("arrived", time.monotonic())
    # Clients may choose ids, and choose one twice.
    name = f"{http.scope.get('request_id', uuid.uuid4().hex)}-{next(_serial)}"
    http.scope["call"] = call = Call(name, arrived + service_of(http).limits.seconds)
    return call


async def unless_disconnected(http: HttpRequest, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled if the client goes away. The body must have been read."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(http))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise CancelledError("the client has gone")
        return task.result()
    finally:
        for each in (task, gone):
            if not each.done():
                each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnect(http: HttpRequest) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass

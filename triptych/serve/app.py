"""The HTTP application: routes, middleware, errors and the life of the engines."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse

import triptych
from triptych.serve.auth import KeyCheck
from triptych.serve.bodies import BodyCheck
from triptych.serve.errors import ApiError, as_api_error
from triptych.serve.hosts import HostCheck
from triptych.serve.job import JobError
from triptych.serve.metrics import Metrics
from triptych.serve.routes import audio, canvas, chat, completions, images, models, playground
from triptych.serve.service import Service
from triptych.serve.traffic import Traffic

_MOST_QUOTED = 100  # characters of a key
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Access:
    """Who may use a server."""

    keys: tuple[str, ...] = ()
    """API keys; without any, everyone who reaches the server."""
    hosts: tuple[str, ...] = ()
    """Names of the server, besides those of this machine."""
    origins: tuple[str, ...] = ()
    """Origins of other web pages."""


def create_app(service: Service, access: Access | None = None, metrics: Metrics | None = None) -> FastAPI:
    """An application; `metrics` also counts the rounds of a service that was made with its `on_round`."""
    access, metrics = access or Access(), metrics or Metrics()
    metrics.watch(service)

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await service.close()

    app = FastAPI(
        title="Triptych",
        version=triptych.__version__,
        lifespan=life,
        middleware=_middleware(service, access, metrics),
        redirect_slashes=False,
        docs_url=None,  # FastAPI's pages load their scripts from another host; ours is among the playground's
        redoc_url=None,
    )
    app.state.service = service
    for routes in (models, images, audio, chat, completions, canvas, playground):
        app.include_router(routes.router)
    app.include_router(metrics.router)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    # `Traffic` answers all others: a handler for Exception would let starlette raise the error again.
    for kind in (ApiError, JobError, ValueError, TimeoutError):
        app.add_exception_handler(kind, _answer_error)
    return app


def _middleware(service: Service, access: Access, metrics: Metrics) -> list[Middleware]:
    """The outermost first: a request without a key has no say in what is read of it."""
    chain = [
        Middleware(Traffic, service=service, metrics=metrics),
        Middleware(HostCheck, hosts=access.hosts, origins=access.origins),
    ]
    if access.origins:
        chain.append(
            Middleware(
                CORSMiddleware,
                allow_origins=access.origins,
                allow_methods=["GET", "POST"],
                allow_headers=["Authorization", "Content-Type", "X-Request-ID"],
                expose_headers=["X-Request-ID", "Retry-After"],
            )
        )
    if access.keys:
        chain.append(Middleware(KeyCheck, keys=access.keys))
    return [*chain, Middleware(BodyCheck, limits=service.limits)]


async def _answer_error(http: HttpRequest, error: Exception) -> JSONResponse:
    told = as_api_error(error)
    if told.status == 500:
        _log.error("an error inside the server", exc_info=error)
    return JSONResponse(told.body, told.status, told.headers)


async def _answer_http_error(http: HttpRequest, error: Any) -> JSONResponse:
    """No such route or method."""
    told = ApiError(error.status_code, str(error.detail), code="not_found" if error.status_code == 404 else None)
    return JSONResponse(told.body, told.status, dict(error.headers or {}))


async def _answer_invalid(http: HttpRequest, error: Any) -> JSONResponse:
    """A body or query that does not fit its schema: the first mistake. It may quote what the client sent."""
    first = error.errors()[0]
    where = ".".join(str(part)[:_MOST_QUOTED] for part in first["loc"][1:])[:_MOST_QUOTED]
    what = first["msg"][: 5 * _MOST_QUOTED]
    told = ApiError(400, f"{where}: {what}" if where else what, param=where or None)
    return JSONResponse(told.body, told.status)

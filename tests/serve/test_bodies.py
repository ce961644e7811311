"""Bodies are parsed once, and large ones beside the event loop."""

import asyncio
import json
import threading
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI

from triptych.serve import bodies
from triptych.serve.bodies import BodyCheck, ParsedRoute
from triptych.serve.limits import ServeLimits

router = APIRouter(route_class=ParsedRoute)


@router.post("/length")
async def length(body: dict[str, str]) -> int:
    return len(body["text"])


@pytest.mark.parametrize(("size", "is_beside"), [(1000, False), (2 * 2**20, True)])
def test_large_bodies_are_parsed_once_and_beside_the_event_loop(
    size: int, is_beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, threads = json.loads, list[threading.Thread]()

    def loads(*arguments: Any, **options: Any) -> Any:
        threads.append(threading.current_thread())
        return real(*arguments, **options)

    app = FastAPI()
    app.include_router(router)
    content = json.dumps({"text": "x" * size}).encode()

    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(BodyCheck(app, ServeLimits()))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            with monkeypatch.context() as patch:
                patch.setattr(json, "loads", loads)
                return await client.post("/length", content=content, headers={"Content-Type": "application/json"})

    answer = asyncio.run(run())
    assert answer.json() == size
    assert len(threads) == 1
    assert (threads[0] is not threading.main_thread()) == is_beside


def test_what_is_much_is_at_most_what_a_body_may_have() -> None:
    assert ServeLimits().body_bytes > bodies._MUCH

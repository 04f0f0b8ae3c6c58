"""A well in a Starlette application: its worker lives as long as the application, and endpoints reach it."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from stepwell import AsyncStepwell, InvalidInput, Stepwell, step, workflow
from stepwell.integrations.starlette import get_well, well_lifespan

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it prefers httpx2 to httpx
    from starlette.testclient import TestClient

entered = threading.Event()


@step
async def greet(name: str) -> str:
    return f"hello {name}"


@workflow
async def greeting(name: str) -> str:
    return await greet(name)


@step
def linger(seconds: float) -> str:
    entered.set()
    threading.Event().wait(seconds)
    return "done"


@workflow
def lingering(seconds: float) -> str:
    return linger(seconds)


async def hello(request: Request) -> JSONResponse:
    run = await get_well(request).start(greeting, request.path_params["name"])
    return JSONResponse(await run.result(10))


async def begin(request: Request) -> JSONResponse:
    await get_well(request).start(lingering, 0.3, execution_id="linger-1")
    return JSONResponse({})


ROUTES: list[Any] = [Route("/hello/{name}", hello), Route("/begin", begin)]


def test_an_application_is_started_twice_with_a_new_well_each_time():
    app = Starlette(routes=ROUTES, lifespan=well_lifespan(lambda: AsyncStepwell("memory://")))
    for name in ("ada", "bob"):
        with TestClient(app) as client:
            assert client.get(f"/hello/{name}").json() == f"hello {name}"


def test_shutdown_lets_a_running_step_finish_and_commits_it(tmp_path):
    url = f"sqlite:///{tmp_path}/well.db"
    entered.clear()
    with TestClient(Starlette(routes=ROUTES, lifespan=well_lifespan(AsyncStepwell(url)))) as client:
        client.get("/begin")
        assert entered.wait(10)
    with Stepwell(url, worker=False) as well:
        assert [each.status for each in well.run("linger-1").steps()] == ["COMPLETED"]


def test_an_application_without_the_lifespan_says_what_is_missing():
    with TestClient(Starlette(routes=ROUTES)) as client, pytest.raises(InvalidInput, match="lifespan=well_lifespan"):
        client.get("/hello/ada")

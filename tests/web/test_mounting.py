"""The application mounted under a sub-path of another one, and run alone by `stepwell serve`."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import django
import httpx
import pytest
from django.conf import settings
from django.core.asgi import get_asgi_application
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount
from tests.web.servers import Api, approve, async_test, fail, greet, served

from stepwell import AsyncStepwell, Identity, InvalidInput, Role, Stepwell, stepwell_app
from stepwell.web.authentication import csrf_token

__all__ = ["approve", "fail", "greet"]

settings.configure(ROOT_URLCONF="tests.web.django_urls", ALLOWED_HOSTS=["*"], SECRET_KEY="tests")


def starlette_host(app: Any) -> Any:
    return Starlette(routes=[Mount("/a/b", app)])


def plain_host(app: Any) -> Any:
    """A host that hands requests on by their prefix, as the asgi.py of a Django project does."""

    async def host(scope: Any, receive: Any, send: Any) -> None:
        assert scope["path"].startswith("/a/b")
        await app({**scope, "root_path": "/a/b"}, receive, send)

    return host


def fastapi_host(app: Any) -> Any:
    host = FastAPI()

    @host.get("/own")
    async def own() -> dict[str, str]:
        return {"page": "the host's own"}

    host.mount("/a/b", app)
    return host


def django_host(app: Any) -> Any:
    """The asgi.py of a Django project, with a view of its own."""
    django.setup()
    project = get_asgi_application()

    async def host(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"].startswith("/a/b/"):
            await app({**scope, "root_path": "/a/b"}, receive, send)
        else:
            await project(scope, receive, send)

    return host


@pytest.mark.parametrize("host", [fastapi_host, django_host])
@async_test
async def test_a_host_keeps_its_own_pages(host: Any):
    async with served(worker=False) as api, Api(host(api.app), api.well, api.tokens).client() as client:
        assert (await client.get("/own")).json() == {"page": "the host's own"}
        assert (await client.get("/a/b/api/v1/whoami")).json()["workspace"] == "acme"


@pytest.mark.parametrize("host", [starlette_host, plain_host, fastapi_host, django_host])
@async_test
async def test_everything_works_under_a_sub_path(host: Any):
    async with served() as api:
        mounted = Api(host(api.app), api.well, api.tokens)
        async with mounted.client() as client:
            reply = await client.post("/a/b/api/v1/runs", json={"workflow": "greet", "execution_id": "x/y"})
            assert (reply.status_code, reply.headers["location"]) == (202, "/a/b/api/v1/runs/x%2Fy")
            view = await client.get(reply.headers["location"] + "/result?wait=20")
            assert view.json()["output"] == "Hello, world!"
            assert (await client.get("/a/b/api/v1/openapi.json")).json()["servers"] == [{"url": "/a/b/api/v1"}]
            missing = (await client.get("/a/b/api/v1/runs/none")).json()
            assert missing["type"] == "/a/b/api/v1/problems/SW-200"
            assert (await client.get(missing["type"])).json()["status"] == 404
            assert (await client.get("/a/b/livez")).status_code == 200
        async with mounted.client(None) as client:
            entered = await client.post("/a/b/login", data={"token": api.tokens["acme"]})
            assert entered.headers["location"] == "/a/b/"
            assert "Path=/a/b;" in entered.headers["set-cookie"] + ";"
            assert (await client.get("/a/b/api/v1/whoami")).json()["workspace"] == "acme"


def addresses(page: str) -> list[str]:
    return re.findall(r'\s(?:href|src|action|hx-get|hx-sse:connect)="([^"#]*)', page)


@pytest.mark.parametrize("host", [starlette_host, plain_host, fastapi_host, django_host])
@async_test
async def test_the_dashboard_stays_under_its_sub_path(host: Any):
    async with served() as api, Api(host(api.app), api.well, api.tokens).client(None) as person:
        await api.well.start(greet, workspace="acme", execution_id="x/y")
        led = await person.get("/a/b/runs")
        assert (led.status_code, led.headers["location"]) == (303, "/a/b/login?next=%2Fruns")
        entered = await person.post("/a/b/login", data={"token": api.tokens["acme"], "next": "/runs"})
        assert entered.headers["location"] == "/a/b/runs"
        page = await person.get("/a/b/runs")
        assert 'href="/a/b/runs/x%2Fy"' in page.text
        assert (await person.get("/a/b/runs/x%2Fy")).status_code == 200
        for path in ("/", "/queues", "/schedules", "/definitions", "/scopes", "/receipts", "/audit", "/approvals", "/system"):
            page = await person.get(f"/a/b{path}")
            assert page.status_code == 200, path
            assert all(each.startswith("/a/b/") for each in addresses(page.text) if each), path
        for asset in {each for each in addresses(page.text) if "/assets/" in each}:
            assert (await person.get(asset)).status_code == 200
        csrf = csrf_token(person.cookies["stepwell_session"])
        paused = await person.post("/a/b/workspace/pause", data={"csrf": csrf})
        assert paused.headers["location"] == "/a/b/queues?done=paused"
        left = await person.post("/a/b/logout", data={"csrf": csrf})
        assert left.headers["location"] == "/a/b/login"
        assert "stepwell_session" not in person.cookies


@async_test
async def test_the_host_application_says_who_looks_at_the_dashboard():
    def identify(request: Any) -> Identity | None:
        return Identity(name="ada", role=Role.VIEWER, workspace="acme") if request.headers.get("x-user") == "ada" else None

    async with served(identify=identify) as api, Api(starlette_host(api.app), api.well, api.tokens).client(None) as client:
        assert (await client.get("/a/b/runs")).status_code == 303
        assert (await client.get("/a/b/runs", headers={"X-User": "ada"})).status_code == 200
        refused = await client.post("/a/b/workspace/pause", headers={"X-User": "ada", "Origin": "http://stepwell.test"})
        assert refused.status_code == 403  # a viewer
        foreign = await client.post("/a/b/workspace/pause", headers={"X-User": "ada", "Origin": "https://evil.test"})
        assert "another site" in foreign.text


@async_test
async def test_run_alone_the_application_opens_and_closes_the_well():
    well = AsyncStepwell("memory://", worker=False)
    app = stepwell_app(well)
    told: list[str] = []
    finish = asyncio.Event()

    async def receive() -> Any:
        if not told:
            return {"type": "lifespan.startup"}
        await finish.wait()
        return {"type": "lifespan.shutdown"}

    async def send(message: Any) -> None:
        told.append(message["type"])
        finish.set()

    await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)
    assert told == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert "closed" in repr(well)


def test_only_an_async_well_is_served():
    with Stepwell("memory://", worker=False) as well, pytest.raises(InvalidInput, match="AsyncStepwell"):
        stepwell_app(well)  # type: ignore[arg-type]


def test_serve_prints_a_link_that_signs_in_once_and_ends_at_sigterm(tmp_path: Path):
    (tmp_path / "shop.py").write_text("from stepwell import workflow\n\n@workflow\nasync def hi() -> str:\n    return 'hi'\n")
    command = [sys.executable, "-m", "stepwell", "serve", "shop.py", "--port", "0", "--json", "--url", f"sqlite:///{tmp_path}/w.db"]
    server = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(tmp_path)}
    )
    try:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        base = url.partition("/enter")[0]
        with httpx.Client(base_url=base) as client:
            assert client.get(url).status_code == 303
            assert client.get("/api/v1/whoami").json() == {"name": "local", "role": "admin", "workspace": None}
            assert client.get("/livez", headers={"Host": "evil.test"}).status_code == 421
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(url, timeout=10)
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) in (0, 143)
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def test_tokens_are_made_listed_and_revoked_on_the_command_line(tmp_path: Path):
    def stepwell(*arguments: str) -> str:
        command = [sys.executable, "-m", "stepwell", *arguments, "--json", "--url", f"sqlite:///{tmp_path}/w.db"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    made = json.loads(stepwell("token", "create", "ci", "--role", "operator", "--ttl", "90d"))
    [listed] = [json.loads(line) for line in stepwell("token", "list").splitlines()]
    assert (listed["token_id"], listed["role"], listed["workspace"]) == (made["token_id"], "operator", "default")
    assert made["text"].rpartition("_")[2] not in json.dumps(listed)
    stepwell("token", "revoke", made["token_id"])
    assert stepwell("token", "list") == ""

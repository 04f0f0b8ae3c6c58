"""Declared secrets are on no route and no page: their values are shown as ``[secret]``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.web.servers import BASE, async_test

from stepwell import AsyncStepwell, ExecutionFailed, step, stepwell_app, wait_approval, workflow
from stepwell.model.access import Identity, Role
from stepwell.web.api.route_table import TABLE
from stepwell.web.dashboard.screen_table import SCREENS

SECRET = "hunter-2-hunter"
GIVEN = {"user": "Ada", "password": SECRET, "cards": [{"card_number": SECRET}]}
PARAMETERS = {
    "execution_id": "run",
    "scope": "custom:vault",
    "key": "password",
    "conversation_id": "talk",
    "name": "nightly",
    "workspace_id": "default",
    "queue": "default",
    "tier": "free",
    "code": "SW-200",
    "lock": "door",
}


@step
async def look_up(account: dict[str, Any]) -> dict[str, Any]:
    return {"api_token": account["password"], "found": True}


@workflow(name="hidden.sign_up", secrets=["*_token"])
async def sign_up(account: dict[str, Any]) -> object:
    await look_up(account)
    return await wait_approval("Go on?", details=account)


@workflow(name="hidden.refuse")
async def refuse(account: dict[str, Any]) -> None:
    raise ValueError(f"{account['password']} is refused")


async def filled(well: AsyncStepwell) -> dict[str, str]:
    """Store the secret in every place that a route shows, and return the values of path parameters."""
    await well.start(sign_up, GIVEN, execution_id="run")
    item = await well.enqueue(refuse, GIVEN)
    with pytest.raises(ExecutionFailed):
        await item.result(timeout=20)
    while await well.run("run").status() != "WAITING":  # noqa: ASYNC110 - its worker has it there soon
        await asyncio.sleep(0.01)
    async with well.transaction("run") as tx:
        tx.set_variable("password", SECRET)
    await well.state.custom("vault").set("password", SECRET)
    await well.conversations.set("talk", {"password": SECRET}, user="ada")
    await well.schedules.put("nightly", sign_up, GIVEN, every=3_600)
    group = (await well.errors.list())[0]
    return {**PARAMETERS, "item_id": item.item_id, "fingerprint": group.fingerprint}


@async_test
async def test_no_route_and_no_page_shows_what_is_declared_secret():
    async with AsyncStepwell("memory://", secrets=["password", "card_*"]) as well:
        values, seen = await filled(well), 0
        async with browser(well) as client:
            for route in TABLE.routes:
                if route.method == "GET" and set(route.parameters) <= values.keys() and "events" not in route.path:
                    params = {"diff_run": {"a": "0", "b": "3"}, "list_conversations": {"user": "ada"}}.get(route.name, {})
                    reply = await client.get(f"/api/v1{route.path.format(**values)}", params=params)
                    assert SECRET not in reply.text or route.name == "get_proof", route.name
                    seen += "[secret]" in reply.text
            for screen in SCREENS.routes:
                if screen.method == "GET" and screen.path != "/live":
                    try:
                        address = screen.path.format(**values)
                    except KeyError:
                        continue
                    page = await client.get(address)
                    assert SECRET not in page.text, screen.name
                    seen += "[secret]" in page.text
            stream = await client.get("/api/v1/runs/run/events", params={"wait": "0"}, headers={"Accept": "application/json"})
            assert SECRET not in stream.text
        assert seen > 10
        assert (await well.load("run")).variables["password"] == SECRET


def test_what_waits_is_hidden_by_a_server_that_knows_no_secrets(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/well.db"

    async def look() -> None:
        async with AsyncStepwell(url, secrets=["password", "card_*"], worker=False) as well:
            item = await well.enqueue(refuse, GIVEN)
            await well.schedules.put("nightly", refuse, GIVEN, every=3_600)
        async with AsyncStepwell(url, worker=False) as well, browser(well) as client:
            for address in ("/queue/items", f"/queue/items/{item.item_id}", "/schedules", "/schedules/nightly"):
                reply = await client.get(f"/api/v1{address}")
                assert (reply.status_code, "[secret]" in reply.text, SECRET in reply.text) == (200, True, False), address

    asyncio.run(look())


@async_test
async def test_what_stands_for_a_secret_is_not_stored_in_its_place():
    async with AsyncStepwell("memory://", secrets=["password"], worker=False) as well:
        await well.state.custom("vault").set("password", SECRET)
        async with browser(well) as client:
            shown = (await client.get("/api/v1/state/custom:vault/keys/password")).json()["value"]
            reply = await client.put("/api/v1/state/custom:vault/keys/password", json={"value": shown}, headers={"If-Match": "*"})
            assert (shown, reply.status_code) == ("[secret]", 422)
            started = await client.post("/api/v1/runs", json={"workflow": "hidden.sign_up", "input": {"password": shown}})
            assert started.status_code == 422
        assert await well.state.custom("vault").get("password") == SECRET


def browser(well: AsyncStepwell) -> httpx.AsyncClient:
    """Return a client with all rights in all workspaces, which follows no redirect."""

    async def identify(_: object) -> Identity:
        return Identity(name="ann", role=Role.ADMIN, workspace=None)

    app = stepwell_app(well, identify=identify)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url=BASE)

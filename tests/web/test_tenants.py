"""Workspaces stay apart: every route is called with the token of another workspace and the ids of this one."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.web.servers import Api, approve, async_test, fail, greet, served

from stepwell.testing.store_access import parts_of
from stepwell.web.api.route_table import TABLE
from stepwell.web.route import Route

__all__ = ["approve", "fail", "greet"]

OWN = {"bulk_id", "delivery_id", "execution_id", "item_id", "token_id", "workspace_id"}
"""Parameters whose values are unique in the store: another workspace's are answered like missing ones."""
APART = {"fingerprint", "scope", "key", "conversation_id", "lock", "webhook"}
"""Parameters that name something inside of the caller's own workspace, whatever others call theirs."""
SHARED = {"worker", "queue", "tier", "code", "limit"}
"""Parameters that name something of all of the store."""
SECRET = "what only acme knows"


async def prepare(api: Api) -> dict[str, str]:
    """Put something of acme's under each kind of id, and return the values of the path parameters."""
    run = await api.well.start(approve, workspace="acme", execution_id="run-of-acme")
    item = await api.well.enqueue(approve, workspace="acme", key="item")
    await api.well.schedules.put("nightly", greet, SECRET, every=3_600, workspace="acme")
    await api.well.state.workspace("acme").set("key-of-acme", SECRET)
    await api.well.conversations.within("acme").set("talk", {"secret": SECRET}, user="ada")
    await api.well.locks.acquire("lock", workspace="acme", holder="acme")
    await api.well.webhooks.within("acme").put("hook", f"https://example.org/{SECRET.replace(' ', '-')}")
    await api.well.create("ended", "acme")
    async with api.well.transaction("ended") as tx:
        tx.set_status("RUNNING")
        tx.set_status("COMPLETED")
    [delivery] = await api.well.webhooks.within("acme").deliveries()
    [token] = [each for each in await api.well.access.tokens() if each.name == "operator"]
    return {
        "execution_id": run.execution_id,
        "item_id": item.item_id,
        "name": "nightly",
        "workspace_id": "acme",
        "token_id": token.token_id,
        "scope": "workspace",
        "key": "key-of-acme",
        "conversation_id": "talk",
        "lock": "lock",
        "webhook": "hook",
        "delivery_id": delivery.delivery_id,
        "queue": "default",
        "tier": "free",
        "code": "SW-200",
        "limit": "concurrency",
        "fingerprint": "0" * 16,
        "bulk_id": "bulk-of-acme",
        "worker": "worker-of-all",
    }


def test_every_parameter_is_sorted_by_whom_it_belongs_to():
    known = OWN | APART | SHARED | {"name"}
    assert {name for route in TABLE.routes for name in route.parameters} <= known


async def ask(client: httpx.AsyncClient, route: Route, values: dict[str, str]) -> httpx.Response:
    body: Any = dict(route.example) or ({} if route.body is not None else None)
    is_stream = "events" in route.path
    headers = {"If-Match": "*", "Accept": "application/json" if is_stream else "*/*"}
    params = {"wait": "0"} if is_stream else {}
    if route.name == "diff_run":
        params = {"a": "0", "b": "0"}
    if route.name == "list_ticks":
        params = {"start": "2026-01-01T00:00:00Z", "end": "2026-01-02T00:00:00Z"}
    if route.name == "list_conversations":
        params = {"user": "ada"}
    return await client.request(route.method, f"/api/v1{route.path.format(**values)}", json=body, headers=headers, params=params)


def masked(reply: httpx.Response, route: Route, values: dict[str, str]) -> str:
    """Return a reply without what differs between any two: the ids that were asked for, and the request's id."""
    values = {name: values[name] for name in route.parameters}
    body = {name: value for name, value in reply.json().items() if name != "request_id"} if reply.content else {}
    text = str(body)
    for value in sorted(values.values(), key=len, reverse=True):
        text = text.replace(value, "*")
    return text


@pytest.mark.parametrize("name", [route.name for route in TABLE.routes if route.role is not None])
@async_test
async def test_another_workspace_gets_nothing_from_any_route(name: str):
    [route] = [each for each in TABLE.routes if each.name == name]
    async with served(worker=False) as api, api.client("rival") as rival:
        values = await prepare(api)
        before = await everything(api)
        called = calls_of(parts_of(api.well).store)
        reply = await ask(rival, route, values)
        foreign = called.copy()
        assert SECRET not in reply.text
        if OWN & set(route.parameters) or ("name" in route.parameters and route.tag == "schedules"):
            missing = {key: f"missing-{key}" for key in values}
            called.clear()
            expected = await ask(rival, route, missing)
            if name in ("put_run", "put_schedule"):
                assert reply.status_code == 409  # ids and names are unique in a store
            else:
                assert reply.status_code in (403, 404), reply.text
                assert reply.status_code == expected.status_code
                assert masked(reply, route, values) == masked(expected, route, missing)
                assert foreign == called, "what the store is asked for takes time, and so tells what exists"
        assert await everything(api) == before


def calls_of(store: Any) -> list[str]:
    """Note what a store is asked for from now on."""
    called: list[str] = []

    def noting(name: str, method: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            called.append(name)
            return method(*arguments, **options)

        return call

    for name in dir(store):
        if not name.startswith("_") and callable(method := getattr(store, name)) and name not in ("listen", "now_ms"):
            setattr(store, name, noting(name, method))
    return called


async def everything(api: Api) -> list[object]:
    """Return what acme has, to see that nobody else changed it."""
    well = api.well
    return [
        [(each.execution_id, each.status, each.revision) for each in await well.executions.list(workspace="acme")],
        [(each.item_id, each.status) for each in await well.queue.list(workspace="acme")],
        [each for each in await well.schedules.list() if each.workspace_id == "acme"],
        await well.state.workspace("acme").all(),
        await well.conversations.within("acme").get("talk"),
        await well.workspaces.get("acme"),
        [each.token_id for each in await well.access.tokens() if each.workspace == "acme"],
        await well.webhooks.within("acme").list(),
        await well.webhooks.within("acme").deliveries(),
        (await well.locks.acquire("lock", workspace="acme", holder="acme")).fence,
    ]

"""The OpenAPI document: it is made from the routes, its examples work, and the server keeps to it."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import jsonschema_rs
from tests.docs.pages import ROOT, cells
from tests.web.servers import Api, approve, async_test, fail, greet, served

from stepwell.web.api.route_table import TABLE
from stepwell.web.openapi import document_of
from stepwell.web.route import Route

__all__ = ["approve", "fail", "greet"]

STATE = "/api/v1/state/workspace/keys/k"


def test_every_route_has_its_operation_and_a_summary():
    document = document_of(TABLE, "")
    names = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]
    assert sorted(names) == sorted(route.name for route in TABLE.routes)
    assert len(set(names)) == len(names)
    assert [route.name for route in TABLE.routes if not route.summary] == []


def test_every_body_has_an_example():
    assert [route.name for route in TABLE.routes if route.body is not None and not (route.example or route.is_body_optional)] == []


def test_every_parameter_has_a_description_and_an_example_that_fits():
    document = document_of(TABLE, "")
    for address, path in document["paths"].items():
        for operation in path.values():
            for each in operation["parameters"]:
                where = f"{operation['operationId']} {address} {each['name']}"
                assert each["description"].strip(), where
                validator = jsonschema_rs.Draft202012Validator({**each["schema"], "components": document["components"]})
                assert validator.is_valid(each["example"]), (where, each["example"], each["schema"])


@async_test
async def test_operations_are_linked_by_what_they_return():
    document = document_of(TABLE, "")
    started = document["paths"]["/runs"]["post"]["responses"]["202"]["links"]
    assert started["cancel_run"] == {"operationId": "cancel_run", "parameters": {"execution_id": "$response.body#/execution_id"}}
    put = document["paths"]["/schedules/{name}"]["put"]["responses"]["200"]["links"]
    assert put["pause_schedule"]["parameters"] == {"name": "$request.path.name"}
    names = {route.name for route in TABLE.routes}
    responses = [each for path in document["paths"].values() for about in path.values() for each in about["responses"].values()]
    assert {name for each in responses for name in each.get("links", {})} <= names


@async_test
async def test_the_document_is_public_and_names_the_sub_path():
    async with served() as api, api.client(None) as client:
        document = (await client.get("/api/v1/openapi.json")).json()
        assert document["openapi"] == "3.1.0"
        assert document["servers"] == [{"url": "/api/v1"}]


async def prepare(api: Api, client: httpx.AsyncClient) -> dict[str, str]:
    """Put what the examples act on, and return the parameters of the paths."""
    hold = await client.post("/api/v1/locks/lock/acquire?workspace=acme", json={"holder": "worker-7"})
    assert hold.json()["fence"] == 1
    run = await api.well.start(approve, workspace="acme", execution_id="run")
    item = await api.well.enqueue(greet, "Ada", workspace="acme")
    await client.put("/api/v1/schedules/nightly?workspace=acme", json={"workflow": "greet", "every_ms": 3_600_000})
    while not (await run.progress()).offers:  # noqa: ASYNC110 - a worker of its own takes the run there
        await asyncio.sleep(0.01)
    return {
        "execution_id": "run",
        "item_id": item.item_id,
        "name": "nightly",
        "queue": "mail",
        "workspace_id": "acme",
        "tier": "gold",
        "limit": "concurrency",
        "scope": "workspace",
        "key": "k",
        "conversation_id": "talk",
        "lock": "lock",
        "webhook": "shop",
    }


@async_test
async def test_the_examples_work():
    async with served() as api, api.client("store") as client:
        values = await prepare(api, client)
        for route in TABLE.routes:
            if not route.example:
                continue
            names: dict[str, Any] = {**values, "name": "ship"} if route.tag == "definitions" else dict(values)
            if route.name == "put_run":
                names["execution_id"] = "own"
            if route.name == "approve_run":  # its own test has a run that waits for an approval
                continue
            if route.name == "increment_entry":
                names["key"] = "count"
            url = f"/api/v1{route.path.format(**names)}?workspace=acme"
            headers = (
                {"If-None-Match": "*"} if route.name in ("put_entry", "put_tier") else {"If-Match": "*"} if route.conditions else {}
            )
            reply = await client.request(route.method, url, json=route.example, headers=headers)
            assert reply.status_code in (route.status, *route.statuses), (route.name, reply.text)


def test_every_address_is_on_the_page_with_its_role():
    rows = cells(ROOT / "docs" / "reference" / "http.md", "address")
    written = {address.strip("`"): (role, summary) for address, role, summary in rows}
    assert written == {f"{route.method} {route.path}": (role_of(route), route.summary) for route in TABLE.routes}


def role_of(route: Route) -> str:
    role = "no role needed" if route.role is None else str(route.role)
    return f"{role} of the store" if route.is_store_wide else role

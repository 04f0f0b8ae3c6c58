"""Servers to look at in a browser, in a process of their own: with everything, to be changed, with nothing, without its store.

`python -m tests.browser.site` prints where they are and how to sign in, and serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import uvicorn

import stepwell
from stepwell import AsyncStepwell, Identity, Retry, Role, Status, StepwellError, step, stepwell_app, workflow
from stepwell.web.uvicorn_server import PatientProtocol

__all__ = ["HOSTILE", "SAMPLES", "Site"]

HOSTILE = "<img src=x onerror=alert(1)>\"'`{{7*7}}${7*7}</script><svg/onload=alert(2)>&amp;\u202e"
"""Text that is an attack wherever it is not escaped."""

SAMPLES = {
    "execution_id": "order-1",
    "queue": "mail",
    "name": "nightly",
    "definition": "ship",
    "item_id": "none",
    "scope": "workspace",
    "key": "greeting",
    "token_id": "none",
    "webhook": "shop",
    "bulk_id": "none",
    "delivery_id": "none",
    "fingerprint": "none",
    "workspace_id": "default",
}
"""A value for each parameter in the path of a screen; those that a store makes are added when the site is filled."""


class Site(NamedTuple):
    """One server."""

    origin: str
    sessions: dict[str, str]
    """Secrets of sessions: ``admin`` and ``viewer`` of the workspace, ``store`` for all of the store."""
    tokens: dict[str, str]
    samples: dict[str, str]

    def path(self, path: str) -> str:
        """The path of a screen, with the parameters of a thing that exists."""
        path = path.replace("/definitions/{name}", "/definitions/{definition}")
        return path.format(**{name: quote(value, safe="") for name, value in self.samples.items()})


@step(retry=Retry(attempts=3, first_seconds=0, factor=1))
async def flaky(order: str) -> str:
    """Fail twice."""
    if stepwell.current().attempt < 3:
        raise ConnectionError(f"the warehouse does not answer for {order}")
    return "reserved"


@step
async def charge(cents: int) -> dict[str, object]:
    """Charge a card."""
    if cents < 0:
        raise ValueError(f"{cents} cents cannot be charged")
    return {"paid": cents, "currency": "EUR"}


@workflow
async def order(number: str = "1", cents: int = 4200) -> dict[str, object]:
    """Reserve, charge and ship an order."""
    reserved = await flaky(number)
    stepwell.current().variables["reserved"] = reserved
    paid = await charge(cents)
    return {"order": number, **paid}


@step
async def pack(item: str, seconds: float) -> str:
    """Take some time."""
    stepwell.current().logger.info("packing %s", item)
    await asyncio.sleep(seconds)
    return item


@workflow
async def fulfil() -> None:
    """Pack some items at once, and fail at the till."""
    await pack("paper", 0.2)
    await asyncio.gather(pack("book", 0.3), flaky("8"), pack("lamp", 0.6))
    await charge(-8)


@workflow
async def approval(who: str) -> str:
    """Wait until somebody approves."""
    return f"{who}: {await stepwell.wait_signal('approve')}"


@workflow
async def reminder(text: str = "") -> str:
    """Wait for a day."""
    await stepwell.sleep("1d")
    return text


SHIP = """
name: ship
description: Pack a parcel and hand it to the carrier.
input_schema:
  type: object
  required: [address]
  properties:
    address: {type: string, description: Where to}
    express: {type: boolean}
    grams: {type: integer, minimum: 1}
do:
  - approval: "Ship {{ trigger.input.grams }} g to {{ trigger.input.address }}?"
    name: release
    timeout_seconds: 3d
  - parallel:
      postage: {step: charge, with: 490}
      label: {wait: 1s}
    name: prepare
  - choice:
      - when: trigger.input.express == true
        do: {wait: 1s, name: courier}
    otherwise: {wait: 1h, name: mail}
"""


async def fill(well: AsyncStepwell, odd: str = HOSTILE) -> dict[str, str]:
    """Put something of everything into a store.

    - ``odd``: a name of a run, a workspace, a schedule, a key and a token.
    """
    for number in range(1, 7):
        await well.start(order, {"number": str(number)}, execution_id=f"order-{number}")
    failed = [await well.start(order, {"number": f"7{n}", "cents": -n}, execution_id=f"refund-{n}") for n in range(1, 4)]
    await well.start(approval, "ada", execution_id="approval-ada")
    await well.start(approval, odd, execution_id=odd)
    await well.start(reminder, "call back", execution_id="reminder-1")
    doomed = await well.start(approval, "bob", execution_id="approval-bob")
    await doomed.cancel()
    await well.run("order-6").result(timeout="60s")
    for run in failed:
        while await run.status() != Status.FAILED:  # noqa: ASYNC110 - its worker has it there soon
            await asyncio.sleep(0.02)
    await well.definitions.put(SHIP)
    await well.start("ship", {"address": "1 Main St", "grams": 250, "express": True}, execution_id="parcel-1")
    await well.definitions.put(SHIP.replace("1s", "2s").replace("name: ship", "name: ship\nversion: 2"))
    await well.workspaces.put("acme", tier="enterprise")
    await well.workspaces.put(odd, tier="free")
    await well.queue.put("mail", concurrency=2)
    await well.queue.pause("mail")
    item = await well.enqueue(order, {"number": "50"}, queue="mail", execution_id="order-50")
    await well.enqueue(order, {"number": "51"}, queue="mail", execution_id="order-51", delay="1h")
    await well.schedules.put("nightly", order, {"number": "90"}, cron="30 2 * * *", zone="Europe/Berlin")
    await well.schedules.put(odd, order, {"number": odd}, every="1h")
    await well.schedules.pause(odd)
    scope = well.state.workspace("default")
    await scope.set("greeting", {"text": "hello", "big": 2**60 + 1, "nested": {"list": [1, 2.5, None, True]}})
    await scope.set(odd, odd, ttl="1h")
    await well.state.workspace("default").workflow("order").set("counter", 7)
    issued = await well.access.create_token(odd, role="viewer", workspace="default")
    [group, *_] = await well.errors.list()
    return {**SAMPLES, "fingerprint": group.fingerprint, "item_id": item.item_id, "token_id": issued.token.token_id}


@asynccontextmanager
async def listening(app: Any) -> AsyncIterator[str]:
    """Serve an application on a free port."""
    server = uvicorn.Server(
        uvicorn.Config(app, port=0, log_config=None, lifespan="off", http=PatientProtocol, timeout_graceful_shutdown=1)
    )
    server.install_signal_handlers = lambda: None
    serving = asyncio.ensure_future(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn tells of it by nothing else
        await asyncio.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    await serving


async def site_of(well: AsyncStepwell, stack: AsyncExitStack, samples: dict[str, str]) -> Site:
    """Serve a well, with sessions and tokens of several roles."""
    tokens: dict[str, str] = {}
    sessions: dict[str, str] = {}
    for name, role, workspace in (
        ("viewer", Role.VIEWER, "default"),
        ("operator", Role.OPERATOR, "default"),
        ("admin", Role.ADMIN, "default"),
        ("store", Role.ADMIN, None),
    ):
        issued = await well.access.create_token(name, role=role, workspace=workspace)
        tokens[name] = issued.text
        identity = Identity(name=name, role=role, workspace=workspace, token_id=issued.token.token_id)
        sessions[name] = await well.access.open_session(identity)
    origin = await stack.enter_async_context(listening(stepwell_app(well, backups=stack.enter_context(TemporaryDirectory()))))
    if samples is not SAMPLES:
        samples["bulk_id"] = await act_on_many(origin, tokens["operator"])
    return Site(origin, sessions, tokens, samples)


async def act_on_many(origin: str, token: str) -> str:
    """Carry out a bulk action of which one part is refused, and return its id."""
    async with httpx.AsyncClient(base_url=origin, headers={"Authorization": f"Bearer {token}"}) as client:
        body = {"action": "retry", "ids": ["order-1"]}
        planned = (await client.post("/api/v1/bulk", json=body)).json()
        return str((await client.post("/api/v1/bulk", json={**body, "hash": planned["hash"]})).json()["bulk_id"])


async def main() -> None:
    """Serve all sites until standard input ends."""
    logging.getLogger("stepwell.runtime").setLevel(logging.CRITICAL)  # runs fail here on purpose
    async with AsyncExitStack() as stack:
        filled = await stack.enter_async_context(AsyncStepwell("memory://"))
        empty = await stack.enter_async_context(AsyncStepwell("memory://", worker=False))
        work = await stack.enter_async_context(AsyncStepwell("memory://"))
        fresh = await stack.enter_async_context(AsyncStepwell("memory://"))
        tour = await stack.enter_async_context(AsyncStepwell("memory://"))
        samples, others, shown = await fill(filled), await fill(work), await fill(tour, "summer-sale")
        picked = await tour.start(fulfil, execution_id="order-8")
        with suppress(StepwellError):
            await picked.result(timeout="60s")
        nowhere = AsyncStepwell("redis://127.0.0.1:1/0?connect_timeout=1", worker=False)

        def anybody(_: object) -> Identity:
            return Identity(name="store", role=Role.ADMIN, workspace=None)

        away = stepwell_app(nowhere, identify=anybody)
        sites = {
            "filled": await site_of(filled, stack, samples),
            "work": await site_of(work, stack, others),
            "tour": await site_of(tour, stack, shown),
            "fresh": await site_of(fresh, stack, SAMPLES),
            "empty": await site_of(empty, stack, SAMPLES),
            "away": Site(await stack.enter_async_context(listening(away)), {}, {}, SAMPLES),
        }
        print(json.dumps({name: site._asdict() for name, site in sites.items()}), flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())

"""A program as users write it. A strict type checker must find nothing in it, without one cast; see test_typing.py."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import Any, assert_type
from uuid import UUID

import stepwell
from stepwell import (
    ApprovalResult,
    AsyncRun,
    AsyncStepwell,
    Progress,
    QueueItem,
    Retry,
    Run,
    Scope,
    Status,
    Stepwell,
    step,
    workflow,
)
from stepwell.flow import call, define, otherwise, parallel, when
from stepwell.flow import choice as choose

STOCK = Scope.custom("stock")


class Declined(Exception):
    """The card was declined."""


@dataclass
class Order:
    """An order."""

    item: str
    cents: int


@step(retry=Retry(attempts=5, first_seconds=1, non_retryable=(Declined, "validation", ValueError)), timeout_seconds=30)
async def charge(order: Order) -> str:
    """Read state, write state, and say who asks."""
    here = stepwell.current()
    assert_type(here.idempotency_key, str)
    assert_type(here.attempt, int)
    stock = here.state(STOCK)
    left: int = await stock.get(order.item, 0)
    stock.set(order.item, left - 1)
    here.spend(0.25)
    return f"{here.execution_id} {here.step}"


@dataclass
class Approval:
    """An answer."""

    by: str


@step
def pack(item: str) -> int:
    """A plain one."""
    names: list[str] = stepwell.current().state(STOCK).keys("a")
    return len(item) + len(names)


@workflow(timeout="2h")
async def checkout(order: Order) -> str:
    """A workflow that is awaited."""
    payment = await charge(order)
    assert_type(payment, str)
    stepwell.compensate(charge, order)
    await stepwell.sleep("2h")
    assert_type(await asyncio.gather(charge(order), stepwell.sleep("2h")), tuple[str, None])
    answer = await stepwell.wait_signal("approve", timeout="3d")
    approval = await stepwell.wait_signal("approve", type=Approval)
    assert_type(approval, Approval)
    assert_type(await stepwell.wait_approval("Pay?"), ApprovalResult)
    assert_type(await asyncio.create_task(stepwell.wait_approval("Pay?")), ApprovalResult)
    photos = await stepwell.map(pack, [order.item], concurrency=8)
    assert_type(photos, list[int])
    assert_type(await stepwell.map(charge, [order], return_exceptions=True), list[str | Exception])
    assert_type(await pack.aio(order.item), int)
    assert_type(await pack.with_summary("a lamp").aio(order.item), int)
    assert_type(await packing.aio(order.item), int)
    stepwell.current().variables["paid"] = payment
    return f"{payment} {answer} {len(photos)}" if stepwell.patched("photos") else payment


@workflow
def packing(item: str) -> int:
    """A workflow that blocks."""
    stepwell.sleep("2h")
    done = pack(item)
    assert_type(done, int)
    assert_type(charge.sync(Order(item, 5)), str)
    assert_type(charge.with_key("charge-7").sync(Order(item, 5)), str)
    assert_type(checkout.sync(Order(item, 5)), str)
    assert_type(stepwell.wait_signal.sync("packed", type=Approval, timeout="3d"), Approval)
    assert_type(stepwell.wait_signal.sync("packed", type=list[Approval]), list[Approval])
    paid: bool = stepwell.wait_signal("paid")
    assert_type(stepwell.wait_approval("Pack it?").is_approved, bool)
    assert_type(stepwell.now(), datetime)
    assert_type(stepwell.random() if paid else 0.5, float)
    assert_type(stepwell.uuid(), UUID)
    sizes: list[int] = stepwell.map(pack, [item])
    payments: list[str] = stepwell.map(charge.sync, [Order(item, 5)])
    return done + len(sizes) + len(payments)


@workflow
async def two(item: str, cents: int = 3) -> float:
    """A workflow with several parameters."""
    return len(item) * cents


DECLARED = define("declared", parallel(left=call("pack", "a"), right="pack"), choose(when("true", "pack"), otherwise("pack")))


def blocking() -> None:
    """The face that blocks."""
    with Stepwell("memory://", worker=True) as well:
        run = well.start(checkout, Order("lamp", 5), workspace="acme", execution_id="order-7")
        assert_type(run, Run[str])
        assert_type(run.result(timeout=10), str)
        assert_type(well.start(two, {"item": "lamp", "cents": 3}).result(), float)
        assert_type(well.start(two.with_input("lamp", cents=3), execution_id="order-8").result(), float)
        assert_type(well.start(two, "lamp").result(), float)
        assert_type(well.enqueue(packing, "lamp", priority=3).result(), int)
        assert_type(well.enqueue(two.with_input("lamp")), QueueItem[float])
        assert_type(well.run("order-8"), Run[Any])
        assert_type(well.state.globals.get("order", type=Order), Order | None)
        assert_type(well.state.globals.get("order", "none", type=Order), Order | str)
        assert_type(run.status(), Status)
        assert_type(run.progress(), Progress)
        run.signal("approve", {"by": "me"})
        print(run.result(timeout=10), run.state().get_variable("paid"))
        well.start(DECLARED, {"a": 1}).cancel()
        well.start(packing, "lamp").retry()


async def awaited() -> None:
    """The face that is awaited."""
    async with AsyncStepwell("memory://") as well:
        run = await well.start(packing, "lamp")
        assert_type(run, AsyncRun[int])
        print(await run.result("10s"))
        await well.state.custom("stock").set("lamp", 3)


if __name__ == "__main__":
    blocking()
    asyncio.run(awaited())

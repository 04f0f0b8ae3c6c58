"""The writes to a queue that crash tests interrupt. Clock and ids are fixed, so that old and new can be compared row by row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import apsw

from stepwell.clock import FakeClock
from stepwell.contract.store import Store
from stepwell.model.commit import Creation, Rest, Unit, Written
from stepwell.model.limits import Limits
from stepwell.model.queue_item import CancelItem, ClaimItems, Enqueue, ItemMark, RecoverItems, Redrive, ReturnItem
from stepwell.stores.sqlite.store import SQLiteStore
from stepwell.testing.conformance.samples import HOUR, SampleExecution, claim_items, new_item, put_workspace, status

__all__ = ["ACTS", "dump", "open_store", "prepare"]


def open_store(path: Path) -> Store:
    """The store in a file, at a time that never changes."""
    store = SQLiteStore(f"sqlite:///{path}", FakeClock(), Limits())
    store.open()
    return store


def prepare(store: Store) -> None:
    """A workspace with two slots used, one by a claim that has expired, and something waiting. Beside it two runs that failed; one
    was retried, and its item is claimed."""
    for name in ("broken", "back"):
        _fail(store, name)
    _follow(store, "back").land(status("PENDING"), rest=Rest(), mark=ItemMark("back", "QUEUED"))
    claim_items(store, 1)
    put_workspace(store, "acme", concurrency=3, rate_per_second=100)
    store.write([Enqueue(tuple(new_item(f"i{number}", "acme") for number in range(6)))])
    claim_items(store, 1)
    claim_items(store, 1, seconds=-1)
    store.write([Enqueue((new_item("dead"),)), CancelItem("dead")])


def _fail(store: Store, name: str) -> None:
    """An item with a run that failed."""
    store.write([Enqueue((new_item(name),))])
    [claimed] = claim_items(store, 1)
    run = SampleExecution(store, claimed.execution_id).create(status("RUNNING"), mark=ItemMark(name, "DISPATCHED", claimed.fence))
    run.land(status("FAILED"), rest=Rest(is_final=True), mark=ItemMark(name, "FAILED"))


def _follow(store: Store, name: str) -> SampleExecution:
    run = SampleExecution(store, f"of-{name}")
    run.follow()
    return run


def _again(store: Store) -> Unit:
    """A run that failed is retried, and its item waits with it."""
    mark = ItemMark("broken", "QUEUED")
    return _follow(store, "broken").commit(status("PENDING"), commit_id="again", rest=Rest(), mark=mark)


def _turn(store: Store) -> Unit:
    """A run that was retried goes on, and its item with it."""
    mark = ItemMark("back", "DISPATCHED", _fence(store, "back"))
    return _follow(store, "back").commit(status("RUNNING"), commit_id="turn", rest=Rest(wake_ms=0), mark=mark)


def _fence(store: Store, item_id: str) -> int:
    item = store.item(item_id)
    assert item is not None
    return item.fence


def _enqueue(store: Store) -> Unit:
    return Enqueue((new_item("new", "acme"), new_item("keyed", "acme", key="k"), new_item("later", delay_ms=HOUR * 1000)))


def _dispatch(store: Store) -> Unit:
    return SampleExecution(store, "of-i0").creation(commit_id="dispatch", mark=ItemMark("i0", "DISPATCHED", 1))


def _finish(store: Store) -> Unit:
    """An execution of one commit, which leaves two more items."""
    return SampleExecution(store, "of-i0").creation(
        status("RUNNING"),
        status("COMPLETED"),
        commit_id="finish",
        creation=Creation("orders", 3, holder="w", lease_seconds=HOUR, is_runnable=True),
        rest=Rest(is_final=True),
        mark=ItemMark("i0", "COMPLETED", 1),
        items=(new_item("child"), new_item("other", key="c")),
    )


ACTS: dict[str, Callable[[Store], Unit]] = {
    "enqueue": _enqueue,
    "bulk": lambda _: Enqueue(tuple(new_item(f"bulk-{number}", "acme") for number in range(50))),
    "claim": lambda _: ClaimItems("d", HOUR, 5),
    "dispatch": _dispatch,
    "finish": _finish,
    "return": lambda store: ReturnItem("i0", _fence(store, "i0"), "no luck"),
    "give back": lambda store: ReturnItem("i0", _fence(store, "i0")),
    "cancel": lambda _: CancelItem("i2"),
    "redrive": lambda _: Redrive("dead", "again"),
    "recover": lambda _: RecoverItems(),
    "again": _again,
    "turn": _turn,
}
"""Each makes the unit that it writes, the same one every time."""

RETRYABLE = ("enqueue", "bulk", "dispatch", "finish")
"""The acts that may be made again when it is not known whether they landed."""


def write(store: Store, act: str) -> None:
    """Make an act, which must land."""
    [outcome] = store.write([ACTS[act](store)])
    assert isinstance(outcome, Written), outcome


def dump(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Every row of every table."""
    connection = apsw.Connection(str(path))
    tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name").fetchall()
    # A number that was passed over is no row.
    names = [name for (name,) in tables if name != "sqlite_sequence"]
    rows = {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in names}
    connection.close()
    return rows

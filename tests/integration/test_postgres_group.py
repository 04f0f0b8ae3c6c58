"""Groups on PostgreSQL: first and last commits, with the items that they came from, are a statement each, in one round trip."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace
from tests.integration.commit_paths import Repeated
from tests.integration.conftest import OpenUrl, postgres_store
from tests.support.postgres_server import PostgresServer

from stepwell.errors import AlreadyExists, Conflict, InvalidInput, LeaseLost, NotFound
from stepwell.model.commit import ClaimDue, Commit, Creation, Outcome, Rest, Seen, StateBatch, Unit, Written
from stepwell.model.queue_item import Claimed, ClaimItems, Enqueue, ItemMark, RecoverItems, ReturnItem
from stepwell.stores.postgres import writer
from stepwell.stores.postgres.store import PostgresStore
from stepwell.testing.conformance.samples import (
    HOUR,
    SampleExecution,
    add,
    added,
    answers,
    claim_items,
    landed,
    new_item,
    put,
    put_workspace,
    recover,
    refused,
    status,
    statuses,
    stored,
    walk,
    write,
)

store = postgres_store

_PATIENCE_SECONDS = 60.0
_LEASED = Creation("orders", 3, holder="d", lease_seconds=HOUR, is_runnable=True)
_END = Rest(is_final=True)


def taken(store: PostgresStore, *names: str) -> list[Claimed]:
    """Items that were enqueued and claimed, with nothing else waiting."""
    add(store, *names)
    return claim_items(store, limit=len(names))


def begun(item: Claimed, store: PostgresStore, **fields: Any) -> Commit:
    """The first commit of an item's execution."""
    mark = ItemMark(item.item_id, "DISPATCHED", item.fence)
    return Repeated(store, item.execution_id).creation(status("RUNNING"), **{"creation": _LEASED, "mark": mark, **fields})


def whole(item: Claimed, store: PostgresStore, **fields: Any) -> Commit:
    """The first commit of an item's execution, which is its last one, too."""
    mark = ItemMark(item.item_id, "COMPLETED", item.fence)
    fields = {"creation": _LEASED, "rest": _END, "mark": mark, **fields}
    return Repeated(store, item.execution_id).creation(status("RUNNING"), status("COMPLETED"), **fields)


def ended(item: Claimed, store: PostgresStore, **fields: Any) -> Commit:
    """The last commit of an item's execution."""
    execution = Repeated(store, item.execution_id)
    execution.follow()
    mark = ItemMark(item.item_id, "COMPLETED")
    return execution.commit(status("COMPLETED"), **{"rest": _END, "fence": 1, "mark": mark, **fields})


def kinds(outcomes: Sequence[Outcome]) -> list[type]:
    return [type(outcome) for outcome in outcomes]


# As few round trips as can be.


def round_trips(store: PostgresStore, units: list[Unit], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements, or the pipelines of them, that a write sends: one word for each round trip."""
    link, sent = store.writer.fresh_connection(), []
    run_all, exchange = link.run_all, link._exchange
    with monkeypatch.context() as patch:
        patch.setattr(link, "run_all", lambda asked: sent.append("+".join(name for name, _ in asked)) or run_all(asked))
        patch.setattr(link, "_exchange", lambda name, arguments: sent.append(name) or exchange(name, arguments))
        for outcome in store.write(units):
            landed(outcome)
    return sent


def test_first_and_last_commits_of_items_are_one_statement_each(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    items = taken(store, *(f"i{number}" for number in range(9)))
    assert round_trips(store, [whole(item, store) for item in items[:3]], monkeypatch) == ["create_group"]
    assert round_trips(store, [begun(item, store) for item in items[3:]], monkeypatch) == ["create_group"]
    assert round_trips(store, [ended(item, store) for item in items[3:]], monkeypatch) == ["commit_group"]
    assert set(statuses(store).values()) == {"COMPLETED"}


def test_group_of_a_working_process_is_one_round_trip(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    items = taken(store, "a", "b", "c")
    landed(write(store, begun(items[0], store)))
    units: list[Unit] = [
        ended(items[0], store),
        whole(items[1], store),
        SampleExecution(store, "free").creation(),
        ClaimItems("d", HOUR, 5),
    ]
    units += [begun(items[2], store), RecoverItems(10), ClaimDue(("orders",), "d", HOUR, 5), Enqueue((new_item("d"),))]
    expected = "commit_group+create_group+claim_items+create_group+recover_items+claim_due+enqueue"
    assert round_trips(store, units, monkeypatch) == [f"begin+set_bounds+lock_admissions+{expected}+commit"]
    assert statuses(store) == {"a": "COMPLETED", "b": "COMPLETED", "c": "DISPATCHED", "d": "QUEUED"}


def test_claims_and_enqueues_are_one_statement(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    assert round_trips(store, [ClaimDue(("orders",), "d", HOUR, 5)], monkeypatch) == ["claim_due"]
    assert round_trips(store, [Enqueue((new_item("a"),)), Enqueue((new_item("b"),))], monkeypatch) == ["enqueue"]
    put_workspace(store, "small", queue_depth=1)
    assert round_trips(store, [Enqueue((new_item("c", "small"),))], monkeypatch) == ["enqueue"]
    [full] = added(store, new_item("d", "small"))
    assert "small" in str(full)
    assert list(statuses(store)) == ["a", "b", "c"]


def test_last_commit_alone_is_a_short_statement(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    execution = SampleExecution(store, "ends").create(status("RUNNING"), creation=_LEASED)
    last = execution.commit(status("COMPLETED"), rest=_END, fence=1)
    assert round_trips(store, [last], monkeypatch) == ["commit_one"]
    head = store.head("ends")
    assert head is not None
    assert (head.status, head.holder, head.lease_until_ms, head.wake_ms) == ("COMPLETED", None, None, None)


# The same as the long way.


def history(store: PostgresStore) -> list[object]:
    """Outcomes of items and executions in groups, some of them refused."""
    a, b, c, d, e = taken(store, "a", "b", "c", "d", "e")
    stale = replace(e, fence=e.fence + 1)
    outcomes = store.write(
        [whole(c, store), begun(a, store), whole(stale, store), Repeated(store, "free").creation(), begun(b, store)]
    )
    outcomes += store.write([whole(c, store), begun(a, store, commit_id="other"), whole(e, store, execution_id="of-nobody")])
    outcomes += store.write([ended(b, store, fence=7), ended(a, store, mark=ItemMark("a", "FAILED", error="no\0 text"))])
    outcomes += store.write([begun(d, store, rest=Rest(9**9)), ended(b, store, mark=ItemMark("e", "COMPLETED"))])
    outcomes += store.write(
        [ended(d, store, mark=ItemMark("nothing", "COMPLETED")), begun(e, store, creation=Creation("orders", 3))]
    )
    outcomes += store.write([ended(e, store, rest=None, mark=ItemMark("e", "DISPATCHED"), fence=None)])
    nobody = Repeated(store, "nobody")
    nobody.state = Repeated(store, "free").follow()
    outcomes += store.write([nobody.commit(mark=ItemMark("d", "FAILED")), Repeated(store, "runs").creation(creation=_LEASED)])
    landed(write(store, Repeated(store, "due").creation(creation=Creation("orders", 3, is_runnable=True))))
    leases = answers(write(store, ClaimDue(("orders", "others"), "w", HOUR, 5)))
    return [*((type(outcome), str(outcome)) for outcome in outcomes), *((lease.name, lease.fence) for lease in leases)]


def rows(server: PostgresServer, schema: str, name: str) -> list[object]:
    """The rows of a table without what differs from run to run: of times, whether there is one."""
    with server.connect() as connection:
        found = connection.execute(f"SELECT to_jsonb(t) - 'number' FROM {schema}.{name} AS t").fetchall()
    cleaned = [{key: value is None if key.endswith("_ms") else value for key, value in row[0].items()} for row in found]  # type: ignore[attr-defined]
    return sorted(cleaned, key=repr)


def test_both_ways_to_write_come_to_the_same_items_and_executions(
    monkeypatch: pytest.MonkeyPatch, open_url: OpenUrl, postgres_server: PostgresServer
) -> None:
    found = []
    for is_short in (True, False):
        if not is_short:
            monkeypatch.setattr(writer, "is_fast", lambda _: False)
        schema = postgres_server.new_schema()
        outcomes = history(open_url(postgres_server.url(schema)))
        found.append((outcomes, *(rows(postgres_server, schema, name) for name in ("items", "executions", "commits"))))
        postgres_server.drop_schema(schema)
    for short, long in zip(*found, strict=True):
        assert short == long
    assert {Written, Seen, AlreadyExists, LeaseLost, NotFound} <= {kind for kind, _ in found[0][0] if isinstance(kind, type)}


# One that is refused stands alone.


def test_commit_whose_claim_was_lost_is_refused_alone(store: PostgresStore, open_url: OpenUrl, postgres_url: str) -> None:
    """T28, T31: another dispatcher has the item by now; the others of the group land, and nothing of this one does."""
    late, *_ = taken(store, "a", "b", "c")
    other = open_url(postgres_url)
    other._clock.advance(2 * HOUR)  # type: ignore[attr-defined]
    recover(other)
    _, *fresh = claim_items(other)
    assert kinds(store.write([whole(late, store), *(whole(item, store) for item in fresh)])) == [LeaseLost, Written, Written]
    assert (store.head("of-a"), statuses(store)["a"]) == (None, "CLAIMED")
    assert walk(store, "of-b").ok


def test_writer_that_waits_for_an_item_sees_what_became_of_it(
    store: PostgresStore, postgres_server: PostgresServer, postgres_schema: str
) -> None:
    """T28: the claim is lost while the group waits for the item's row; what counts is the row as it is then."""
    items = taken(store, "a", "b")
    with psycopg.connect(postgres_server.dsn) as session, ThreadPoolExecutor(1) as pool:
        session.execute(f"UPDATE {postgres_schema}.items SET fence = fence + 1 WHERE item_id = 'a'")
        writing = pool.submit(store.write, [whole(item, store) for item in items])
        wait_until_blocked(postgres_server, pid_of(store))
        session.commit()
        assert kinds(writing.result(_PATIENCE_SECONDS)) == [LeaseLost, Written]
    assert (store.head("of-a"), statuses(store)) == (None, {"a": "CLAIMED", "b": "COMPLETED"})


def wait_until_blocked(server: PostgresServer, pid: int) -> None:
    """Until a session waits for a lock; the server is asked again and again, since it tells nobody."""
    with server.connect() as connection:
        for _ in range(20_000):
            if connection.execute("SELECT pg_blocking_pids(%s) <> '{}'", (pid,)).fetchone() == (True,):
                return
    raise AssertionError("the writer does not wait for anybody")


def test_last_commit_that_is_late_leaves_its_item_alone(store: PostgresStore) -> None:
    items = taken(store, "a", "b")
    store.write([begun(item, store) for item in items])
    late, good = (ended(item, store) for item in items)
    landed(write(store, ended(items[0], store, mark=None, rest=None, commit_id="meanwhile")))
    assert kinds(store.write([late, good])) == [Conflict, Written]
    assert statuses(store) == {"a": "DISPATCHED", "b": "COMPLETED"}


@pytest.mark.parametrize("is_mixed", [False, True], ids=["commits", "with a claim"])
def test_value_that_the_server_refuses_does_not_stop_its_group(store: PostgresStore, is_mixed: bool) -> None:
    """A name that slipped through every check: the whole is taken back and written the long way, which finds the one."""
    items = taken(store, "a", "b")
    bad = whole(items[0], store, execution_id="x\0y")
    units: list[Unit] = [bad, whole(items[1], store), *([ClaimItems("d", HOUR, 5)] if is_mixed else [])]
    outcomes = store.write(units)
    refused(outcomes[0], InvalidInput)
    assert kinds(outcomes[1:]) == [Written] * (len(units) - 1)
    assert statuses(store) == {"a": "CLAIMED", "b": "COMPLETED"}


def test_group_with_one_item_twice_takes_effect_in_order(store: PostgresStore) -> None:
    [item] = taken(store, "a")
    other = replace(item, execution_id="of-other")
    assert kinds(store.write([whole(item, store), whole(other, store)])) == [Written, LeaseLost]
    assert (statuses(store), store.head("of-other")) == ({"a": "COMPLETED"}, None)


# Two processes in each other's way.


def test_processes_that_write_the_same_in_opposite_orders_never_wait_in_a_circle(
    store: PostgresStore, open_url: OpenUrl, postgres_url: str, postgres_server: PostgresServer, postgres_schema: str
) -> None:
    """T31: both have claims, or leases, that they believe in, and both stand still in the middle; each item goes to one of them."""
    rivals = [store, open_url(postgres_url)]
    items = taken(store, *"abcdefg")
    for build, table in ((begun, "items"), (ended, "executions")):
        forth = [build(item, store, commit_id="forth") for item in items]
        back = [build(item, store, commit_id="back") for item in reversed(items)]
        with psycopg.connect(postgres_server.dsn) as session, ThreadPoolExecutor(2) as pool:
            session.execute(f"SELECT 1 FROM {postgres_schema}.{table} WHERE execution_id = 'of-d' FOR UPDATE")
            writing = [pool.submit(short_way, *pair) for pair in zip(rivals, (forth, back), strict=True)]
            for rival in rivals:
                wait_until_blocked(postgres_server, pid_of(rival))
            session.commit()
            there, here = (each.result(_PATIENCE_SECONDS) for each in writing)
        for pair in zip(there, reversed(here), strict=True):
            assert [kind is Written for kind in kinds(pair)].count(True) == 1
    assert set(statuses(store).values()) == {"COMPLETED"}


def short_way(store: PostgresStore, units: list[Unit]) -> list[Outcome]:
    """Write units without the second try that a deadlock would get."""
    return store.writer.write_fast(store.writer.fresh_connection(), units)


def pid_of(store: PostgresStore) -> int:
    """The server's process for a store's writer, which may be in the middle of something."""
    process = store.writer.server_process
    assert process is not None
    return process


# Whoever waits for the queue is told.


def test_listeners_are_told_that_items_ended_but_not_that_they_run(
    store: PostgresStore, open_url: OpenUrl, postgres_url: str
) -> None:
    items = taken(store, "a", "b")
    heard: queue.Queue[str] = queue.Queue()
    stop = open_url(postgres_url).listen(heard.put)
    try:
        assert heard.get(timeout=_PATIENCE_SECONDS) == ""
        store.write([begun(item, store) for item in items])
        assert told(store, heard, "first") == set()
        landed(write(store, ended(items[0], store)))
        assert told(store, heard, "second") == {"queue"}
        [item] = taken(store, "c")
        told(store, heard, "third")
        store.write([whole(item, store), SampleExecution(store, "due").creation(creation=Creation("orders", 3, is_runnable=True))])
        assert told(store, heard, "fourth") == {"queue", "due"}
    finally:
        stop()


def told(store: PostgresStore, heard: queue.Queue[str], word: str) -> set[str]:
    """Return the topics heard before a change of state that is made now; they come in the order of their commits."""
    landed(write(store, StateBatch((put(word),))))
    topics: set[str] = set()
    while (topic := heard.get(timeout=_PATIENCE_SECONDS)) != "state":
        topics.add(topic)
    return topics


def test_item_that_failed_once_keeps_its_error_while_it_runs(store: PostgresStore) -> None:
    [item] = taken(store, "a")
    landed(write(store, ReturnItem("a", item.fence, error="came to nothing")))
    [again] = claim_items(store)
    landed(write(store, begun(again, store)))
    assert stored(store, "a").error == "came to nothing"
    landed(write(store, ended(again, store)))
    assert stored(store, "a").error is None

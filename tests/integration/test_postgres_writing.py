"""Two ways to write to PostgreSQL come to the same: ordinary groups in one round trip, all others in two."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.integration.commit_paths import Repeated, table, take_the_long_way
from tests.integration.conftest import OpenUrl, other_postgres_store, postgres_store
from tests.support.postgres_server import PostgresServer

from stepwell.clock import FakeClock
from stepwell.errors import Conflict, LeaseLost, LockHeld
from stepwell.model.commit import (
    Acquire,
    ClaimDue,
    Creation,
    Deletion,
    Lease,
    LockGuard,
    Renew,
    Rest,
    StateBatch,
    Unit,
    Unlock,
    Written,
)
from stepwell.model.limits import Limits
from stepwell.model.scoped_operations import Clear
from stepwell.stores.postgres.store import PostgresStore
from stepwell.testing.conformance.samples import (
    HOUR,
    SCOPE,
    SampleExecution,
    acquire,
    landed,
    put,
    refused,
    status,
    variable,
    write,
)

store = postgres_store
other = other_postgres_store


def ordinary_history(store: PostgresStore) -> list[object]:
    """Creations and commits, alone and in groups, some of them refused: what came of each."""
    first, second, third = (Repeated(store, name) for name in ("one", "two", "three"))
    outcomes = [*store.write([first.foresee()]), *store.write([second.foresee(), third.foresee(), first.creation()])]
    outcomes += store.write([first.foresee(status("RUNNING"))])
    outcomes += store.write([second.foresee(variable("n")), third.foresee(commit_id="mine"), Repeated(store, "four").commit()])
    outcomes += store.write([third.commit(commit_id="mine"), second.commit(revision=9), first.foresee(signature=b"signed")])
    for alone in (first.foresee(), first.foresee(signature=b"again"), first.commit(fence=4), first.commit(revision=9)):
        outcomes += store.write([alone])
    outcomes += store.write([first.commit(previous="0" * 64)])
    outcomes += store.write([Repeated(store, "four").commit()])
    outcomes += store.write([second.commit(fence=4), first.foresee(rest=Rest(9**9)), third.foresee(rest=Rest(is_final=True))])
    return [(type(outcome), str(outcome)) for outcome in outcomes]


def test_both_ways_to_write_come_to_the_same_rows_and_outcomes(
    monkeypatch: pytest.MonkeyPatch, open_url: OpenUrl, postgres_server: PostgresServer
) -> None:
    found = []
    for go in (lambda: None, lambda: take_the_long_way(monkeypatch)):
        go()
        schema = postgres_server.new_schema()
        outcomes = ordinary_history(open_url(postgres_server.url(schema)))
        tables = [table(postgres_server, schema, name, without="number") for name in ("executions", "commits", "snapshots")]
        found.append((outcomes, tables))
        postgres_server.drop_schema(schema)
    assert found[0] == found[1]
    assert {Written, Conflict} <= {kind for kind, _ in found[0][0]}


def lock_history(store: PostgresStore, clock: FakeClock) -> list[object]:
    """A lock acquired, refused, renewed, lost and given back: what came of each, without what differs from run to run."""
    outcomes: list[object] = []

    def note(unit: Unit) -> Lease:
        outcome = write(store, unit)
        answers = outcome.answers if isinstance(outcome, Written) else ()
        leases = [answer for answer in answers if isinstance(answer, Lease)]
        outcomes.append((type(outcome), [(lease.name, lease.holder) for lease in leases]))
        return leases[0] if leases else Lease("", "", 0, 0)

    first = note(Acquire("door", "a", 2 * HOUR))
    assert note(Acquire("door", "a", 2 * HOUR)).fence == first.fence
    note(Acquire("door", "b", HOUR))
    for holder, fence in (("b", first.fence), ("a", first.fence + 1)):
        note(Renew("door", holder, fence, HOUR))
        note(Unlock("door", holder, fence))
    assert note(Renew("door", "a", first.fence, 3 * HOUR)).until_ms > first.until_ms
    clock.advance(4 * HOUR)
    note(Renew("door", "a", first.fence, HOUR))
    note(Unlock("door", "a", first.fence))
    second = note(Acquire("door", "b", 2 * HOUR))
    assert second.fence > first.fence
    note(Unlock("door", "b", second.fence, at_least_seconds=HOUR))
    note(Acquire("door", "c", HOUR))
    clock.advance(HOUR + 1)
    third = note(Acquire("door", "c", HOUR))
    note(StateBatch((put("guarded"),), guards=(LockGuard("door", third.fence),)))
    note(Unlock("door", "c", third.fence))
    note(StateBatch((put("guarded"),), guards=(LockGuard("door", third.fence),)))
    assert note(Acquire("door", "d", HOUR)).fence > third.fence
    return outcomes


def test_both_ways_to_lock_come_to_the_same_outcomes(
    monkeypatch: pytest.MonkeyPatch, postgres_server: PostgresServer, postgres_url: str
) -> None:
    found = []
    for go in (lambda: None, lambda: take_the_long_way(monkeypatch)):
        go()
        clock = FakeClock()
        store = PostgresStore(postgres_url, clock, Limits())
        store.open()
        found.append(lock_history(store, clock))
        landed(write(store, Unlock("door", "d", acquire(store, holder="d").fence)))
        store.close()
    assert found[0] == found[1]
    assert {kind for kind, _ in found[0]} == {Written, LockHeld, LeaseLost}


def test_fences_rise_from_holder_to_holder_whichever_way_they_came(
    open_url: OpenUrl, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T19, T21: whoever comes later has the higher fence, also if it began to ask earlier."""
    stores, fences, counter = [open_url(postgres_url) for _ in range(4)], list[int](), [0]
    for store in stores[2:]:
        monkeypatch.setattr(store.writer, "_path_for", lambda _, store=store: store.writer.write_general)

    def work(number: int) -> None:
        done = 0
        while done < 25:
            outcome = write(stores[number], Acquire("door", f"{number}-{done}", HOUR))
            if isinstance(outcome, Written):
                [lease] = outcome.answers
                assert isinstance(lease, Lease)
                before = counter[0]
                fences.append(lease.fence)
                counter[0] = before + 1
                landed(write(stores[number], Unlock("door", lease.holder, lease.fence)))
                done += 1

    with ThreadPoolExecutor(4) as pool:
        for end in [pool.submit(work, number) for number in range(4)]:
            end.result()
    assert counter == [100]
    assert fences == sorted(set(fences))


def statements(store: PostgresStore, units: list[Unit], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements, or the pipelines of them, that a write sends: one word for each round trip."""
    link, sent = store.writer.fresh_connection(), []
    run_all, exchange = link.run_all, link._exchange
    monkeypatch.setattr(link, "run_all", lambda asked: sent.append("+".join(name for name, _ in asked)) or run_all(asked))
    monkeypatch.setattr(link, "_exchange", lambda name, arguments: sent.append(name) or exchange(name, arguments))
    for outcome in store.write(units):
        landed(outcome)
    monkeypatch.undo()
    return sent


def test_ordinary_commits_are_one_round_trip_and_everything_else_is_two(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [SampleExecution(store, f"run-{number}") for number in range(30)]
    assert statements(store, [each.foresee() for each in many], monkeypatch) == ["create_group"]
    assert statements(store, [each.foresee() for each in many], monkeypatch) == ["commit_group"]
    assert statements(store, [many[0].foresee()], monkeypatch) == ["commit_one"]
    assert statements(store, [many[0].foresee(status("RUNNING"))], monkeypatch) == ["commit_one"]
    assert statements(store, [Acquire("gate", "a", HOUR)], monkeypatch) == ["acquire_one"]
    landed(write(store, StateBatch((put("held", ttl=HOUR),))))
    mixed = [many[0].foresee(), many[0].foresee(), many[1].foresee(snapshot=many[1].snapshot()), Deletion("run-2")]
    mixed += [
        StateBatch((put("a"), put("b"), Clear(SCOPE), put("c"))),
        Acquire("door", "a", HOUR),
        SampleExecution(store, "new").creation(),
    ]
    first, second = statements(store, mixed, monkeypatch)
    assert first.startswith("begin+set_bounds+lock_heads")
    assert second.endswith("+commit")


def test_group_of_refusals_leaves_nothing_not_even_empty_rows(
    store: PostgresStore, postgres_server: PostgresServer, postgres_schema: str
) -> None:
    refused(write(store, StateBatch((put("a", expected=7),))), Conflict)
    assert list(store.scopes()) == []
    with postgres_server.connect() as connection:
        assert connection.execute(f"SELECT count(*) FROM {postgres_schema}.state_scopes").fetchone() == (0,)


def test_commit_that_rests_gives_its_lease_back_in_the_same_statement(store: PostgresStore) -> None:
    run = SampleExecution(store)
    landed(write(store, run.foresee(creation=Creation("orders", 3, holder="a", lease_seconds=HOUR, is_runnable=True))))
    assert (run.head.holder, run.head.fence) == ("a", 1)
    assert run.head.wake_ms == run.head.lease_until_ms
    landed(write(store, run.foresee(fence=1, rest=Rest(wake_ms=run.head.wake_ms))))
    assert (run.head.holder, run.head.lease_until_ms, run.head.fence) == (None, None, 1)
    landed(write(store, StateBatch((), nudges=(run.id,))))
    assert len(landed(write(store, ClaimDue(("orders",), "b", HOUR, 9))).answers) == 1
    landed(write(store, StateBatch((), nudges=(run.id,))))
    landed(write(store, run.foresee(fence=2, rest=Rest(wake_ms=9**15))))
    assert run.head.wake_ms is not None
    assert run.head.wake_ms <= store.now_ms(), "a nudge that came while it was leased makes it due at once"
    landed(write(store, run.foresee(rest=Rest(is_final=True))))
    assert run.head.wake_ms is None


def test_due_executions_that_another_process_is_at_are_passed_over(
    store: PostgresStore, other: PostgresStore, postgres_server: PostgresServer, postgres_schema: str
) -> None:
    for name in ("one", "two"):
        landed(write(store, SampleExecution(store, name).creation(creation=Creation("orders", 3, is_runnable=True))))
    with postgres_server.connect() as connection, connection.transaction():
        connection.execute(f"SELECT 1 FROM {postgres_schema}.executions WHERE execution_id = 'one' FOR UPDATE")
        leases = landed(write(store, ClaimDue(("orders",), "a", HOUR, 9))).answers
    assert [lease.name for lease in leases] == ["two"]
    assert [lease.name for lease in landed(write(other, ClaimDue(("orders", "mail"), "b", HOUR, 9))).answers] == ["one"]

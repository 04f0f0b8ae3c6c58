"""Writes on PostgreSQL that are sent off first and waited for later: the same outcomes, whatever happens in between."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from tests.integration.conftest import OpenUrl, postgres_store
from tests.support.postgres_server import PostgresServer

from stepwell.contract.store import Answer, Begun
from stepwell.errors import CommitUnknown, Conflict, InvalidInput
from stepwell.fault_points import armed
from stepwell.model.commit import Outcome, Seen, Unit
from stepwell.model.mutation import Mutation
from stepwell.model.queue_item import ClaimItems, Enqueue
from stepwell.stores.postgres.connection import PostgresConnection
from stepwell.stores.postgres.store import PostgresStore
from stepwell.testing.conformance.samples import (
    HOUR,
    SampleExecution,
    answers,
    landed,
    new_item,
    put,
    put_workspace,
    refused,
    status,
    statuses,
    step,
    walk,
)

store = postgres_store

CLAIM = ClaimItems("d", HOUR, 5, workflows=("orders",))


def request(name: str, workspace: str = "default", **fields: Any) -> Enqueue:
    return Enqueue((new_item(name, workspace, **fields),))


Finish = Callable[[], list[Outcome]]
Begin = Callable[..., Finish]


def sent(store: PostgresStore, *units: Unit) -> Begun:
    begun = store.begin(units)
    assert begun is not None
    return begun


def looked_for(begun: Begun) -> Answer:
    """The answer, when it has come."""
    assert begun.answer is not None
    ends = time.monotonic() + 60
    while not begun.answer.has_come():
        assert time.monotonic() < ends
    return begun.answer


@pytest.fixture(params=["waited_for", "looked_for"])
def begun(request: pytest.FixtureRequest) -> Begin:
    """Sends units off; what gives their outcomes, after a look for the answer or without."""

    def begin(store: PostgresStore, *units: Unit) -> Finish:
        group = sent(store, *units)

        def finish() -> list[Outcome]:
            if request.param == "looked_for" and group.answer is not None:
                looked_for(group)
            return group.finish()

        return finish

    return begin


def served_by(store: PostgresStore) -> int:
    """The server's process behind the connection for requests."""
    process = store._requests.server_process
    assert process is not None
    return process


@pytest.fixture
def warm(store: PostgresStore) -> PostgresStore:
    """A store that took requests of both kinds before: it has a connection for them, and the server knows their statements."""
    for outcome in (*store.write([request("a"), CLAIM]), *store.write([request("b", workflow_id="other")])):
        landed(outcome)
    return store


def test_request_that_was_sent_off_lands_once_and_is_told_when_asked_for(begun: Begin, warm: PostgresStore) -> None:
    [outcome] = begun(warm, request("c"))()
    assert [answer.item_id for answer in answers(outcome)] == ["c"]
    assert statuses(warm) == {"a": "CLAIMED", "b": "PENDING", "c": "PENDING"}


def test_request_that_was_sent_off_with_a_claim_is_claimed(begun: Begin, warm: PostgresStore) -> None:
    put_workspace(warm, "free")
    riding = ClaimItems("d", HOUR, 5, workflows=("orders",), is_riding=True)
    _, claimed = begun(warm, request("c", "free"), riding)()
    assert [item.item_id for item in answers(claimed)] == ["c"]
    assert statuses(warm)["c"] == "CLAIMED"


def test_request_to_a_busy_queue_is_written_the_ordinary_way_after_all(begun: Begin, warm: PostgresStore) -> None:
    finish = begun(warm, request("c"), CLAIM)  # another one waits, so the short way does nothing
    asked, claimed = finish()
    assert [answer.is_new for answer in answers(asked)] == [True]
    assert [item.item_id for item in answers(claimed)] == ["c"]
    assert store_cannot_begin(warm, request("d"), CLAIM)  # it is busy, as far as is known
    assert statuses(warm) == {"a": "CLAIMED", "b": "PENDING", "c": "CLAIMED"}


def test_request_to_a_workspace_with_a_limit_is_written_the_ordinary_way_after_all(begun: Begin, warm: PostgresStore) -> None:
    put_workspace(warm, "small", queue_depth=1)
    [first] = begun(warm, request("c", "small"))()
    assert [answer.is_new for answer in answers(first)] == [True]
    assert store_cannot_begin(warm, request("d", "small"))
    [second] = warm.write([request("d", "small")])
    assert "small" in str(answers(second)[0])


def store_cannot_begin(store: PostgresStore, *units: Unit) -> bool:
    return store.begin(units) is None


def test_what_takes_more_than_one_statement_is_not_begun(begun: Begin, warm: PostgresStore) -> None:
    assert store_cannot_begin(warm, request("c"), request("d"))
    assert store_cannot_begin(warm, Enqueue((new_item("c"), new_item("d"))))
    assert store_cannot_begin(warm, request("c", key="k"))
    with armed(lambda _: None):
        assert store_cannot_begin(warm, request("c"))


def test_nothing_is_begun_while_there_is_something_to_wait_for_first(begun: Begin, open_url: OpenUrl, postgres_url: str) -> None:
    store = open_url(postgres_url)
    assert store_cannot_begin(store, request("a"))  # a connection
    landed(*store.write([Enqueue((new_item("a"), new_item("b")))]))
    assert store_cannot_begin(store, request("c"))  # the statement must be prepared
    landed(*store.write([request("c")]))
    landed(*begun(store, request("d"))())
    store.close()
    assert store_cannot_begin(store, request("e"))


def test_first_request_with_a_claim_is_begun_where_nothing_was_asked_for_before(
    begun: Begin, open_url: OpenUrl, postgres_url: str
) -> None:
    store = open_url(postgres_url)
    assert store_cannot_begin(store, request("a"), CLAIM)
    with armed(lambda _: None):
        assert answers(*store.write([Enqueue(())])) == []
    assert answers(*store.write([Enqueue(())])) == []
    _, claimed = begun(store, request("a"), CLAIM)()
    assert [item.item_id for item in answers(claimed)] == ["a"]


def test_request_with_a_value_that_cannot_be_sent_is_not_begun(begun: Begin, warm: PostgresStore) -> None:
    assert store_cannot_begin(warm, request("c", workflow_id="\ud800"))
    [outcome] = warm.write([request("c", workflow_id="\ud800")])
    refused(outcome, InvalidInput)
    assert "c" not in statuses(warm)
    landed(*begun(warm, request("d"))())


def test_request_whose_connection_ends_meanwhile_has_an_unknown_fate(
    begun: Begin, warm: PostgresStore, postgres_server: PostgresServer
) -> None:
    with postgres_server.connect() as blocker, postgres_server.connect() as operator, blocker.transaction():
        blocker.execute(f"LOCK TABLE {warm._settings.schema}.items IN ACCESS EXCLUSIVE MODE")  # so that it cannot land before
        finish = begun(warm, request("c"))
        operator.execute("SELECT pg_terminate_backend(%s, 60000)", [served_by(warm)])
        with pytest.raises(CommitUnknown):
            finish()
    landed(*warm.write([request("c")]))
    assert statuses(warm)["c"] == "PENDING"


def test_request_that_may_have_been_sent_when_sending_failed_has_an_unknown_fate(
    begun: Begin, warm: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise psycopg.OperationalError("the connection was reset")

    with monkeypatch.context() as patch:
        patch.setattr(PostgresConnection, "_send", fail)
        finish = begun(warm, request("c"))
    with pytest.raises(CommitUnknown):
        finish()
    landed(*warm.write([request("c")]))


def test_connection_that_ended_before_is_not_used_to_begin(warm: PostgresStore, postgres_server: PostgresServer) -> None:
    with postgres_server.connect() as operator:
        operator.execute("SELECT pg_terminate_backend(%s, 60000)", [served_by(warm)])
    assert store_cannot_begin(warm, request("c"))
    landed(*warm.write([request("c")]))


def test_answer_that_nobody_came_for_is_never_taken_for_another(begun: Begin, warm: PostgresStore) -> None:
    begun(warm, request("c"))
    before = served_by(warm)
    [outcome] = warm.write([request("d")])
    assert [answer.item_id for answer in answers(outcome)] == ["d"]
    assert served_by(warm) != before


def test_answer_is_final_if_it_says_that_something_was_written(warm: PostgresStore) -> None:
    landing = sent(warm, request("c"))
    assert looked_for(landing).is_final()
    landed(*landing.finish())
    for units in ((request("d"), CLAIM), (request("c"),)):  # others wait, so the short way does nothing; it is there already
        group = sent(warm, *units)
        assert not looked_for(group).is_final()
        group.finish()


def test_answer_to_a_request_that_is_too_large_to_be_sent_at_once_is_not_looked_for(warm: PostgresStore) -> None:
    large = sent(warm, request("c", input=b"[" + b"1," * 5_000_000 + b"1]"))
    assert large.answer is None
    landed(*large.finish())
    assert statuses(warm)["c"] == "PENDING"


# Commits.


@pytest.fixture
def execution(store: PostgresStore) -> SampleExecution:
    """One with a few commits of each kind, so that the server knows their statements."""
    execution = SampleExecution(store, "e").create()
    execution.land(step("a"))
    execution.land(status("RUNNING"))
    return execution


def test_commits_that_were_sent_off_land_one_after_another(begun: Begin, store: PostgresStore, execution: SampleExecution) -> None:
    landed(*begun(store, execution.foresee(step("b")))())
    landed(*begun(store, execution.foresee(status("WAITING")))())
    assert walk(store, "e").ok
    assert execution.head.revision == execution.state.revision == 4
    assert execution.head.status == "WAITING"


@pytest.mark.parametrize("change", [step("b"), status("WAITING")])
def test_commit_that_was_sent_off_and_is_refused_says_why(
    begun: Begin, store: PostgresStore, execution: SampleExecution, change: Mutation
) -> None:
    late = execution.commit(change)
    landed(*store.write([execution.commit(step("c"))]))
    [outcome] = begun(store, late)()
    refused(outcome, Conflict)


def test_commit_that_was_sent_off_twice_is_seen(begun: Begin, store: PostgresStore, execution: SampleExecution) -> None:
    commit = execution.commit(step("b"))
    landed(*begun(store, commit)())
    [again] = begun(store, commit)()
    assert isinstance(again, Seen)


def test_commit_whose_connection_ends_meanwhile_has_an_unknown_fate(
    begun: Begin, store: PostgresStore, execution: SampleExecution, postgres_server: PostgresServer
) -> None:
    with postgres_server.connect() as blocker, postgres_server.connect() as operator, blocker.transaction():
        blocker.execute(f"LOCK TABLE {store._settings.schema}.commits IN ACCESS EXCLUSIVE MODE")
        finish = begun(store, execution.commit(step("b")))
        operator.execute("SELECT pg_terminate_backend(%s, 60000)", [store._writer.server_process])
        with pytest.raises(CommitUnknown):
            finish()
    landed(*store.write([execution.commit(step("b"))]))


def test_commits_with_more_than_a_receipt_are_not_begun(begun: Begin, store: PostgresStore, execution: SampleExecution) -> None:
    assert store_cannot_begin(store, execution.commit(step("b"), ops=(put("k"),)))
    assert store_cannot_begin(store, execution.commit(step("b")), SampleExecution(store, "f").creation())
    assert store_cannot_begin(store, SampleExecution(store, "f").creation())

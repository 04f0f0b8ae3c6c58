"""A ``uuid.UUID`` wherever an id is, as its text; and aware datetimes of any time zone, as the same moment."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from tests.acceptance.conftest import working_well

from stepwell import (
    DataStore,
    InvalidInput,
    LockHeld,
    LoopContext,
    Metadata,
    QueueRequest,
    ScheduleTrigger,
    Scope,
    StepOutput,
    workflow,
)

well = working_well

WAIT = 60
RUN, SPACE, TALK = (UUID(int=number) for number in (7, 8, 9))
HERE = datetime(2026, 5, 1, 9, 30, tzinfo=timezone(timedelta(hours=2)))
THERE = datetime(2026, 5, 1, 7, 30, tzinfo=UTC)


@workflow
async def echo(value: Any = None) -> Any:
    return value


def test_uuid_is_the_id_of_a_run_in_a_workspace(well: Any) -> None:
    well.workspaces.put(SPACE, tier="scale")
    run = well.start(echo, 1, execution_id=RUN, workspace=SPACE)
    assert run.execution_id == str(RUN)
    assert well.run(RUN).result(WAIT) == 1
    assert well.load(RUN).identity.workspace_id == str(SPACE)
    assert well.load(str(RUN)) == well.load(RUN)
    assert well.verify(RUN).ok
    assert [each.execution_id for each in well.executions.list(workspace=SPACE)] == [str(RUN)]
    assert well.start(echo, 1, execution_id=str(RUN), workspace=SPACE).result(WAIT) == 1
    assert well.fork(RUN, UUID(int=17)).execution_id == str(UUID(int=17))


def test_uuid_is_the_id_and_the_key_of_a_request(well: Any) -> None:
    item = well.enqueue(echo, 1, execution_id=RUN)
    assert item.execution_id == str(RUN)
    assert item.result(WAIT) == 1
    assert well.enqueue(echo, 2, key=TALK).item_id == well.enqueue(echo, 2, key=str(TALK)).item_id
    [many] = well.enqueue_many([QueueRequest(workflow=echo, value=3, execution_id=UUID(int=20))])
    assert many.execution_id == str(UUID(int=20))


def test_uuid_is_the_id_of_an_execution_driven_by_hand(well: Any) -> None:
    well.create(RUN, SPACE, {"n": 1}, commit_id=UUID(int=1))
    with well.transaction(RUN, commit_id=UUID(int=2)) as tx:
        tx.enter_scope(UUID(int=3))
        tx.add_token(UUID(int=4), node="n", scope=UUID(int=3))
        tx.update_token(UUID(int=4), lambda _: {"value": 5})
    state = well.load(str(RUN))
    assert state.tokens[str(UUID(int=4))].value == 5
    assert state.tokens[str(UUID(int=4))].scope == str(UUID(int=3))
    assert well.receipt(RUN, UUID(int=2)).revision == 1


def test_uuid_is_the_name_of_a_conversation_and_of_scopes(well: Any) -> None:
    well.conversations.set(TALK, {"n": 1})
    assert well.conversations.get(str(TALK)) == {"n": 1}
    well.state.workspace(SPACE).set("k", 1)
    assert well.state.at(Scope.of_workspace(str(SPACE))).get("k") == 1
    well.state.custom(TALK).set("k", 2)
    assert well.state.at(Scope.custom(str(TALK))).get("k") == 2


def test_record_takes_uuids_and_moments_of_any_zone() -> None:
    identity = Metadata(RUN, SPACE, "flow", 1, HERE)  # pyright: ignore[reportArgumentType]
    assert (identity.execution_id, identity.workspace_id) == (str(RUN), str(SPACE))
    assert (identity.started_at, identity.started_at.tzinfo) == (THERE, UTC)
    data = DataStore(identity)
    data.set_step_output("a", StepOutput("n", "a", "COMPLETED", 1, HERE, 5))
    data.set_trigger(ScheduleTrigger(HERE, cron="@daily"))
    assert data.get_step_output("a").executed_at.tzinfo is UTC
    assert data.get_trigger() == ScheduleTrigger(THERE, cron="@daily")


def test_moment_without_a_zone_is_refused() -> None:
    with pytest.raises(InvalidInput, match="time zone"):
        Metadata("e", "w", "f", 1, HERE.replace(tzinfo=None))


def test_run_at_takes_any_zone(well: Any) -> None:
    item = well.enqueue(echo, 1, run_at=datetime(2020, 1, 1, 12, tzinfo=timezone(timedelta(hours=-7))))
    assert item.result(WAIT) == 1
    assert well.queue.list()[0].run_at == datetime(2020, 1, 1, 19, tzinfo=UTC)


def test_uuid_is_the_name_of_a_schedule_a_queue_and_a_singleton(well: Any) -> None:
    well.schedules.put(RUN, echo, every="1h")
    assert well.schedules.pause(RUN).name == str(RUN)
    assert well.schedules.delete(str(RUN))
    assert well.queue.put(TALK, concurrency=1).name == str(TALK)
    assert well.queue.get(str(TALK)).concurrency == 1
    item = well.enqueue(echo, 1, singleton=SPACE, delay="1h")
    assert well.enqueue(echo, 1, singleton=str(SPACE), delay="1h").item_id == item.item_id


def test_uuid_is_the_id_of_a_user(well: Any) -> None:
    well.conversations.set(TALK, {"n": 1}, user=RUN)
    assert [each.conversation_id for each in well.conversations.of_user(RUN)] == [str(TALK)]
    well.conversations.set("another", {"n": 1}, user=str(RUN))
    assert len(well.conversations.of_user(str(RUN))) == 2


def test_uuid_is_the_name_of_scopes_below_others(well: Any) -> None:
    below = well.state.workspace(SPACE).workflow(RUN).step(TALK)
    below.set("k", 1)
    assert below.scope == Scope.of_step(str(RUN), str(TALK), str(SPACE))
    assert Scope("custom", SPACE, (TALK,)) == Scope.custom(str(TALK), str(SPACE))  # pyright: ignore[reportArgumentType]


def test_uuid_is_the_name_of_a_lock(well: Any) -> None:
    hold = well.locks.acquire(RUN, workspace=SPACE, holder=TALK)
    assert (hold.name, hold.holder) == (str(RUN), str(TALK))
    with pytest.raises(LockHeld, match=f"lock '{RUN}' is held"):
        well.locks.acquire(str(RUN), workspace=str(SPACE))
    well.locks.release(RUN, workspace=SPACE, holder=TALK, fence=hold.fence)
    with well.lock(RUN) as held:
        assert held.label == str(RUN)


def test_uuid_is_the_id_in_digests_errors_webhooks_and_links(well: Any) -> None:
    well.workspaces.put(SPACE, tier="enterprise")
    well.start(echo, 1, execution_id=RUN, workspace=SPACE).result(WAIT)
    assert list(well.executions.digests([RUN])) == [str(RUN)]
    assert well.errors.within(SPACE).failure(RUN) is None
    assert well.webhooks.within(SPACE).list() == []
    assert well.access.create_token("ci", workspace=SPACE).token.workspace == str(SPACE)
    assert well.requests.audit(SPACE) == []


def test_uuid_is_the_id_of_a_loop(well: Any) -> None:
    well.create("by hand")
    with well.transaction("by hand") as tx:
        tx.set_loop_context(LoopContext(TALK, 0, None, 1))
    assert well.load("by hand").loops[str(TALK)].current_index == 0

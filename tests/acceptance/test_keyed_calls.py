"""Calls with a key of one's own: ``charge.with_key("charge-7")(...)`` runs once in an execution."""

from __future__ import annotations

import asyncio
from typing import Any, cast
from uuid import UUID

import pytest
from tests.acceptance.conftest import working_well

import stepwell
from stepwell import Conflict, ExecutionFailed, InvalidInput, LimitExceeded, Retry, StepFailed, step, workflow
from stepwell.testing import crash_everywhere

well = working_well

WAIT = 60
charged: list[int] = []


@pytest.fixture(autouse=True)
def nothing_charged() -> None:
    charged.clear()


@step(name="kc.charge")
async def charge(cents: int, card: str = "visa") -> str:
    charged.append(cents)
    await asyncio.sleep(0)
    return f"{stepwell.current().idempotency_key.partition(':')[2]} of {cents} by {card}, {len(charged)}"


@step(name="kc.refund")
def refund(cents: int) -> str:
    return f"refund {cents}"


@step(name="kc.flaky", retry=Retry(attempts=2, first_seconds=0))
async def flaky(cents: int) -> int:
    charged.append(cents)
    if len(charged) == 1:
        raise ConnectionError
    return cents


@step(name="kc.broken")
async def broken() -> None:
    charged.append(0)
    raise ValueError("no money")


@workflow(name="kc.twice")
async def twice() -> list[str]:
    first = await charge.with_key("charge-7")(700)
    stepwell.current().variables["x"] = 1
    plain = await charge(700)
    again = await charge.with_key("charge-7")(cents=700)
    stepwell.current().variables["x"] = 2
    other = await charge.with_key("charge-8")(700)
    return [first, plain, again, other]


@workflow(name="kc.side_by_side")
async def side_by_side() -> list[str]:
    return list(await asyncio.gather(*(charge.with_key("charge-7")(700) for _ in range(3))))


@workflow(name="kc.plain")
def plain() -> list[str]:
    return [refund.with_key("r")(5), refund.with_key("r")(5), refund(5)]


@workflow(name="kc.other_call")
async def other_call(how: str) -> str:
    await charge.with_key("charge-7")(700)
    match how:
        case "other arguments":
            return await charge.with_key("charge-7")(800)
        case "other step":
            return await refund.with_key("charge-7")(700)
        case _:
            try:
                return await charge.with_key("charge-7")(700, "amex")
            except Conflict:
                return "caught"


@workflow(name="kc.retried")
async def retried() -> int:
    return await flaky.with_key("f")(5) + await flaky.with_key("f")(5)


@step(name="kc.ponder")
async def ponder() -> None:
    charged.append(1)
    await asyncio.sleep(WAIT)


@workflow(name="kc.changing_its_mind")
async def changing_its_mind() -> str:
    first = asyncio.create_task(cast("Any", ponder.with_key("p")()))
    await asyncio.sleep(0.05)
    first.cancel()
    await asyncio.wait([first])
    try:
        await ponder.with_key("p")()
    except StepFailed as error:
        return error.message.partition("StepCancelled: ")[2]
    return "made again"


@workflow(name="kc.failing")
async def failing() -> list[Any]:
    reasons: list[Any] = []
    for _ in range(2):
        try:
            await broken.with_key("b")()
        except StepFailed as error:
            reasons.append("no money" in str(error))
    return [len(charged), *reasons]


def test_same_key_gives_the_first_result(well: Any) -> None:
    run = well.start(twice)
    first, unkeyed, again, other = run.result(WAIT)
    assert first == again == "key:charge-7 of 700 by visa, 1"
    assert unkeyed == "kc.charge of 700 by visa, 2"
    assert other == "key:charge-8 of 700 by visa, 3"
    assert charged == [700, 700, 700]
    assert well.load(run.execution_id).variables["x"] == 2


def test_calls_with_one_key_at_the_same_time_run_once(well: Any) -> None:
    assert well.start(side_by_side).result(WAIT) == ["key:charge-7 of 700 by visa, 1"] * 3
    assert charged == [700]


def test_key_in_a_plain_workflow(well: Any) -> None:
    assert well.start(plain).result(WAIT) == ["refund 5"] * 3


@pytest.mark.parametrize("how", ["other arguments", "other step"])
def test_key_of_another_call_is_a_conflict(well: Any, how: str) -> None:
    with pytest.raises(ExecutionFailed, match=r"Conflict: key 'charge-7' stands for another call of 'kc\.charge'"):
        well.start(other_call, how).result(WAIT)
    assert charged == [700]


def test_conflict_of_a_key_can_be_caught(well: Any) -> None:
    assert well.start(other_call, "caught").result(WAIT) == "caught"


def test_keyed_call_is_tried_again_and_recorded_with_its_digest(well: Any) -> None:
    run = well.start(retried)
    assert run.result(WAIT) == 10
    assert charged == [5, 5]
    record = well.load(run.execution_id).steps["key:f"]
    assert record.digest is not None
    assert len(record.digest) == 64
    assert run.verify().ok


def test_failure_under_a_key_is_raised_again(well: Any) -> None:
    assert well.start(failing).result(WAIT) == [1, True, True]


def test_key_of_a_cancelled_call_stands_for_it(well: Any) -> None:
    run = well.start(changing_its_mind)
    assert run.result(WAIT) == "the call with key 'p' was cancelled"
    assert [(each.name, each.status) for each in run.steps()] == [("key:p", "CANCELLED")]
    assert charged == [1]


def test_keyed_call_outside_a_workflow_is_its_function() -> None:
    assert refund.with_key("r")(5) == "refund 5"
    assert refund.with_key(UUID(int=1))(5) == "refund 5"
    for key in ("", "x" * 600, 5, None):
        with pytest.raises((InvalidInput, LimitExceeded)):
            refund.with_key(key)  # pyright: ignore[reportArgumentType]


@workflow(name="kc.remembering")
async def remembering() -> list[Any]:
    variables = stepwell.current().variables
    made = await asyncio.gather(*(settle.with_key("s")(5) for _ in range(2)))
    variables["x"] = 1
    made.append(await settle.with_key("s")(5))
    variables["x"] = 2
    await settle(6)
    return [*made, variables["x"]]


@step(name="kc.settle")
async def settle(cents: int) -> int:
    return cents


def test_keyed_calls_survive_a_crash_at_any_point() -> None:
    """A repeated call has a place in the record, so that variables set before it are not set again after a crash."""
    report = crash_everywhere(remembering)
    assert report.result == [5, 5, 5, 2]

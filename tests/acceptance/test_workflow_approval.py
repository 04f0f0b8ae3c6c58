"""`stepwell.wait_approval`: people decide, in functions as in definitions."""

from __future__ import annotations

from typing import Any

import pytest

import stepwell
from stepwell import ExecutionFailed, FakeClock, InvalidInput, Run, Status, Stepwell, workflow
from stepwell.testing import crash_everywhere

WAIT = 20


@workflow(name="a.refund")
async def refund(cents: int) -> dict[str, Any]:
    answer = await stepwell.wait_approval(f"Refund {cents} cents?", details={"cents": cents}, approvers=["ada", "bob"], needed=2)
    return {"is_approved": answer.is_approved, "by": [each["by"] for each in answer.decisions]}


@workflow(name="a.plain")
def plain() -> bool:
    return stepwell.wait_approval("Go?", name="go").is_approved  # type: ignore[attr-defined]


@workflow(name="a.late")
async def late() -> str:
    try:
        answer = await stepwell.wait_approval("Hire?", approvers=["ada"], timeout="1h", escalate_to=["boss"])
    except TimeoutError as error:
        return str(error)
    return f"{answer.decisions[-1]['by']}: {answer.is_approved}"


@workflow(name="a.wrong")
async def wrong(arguments: dict[str, Any]) -> bool:
    return (await stepwell.wait_approval(**arguments)).is_approved


def answer(by: str | None, *, is_approved: bool = True) -> dict[str, Any]:
    return {"by": by, "is_approved": is_approved}


def wait_until_asked(run: Run[Any], person: str) -> None:
    while not any(person in offer.approvers for offer in run.progress().offers):
        pass


def test_approval_offers_its_title_details_and_approvers_and_takes_only_their_answers(well: Stepwell) -> None:
    run = well.start(refund, 900)
    run.signal("approval", answer("eve"))  # was not asked
    run.signal("approval", answer("ada"))
    run.signal("approval", answer("ada"))  # has answered
    run.signal("approval", "no answer at all")
    while not (offers := run.progress().offers):
        pass
    assert [(each.kind, each.name, each.title, each.approvers, each.details) for each in offers] == [
        ("approval", "approval", "Refund 900 cents?", ("ada", "bob"), {"cents": 900})
    ]
    run.signal("approval", answer("bob"))
    assert run.result(WAIT) == {"is_approved": True, "by": ["ada", "bob"]}


def test_approval_is_refused_once_too_few_are_left_who_could_agree(well: Stepwell) -> None:
    run = well.start(refund, 900)
    run.signal("approval", answer("bob", is_approved=False))
    assert run.result(WAIT) == {"is_approved": False, "by": ["bob"]}


def test_plain_workflow_asks_under_a_name_of_its_own(well: Stepwell) -> None:
    run = well.start(plain)
    run.signal("go", True)
    assert run.result(WAIT) is True


def test_approval_that_nobody_answers_escalates_once_and_then_times_out(well: Stepwell, clock: FakeClock) -> None:
    escalated, ended = well.start(late), well.start(late)
    for run in (escalated, ended):
        wait_until_asked(run, "ada")
    clock.advance("1h")
    for run in (escalated, ended):
        wait_until_asked(run, "boss")
    escalated.signal("approval", answer("ada"))  # is not asked any more
    escalated.signal("approval", answer("boss"))
    assert escalated.result(WAIT) == "boss: True"
    clock.advance("1h")
    assert ended.result(WAIT) == "approval 'approval' was not answered within 3600 s, the timeout of wait_approval"


def test_approval_ends_the_same_wherever_the_run_crashes() -> None:
    crash_everywhere(refund, 900, signals=[("approval", answer("ada")), ("approval", answer("bob"))])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"title": ""}, "the title of an approval is empty"),
        ({"title": "?", "needed": 0}, "needed is a whole number, 1 or more"),
        ({"title": "?", "approvers": "ada"}, "approvers is a list of names"),
        ({"title": "?", "approvers": ["ada"], "needed": 2}, "2 must agree, and approvers names 1"),
        ({"title": "?", "escalate_to": ["ada"]}, "escalate_to needs a timeout"),
        ({"title": "?", "timeout": "soon"}, "timeout"),
    ],
)
def test_approval_with_bad_arguments_fails_its_run_and_says_why(well: Stepwell, arguments: dict[str, Any], told: str) -> None:
    run = well.start(wrong, arguments)
    with pytest.raises(ExecutionFailed, match=told):
        run.result(WAIT)
    assert run.status() is Status.FAILED


def test_approval_outside_a_workflow_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"stepwell\.wait_approval\(\) is for the code of a workflow"):
        stepwell.wait_approval("Go?")

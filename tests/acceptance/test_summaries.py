"""Summaries: one line about a call, for people who look at a run."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.command_line import Shell, shell
from tests.support.module_state import cleared
from tests.support.polling import until

from stepwell import ExecutionFailed, FakeClock, InvalidInput, Retry, step, workflow
from stepwell.flow import call, define, loop
from stepwell.testing import crash_everywhere

__all__ = ["shell"]

WAIT = 60
calls: list[str] = []


_cleared = cleared(calls)


@step(name="told.charge")
async def charge(order: str) -> str:
    calls.append(order)
    return f"charged {order}"


@step(name="told.plain_charge")
def plain_charge(order: str) -> str:
    return f"charged {order}"


@step(name="told.bad", retry=Retry(attempts=2, first_seconds="5h"))
async def bad(order: str) -> str:
    raise ConnectionError("away")


@workflow(name="told.shop")
async def shop(order: str) -> list[str]:
    first = await charge.with_summary(f"{order} for ada")(order)
    again = await charge.with_key("k").with_summary("under a key")(order)
    same = await charge.with_summary("not the first").with_key("k")(order)
    return [first, again, same, await charge(order)]


@workflow(name="told.plain_shop")
def plain_shop(order: str) -> str:
    return plain_charge.with_summary(f"{order}\nfor\tada" + "!" * 300)(order)


@workflow(name="told.half_a_pair")
async def half_a_pair() -> str:
    return await charge.with_summary("lamp \ud800")("lamp")


@workflow(name="told.bad_shop")
async def bad_shop(order: str) -> str:
    return await bad.with_summary(f"{order} for ada")(order)


declared = define(
    "told.declared", loop(call("told.charge", "{{ item }}", name="charge", summary="{{ item }} for ada"), items=["lamp", "pen"])
)
declared_bad = define("told.declared_bad", call("told.bad", "lamp", name="bad", summary="{{ trigger.input }} for ada"))


def told(run: Any) -> dict[str, str | None]:
    return {record.name: record.summary for record in run.steps() if record.summary is not None}


def test_summary_of_a_call_is_recorded_with_its_step(working_well: Any) -> None:
    run = working_well.start(shop, "lamp")
    assert run.result(WAIT) == ["charged lamp"] * 4
    assert len(calls) == 3
    assert told(run) == {"told.charge": "lamp for ada", "key:k": "under a key"}
    stored = [str(receipt.mutations) for receipt in run.receipts()]
    assert sum("summary" in each for each in stored) == 2  # a step without one has no such field
    assert working_well.verify(run.execution_id).ok


def test_summary_is_one_short_line(working_well: Any) -> None:
    run = working_well.start(plain_shop, "lamp")
    run.result(WAIT)
    [line] = told(run).values()
    assert line is not None
    assert line.startswith("lamp for ada!!!")
    assert (len(line), line[-1]) == (200, "…")
    with pytest.raises(InvalidInput, match="line of text"):
        charge.with_summary(7)  # pyright: ignore[reportArgumentType]


def test_half_a_surrogate_pair_in_a_summary_fails_no_run(working_well: Any) -> None:
    run = working_well.start(half_a_pair)
    run.result(WAIT)
    assert [record.summary for record in run.steps()] == ["lamp ?"]


def test_summary_of_a_definition_is_a_template(working_well: Any) -> None:
    run = working_well.start(declared)
    run.result(WAIT)
    assert told(run) == {"charge[0]": "lamp for ada", "charge[1]": "pen for ada"}
    assert working_well.verify(run.execution_id).ok


def test_summary_of_a_document_is_checked_like_other_templates(working_well: Any) -> None:
    text = "name: told.document\ndo:\n  - {step: told.charge, with: lamp, name: one, summary: '{{ trigger.input }}'}\n"
    working_well.definitions.put(text)
    run = working_well.start("told.document", "lamp\nfor ada")
    run.result(WAIT)
    assert told(run) == {"one": "lamp for ada"}


@pytest.mark.parametrize("shape", [bad_shop, declared_bad], ids=["function", "declared"])
def test_summary_is_there_while_a_step_waits_for_its_next_attempt(well: Any, clock: FakeClock, shape: Any) -> None:
    run = well.start(shape, "lamp")
    until(lambda: run.progress().waiting)
    assert run.progress().waiting[0].summary == "lamp for ada"
    assert list(told(run).values()) == ["lamp for ada"]


@pytest.mark.parametrize("shape", [shop, declared], ids=["function", "declared"])
def test_summary_is_in_pictures_of_the_run(working_well: Any, shape: Any) -> None:
    run = working_well.start(shape, "lamp")
    run.result(WAIT)
    assert "lamp for ada" in run.draw("waterfall")
    assert "for ada" in run.draw("svg")


def test_other_arguments_under_a_key_with_a_summary_are_a_conflict(working_well: Any) -> None:
    @workflow(name="told.clash")
    async def clash() -> None:
        await charge.with_key("k").with_summary("one")("lamp")
        await charge.with_key("k").with_summary("one")("pen")

    with pytest.raises(ExecutionFailed, match="another call"):
        working_well.start(clash).result(WAIT)


def test_summaries_are_the_same_after_a_crash() -> None:
    crash_everywhere(shop, "lamp")
    crash_everywhere(declared)


SHOP = """
from stepwell import step, workflow


@step
async def charge(item: str) -> str:
    return item


@workflow
async def checkout(item: str) -> str:
    return await charge.with_summary(f"{item} for ada")(item)
"""


def test_show_has_the_summary_in_its_timeline(shell: Shell) -> None:
    shell.write("told.py", SHOP)
    shell("run", "told.py:checkout", "-q", "--id", "a", "-i", '"lamp"')
    assert "charge · lamp for ada" in shell("show", "a").out
    assert shell("show", "a", "--json").json["steps"]["charge"]["summary"] == "lamp for ada"


def test_outside_a_workflow_the_function_runs() -> None:
    assert plain_charge.with_key("k").with_summary("x")("lamp") == "charged lamp"

"""Pictures of runs: a definition with the progress in it, and the calls that a function has made."""

from __future__ import annotations

import asyncio
import re
import threading
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from tests.acceptance.conftest import working_well
from tests.acceptance.test_declared import until
from tests.support.module_state import cleared

import stepwell
from stepwell import ExecutionFailed, InvalidInput, step, workflow
from stepwell.flow import call, choice, define, function, otherwise, parallel, signal, when

well = working_well

WAIT = 60
inside, leave = threading.Event(), threading.Event()


_cleared = cleared(inside, leave, set_after=(leave,))


@step(name="pictures.note")
async def note(value: Any) -> Any:
    return value


@step(name="pictures.slow")
def slow(value: Any) -> Any:
    inside.set()
    assert leave.wait(WAIT)
    return value


@step(name="pictures.bad")
async def bad(_: Any) -> Any:
    raise ValueError("no")


def marks_of(picture: str) -> dict[str, str]:
    """How the boxes of an SVG picture are marked, by their titles."""
    ns = "{http://www.w3.org/2000/svg}"
    found: dict[str, str] = {}
    for group in ET.fromstring(picture).iter(f"{ns}g"):
        box, title = group.find(f"{ns}rect"), group.find(f"{ns}text")
        assert box is not None
        assert title is not None
        _, _, *mark = box.attrib["class"].split()
        found[str(title.text)] = mark[0] if mark else ""
    return found


def charted(text: str) -> dict[str, str]:
    """How the nodes of a Mermaid chart are marked, by their titles."""
    titles = dict(re.findall(r'(n\d+)[\[({]+"([^"—]*?)(?: —[^"]*)?"', text))
    return {titles[name]: mark for name, mark in re.findall(r"class (n\d+) (\w+)", text)}


FLOW = define(
    "pictures",
    call("pictures.note", name="first"),
    choice(when("trigger.input", call("pictures.note", name="chosen")), otherwise(call("pictures.note", name="other"))),
    parallel(branches={"slow": call("pictures.slow", name="slow"), "ask": signal("go", name="ask")}, name="both"),
    call("pictures.bad", name="last"),
)


def test_a_definition_is_drawn_with_the_progress_of_a_run(well: Any) -> None:
    run = well.start(FLOW, True)
    assert inside.wait(WAIT)
    under_way = {"first": "done", "chosen": "done", "other": "", "both": "running", "slow": "running", "ask": "waiting", "last": ""}
    drawn = marks_of(run.draw())
    assert {title: drawn[title] for title in under_way} == under_way
    assert charted(run.draw("mermaid")).items() >= {"slow": "running", "ask": "waiting", "first": "done"}.items()
    leave.set()
    run.signal("go")
    with pytest.raises(ExecutionFailed):
        run.result(WAIT)
    drawn = marks_of(run.draw("svg"))
    ended = {"first": "done", "chosen": "done", "other": "", "both": "done", "slow": "done", "ask": "done", "last": "failed"}
    assert {title: drawn[title] for title in ended} == ended


@workflow
async def pictured_child(value: int) -> int:
    return await note(value)


@workflow
async def pictured(value: int) -> int:
    await note(value)

    async def twice(number: int) -> None:
        await note(number)
        await note(number)

    await asyncio.gather(twice(1), twice(2))
    await pictured_child(value)
    try:
        await bad(value)
    except Exception:  # noqa: BLE001 - whatever it is
        await stepwell.wait_signal("go")
    return value


def test_a_function_is_drawn_from_the_calls_that_it_made(well: Any, own_workflows: Any) -> None:
    run = well.start(pictured, 1)
    run.signal("go")
    assert run.result(WAIT) == 1
    chart = run.draw("mermaid")
    note_key, bad_key = "pictures.note", "pictures.bad"
    calls = {note_key, f"1/{note_key}", f"1/{note_key}#35;2", f"2/{note_key}", f"2/{note_key}#35;2", "pictured_child"}
    assert charted(chart) == dict.fromkeys([*calls, "signal:go"], "done") | {bad_key: "failed"}
    assert "tasks 1, 2" in chart
    drawn = marks_of(run.draw())
    assert drawn[bad_key] == "failed"
    assert drawn[f"2/{note_key}#2"] == "done"


def test_a_function_that_waits_shows_what_it_waits_for(well: Any, own_workflows: Any) -> None:
    run = well.start(pictured, 1)
    until(lambda: run.progress().offers)
    assert marks_of(run.draw())["signal:go"] == "waiting"
    run.signal("go")
    run.result(WAIT)


def test_a_format_that_there_is_not_is_refused(well: Any) -> None:
    run = well.start(define("pictures-small", "pictures.note"), 1)
    run.result(WAIT)
    with pytest.raises(InvalidInput, match="svg, mermaid"):
        run.draw("png")


def test_the_calls_of_a_function_are_checked_as_a_definition_is(well: Any) -> None:
    @workflow(name="pictures.sound")
    async def sound(value: int) -> list[int]:
        first = await note(value)
        return [await note(first), *await asyncio.gather(note(1), note(2))]

    run = well.start(sound, 1)
    run.result(WAIT)
    assert run.check() == ()


def test_a_call_of_a_step_that_is_gone_is_a_fault(well: Any) -> None:
    @workflow(name="pictures.gone")
    async def gone(value: int) -> int:
        return await note(value)

    run = well.start(gone, 1)
    run.result(WAIT)
    function.unregister(note)
    [fault] = run.check()
    assert "pictures.note" in fault.message


def test_a_call_that_was_waited_for_at_the_end_is_improper(well: Any) -> None:
    @workflow(name="pictures.hasty")
    async def hasty(value: int) -> int:
        left = asyncio.ensure_future(stepwell.wait_signal("never"))
        await asyncio.sleep(0)  # so that it comes first
        await note(value)
        assert not left.done()
        return value

    run = well.start(hasty, 1)
    run.result(WAIT)
    assert [fault.message for fault in run.check()] == ["improper: the run has ended, and call 'signal:never' was still waited for"]


def test_the_definition_of_a_run_is_checked(well: Any) -> None:
    run = well.start(define("pictures.checked", call(note, 1)))
    run.result(WAIT)
    assert run.check() == ()

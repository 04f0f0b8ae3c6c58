"""Tracebacks of failed attempts: the user's frames are recorded, shown, and logged once at the end."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.faces import step_records
from tests.support import process_steps
from tests.support.command_line import Shell, program, shell

import stepwell
from stepwell import ExecutionFailed, Retry, Stepwell, step, workflow
from stepwell.flow import call, define, sequence

__all__ = ["shell"]

WAIT = 20


@pytest.fixture
def well(working_well: Stepwell) -> Stepwell:
    """A well that works by the machine's clock."""
    return working_well


def find_price(sku: str) -> int:
    secret = f"hidden {sku}"
    return json.loads('{"price": nothing}')[secret]


@step(name="tb.price", retry=Retry(attempts=2, first_seconds=0.001))
async def price(sku: str) -> int:
    return find_price(sku)


@step(name="tb.plain_price")
def plain_price(sku: str) -> int:
    return find_price(sku)


@workflow(name="tb.shop")
async def shop(sku: str) -> int:
    return await price(sku)


@workflow(name="tb.plain_shop")
def plain_shop(sku: str) -> int:
    return plain_price(sku)


declared = define("tb-declared", call("tb.price", {"sku": "{{ trigger.input }}"}))


@workflow(name="tb.processes")
async def processes() -> None:
    await process_steps.tell("a")  # pyright: ignore[reportGeneralTypeIssues]


def descend(depth: int) -> int:
    return descend(depth + 1) + 1


def misspeak(_: int) -> int:
    raise ValueError("long " * 100_000)


@step(name="tb.bottomless")
async def bottomless(kind: str) -> int:
    return {"deep": descend, "long": misspeak}[kind](0)


@workflow(name="tb.falls")
async def falls(kind: str) -> int:
    return await bottomless(kind)


@step(name="tb.tells")
async def tells(error: Any) -> list[str]:
    return sorted(error)


@pytest.mark.parametrize(("way", "attempts"), [(shop, 2), (plain_shop, 1), (declared, 2)], ids=["async", "plain", "declared"])
def test_each_failed_attempt_has_the_frames_of_the_users_code(well: Any, way: Any, attempts: int) -> None:
    run = well.start(way, "A1")
    with pytest.raises(ExecutionFailed):
        run.result(WAIT)
    [record] = [each for each in run.steps() if each.attempts]
    assert len(record.attempts) == attempts
    for attempt in record.attempts:
        assert "in find_price" in attempt.traceback
        assert "return json.loads('{\"price\": nothing}')[secret]" in attempt.traceback
        assert "json/decoder.py" not in attempt.traceback, "library frames are left out"
        assert "runtime/steps" not in attempt.traceback, "Stepwell's own frames, too"
        assert "hidden A1" not in attempt.traceback, "no values of variables"
        assert attempt.traceback.splitlines()[-1].startswith("json.decoder.JSONDecodeError: Expecting value")


def test_caller_sees_the_frames_in_the_notes_of_the_error(well: Any) -> None:
    with pytest.raises(ExecutionFailed) as told:
        well.start(shop, "A1").result(WAIT)
    [note] = told.value.__notes__
    assert "in find_price" in note
    assert "in shop" in note, "the workflow's own frame"


def test_step_in_a_process_has_a_traceback(well: Any) -> None:
    run = well.start(processes)
    with pytest.raises(ExecutionFailed) as told:
        run.result(WAIT)
    attempt = step_records(run)["tell"].attempts[0]
    assert attempt.traceback is not None
    assert "raise KeyError(what)" in attempt.traceback
    [note] = told.value.__notes__
    assert "raise KeyError(what)" in note, "the run's error has it, too"
    assert "Told" not in note


@pytest.mark.parametrize(("kind", "frame"), [("deep", "in descend"), ("long", "in misspeak")])
def test_traceback_is_bounded(well: Any, kind: str, frame: str) -> None:
    run = well.start(falls, kind)
    with pytest.raises(ExecutionFailed):
        run.result(WAIT)
    text = step_records(run)["tb.bottomless"].attempts[0].traceback
    assert text is not None
    assert frame in text
    assert len(text.encode()) <= 8192


def test_templates_do_not_see_the_traceback(well: Any) -> None:
    failing = call("tb.price", {"sku": "A1"}, name="failing", on_error="continue")
    telling = call("tb.tells", {"error": "{{ steps.failing.error }}"})
    fields = well.start(define("tb-telling", sequence(failing, telling))).result(WAIT)
    assert "message" in str(fields)
    assert "traceback" not in str(fields)


@pytest.mark.parametrize("way", [shop, plain_shop, declared], ids=["async", "plain", "declared"])
def test_final_failure_is_logged_once_with_its_traceback(well: Any, way: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        run = well.start(way, "A1")
        with pytest.raises(ExecutionFailed):
            run.result(WAIT)
        well.close()
    [record] = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert run.execution_id in record.getMessage()
    assert record.exc_info is not None
    text = logging.Formatter().format(record)
    assert "find_price" in text
    assert str(Path(stepwell.__file__).parent) not in text


def test_show_and_debug_print_the_frames(shell: Shell) -> None:
    shell("run", "shop.py:checkout", "-q", "--id", "a", "-i", '{"item": "lamp", "cents": -5}')
    shown = shell("show", "a").out
    assert 'raise ValueError(f"{cents} is negative")' in shown
    assert "-5" not in shown.partition('raise ValueError(f"')[2].partition("ValueError:")[0]
    with program(shell, "--debug", "run", "shop.py:checkout", "-q", "-i", '{"item": "lamp", "cents": -5}') as child:
        assert "in charge" in child.communicate()[1].partition("ExecutionFailed:")[2], "in the notes of the error"


OWN = """
from stepwell import step, workflow

@step
def price(sku: str) -> int:
    return 1

@workflow
def order(sku: str) -> int:
    price(sku)
    return {}[sku]
"""


def test_show_prints_the_frames_of_a_run_that_its_own_code_failed(shell: Shell) -> None:
    shell.write("own.py", OWN)
    shell("run", "own.py:order", "-q", "--id", "own", "-i", '"lamp"')
    shown = shell("show", "own").out
    assert "return {}[sku]" in shown
    assert shown.count("Traceback") == 1
    shell("run", "shop.py:checkout", "-q", "--id", "step", "-i", '{"item": "lamp", "cents": -5}')
    assert shell("show", "step").out.count("Traceback") == 2, "one for each attempt, and none for the run"


LATE = """
import time

from stepwell import Retry, current, step, workflow


@step(timeout_seconds=0.4, retry=Retry(attempts=2, first_seconds=0.5))
def slow(item: str) -> str:
    if current().attempt == 1:
        time.sleep(0.6)
    return item


@workflow
async def order(item: str) -> str:
    return await slow.aio(item)
"""


def test_show_tells_of_a_late_result(shell: Shell) -> None:
    shell.write("late.py", LATE)
    shell("run", "late.py:order", "-q", "--id", "late", "-i", '"lamp"')
    lines = shell("show", "late").out.splitlines()
    place = lines.index("Late results, discarded")
    assert lines[place + 1].split()[1:] == ["slow", "attempt", "1"]
    [[found]] = [step["late_results"] for step in shell("show", "late", "--json").json["steps"].values()]
    assert found["attempt"] == 1

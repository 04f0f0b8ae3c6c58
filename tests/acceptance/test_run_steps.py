"""``run.steps()``: every step of a run with its attempts; errors are no outputs."""

from __future__ import annotations

from typing import Any

import pytest
from tests.acceptance.faces import step_records

import stepwell
from stepwell import ExecutionFailed, Retry, Stepwell, step, wait_signal, workflow
from stepwell.flow import call, define, each, sequence
from stepwell.flow import signal as signal_node

WAIT = 20
_failures_left: dict[str, int] = {}


@pytest.fixture
def well(working_well: Stepwell) -> Stepwell:
    """A well that works by the machine's clock."""
    return working_well


@step(name="rs.flaky", retry=Retry(attempts=3, first_seconds=0.001))
async def flaky(name: str) -> str:
    if _failures_left.get(name, 0):
        _failures_left[name] -= 1
        raise ConnectionError(f"{name} is away")
    return f"{name} answered"


@workflow
async def calls_flaky(name: str) -> str:
    return await flaky(name)


declared_flaky = define("calls_flaky_declared", call("rs.flaky", {"name": "{{ trigger.input }}"}, name="rs.flaky"))


@step(name="rs.odd")
async def odd(number: int) -> int:
    if number % 2 == 0:
        raise ValueError(f"{number} is even")
    return number


def test_failures_of_instances_that_nobody_waits_for_are_shown(well: Any) -> None:
    definition = define("rs_loose", each(call("rs.odd", "{{ item }}", name="odd"), items=[1, 2, 3], join="none"))
    run = well.start(definition)
    run.result(WAIT)
    assert run.status() == "COMPLETED"
    shown = {record.name: (record.status, record.error and str(record.error)) for record in run.steps() if "[" in record.name}
    assert shown == {
        "odd[0]": ("COMPLETED", None),
        "odd[1]": ("FAILED", "ValueError: 2 is even"),
        "odd[2]": ("COMPLETED", None),
    }


@pytest.mark.parametrize("way", [calls_flaky, declared_flaky], ids=["function", "declared"])
def test_step_that_failed_twice_shows_three_attempts(well: Any, way: Any) -> None:
    _failures_left["bank"] = 2
    run = well.start(way, "bank")
    run.result(WAIT)
    [record] = run.steps()
    assert (record.name, record.status, record.output, record.error) == ("rs.flaky", "COMPLETED", "bank answered", None)
    assert [each.number for each in record.attempts] == [1, 2, 3]
    assert [each.error and str(each.error) for each in record.attempts] == ["ConnectionError: bank is away"] * 2 + [None]
    assert all(each.started_at <= each.ended_at for each in record.attempts)
    assert record.started_at == record.attempts[0].started_at
    assert record.ended_at == record.attempts[-1].ended_at


@pytest.mark.parametrize("way", [calls_flaky, declared_flaky], ids=["function", "declared"])
def test_step_that_failed_has_an_error_and_no_output(well: Any, way: Any) -> None:
    _failures_left["shop"] = 3
    run = well.start(way, "shop")
    with pytest.raises(ExecutionFailed):
        run.result(WAIT)
    assert run.state().get_step_output("rs.flaky") is None
    assert run.state().get_all_step_outputs() == {}
    [record] = run.steps()
    assert (record.status, record.output, len(record.attempts)) == ("FAILED", None, 3)
    assert record.error is not None
    assert (record.error.kind, record.error.message, record.error.is_retryable) == ("ConnectionError", "shop is away", True)


@pytest.mark.parametrize("way", [calls_flaky, declared_flaky], ids=["function", "declared"])
def test_attempts_from_before_a_retry_of_the_run_are_kept(well: Any, way: Any) -> None:
    _failures_left["post"] = 4
    run = well.start(way, "post")
    with pytest.raises(ExecutionFailed):
        run.result(WAIT)
    run.retry()
    assert run.result(WAIT) is not None
    [record] = run.steps()
    assert [each.number for each in record.attempts] == [1, 2, 3, 1, 2]
    assert (record.status, record.output) == ("COMPLETED", "post answered")


@workflow
async def inner(value: int) -> int:
    return value + 1


@workflow
async def outer() -> int:
    await stepwell.sleep(0.001)
    answer = await wait_signal("go")
    return await inner(answer)


def test_waits_and_children_of_a_function_show_what_they_gave(well: Any) -> None:
    run = well.start(outer)
    run.signal("go", 4)
    assert run.result(WAIT) == 5
    records = step_records(run)
    assert {name: each.output for name, each in records.items()} == {"sleep": None, "signal:go": 4, "inner": 5}
    assert [each.attempts for each in records.values()] == [(), (), ()]


def test_steps_of_instances_and_waits_under_way_are_listed(well: Any) -> None:
    tree = sequence(
        each(call("rs.flaky", {"name": "{{ item }}"}, name="ask"), items=["a", "b"], name="all"),
        signal_node("go", name="approval"),
    )
    run = well.start(define("instances_then_signal", tree))
    while not run.progress().waiting:
        pass
    records = step_records(run)
    assert {name: each.status for name, each in records.items()} == {
        "ask[0]": "COMPLETED",
        "ask[1]": "COMPLETED",
        "all": "COMPLETED",
        "approval": "WAITING",
    }
    assert records["ask[1]"].node == "ask"
    assert (len(records["ask[1]"].attempts), records["all"].attempts) == (1, ())
    run.cancel()


def test_fork_shows_the_steps_that_it_was_made_with(well: Any) -> None:
    _failures_left["fork"] = 1
    run = well.start(calls_flaky, "fork", execution_id="original")
    run.result(WAIT)
    well.fork("original", "copy", at=run.receipts()[-1].revision)
    [record] = well.run("copy").steps()
    assert (record.status, record.output, len(record.attempts)) == ("COMPLETED", "fork answered", 1)


def test_record_of_a_step_as_plain_data_holds_its_attempts(well: Any) -> None:
    run = well.start(calls_flaky, "plain")
    run.result(WAIT)
    plain = run.steps()[0].to_dict()
    assert (plain["name"], plain["status"], plain["output"]) == ("rs.flaky", "COMPLETED", "plain answered")
    assert plain["attempts"][0]["number"] == 1


@step(name="rs.chatty", retry=Retry(attempts=2, first_seconds=0.001))
async def chatty(lines: int, who: str = "nobody") -> int:
    """Log some lines, fail once, and change what it was given."""
    attempt = stepwell.current().attempt
    for number in range(lines if attempt == 1 else 1):
        stepwell.current().logger.info("line %d of attempt %d", number, attempt)
    stepwell.current().logger.debug("too fine to be kept")
    if attempt == 1:
        raise ConnectionError("not yet")
    return lines


@workflow
async def calls_chatty(lines: int) -> int:
    return await chatty(lines, who="ann")


declared_chatty = define(
    "calls_chatty_declared", call("rs.chatty", {"lines": "{{ trigger.input }}", "who": "ann"}, name="rs.chatty")
)


@pytest.mark.parametrize("way", [calls_chatty, declared_chatty], ids=["function", "declared"])
def test_record_of_a_step_has_its_input_and_the_log_of_each_attempt(well: Any, way: Any) -> None:
    run = well.start(way, 60)
    assert run.result(WAIT) == 60
    [record] = run.steps()
    assert record.input == {"lines": 60, "who": "ann"}
    first, second = record.attempts
    assert [line.text for line in first.log] == [f"line {number} of attempt 1" for number in range(10, 60)]
    assert (first.log_dropped, second.log_dropped) == (10, 0)
    assert [(line.level, line.text) for line in second.log] == [("INFO", "line 0 of attempt 2")]
    assert first.log[0].at <= second.log[0].at
    assert run.verify().ok


@step(name="rs.hopeless", retry=Retry(attempts=14, first_seconds=0))
async def hopeless(good: int) -> int:
    """Log two lines in each attempt, and fail in those before a good one."""
    attempt = stepwell.current().attempt
    for number in range(2):
        stepwell.current().logger.info("line %d of attempt %d", number, attempt)
    if attempt < good:
        raise ConnectionError("not yet")
    return attempt


@workflow
async def calls_hopeless(good: int) -> int:
    return await hopeless(good)


declared_hopeless = define("calls_hopeless_declared", call("rs.hopeless", {"good": "{{ trigger.input }}"}, name="rs.hopeless"))


@pytest.mark.parametrize("way", [calls_hopeless, declared_hopeless], ids=["function", "declared"])
@pytest.mark.parametrize(("good", "last"), [(12, 12), (99, 14)], ids=["succeeds", "fails"])
def test_log_of_a_step_is_kept_of_its_first_ten_attempts_and_of_the_last(well: Any, way: Any, good: int, last: int) -> None:
    run = well.start(way, good)
    if good == last:
        assert run.result(WAIT) == last
    else:
        with pytest.raises(ExecutionFailed):
            run.result(WAIT)
    [record] = run.steps()
    with_log = [*range(1, 11), last]
    assert [attempt.number for attempt in record.attempts if attempt.log] == with_log
    for attempt in record.attempts:
        lines = [f"line {line} of attempt {attempt.number}" for line in range(2)] if attempt.number in with_log else []
        assert ([line.text for line in attempt.log], attempt.log_dropped) == (lines, 2 - len(lines))
    assert run.verify().ok


class Unspeakable:
    """An object that cannot become JSON."""

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers


@step(name="rs.takes")
async def takes(thing: Any, *rest: int) -> int:
    """Take anything."""
    return len(thing.numbers if isinstance(thing, Unspeakable) else thing) + len(rest)


@step(name="rs.changes")
async def changes(numbers: list[int]) -> int:
    """Change the argument itself."""
    numbers.append(3)
    return len(numbers)


@workflow
async def takes_anything() -> list[int]:
    return [await takes(Unspeakable([1])), await takes("x" * 20_000), await takes("ab", 1, 2), await changes([1, 2])]


def test_input_that_is_no_json_or_large_is_not_recorded_and_what_a_step_changes_is_as_it_was_given(well: Any) -> None:
    run = well.start(takes_anything)
    assert run.result(WAIT) == [1, 20_000, 4, 3]
    assert [record.input for record in run.steps()] == [None, None, {"thing": "ab", "*": [1, 2]}, {"numbers": [1, 2]}]


def test_failed_step_has_its_input_too(well: Any) -> None:
    run = well.start(define("rs_fails", call("rs.odd", "{{ trigger.input }}", name="odd")), 2)
    with pytest.raises(ExecutionFailed):
        run.result(WAIT)
    assert [(record.status, record.input) for record in run.steps()] == [("FAILED", 2)]

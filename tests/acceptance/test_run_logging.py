"""Logging with the context of a run, silent where the code of a workflow runs again."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from tests.acceptance.conftest import OpenWell

import stepwell
from stepwell import Retry, RunLogFilter, Stepwell, step, workflow

WAIT = 20
own = logging.getLogger("tests.run_logging")


@step(name="l.charge", retry=Retry(attempts=2, first_seconds=0.001))
def charge(cents: int) -> int:
    stepwell.current().logger.info("charging %d", cents)
    own.info("own")
    if stepwell.current().attempt == 1:
        raise ValueError("not yet")
    return cents


@workflow(name="l.order")
async def order(cents: int) -> int:
    log = stepwell.current().logger
    log.info("begins")
    paid = await charge(cents)
    own.info("paid")
    await stepwell.wait_signal("go")
    log.warning("goes on")
    return paid


@workflow(name="l.plain")
def plain(cents: int) -> int:
    stepwell.current().logger.info("begins")
    paid = charge(cents)
    stepwell.wait_signal("go")
    own.info("goes on")
    return paid


class Kept(logging.Handler):
    """Keeps the records that its filter lets through."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def records() -> Iterator[list[Any]]:
    handler = Kept()
    handler.addFilter(RunLogFilter())
    loggers = [own, logging.getLogger("stepwell.run")]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    yield handler.records
    for logger in loggers:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)


@pytest.fixture
def well(open_well: OpenWell, url: str) -> Any:
    """A well that works by the machine's clock, since its worker sleeps by it."""
    return open_well(url)


@pytest.mark.parametrize("of", [order, plain])
def test_records_carry_the_run_and_code_that_runs_again_logs_nothing_twice(well: Stepwell, records: list[Any], of: Any) -> None:
    run = well.start(of, 7, workspace="default", execution_id="order-7")
    while run.status() != "WAITING":
        pass
    run.signal("go")
    assert run.result(WAIT) == 7
    told = [(each.getMessage(), each.step, each.attempt) for each in records]
    steps = [("charging 7", "l.charge", 1), ("own", "l.charge", 1), ("charging 7", "l.charge", 2), ("own", "l.charge", 2)]
    paid = [("paid", "", "")] if of is order else []
    assert told == [("begins", "", ""), *steps, *paid, ("goes on", "", "")]
    assert {(each.execution_id, each.workflow, each.workspace) for each in records} == {("order-7", of.name, "default")}
    assert len({each.trace_id for each in records}) == 1
    assert all(each.trace_id for each in records)
    assert {each.name for each in records} == {"tests.run_logging", f"stepwell.run.{of.name}"}


def test_records_outside_of_runs_have_empty_fields(records: list[Any]) -> None:
    own.info("nothing runs")
    assert (records[0].execution_id, records[0].step, records[0].attempt) == ("", "", "")


def test_fields_that_a_program_gave_stay(well: Stepwell, records: list[Any]) -> None:
    own.info("given", extra={"execution_id": "mine"})
    assert records[0].execution_id == "mine"

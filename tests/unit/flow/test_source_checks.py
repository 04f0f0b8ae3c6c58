"""Faults that ``stepwell check`` finds in the code of workflow functions."""

from __future__ import annotations

import pytest

from stepwell.flow.source_checks import check_source

HEAD = """\
import asyncio, time, random, os, secrets
import datetime as dt
import uuid
from datetime import datetime, date
from random import choice
import stepwell
from stepwell import step, workflow

@step
async def charge(cents): return time.time()

def helper(): return uuid.uuid4()
"""


def faults_of(line: str, decorator: str = "@workflow", function: str = "async def") -> list[str]:
    code = f"{HEAD}\n{decorator}\n{function} shop(order):\n    {line}\n"
    return [fault.message for fault in check_source(code)]


@pytest.mark.parametrize(
    ("line", "replacement"),
    [
        ("await asyncio.sleep(5)", "await stepwell.sleep(...)"),
        ("time.sleep(5)", "stepwell.sleep(...)"),
        ("return time.time()", "stepwell.now().timestamp()"),
        ("return random.random()", "stepwell.random()"),
        ("return choice(order)", "stepwell.random()"),
        ("return [random.randint(1, 6) for _ in order]", "stepwell.random()"),
        ("return secrets.token_hex()", "stepwell.random()"),
        ("return os.urandom(3)", "stepwell.random()"),
        ("return datetime.now()", "stepwell.now()"),
        ("return dt.datetime.now(dt.UTC)", "stepwell.now()"),
        ("return date.today()", "stepwell.now().date()"),
        ("return uuid.uuid4()", "stepwell.uuid()"),
        ("return helper()", "stepwell.uuid()"),
        ("return (lambda: time.time())()", "stepwell.now()"),
        ("charge(5)", "await charge(...)"),
        ("charge.aio(5)", "await charge.aio(...)"),
        ("charge.with_key('a')(5)", "await charge.with_key(...)(...)"),
        ("charge.with_summary('a').aio(5)", "await charge.with_summary(...).aio(...)"),
        ("stepwell.sleep(5)", "await stepwell.sleep(...)"),
        ("stepwell.wait_approval('May I?')", "await stepwell.wait_approval(...)"),
    ],
)
def test_call_that_is_not_recorded_is_found_with_what_to_write(line: str, replacement: str) -> None:
    [message] = faults_of(line)
    assert message.split("write ")[1].startswith(replacement)


@pytest.mark.parametrize(
    "line",
    [
        "await charge(5)",
        "await asyncio.sleep(0)",
        "await stepwell.sleep(5)",
        "return stepwell.now(), stepwell.random(), stepwell.uuid()",
        "return random.Random(7)",
        "return dt.timedelta(1), datetime(2026, 1, 1), uuid.UUID(order)",
        "return await asyncio.to_thread(time.sleep, 1)",
        "return order.now()",
    ],
)
def test_code_that_comes_out_the_same_has_no_faults(line: str) -> None:
    assert faults_of(line) == []


@pytest.mark.parametrize(("decorator", "found"), [("@stepwell.workflow(name='x')", 1), ("@step", 0), ("@print", 0)])
def test_only_the_code_of_workflows_is_checked(decorator: str, found: int) -> None:
    assert len(faults_of("time.time()", decorator)) == found


def test_fault_has_its_line_and_column() -> None:
    [fault] = check_source("import time\nfrom stepwell import workflow\n@workflow\ndef shop():\n    return 1 + time.time()\n")
    assert (fault.workflow, fault.line, fault.column) == ("shop", 5, 16)

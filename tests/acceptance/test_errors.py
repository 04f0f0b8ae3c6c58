"""``well.errors``: failed runs with the same fingerprint are one group, and what is decided about it holds until it fails again."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.command_line import Shell, shell

from stepwell import InvalidInput, NotFound, Stepwell, StepwellError, step, workflow
from stepwell.model.error_group import normalised

__all__ = ["shell"]

WAIT = 20
_is_away = {"bank": True}


@pytest.fixture
def well(working_well: Stepwell) -> Stepwell:
    """A well that works by the machine's clock."""
    return working_well


@step(name="eg.charge")
async def charge(card: int) -> str:
    if _is_away["bank"]:
        raise ConnectionError(f"card {card} of order 'a-{card}': the bank did not answer")
    return "charged"


@workflow
async def pays(card: int) -> str:
    return await charge(card)


@workflow
async def pays_twice(card: int) -> str:
    return await charge(card)


@workflow
async def miscounts(card: int) -> int:
    return card // 0


def failed(well: Stepwell, flow: object, card: int, workspace: str = "default") -> str:
    run = well.start(flow, card, workspace=workspace)
    with suppress(StepwellError):
        run.result(WAIT)
    return run.execution_id


def test_failures_of_one_kind_are_one_group_with_its_runs(well: Stepwell) -> None:
    _is_away["bank"] = True
    runs = [failed(well, pays, card) for card in (17, 42)] + [failed(well, pays_twice, 4)]
    other = failed(well, miscounts, 1)
    zero, bank = sorted(well.errors.list(), key=lambda group: group.count)
    assert (bank.kind, bank.step, bank.frame, bank.count) == ("ConnectionError", "eg.charge", "test_errors.py:charge", 3)
    assert bank.message == "card <n> of order <text>: the bank did not answer"
    assert "card 4 of order" in bank.example
    assert sorted(bank.executions) == sorted(runs)
    assert bank.workflows == ("pays", "pays_twice")
    assert sum(bank.hours) == 3
    assert bank.first_seen <= bank.last_seen
    assert (zero.kind, zero.step, zero.executions) == ("ZeroDivisionError", "", (other,))
    assert well.errors.get(bank.fingerprint) == bank


def test_a_retried_group_continues_at_the_step_and_is_gone(well: Stepwell) -> None:
    _is_away["bank"] = True
    runs = {failed(well, pays, card) for card in (1, 2)}
    [group] = well.errors.list()
    _is_away["bank"] = False
    done = well.errors.retry(group.fingerprint)
    assert set(done.retried) == runs
    assert done.refused == {}
    assert {well.run(each).result(WAIT) for each in done.retried} == {"charged"}
    assert well.errors.list() == []
    with pytest.raises(NotFound):
        well.errors.retry(group.fingerprint)


def test_a_resolved_group_opens_with_the_next_failure(well: Stepwell) -> None:
    failed(well, miscounts, 1)
    [group] = well.errors.list()
    resolved = well.errors.resolve(group.fingerprint, by="ada", reason="divided by something else")
    assert (resolved.status, resolved.changed_by, resolved.reason) == ("resolved", "ada", "divided by something else")
    assert well.errors.list(status="open") == []
    failed(well, miscounts, 2)
    assert [each.status for each in well.errors.list()] == ["open"]


def test_an_ignored_group_stays_so_for_some_failures_and_can_be_opened(well: Stepwell) -> None:
    failed(well, miscounts, 1)
    [group] = well.errors.list()
    well.errors.ignore(group.fingerprint, more=1, until=datetime.now(UTC) + timedelta(days=7))
    failed(well, miscounts, 2)
    assert well.errors.get(group.fingerprint).status == "ignored"
    assert well.errors.reopen(group.fingerprint).status == "open"
    well.errors.ignore(group.fingerprint, more=1)
    failed(well, miscounts, 3)
    failed(well, miscounts, 4)
    assert well.errors.get(group.fingerprint).status == "open"
    assert well.errors.ignore(group.fingerprint, version=1).status == "ignored"
    failed(well, miscounts, 5)
    assert well.errors.get(group.fingerprint).status == "open"


def test_groups_and_decisions_stay_in_their_workspace(well: Stepwell) -> None:
    well.workspaces.put("acme", tier="enterprise")
    failed(well, miscounts, 1)
    failed(well, miscounts, 1, workspace="acme")
    [own] = well.errors.list()
    [theirs] = well.errors.within("acme").list()
    assert own.fingerprint == theirs.fingerprint
    assert set(own.executions).isdisjoint(theirs.executions)
    well.errors.resolve(own.fingerprint)
    assert well.errors.within("acme").get(own.fingerprint).status == "open"


def test_bad_input_is_refused_before_anything_is_written(well: Stepwell) -> None:
    failed(well, miscounts, 1)
    [group] = well.errors.list()
    with pytest.raises(NotFound):
        well.errors.resolve("f" * 16)
    with pytest.raises(InvalidInput):
        well.errors.list(status="closed")
    with pytest.raises(InvalidInput):
        well.errors.list(limit=0)
    with pytest.raises(InvalidInput):
        well.errors.ignore(group.fingerprint, until=datetime.now(UTC) - timedelta(days=1))
    with pytest.raises(InvalidInput):
        well.errors.ignore(group.fingerprint, until=datetime.now())  # noqa: DTZ005 - what is tested
    with pytest.raises(InvalidInput):
        well.errors.ignore(group.fingerprint, more=0)
    assert well.errors.get(group.fingerprint).status == "open"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("order 7 failed", "order 1,234.5 failed"),
        ("no row 01a1f427456622001eab2ea69ea4fea8", "no row 99a1f427456622001eab2ea69ea4f000"),
        ("no 'x'", 'no "a longer one"'),
        ("<object at 0x7f01>", "<object at 0xdeadbeef>"),
        ("at 2026-11-19T14:00:00Z", "at 2025-01-02 03:04:05.678+02:00"),
        ("id 123e4567-e89b-12d3-a456-426614174000", "id ffffffff-e89b-12d3-a456-426614174999"),
    ],
)
def test_what_differs_between_failures_of_one_kind_is_left_out(one: str, other: str) -> None:
    assert normalised(one) == normalised(other)


def test_what_is_said_stays_apart() -> None:
    assert normalised("the bank is away") != normalised("the carrier is away")
    assert normalised("facade is decoded") == "facade is decoded"


@given(st.text(max_size=4_000))
def test_any_message_is_normalised_to_a_short_one(text: str) -> None:
    assert len(normalised(text)) <= 300


MODULE = """
from stepwell import workflow

@workflow
async def divides(card: int) -> int:
    return card // 0
"""


def test_groups_are_looked_at_and_decided_about_on_the_command_line(shell: Shell) -> None:
    shell.write("counting.py", MODULE)
    for card in ("1", "2"):
        done = shell("run", "divides", "-m", "counting.py", "--input", card)
        assert "ZeroDivisionError" in done.err, done
    [group] = [json.loads(line) for line in shell("errors", "list", "--json").out.splitlines()]
    assert (group["kind"], group["count"], group["status"]) == ("ZeroDivisionError", 2, "open")
    name = group["fingerprint"]
    assert "ZeroDivisionError" in shell("errors", "show", name).out
    assert shell("errors", "ignore", name, "--for", "7d", "--more", "3", "--reason", "known").code == 0
    assert shell("errors", "list", "--status", "open", "--json").out == ""
    assert "is open" in shell("errors", "reopen", name).err
    assert shell("errors", "resolve", name, "--json").json["status"] == "resolved"
    assert len(shell("errors", "retry", name, "-m", "counting.py", "--json").json["retried"]) == 2
    assert shell("errors", "show", "0" * 16).code == 3

"""Handles of runs: what they show, what their result is, and how they tell of failures inside of failures."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest
from tests.acceptance.conftest import OpenWell

import stepwell
from stepwell import ExecutionFailed, NotFound, Scope, step, workflow
from stepwell.flow import define, subworkflow

WAIT = 20


@pytest.fixture
def well(open_well: OpenWell, url: str) -> Any:
    """A well that works by the machine's clock, since its worker sleeps by it."""
    return open_well(url)


@dataclass
class Parcel:
    """A typed result."""

    weight: int


@workflow
async def weigh(weight: int) -> Parcel:
    return Parcel(weight)


def test_result_has_the_annotated_type_whoever_asks(well: Any) -> None:
    assert well.start(weigh, 3, execution_id="w").result(WAIT) == Parcel(3)
    assert well.run("w").result(WAIT) == Parcel(3)


def test_result_of_a_workflow_that_this_process_does_not_have_is_plain(file_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with stepwell.Stepwell(file_url) as well:
        well.start(weigh, 3, execution_id="w").result(WAIT)
    monkeypatch.setattr("stepwell.flow.function._workflows", {})
    with stepwell.Stepwell(file_url) as well:
        assert well.run("w").result(WAIT) == {"weight": 3}


def test_handle_of_nothing_says_so_when_it_is_asked(well: Any) -> None:
    with pytest.raises(NotFound, match="there is no execution 'nobody'"):
        well.run("nobody").result(WAIT)


def test_handle_shows_which_run_it_is_of(file_url: str) -> None:
    with stepwell.Stepwell(file_url) as well:
        run = well.start(weigh, 3, execution_id="w")
        assert repr(run) == "<Run 'w' of 'weigh'>"
        assert repr(well.run("w")) == "<Run 'w'>"
        run.result(WAIT)


@step(name="h.refused")
async def refused() -> None:
    stepwell.current().state(Scope.custom("handles")).set_if_absent("k", 1)


@workflow
async def innermost() -> None:
    await refused()


@workflow
async def middle() -> None:
    await innermost()


@workflow
async def outermost() -> None:
    await middle()


@pytest.mark.parametrize("way", [outermost, define("around", subworkflow("outermost"))], ids=["function", "declared"])
def test_failure_inside_of_failures_tells_one_code_at_its_end(well: Any, way: Any) -> None:
    """The code of each is beside its message in the run, and the kind of the first is in the text."""
    well.state.custom("handles").set("k", 0)
    run = well.start(way)
    with pytest.raises(ExecutionFailed) as caught:
        run.result(WAIT)
    text = str(caught.value)
    assert re.findall(r"\[SW-\d+\]", text) == ["[SW-400]"]
    assert text.endswith("[SW-400]")
    assert "step 'h.refused' failed: Conflict: key 'k' was expected not to be there" in text
    assert well.load(run.execution_id).result["error"]["code"] == ExecutionFailed.code

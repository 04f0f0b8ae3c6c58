"""Transactions on executions that workers run: what belongs to the engine is refused, and the run sees the rest."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.acceptance.conftest import OpenWell
from tests.support.module_state import cleared
from tests.support.polling import until

import stepwell
from stepwell import Conflict, Scope, Stepwell, ValidationFailed, step, workflow
from stepwell.flow import call, choice, define, loop, otherwise, set_variables, signal, subworkflow, when
from stepwell.flow import sequence as seq

WAIT = 60
entered, gate = threading.Event(), threading.Event()


_cleared = cleared(entered, gate)


@pytest.fixture
def well(working_well: Stepwell) -> Stepwell:
    """A well that works, by the machine's clock."""
    return working_well


@workflow(name="onrun.asked")
async def asked() -> Any:
    stepwell.current().variables["seen"] = "by the code"
    await stepwell.wait_signal("go")
    return stepwell.current().variables["seen"]


@step(name="onrun.hold")
def hold() -> str:
    entered.set()
    assert gate.wait(WAIT)
    return "held"


@workflow(name="onrun.holding")
def holding() -> Any:
    hold()
    return stepwell.current().variables["seen"]


def declared(name: str) -> Any:
    return define(
        name,
        call("onrun.hold", name="hold"),
        choice(
            when("variables.mode == 'fast'", call("onrun.told", "fast", name="fast")),
            otherwise(call("onrun.told", "slow", name="slow")),
        ),
        set_variables({"count": "{{ variables.count + 1 }}"}),
        output={"said": "{{ steps.choice.output }}", "count": "{{ variables.count }}"},
        variables={"mode": "slow", "count": 0},
    )


@step(name="onrun.told")
def told(what: str) -> str:
    return what


CHANGES: dict[str, Callable[[Any], None]] = {
    "add_token": lambda tx: tx.add_token("t", node="n"),
    "remove_token": lambda tx: tx.remove_token("t"),
    "update_token": lambda tx: tx.update_token("t", dict),
    "enter_scope": lambda tx: tx.enter_scope("s"),
    "exit_scope": lambda tx: tx.exit_scope("s"),
    "cancel_scope": lambda tx: tx.cancel_scope("root"),
    "set_status": lambda tx: tx.set_status("COMPLETED"),
    "set_trigger": lambda tx: tx.set_trigger({"n": 1}),
    "increment_step_count": lambda tx: tx.increment_step_count(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_change_that_belongs_to_the_engine_is_refused(well: Stepwell, name: str):
    run = well.start(asked)
    tx = well.transaction(run.execution_id)
    tx.set_variable("fine", 1)
    CHANGES[name](tx)
    with pytest.raises(ValidationFailed, match=r"is run by a worker.*run\.cancel") as refusal:
        tx.commit()
    assert [problem.where for problem in refusal.value.errors] == [f"change 2 ({name})"]
    assert "fine" not in well.load(run.execution_id).variables
    run.signal("go")
    assert run.result(WAIT) == "by the code"


def test_metadata_of_a_run_keeps_what_the_engine_has_there(well: Stepwell):
    """A child that shares its context knows so by its metadata."""
    well.definitions.put(define("onrun-sharing", seq(signal("go"), set_variables({"by": "child"}))))
    run = well.start(define("onrun-parent", subworkflow("onrun-sharing", {}, context="share"), output="{{ variables.by }}"))
    child = well.run(f"{run.execution_id}:onrun-sharing")
    until(lambda: child.execution_id in {each.execution_id for each in well.executions.list(status="WAITING")})
    with well.transaction(child.execution_id) as tx:
        tx.set_metadata({"ticket": 7})
    child.signal("go", "on")
    assert run.result(WAIT) == "child"
    assert well.load(child.execution_id).metadata["ticket"] == 7


def test_variable_of_stepwells_own_is_refused(well: Stepwell):
    run = well.start(asked)
    tx = well.transaction(run.execution_id)
    tx.set_variable("$spent", 0)
    with pytest.raises(ValidationFailed, match=r"change 1 \(set_variable\): variable '\$spent' is Stepwell's own"):
        tx.commit()
    run.cancel()


def test_waiting_run_sees_the_variables_that_a_transaction_sets(well: Stepwell):
    run = well.start(asked)
    while not well.load(run.execution_id).variables:
        pass
    with well.transaction(run.execution_id) as tx:
        tx.set_variable("seen", "by hand")
        tx.set_context({"note": "kept"})
        tx.set_metadata({"ticket": 7})
        tx.state(Scope.of_workspace("default")).set("kept", True)
    run.signal("go")
    assert run.result(WAIT) == "by hand"
    assert well.load(run.execution_id).context == {"note": "kept"}
    assert well.state.workspace("default").get("kept") is True


@pytest.mark.parametrize("is_far", [False, True])
def test_run_whose_step_is_under_way_sees_a_transaction_of_another_process(open_well: OpenWell, file_url: str, is_far: bool):
    well = open_well(file_url)
    run = well.start(holding)
    assert entered.wait(WAIT)
    other = open_well(file_url, worker=False) if is_far else well
    with other.transaction(run.execution_id) as tx:
        tx.set_variable("seen", "by hand")
    gate.set()
    assert run.result(WAIT) == "by hand"
    assert well.verify(run.execution_id).ok


@pytest.mark.parametrize("is_far", [False, True])
def test_declared_run_decides_by_what_a_transaction_has_set_before(open_well: OpenWell, file_url: str, is_far: bool):
    well = open_well(file_url)
    run = well.start(declared("onrun.declared"))
    assert entered.wait(WAIT)
    other = open_well(file_url, worker=False) if is_far else well
    with other.transaction(run.execution_id) as tx:
        tx.set_variable("mode", "fast")
        tx.set_variable("count", 10)
    gate.set()
    assert run.result(WAIT) == {"said": "fast", "count": 11}
    assert well.verify(run.execution_id).ok


def test_increments_of_a_declared_run_and_of_transactions_are_all_kept(open_well: OpenWell, file_url: str):
    add = set_variables({"count": "{{ variables.count + 1 }}"})
    body = seq(signal("tick", name="tick"), add)
    definition = define(
        "onrun.counting",
        loop(body, count=10),
        output="{{ variables.count + variables.theirs }}",
        variables={"count": 0, "theirs": 0},
    )
    well, other = open_well(file_url), open_well(file_url, worker=False)
    run = well.start(definition)
    for number in range(10):
        set_soon(other, run.execution_id, "theirs", number + 1)
        run.signal("tick")
    assert run.result(WAIT) == 20


def set_soon(well: Stepwell, execution_id: str, name: str, value: int) -> None:
    """Set a variable, again after each commit of the run that came first."""
    while True:
        try:
            with well.transaction(execution_id) as tx:
                tx.set_variable(name, value)
        except Conflict:
            continue
        return


def test_execution_made_by_hand_for_a_named_workflow_is_driven_by_hand(well: Stepwell):
    well.create("by-hand", workflow="onrun.asked")
    with well.transaction("by-hand") as tx:
        tx.set_trigger({"n": 1})
        tx.add_token("t", node="n")
        tx.set_status("RUNNING")
    assert well.load("by-hand").status == "RUNNING"

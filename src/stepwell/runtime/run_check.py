"""Checks of runs: a definition is checked as ever; a function by the calls that a run of it has made."""

from __future__ import annotations

from collections.abc import Iterable

from stepwell.errors import InvalidDefinition, Problem
from stepwell.flow.definition.node import Definition
from stepwell.flow.drawing.run_diagram import figure_of
from stepwell.flow.function import registered_names, registered_step_names
from stepwell.kernel.plan import Plan
from stepwell.kernel.soundness.explorer import check
from stepwell.model.execution_state import ExecutionState
from stepwell.model.receipt import Receipt
from stepwell.model.status import Status
from stepwell.model.trace import trace_of

__all__ = ["problems_of_calls", "problems_of_plan"]


def problems_of_plan(plan: Plan, known_workflows: Iterable[str]) -> tuple[Problem, ...]:
    """Every fault of the definition that a run follows."""
    return _checked(plan.definition, known_workflows)


def problems_of_calls(state: ExecutionState, receipts: list[Receipt], known_workflows: Iterable[str]) -> tuple[Problem, ...]:
    """Every fault of the structure that a function's run shows, as if it were a definition, and what it left behind."""
    definition, marks = figure_of(state.identity.workflow_id, trace_of(receipts), is_drawn=False)
    found = _checked(definition, known_workflows)
    # A task that the code started and did not wait for.
    left = [key for key, mark in marks.items() if mark == "waiting"] if state.status is Status.COMPLETED else []
    told = "improper: the run has ended, and call {!r} was still waited for"
    return (*found, *(Problem(InvalidDefinition.code, told.format(key), key) for key in left))


def _checked(definition: Definition, known_workflows: Iterable[str]) -> tuple[Problem, ...]:
    steps, workflows = registered_step_names(), registered_names()
    if not steps and not workflows:
        return check(definition)  # this process has no program, and so cannot tell what is missing
    return check(definition, steps=steps, workflows={*workflows, *known_workflows})

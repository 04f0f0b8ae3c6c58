"""The tables that a script gets of a workflow that has run: its result, its steps and its branches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from stepwell.model.execution_state import ExecutionState
from stepwell.model.record import StepOutput
from stepwell.model.status import StepStatus
from stepwell.model.value import Value
from stepwell.script.lua_workflows import WHILE, BuiltWorkflow

__all__ = ["result_of", "step_table"]

_ENDED = (StepStatus.COMPLETED, StepStatus.FAILED)


def step_table(name: str, status: str, output: Value, error: str | None = None) -> dict[str, Value]:
    """Return how a step ended, as scripts read it."""
    return {"name": name, "success": status == StepStatus.COMPLETED, "status": status, "output": output, "error": error}


def result_of(built: BuiltWorkflow | None, name: str, execution_id: str, state: ExecutionState, output: Value) -> dict[str, Value]:
    """Return the result of a workflow that has ended.

    Args:
        built: what the script knows of the workflow; None for one that is stored under a name.
        output: the output of a workflow that completed.
    """
    records = list(state.steps.items())
    own = [(key, each) for key, each in records if (built is None or each.node_name in built.steps) and each.status in _ENDED]
    ends = {key: _step_table(built, each) for key, each in own}
    failed = [each for _, each in own if each.status == StepStatus.FAILED]
    counts: dict[str, Value] = {
        "steps_executed": len(own),
        "steps_succeeded": len(own) - len(failed),
        "steps_failed": len(failed),
    }
    outputs = {key: each.output for key, each in records if each.status == StepStatus.COMPLETED and not _is_hidden(built, each)}
    data: dict[str, Value] = {**counts, "final_output": _last_output(built, own), "outputs": dict(outputs)}
    rounds = _rounds(state) if built is None or built.kind == "loop" else None
    found: dict[str, Value] = {
        "success": state.status == "COMPLETED",
        "partial_success": state.status == "COMPLETED" and bool(failed),
        "status": str(state.status),
        "execution_id": execution_id,
        "output": output,
        "outputs": dict(outputs),
        "final_state": {key: value for key, value in state.variables.items() if key != WHILE},
        "iterations": rounds,
        "step_results": dict(ends),
        "duration_ms": _milliseconds(state, (each for _, each in records)),
        "metadata": dict(counts),
        "data": data,
        "text": f"workflow {name} completed successfully with {len(outputs)} steps",
    }
    if failed:
        found |= {"failed_step": _name(built, failed[0])}
    if built is not None:
        _add_kind(built, own, rounds, found, data)
    return found


def _add_kind(
    built: BuiltWorkflow, own: list[tuple[str, StepOutput]], rounds: int | None, found: dict[str, Value], data: dict[str, Value]
) -> None:
    """Add what scripts read of a workflow of this kind."""
    if built.kind == "loop":
        collected = _collected(built, own, rounds or 0)
        data |= {"completed_iterations": rounds, "total_iterations": rounds, "aggregated_results": collected}
        found |= {"iteration_outputs": collected}
        if built.is_inside:  # the last node of its body may be a question to the script
            found["output"] = collected
        return
    branches = [_branch_table(built, each.name, each.steps, own) for each in built.branches]
    taken = [each for each in branches if each["executed"]]
    if built.kind == "conditional":
        data |= {"executed_branches": len(taken), "total_branches": len(branches)}
        found |= {"branch_taken": taken[0]["name"] if taken else None}
    if built.kind == "parallel":
        fine = sum(1 for each in branches if each["success"])
        data |= {"successful_branches": fine, "failed_branches": len(branches) - fine, "total_branches": len(branches)}
    if branches:
        data["branches"] = found["branches"] = cast("Value", branches)


def _branch_table(built: BuiltWorkflow, name: str, steps: list[str], own: list[tuple[str, StepOutput]]) -> dict[str, Any]:
    ends = [_step_table(built, each) for _, each in own if each.node_name in steps]
    is_fine = len(ends) == len(steps) and all(each["success"] for each in ends)
    return {"name": name, "executed": bool(ends), "success": is_fine, "output": ends[-1]["output"] if ends else None, "steps": ends}


def _step_table(built: BuiltWorkflow | None, step: StepOutput) -> dict[str, Any]:
    is_fine = step.status == StepStatus.COMPLETED
    error = None if is_fine else step.output["error"]["message"]
    return step_table(_name(built, step), step.status, step.output if is_fine else None, error)


def _name(built: BuiltWorkflow | None, step: StepOutput) -> str:
    return step.node_name if built is None else built.steps.get(step.node_name, step.node_name)


def _is_hidden(built: BuiltWorkflow | None, step: StepOutput) -> bool:
    """Return whether a record is of a question to the script, or of what was made of its answer."""
    return built is not None and built.is_inside and step.node_name not in built.steps


def _last_output(built: BuiltWorkflow | None, own: list[tuple[str, StepOutput]]) -> Value:
    """Return the output of the step that comes last in the script, of those that completed."""
    places = {} if built is None else {name: number for number, name in enumerate(built.steps)}
    done = [each for _, each in own if each.status == StepStatus.COMPLETED]
    return max(done, key=lambda each: places.get(each.node_name, 0)).output if done else None


def _rounds(state: ExecutionState) -> int | None:
    found = state.loops.get("loop")
    return None if found is None else found.current_index + 1


def _collected(built: BuiltWorkflow, own: Iterable[tuple[str, StepOutput]], rounds: int) -> list[Value]:
    """Return the output of the last step of each round; null for one that failed."""
    last = list(built.steps)[-1] if built.steps else ""
    found: Mapping[str, StepOutput] = dict(own)
    ended = [found.get(f"{last}[{number}]") for number in range(rounds)]
    return [None if each is None or each.status != StepStatus.COMPLETED else each.output for each in ended]


def _milliseconds(state: ExecutionState, steps: Iterable[StepOutput]) -> int:
    """Return the time from the start to the end of the last step, as recorded: the same whenever the script is retried."""
    began = state.identity.started_at
    return max((max(0, round((each.executed_at - began).total_seconds() * 1000)) for each in steps), default=0)

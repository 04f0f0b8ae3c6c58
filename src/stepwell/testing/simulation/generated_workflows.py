"""Plans: generated workflows. A plan is data, so that the same code runs it again after a crash; its possible results are known."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import stepwell
from stepwell import Retry, Scope, step, workflow
from stepwell.errors import ExecutionCancelled, ExecutionFailed, StepFailed
from stepwell.flow.function import Workflow
from stepwell.runtime.steps.context import current
from stepwell.testing.schedulers import TaskScheduler, pick

__all__ = [
    "LEDGER",
    "STEPS",
    "Plan",
    "is_possible",
    "make_plan",
    "register",
    "signals_of",
    "simulated",
    "simulated_plain",
]

Plan = list[dict[str, Any]]
"""The tasks of a workflow, in order."""

LEDGER = "simulation"
"""The workflow scope in which every finished step leaves a mark, with its own commit."""

_ATTEMPTS = 3


def _mark(task: dict[str, Any]) -> str:
    here = current()
    if here.attempt <= task["fails"]:
        raise RuntimeError(f"attempt {here.attempt} fails as planned")
    here.state(Scope.custom(LEDGER, here.identity.workspace_id)).increment(here.execution_id)
    return f"done {task['name']}"


@step(name="simulated-work", retry=Retry(attempts=_ATTEMPTS, first_seconds=1.5))
async def work(task: dict[str, Any]) -> str:
    """Take some time, fail as often as the plan says, and leave a mark in the commit."""
    await asyncio.sleep(task["seconds"])
    return _mark(task)


@step(name="simulated-plain-work", retry=Retry(attempts=_ATTEMPTS, first_seconds=1.5))
def plain_work(task: dict[str, Any]) -> str:
    """Do the same in a thread."""
    return _mark(task)


STEPS = frozenset({work.name, plain_work.name})


async def _simulated(plan: Plan) -> Any:
    """Do what a plan says; clean up if it is cancelled."""
    try:
        return [await _do(task) for task in plan]
    except ExecutionCancelled:
        await work({"name": "cleaning", "seconds": 0, "fails": 0})
        raise


def _simulated_plain(plan: Plan) -> Any:
    """Run a plan as plain code, which has no tasks."""
    return [_do_plainly(task) for task in plan]


simulated = Workflow(_simulated, "simulated", 1)
simulated_plain = Workflow(_simulated_plain, "simulated-plain", 1)


def register() -> None:
    """Let the workers of this process run plans. Not on import: other wells of the process have no use for it."""
    workflow(name=simulated.name)(_simulated)
    workflow(name=simulated_plain.name)(_simulated_plain)


async def _do(task: dict[str, Any]) -> Any:
    match task["do"]:
        case "work":
            try:
                return await work(task)
            except StepFailed:
                return "failed"
        case "plain work":
            return await cast("Any", plain_work)(task)  # a plain step is awaited in code that awaits
        case "sleep":
            return await stepwell.sleep(task["seconds"])
        case "signal":
            try:
                return await stepwell.wait_signal(task["name"], timeout=task["timeout"])
            except TimeoutError:
                return "timed out"
        case "map":
            tasks: list[dict[str, Any]] = task["tasks"]
            return await stepwell.map(work, tasks, concurrency=int(task["concurrency"]))
        case "together":
            return list(await asyncio.gather(*(_do(each) for each in task["tasks"])))
        case "variable":
            current().variables["last"] = task["name"]
            return None
        case _:
            try:
                return await simulated(task["plan"])
            except (ExecutionFailed, ExecutionCancelled):
                return "child failed"


def _do_plainly(task: dict[str, Any]) -> Any:
    match task["do"]:
        case "plain work":
            return plain_work(task)
        case "signal":
            try:
                return stepwell.wait_signal(task["name"], timeout=task["timeout"])
            except TimeoutError:
                return "timed out"
        case _:
            return stepwell.sleep(task["seconds"])


# Making plans.


_KINDS = {
    "function": ["work", "work", "plain work", "sleep", "signal", "map", "variable"],
    "declared": ["work", "work", "plain work", "sleep", "signal", "map", "together"],
    "plain": ["plain work", "sleep", "signal"],
}


def make_plan(scheduler: TaskScheduler, kind: str, depth: int = 0) -> Plan:
    """Return a random plan of calls that a kind of workflow can make."""
    kinds = [*_KINDS[kind], *(["together", "child"] if kind == "function" and depth < 2 else [])]
    length = 1 + scheduler.choose("length of a plan", 5 - depth)
    plan = [_make_task(scheduler, pick(scheduler, "task", kinds), f"{depth}.{index}", depth) for index in range(length)]
    return _without_failures(plan) if kind == "declared" else plan


def _without_failures(plan: Plan) -> Plan:
    """Return steps that complete at last: the failure of one would fail its whole run."""
    return [
        {**task, **({"fails": min(task["fails"], _ATTEMPTS - 1)} if "fails" in task else {})}
        | ({"tasks": _without_failures(task["tasks"])} if "tasks" in task else {})
        for task in plan
    ]


def _make_task(scheduler: TaskScheduler, kind: str, name: str, depth: int) -> dict[str, Any]:
    match kind:
        case "sleep":
            return {"do": kind, "seconds": pick(scheduler, "sleep", [0.1, 1, 7, 20])}
        case "signal":
            return {"do": kind, "name": f"signal {name}", "timeout": pick(scheduler, "timeout", [None, 3, 15])}
        case "map":
            tasks = [_work(scheduler, f"{name}.{index}", 0) for index in range(1 + scheduler.choose("items", 4))]
            return {"do": kind, "tasks": tasks, "concurrency": 1 + scheduler.choose("concurrency", 3)}
        case "together":
            tasks = [
                _make_task(scheduler, pick(scheduler, "branch", ["work", "sleep", "signal", "map"]), f"{name}.{index}", depth + 1)
                for index in range(2)
            ]
            return {"do": kind, "tasks": tasks}
        case "child":
            return {"do": kind, "plan": make_plan(scheduler, "function", depth + 1)}
        case "variable":
            return {"do": kind, "name": name}
        case "plain work":
            return {"do": kind, **_work(scheduler, name, 0)}
        case _:
            return {"do": kind, **_work(scheduler, name, pick(scheduler, "failures", [0, 0, 0, 1, 2, 3]))}


def _work(scheduler: TaskScheduler, name: str, fails: int) -> dict[str, Any]:
    return {"name": name, "seconds": pick(scheduler, "work", [0, 0, 0.05, 2, 6]), "fails": fails}


def signals_of(plan: Plan) -> list[str]:
    """Return the signals that a plan waits for, without those of its children."""
    found: list[str] = []
    for task in plan:
        if task["do"] == "signal":
            found.append(task["name"])
        elif task["do"] == "together":
            found += signals_of(task["tasks"])
    return found


# Possible results.


def is_possible(plan: Plan, result: Any) -> bool:
    """Return whether a run of a plan can have this result."""
    return len(plan) == len(result) and all(_may_give(task, each) for task, each in zip(plan, result, strict=True))


def _may_give(task: dict[str, Any], result: Any) -> bool:
    match task["do"]:
        case "work" | "plain work":
            return result == ("failed" if task["fails"] >= _ATTEMPTS else f"done {task['name']}")
        case "signal":
            return result == f"value of {task['name']}" or (task["timeout"] is not None and result in ("timed out", None))
        case "map":
            return result == [f"done {each['name']}" for each in task["tasks"]]
        case "together":
            return is_possible(task["tasks"], result)
        case "child":
            return result == "child failed" or is_possible(task["plan"], result)
        case _:
            return result is None

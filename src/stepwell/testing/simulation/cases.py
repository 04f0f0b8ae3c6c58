"""Cases: runs of a simulation, as a function, as plain code or declared, started or queued."""

from __future__ import annotations

from typing import Any

import msgspec

from stepwell.flow import Definition, Node, call, define, each, parallel, signal, wait
from stepwell.testing.schedulers import TaskScheduler, happens, pick
from stepwell.testing.simulation.generated_workflows import Plan, make_plan, plain_work, simulated, simulated_plain, work

__all__ = ["CAPACITY", "QUEUED_IN", "TIER", "SimulationCase", "make_case"]

QUEUED_IN, TIER, CAPACITY = "acme", "startup", 3
"""The workspace whose runs may be queued, its tier, and how many of them run at once."""


class SimulationCase(msgspec.Struct, frozen=True):
    """A run of a simulation, and the actions of its users on it."""

    execution_id: str
    workspace: str
    kind: str
    """``function``, ``plain`` or ``declared``."""
    plan: Plan
    is_queued: bool
    starts_after: float
    cancels_after: float | None

    @property
    def workflow(self) -> Any:
        """Return the workflow to start."""
        match self.kind:
            case "function":
                return simulated
            case "plain":
                return simulated_plain
            case _:
                return declared(f"declared-{self.execution_id}", self.plan)

    @property
    def input(self) -> Plan | None:
        """Return the input: the plan, which a definition has in itself."""
        return None if self.kind == "declared" else self.plan


def make_case(scheduler: TaskScheduler, number: int) -> SimulationCase:
    """Return a random case."""
    kind = pick(scheduler, "kind", ("function", "function", "function", "plain", "declared", "declared"))
    workspace = pick(scheduler, "workspace", ("default", QUEUED_IN))
    return SimulationCase(
        f"run-{number}",
        workspace,
        kind,
        make_plan(scheduler, kind),
        workspace == QUEUED_IN and kind != "declared" and happens(scheduler, "queued", 700),
        pick(scheduler, "start", (0, 0, 0.5, 5, 20)),
        pick(scheduler, "cancel", (1, 6, 30)) if happens(scheduler, "cancelled", 150) else None,
    )


def declared(name: str, plan: Plan) -> Definition:
    """Return a plan as a definition, with the result that the function has."""
    nodes = [_node(task, f"task-{number}") for number, task in enumerate(plan)]
    return define(name, *nodes, output=[_output(task, f"task-{number}") for number, task in enumerate(plan)])


def _node(task: dict[str, Any], name: str) -> Node:
    given = {part: task.get(part) for part in ("name", "seconds", "fails")}
    match task["do"]:
        case "work":
            return call(work.name, given, name=name)
        case "plain work":
            return call(plain_work.name, given, name=name)
        case "sleep":
            return wait(task["seconds"], name=name)
        case "signal":
            return signal(task["name"], timeout=task["timeout"], on_timeout="continue", name=name)
        case "map":
            return each(call(work.name, "{{ item }}", name=f"{name}-item"), items=task["tasks"], name=name)
        case _:
            return parallel(*(_node(each, f"{name}-{number}") for number, each in enumerate(task["tasks"])), name=name)


def _output(task: dict[str, Any], name: str) -> Any:
    if task["do"] == "together":
        return [_output(each, f"{name}-{number}") for number, each in enumerate(task["tasks"])]
    return f"{{{{ steps['{name}'].output }}}}"

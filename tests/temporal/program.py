"""Workflows of a worker process that is killed once, where a file says. Loaded by ``stepwell worker``."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import stepwell
from stepwell import Retry, fault_points, step, workflow
from stepwell.flow import call, define, parallel, sequence, set_variables
from stepwell.flow import signal as signal_node

FOLDER = Path(os.environ.get("STEPWELL_TEST_FOLDER", "."))


def leave(what: str) -> None:
    """A line in the log of effects, on the disk before anything else happens."""
    if "STEPWELL_TEST_FOLDER" not in os.environ:
        return
    with (FOLDER / "effects").open("a") as file:
        file.write(f"{what}\n")
        file.flush()
        os.fsync(file.fileno())


def die_once(where: str) -> None:
    """Kill this process, if it is to die here and has not done so before."""
    plan = FOLDER / "die"
    if plan.exists() and plan.read_text() == where:
        plan.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


_hits = 0


def _at_fault_point(point: str) -> None:
    """Die at the hit of a fault point that the file says, as in ``commit.persisted:2``."""
    global _hits  # noqa: PLW0603 - counted over the life of the process
    plan = FOLDER / "die"
    if plan.exists() and plan.read_text().partition(":")[0] == point:
        _hits += 1
        if _hits == int(plan.read_text().partition(":")[2]):
            plan.unlink()
            os.kill(os.getpid(), signal.SIGKILL)


if "STEPWELL_TEST_FOLDER" in os.environ:
    fault_points._hook = _at_fault_point  # pyright: ignore[reportPrivateUsage]


@step(retry=Retry(attempts=1))
async def effect(name: str) -> str:
    leave(f"{name} {stepwell.current().attempt}")
    die_once(f"in {name}")
    return name


@workflow
async def work(n: int) -> str:
    await effect("a")
    await stepwell.sleep(0.2)
    return await effect("b")


DEFINITION = define(
    "killed",
    set_variables(n=1),
    call("effect", {"name": "a"}, name="a"),
    parallel(b=call("effect", {"name": "b"}, name="b"), c=call("effect", {"name": "c"}, name="c")),
    signal_node("go", name="go"),
    sequence(set_variables(n=2), call("effect", {"name": "d"}, name="d")),
    output="{{ steps.go.output }}",
)
ITEM = define("item", call("effect", {"name": "{{ trigger.input }}"}, name="e"), output="{{ steps.e.output }}")

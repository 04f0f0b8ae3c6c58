"""A program whose worker is killed at a point of a declared workflow, the first time it gets there. Run by test_declared_kill."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import stepwell
from stepwell import Stepwell, fault_points, step
from stepwell.flow import call, define, each, loop, parallel, sequence, set_variables, wait
from stepwell.runtime.steps.context import StepContext

FOLDER = Path(sys.argv[2]) if len(sys.argv) > 2 else Path()

STORY = define(
    "killed-story",
    call("killed.first", compensate=call("killed.never")),
    parallel(
        a=sequence(call("killed.second", "a"), wait("50ms"), call("killed.second", "b")),
        b=loop(call("killed.third", "{{ item }}"), items=[1, 2, 3]),
        c=each(call("killed.third", "{{ item }}"), items=[4, 5], concurrency=1),
    ),
    set_variables(seen="{{ steps['killed.first'].output }}"),
    output=["{{ variables.seen }}", "{{ steps.parallel.output }}"],
)


def leave(what: str) -> None:
    """A line in the log of effects, on the disk before anything else happens."""
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


def effect() -> None:
    """The outside effect of a step, once for each attempt."""
    here = stepwell.current()
    assert isinstance(here, StepContext)
    leave(here.idempotency_key)


@step(name="killed.first")
def first() -> str:
    """A plain step."""
    die_once("before the effect")
    effect()
    die_once("after the effect")
    return "one"


@step(name="killed.second")
async def second(value: str) -> str:
    """A step on the loop."""
    effect()
    die_once(f"in step {value}")
    return value


@step(name="killed.third")
def third(value: int) -> int:
    """A step in loops and instances."""
    effect()
    die_once(f"in step {value}")
    return value * 10


@step(name="killed.never")
def never() -> None:
    """Nothing is undone, since nothing fails."""
    leave("undone")


def main(url: str) -> None:
    """Start the run, or go on with it, and print what it gives."""
    plan = FOLDER / "die"
    point, _, count = (plan.read_text() if plan.exists() else "").partition("#")
    left = [int(count or 1)]

    def die_at(reached: str) -> None:
        if reached == point and (FOLDER / "effects").stat().st_size:
            left[0] -= 1
            if left[0] == 0:
                plan.unlink()
                os.kill(os.getpid(), signal.SIGKILL)

    (FOLDER / "effects").touch()
    # Who dies has a short lease, so that the next one need not wait; who goes on has a long one, which no busy machine outlasts.
    with fault_points.armed(die_at), Stepwell(url, lease_seconds=1 if point else 60) as well:
        print(well.start(STORY, execution_id="story").result(60))


if __name__ == "__main__":
    main(sys.argv[1])

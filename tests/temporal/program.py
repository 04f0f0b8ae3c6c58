"""Workflows of a worker process that is killed once, where a file says. Loaded by ``stepwell worker``."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path

from temporalio.common import RawValue

import stepwell
from stepwell import EngineUnavailable, Retry, fault_points, step, workflow
from stepwell.flow import call, define, parallel, sequence, set_variables
from stepwell.flow import signal as signal_node
from stepwell.model.external_engines import EngineRecord
from stepwell.model.queue_item import Claimed
from stepwell.temporal.connection import TemporalConnection
from stepwell.temporal.engine import TemporalEngine
from stepwell.temporal.messages import RunInput

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


class _Dying:
    """Dies, or loses a reply, at the third item that comes to a point of the dispatcher's way."""

    def __init__(self) -> None:
        self._start, self._begin = TemporalConnection.start, TemporalEngine.start
        self._counts: Counter[str] = Counter()

    def at(self, point: str) -> bool:
        self._counts[point] += 1
        plan = FOLDER / "die"
        is_due = self._counts[point] == 3 and plan.exists() and plan.read_text() == point
        if is_due and "reply" in point:
            plan.unlink()
        elif is_due:
            die_once(point)
        return is_due

    async def connection_start(self, connection: TemporalConnection, given: RunInput, record: EngineRecord, data: RawValue) -> bool:
        self.at("before the start")
        answer = await self._start(connection, given, record, data)
        self.at("after the start")
        if self.at("reply to the start"):
            raise EngineUnavailable("the reply was lost")
        return answer

    async def engine_start(self, engine: TemporalEngine, claimed: Claimed) -> None:
        self.at("after the claim")
        await self._begin(engine, claimed)
        self.at("after the creation")


if "STEPWELL_TEST_FOLDER" in os.environ:
    _dying = _Dying()

    async def _dying_connection(self: TemporalConnection, given: RunInput, record: EngineRecord, data: RawValue) -> bool:
        return await _dying.connection_start(self, given, record, data)

    async def _dying_engine(self: TemporalEngine, claimed: Claimed) -> None:
        await _dying.engine_start(self, claimed)

    TemporalConnection.start = _dying_connection  # type: ignore[method-assign]
    TemporalEngine.start = _dying_engine  # type: ignore[method-assign]


@step(retry=Retry(attempts=1))
async def effect(name: str) -> str:
    leave(f"{name} {stepwell.current().attempt}")
    die_once(f"in {name}")
    return name


@step(retry=Retry(attempts=1))
async def slow() -> str:
    """Run until a file says that it may end."""
    leave(f"slow {stepwell.current().attempt}")
    while not (FOLDER / "go").exists():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.02)
    leave("slow ends")
    return "slow"


@workflow
async def work(n: int) -> str:
    await effect("a")
    await stepwell.sleep(0.2)
    return await effect("b")


@workflow
async def saga() -> None:
    stepwell.compensate(effect, await effect("do"))
    await stepwell.wait_signal("never")


@step
def poison() -> None:
    """Bring the worker down, whichever makes it."""
    leave("poison")
    os.kill(os.getpid(), signal.SIGKILL)


@workflow
async def poisoned() -> None:
    await poison.aio()


@workflow
async def poisonous() -> None:
    leave("poisonous")
    os.kill(os.getpid(), signal.SIGKILL)


DEFINITION = define(
    "killed",
    set_variables(n=1),
    call("effect", {"name": "a"}, name="a"),
    parallel(b=call("effect", {"name": "b"}, name="b"), c=call("effect", {"name": "c"}, name="c")),
    signal_node("go", name="go"),
    sequence(set_variables(n=2), call("effect", {"name": "d"}, name="d")),
    output="{{ steps.go.output }}",
)
SLOW = define("slow", call("slow", name="a"), call("effect", {"name": "b"}, name="b"), output="{{ steps.b.output }}")
ITEM = define("item", call("effect", {"name": "{{ trigger.input }}"}, name="e"), output="{{ steps.e.output }}")

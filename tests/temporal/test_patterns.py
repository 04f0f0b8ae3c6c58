"""Every pattern of docs/patterns.md that definitions support, acted on Temporal: the tests of ``tests/acceptance``, run there.

Beside each run on Temporal there is one on Stepwell's own worker, which is done the same to. At each point of rest, and at the end,
both have the same state.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from itertools import count
from types import ModuleType
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode
from tests.acceptance import (
    test_patterns_branching,
    test_patterns_ending,
    test_patterns_instances,
    test_patterns_repeating,
    test_patterns_state,
)
from tests.acceptance.manual_tasks import Act, Acting
from tests.acceptance.test_patterns_state import enter, leave
from tests.support.temporal_server import TemporalServer
from tests.temporal.comparison import check_same, comparable_state
from tests.temporal.processes import check_replayed
from tests.temporal.test_faults import until

from stepwell import Run, Stepwell, TemporalWorker
from stepwell.flow import Definition, define
from stepwell.temporal.naming import SignalName
from stepwell.testing import SkippingClock, TestWell

__all__ = ["enter", "leave"]

MODULES: list[ModuleType] = [
    test_patterns_branching,
    test_patterns_ending,
    test_patterns_instances,
    test_patterns_repeating,
    test_patterns_state,
]


class Quiet:
    """Knows when a workflow on the server has dealt with all that was sent, and waits for something new."""

    def __init__(self, address: str, namespace: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._client = self._loop.run_until_complete(Client.connect(address, namespace=namespace))

    def close(self) -> None:
        self._loop.close()

    def wait(self, execution_id: str) -> None:
        self._loop.run_until_complete(self._wait(f"execution-{execution_id}"))

    async def _wait(self, workflow_id: str) -> None:
        handle = self._client.get_workflow_handle(workflow_id)
        deadline, quiet, is_asked = time.monotonic() + 60, 0, False
        while quiet < 2:
            assert time.monotonic() < deadline, f"{workflow_id} does not come to rest"
            try:
                if not is_asked:
                    await handle.signal(SignalName.LOOK)
                    is_asked = True
                found = (await handle.describe()).raw_description
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
                if "already completed" in error.message:
                    return
                await asyncio.sleep(0.02)  # it is not started yet
                continue
            is_quiet = not found.HasField("pending_workflow_task") and not found.pending_activities
            is_over = found.workflow_execution_info.HasField("close_time")
            quiet = 2 if is_over else quiet + 1 if is_quiet else 0
            await asyncio.sleep(0.01)


class TwinRun:
    """A run on Temporal, and its twin on Stepwell's own worker: what is sent to one is sent to both."""

    def __init__(self, run: Run, twin: Run) -> None:
        self._run, self.twin = run, twin

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)

    def signal(self, name: str, value: Any = None) -> None:
        """Send a signal to both."""
        for each in (self._run, self.twin):
            each.signal(name, value)

    def cancel(self) -> None:
        """Cancel both."""
        for each in (self._run, self.twin):
            each.cancel()


class TwinWell:
    """A well whose runs are on Temporal; each that is started has a twin in memory, where time goes by when it is told to."""

    def __init__(self, well: Stepwell, memory: TestWell) -> None:
        self._well, self.memory = well, memory
        self.started: list[TwinRun] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._well, name)

    def start(self, definition: Definition, given: Any, **options: Any) -> TwinRun:
        """Start a run and its twin."""
        run = TwinRun(self._well.start(definition, given, **options), self.memory.start(definition, given, **options))
        self.started.append(run)
        return run

    def check(self, run: TwinRun) -> None:
        """Check that a run and its twin have the same state."""
        local = comparable_state(self.memory, run.twin.execution_id, "local")
        check_same(local, comparable_state(self._well, run.execution_id, "temporal"), f"the state of {run.execution_id!r}")


class ActingOnTemporal(Acting):
    """A run on Temporal, that is looked at once it rests."""

    def __init__(self, well: TwinWell, run: TwinRun, quiet: Quiet) -> None:
        self._quiet, self._wells, self._twins = quiet, well, run
        self._is_comparable = True
        super().__init__(well, run)  # pyright: ignore[reportArgumentType]

    def pass_time(self, span: str) -> None:
        """Wait until something is open: the time of these tests stands still, and that of a server does not."""
        self._is_comparable = False  # from now on: how often a loop has come by depends on the time
        self._wells.memory.clock.advance(span)
        until(lambda: self.open)
        self._settle()

    def _settle(self) -> None:
        self._wells.memory.clock.advance("1s")
        for each in self._family(self.run.execution_id):
            self._quiet.wait(each)
        if self._is_comparable:
            self._wells.check(self._twins)

    def _family(self, execution_id: str) -> list[str]:
        found = [each.execution_id for each in self.well.executions.list() if each.parent_id == execution_id]
        return [execution_id, *found]


_versions = count(1)


class ActOnTemporal(Act):
    """Starts runs on Temporal to act in."""

    def __init__(self, well: TwinWell, quiet: Quiet) -> None:
        self.well, self._quiet = well, quiet  # type: ignore[assignment]

    def __call__(self, *nodes: Any, input: Any = None, **options: Any) -> Acting:
        definition = define("pattern", *nodes, version=next(_versions), **options)
        return ActingOnTemporal(self.well, self.well.start(definition, input), self._quiet)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, temporal_server: TemporalServer) -> Iterator[ActOnTemporal]:
    url = f"sqlite:///{tmp_path_factory.mktemp('patterns')}/well.db"
    address, namespace = temporal_server.address, temporal_server.fresh_namespace("patterns")
    with (
        TestWell(SkippingClock()) as memory,
        Stepwell(url, worker=False) as well,
        TemporalWorker(url, address=address, namespace=namespace, grace_seconds=1),
    ):
        well.choose_engine("temporal", workspace="default")
        quiet = Quiet(address, namespace)
        twins = TwinWell(well, memory)
        try:
            yield ActOnTemporal(twins, quiet)
        finally:
            quiet.close()
        found = well.executions.list(limit=1_000)
        assert len(found) >= len(twins.started) > 0
        assert all(well.load(each.execution_id).identity.engine == "temporal" for each in found)
        assert all(well.verify(each.execution_id).ok for each in found)
        for each in found:
            if each.status == "RUNNING":
                well.run(each.execution_id).cancel()
    check_replayed(url, address, namespace, len(found))


@pytest.fixture
def act(stage: ActOnTemporal) -> ActOnTemporal:
    return stage


PATTERNS = {name: found for module in MODULES for name, found in vars(module).items() if name.startswith("test_wcp_")}
globals().update(PATTERNS)


def test_no_pattern_is_left_out() -> None:
    assert len(PATTERNS) == 42

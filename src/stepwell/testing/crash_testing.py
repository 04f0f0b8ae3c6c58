"""Crash a workflow everywhere: kill its process at each commit, continue in another, and compare with a run without a crash."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, TypeVar, cast

import msgspec

from stepwell.contract.store import Store
from stepwell.errors import ExecutionCancelled, ExecutionFailed, NotFound
from stepwell.model.commit import Commit, Outcome, Unit, Written
from stepwell.model.limits import Limits
from stepwell.model.status import FINAL
from stepwell.model.value import Value, decode
from stepwell.runtime.steps.context import StepContext
from stepwell.stores.memory import MemoryStore
from stepwell.testing.clock import VirtualClock, as_monotonic, horizon
from stepwell.testing.event_loop import SkippingPace, VirtualLoop
from stepwell.testing.simulated_process import Fate, SharedStore, SimulatedProcess

__all__ = ["CrashReport", "Signals", "changes_in", "crash_everywhere", "on_virtual_loop", "sent_signals"]

T = TypeVar("T")
Signals = Mapping[str, Value] | Iterable[tuple[str, Value]]

_EXECUTION = "crash-everywhere"
_LEASE_SECONDS = 30
_PATIENCE_SECONDS = 1.0
_MOST_TOLD = 5
_DEATHS = {Fate.DIES_BEFORE: "before it landed", Fate.DIES_AFTER: "after it landed, before the reply"}


class CrashReport(msgspec.Struct, frozen=True):
    """The tested crashes: the commits of the run in order, and how often it was killed."""

    result: Value
    """The result of the run, or its error."""
    commits: list[str]
    crashes: int


class _Playthrough:
    """One run of the workflow, perhaps with a crash: what was committed, recorded and attempted. Decides the fate of writes."""

    def __init__(self, crash: tuple[int, Fate] | None, effects: Callable[[], int]) -> None:
        self._crash = crash
        self._count_effects, self._effects_before = effects, effects()
        self._count = 0
        self.commits: list[str] = []
        self.recorded: set[tuple[str, str]] = set()
        self.attempts: list[str] = []
        self.repeated: list[str] = []
        self.has_crashed = False
        self.ending: tuple[str, Value] = ("", None)
        self.steps: dict[str, str] = {}
        self.problems: list[str] = []
        self.effects = 0

    def end_of_effects(self) -> None:
        """Count the effects of this run: before its processes are unwound, which may have some of its own."""
        self.effects = self._count_effects() - self._effects_before

    async def before(self, process: SimulatedProcess, unit: Unit) -> Fate:
        """Kill at the commit that was chosen."""
        if not isinstance(unit, Commit):
            return Fate.LANDS
        number, self._count = self._count, self._count + 1
        if not self.has_crashed:
            self.commits.append(_told(number, unit))
        if self._crash is None or self.has_crashed or number != self._crash[0]:
            return Fate.LANDS
        self.has_crashed = True
        return self._crash[1]

    def landed(self, process: SimulatedProcess, unit: Unit, outcome: Outcome) -> None:
        """Remember what is recorded."""
        if isinstance(unit, Commit) and isinstance(outcome, Written):
            for mutation in decode(unit.body):
                if mutation["type"] == "record_step":
                    self.recorded.add((unit.execution_id, mutation["name"]))
                elif mutation["type"] == "reopen_step":
                    self.recorded.discard((unit.execution_id, mutation["name"]))

    def attempted(self, process: SimulatedProcess, step: StepContext) -> None:
        """Check that a recorded step does not run again."""
        self.attempts.append(step.step)
        if (step.execution_id, step.step) in self.recorded:
            self.repeated.append(step.step)


def _told(number: int, commit: Commit) -> str:
    child = "" if commit.execution_id == _EXECUTION else f" of child {commit.execution_id.removeprefix(_EXECUTION)}"
    return f"commit {number + 1}{child} ({changes_in(commit)})"


def changes_in(commit: Commit) -> str:
    """Return the changes of a commit, in words."""
    parts: list[str] = []
    for mutation in decode(commit.body):
        name = mutation.get("name") or mutation.get("token_id") or mutation.get("status") or ""
        if mutation["type"] not in {"increment_step_count", "write_state"}:
            parts.append(f"{mutation['type']} {name}".strip())
    return ", ".join(parts)


def crash_everywhere(
    workflow: Any,
    value: Any = msgspec.UNSET,
    *,
    signals: Signals = (),
    effects: Callable[[], int] | None = None,
    reset: Callable[[], object] | None = None,
    same: Callable[[Value, Value], bool] | None = None,
) -> CrashReport:
    """Run a workflow once to learn its commits; then once for each of them, twice over, with its process killed there: before the
    commit lands, and after it landed but before the reply. A new process goes on. ``AssertionError`` unless every run gives the
    same result by the same steps, and no step is made again after it was recorded.

    ``signals`` are sent at the start. ``reset`` is called before every run. ``effects`` counts what the world outside has seen in
    a run: it may be more than in the run without a crash only by as many attempts at steps as there were more. ``same`` compares
    results, if equality is too strict. Time is virtual: sleeps and timeouts take none.
    """
    sent = sent_signals(signals)

    def play(crash: tuple[int, Fate] | None) -> _Playthrough:
        if reset is not None:
            reset()
        played = _Playthrough(crash, effects or (lambda: 0))
        on_virtual_loop(_EXECUTION, lambda clock, store, stuck: _drive(played, workflow, value, sent, clock, store, stuck))
        return played

    plain = play(None)
    if plain.problems:
        raise AssertionError("the run without a crash: " + "; ".join(plain.problems))
    failures: list[str] = []
    for number, commit in enumerate(plain.commits):
        for fate, when in _DEATHS.items():
            found = _differences(plain, play((number, fate)), same)
            failures += [f"killed at {commit}, {when}: {difference}" for difference in found]
    if failures:
        raise AssertionError(_report(failures))
    return CrashReport(plain.ending[1], plain.commits, 2 * len(plain.commits))


def sent_signals(signals: Signals) -> list[tuple[str, Value]]:
    """Return the signals in the order in which they are sent."""
    return list(cast("Mapping[str, Value]", signals).items() if isinstance(signals, Mapping) else signals)


def _report(failures: list[str]) -> str:
    more = len(failures) - _MOST_TOLD
    told = failures[:_MOST_TOLD] + ([f"... and {more} more"] if more > 0 else [])
    return "the workflow does not survive a crash everywhere:\n  " + "\n  ".join(told)


def _differences(plain: _Playthrough, crashed: _Playthrough, same: Callable[[Value, Value], bool] | None) -> list[str]:
    found = list(crashed.problems)
    if not crashed.has_crashed:
        found.append(f"the run did not come to it a second time: it made only {len(crashed.commits)} commits; is its code random?")
    (was, before), (now, after) = plain.ending, crashed.ending
    if was != now or not (before == after if same is None else same(before, after)):
        found.append(f"it ended as {now} with {after!r}, and as {was} with {before!r} without a crash")
    for step in dict.fromkeys(crashed.repeated):
        found.append(f"step {step!r} was made again after it was recorded")
    for step in sorted(plain.steps.keys() | crashed.steps.keys()):
        was, now = plain.steps.get(step, "not there"), crashed.steps.get(step, "not there")
        if was != now:
            found.append(f"the record of step {step!r} is {now}, and {was} without a crash")
    more_effects, more_attempts = crashed.effects - plain.effects, len(crashed.attempts) - len(plain.attempts)
    if more_effects > max(more_attempts, 0):
        found.append(
            f"{more_effects} more effects than without a crash, by {max(more_attempts, 0)} more attempts at steps: "
            "something outside of a step has effects"
        )
    return found


async def _drive(
    played: _Playthrough,
    workflow: Any,
    value: Any,
    signals: list[tuple[str, Value]],
    clock: VirtualClock,
    store: Store,
    stuck: asyncio.Future[None],
) -> None:
    shared = SharedStore(store)
    processes = [SimulatedProcess("first", shared, played, clock, lease_seconds=_LEASE_SECONDS)]
    outside = SimulatedProcess("outside", shared, played, clock, has_worker=False)
    try:
        ending = outside.run(_watch_end(outside, signals))
        await _start(processes[0], workflow, value)
        await asyncio.wait({ending, processes[0].death, stuck}, return_when=asyncio.FIRST_COMPLETED)
        if processes[0].is_dead:
            processes.append(SimulatedProcess("second", shared, played, clock, lease_seconds=_LEASE_SECONDS))
            await _start(processes[1], workflow, value)
            await asyncio.wait({ending, stuck}, return_when=asyncio.FIRST_COMPLETED)
        played.end_of_effects()
        if ending.done():
            played.ending, played.steps = ending.result()
        else:
            played.problems.append(_waiting_for(await outside.well.load(_EXECUTION)))
    finally:
        for process in (*processes, outside):
            await process.bury()


async def _start(process: SimulatedProcess, workflow: Any, value: Any) -> None:
    """Start the run, or find it started; a process may die of it. Input that is refused is the caller's error."""
    starting = process.run(process.well.start(workflow, value, execution_id=_EXECUTION))
    await asyncio.wait({starting, process.death}, return_when=asyncio.FIRST_COMPLETED)
    if starting.done():
        starting.result()


async def _watch_end(outside: SimulatedProcess, signals: list[tuple[str, Value]]) -> tuple[tuple[str, Value], dict[str, str]]:
    """Send the signals as soon as the run exists, and wait for its end; how it ended, and the steps it recorded."""
    run = outside.well.run(_EXECUTION)
    while True:
        try:
            await run.status()
            break
        except NotFound:
            await asyncio.sleep(0.1)
    for name, value in signals:
        await run.signal(name, value)
    try:
        result = await run.result()
    except (ExecutionFailed, ExecutionCancelled) as error:
        result = str(error)
    state = await outside.well.load(_EXECUTION)
    return (str(state.status), result), {name: step.status for name, step in state.steps.items()}


def _waiting_for(state: Any) -> str:
    tokens = ", ".join(f"{token.node} {token_id!r}" for token_id, token in state.tokens.items())
    return f"it waits for ever: it is {state.status}, at {tokens or 'no call'}; is a signal missing?"


# The loop.


def on_virtual_loop(execution_id: str, make: Callable[[VirtualClock, Store, asyncio.Future[None]], Coroutine[Any, Any, T]]) -> T:
    """Do something with an execution on a loop and a store of its own, in another thread if this one has a running loop. The future
    is for when the execution waits for what will never come."""

    def run() -> T:
        clock = VirtualClock()
        store = MemoryStore(clock, Limits())
        ends: list[asyncio.Future[None]] = []
        pace = SkippingPace(lambda: _horizon(store, clock, execution_id), lambda: _resolve(ends[0]))
        loop = VirtualLoop(clock, pace, patience_seconds=_PATIENCE_SECONDS)
        ends.append(loop.create_future())
        with asyncio.Runner(loop_factory=lambda: loop) as runner, as_monotonic(clock):
            return runner.run(make(clock, store, ends[0]))

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run()
    return _in_thread(run)


def _in_thread(function: Callable[[], T]) -> T:
    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(function())
        except BaseException as error:  # noqa: BLE001 - raised by the caller
            errors.append(error)

    thread = threading.Thread(target=work, name="stepwell-virtual")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _horizon(store: Store, clock: VirtualClock, execution_id: str) -> float | None:
    head = store.head(execution_id)
    return None if head is None or head.status in FINAL else horizon(store, clock)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

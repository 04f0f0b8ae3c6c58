"""The world of a simulation: one store, some processes, faults, and a journal of all writes.

Every choice is made by one scheduler, and time is virtual; so the same choices give the same world, to the last write.
"""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import Any

import msgspec

from stepwell.contract.store import Store
from stepwell.model.commit import Claim, ClaimDue, Commit, Extension, Lease, Outcome, Unit, Written
from stepwell.model.queue_item import Claimed, ClaimItems
from stepwell.model.value import decode
from stepwell.runtime.steps.context import StepContext
from stepwell.testing.clock import VirtualClock
from stepwell.testing.schedulers import TaskScheduler, happens, pick
from stepwell.testing.simulated_process import Fate, SharedStore, SimulatedProcess
from stepwell.testing.simulation.cases import CAPACITY, QUEUED_IN

__all__ = ["LEASE_SECONDS", "World", "WorldEvent"]

LEASE_SECONDS = 5
_WORKERS = 3
_LATENCIES_MS = (0, 0, 1, 3, 10, 40)

# Out of a thousand writes.
_FATES = ((Fate.DIES_BEFORE, 5), (Fate.DIES_AFTER, 5), (Fate.LOSES_REPLY, 15), (Fate.FAILS, 15))


class WorldEvent(msgspec.Struct, frozen=True):
    """An entry of the journal."""

    at_ms: int
    process: str
    what: str
    execution_id: str = ""
    detail: str = ""


class World:
    """Processes on one store. Decides the fate of their writes, and keeps what the invariants are checked against."""

    def __init__(self, scheduler: TaskScheduler, clock: VirtualClock, store: Store) -> None:
        self.scheduler, self.clock, self.store = scheduler, clock, store
        self.shared = SharedStore(store)
        self.journal: list[WorldEvent] = []
        self.violations: list[str] = []
        self.is_calm = False
        self.acknowledged: list[Commit] = []
        """Commits whose success was reported to their writer."""
        self.landed_commits: dict[str, int] = {}
        self._fences: dict[str, int] = {}
        self._recorded: set[tuple[str, str]] = set()
        self._count = 0
        self._went_away: set[SimulatedProcess] = set()
        """Processes that were paused, cut off or left without their leases: what they do may be out of date, and is refused."""
        self.outside = SimulatedProcess("outside", self.shared, self, clock, has_worker=False)
        self.all: list[SimulatedProcess] = [self.outside]
        self.workers: list[SimulatedProcess] = []
        for _ in range(_WORKERS):
            self.add_worker()

    def add_worker(self) -> SimulatedProcess:
        """Add a process with a worker."""
        self._count += 1
        process = SimulatedProcess(
            f"worker-{self._count}",
            self.shared,
            self,
            self.clock,
            lease_seconds=LEASE_SECONDS,
            hears=lambda: self.is_calm or not happens(self.scheduler, "word is lost", 300),
            order=lambda tasks: self.scheduler.choose("the next task", tasks),
        )
        process.death.add_done_callback(lambda _: self._on_death(process))
        self.workers.append(process)
        self.all.append(process)
        self.note(process, "starts")
        return process

    def _on_death(self, process: SimulatedProcess) -> None:
        if process in self.workers:
            self.workers.remove(process)
            self.note(process, "is dead")

    def note(self, process: SimulatedProcess, what: str, execution_id: str = "", detail: str = "") -> None:
        """Write something into the journal."""
        self.journal.append(WorldEvent(self.clock.now_ms(), process.name, what, execution_id, detail))

    # Writes.

    async def before(self, process: SimulatedProcess, unit: Unit) -> Fate:
        """Return how long a write takes, and its fate."""
        if process is self.outside or self.is_calm:
            return Fate.LANDS
        delay = pick(self.scheduler, "latency", _LATENCIES_MS) / 1000
        if isinstance(unit, Extension) and happens(self.scheduler, "slow renewal", 50):
            self._went_away.add(process)
            delay = pick(self.scheduler, "how slow", (1, LEASE_SECONDS, 2 * LEASE_SECONDS))
        if isinstance(unit, Commit) and happens(self.scheduler, "stopped on the way", 20):
            # Its next write is out of date by the time it continues, and its writer cannot know.
            self._stop(process)
            await asyncio.sleep(0)
        if delay:
            await asyncio.sleep(delay)
        fate = self._fate()
        if fate is not Fate.LANDS:
            self._went_away.add(process)
            self.note(process, fate.value, getattr(unit, "execution_id", ""), type(unit).__name__)
        return fate

    def _fate(self) -> Fate:
        if self.is_calm:
            return Fate.LANDS
        draw = self.scheduler.choose("fate", 1000)
        edge = 1000
        for fate, per_mille in _FATES:
            edge -= per_mille
            if draw >= edge:
                return fate
        return Fate.LANDS

    def landed(self, process: SimulatedProcess, unit: Unit, outcome: Outcome) -> None:
        """Add a write to the journal."""
        self._check_capacity(unit)
        if isinstance(unit, Commit):
            self._commit_landed(process, unit, outcome)
        elif isinstance(unit, Claim | ClaimDue) and isinstance(outcome, Written):
            for lease in outcome.answers:
                if isinstance(lease, Lease):
                    self._leased(process, lease)
        elif isinstance(unit, ClaimItems) and isinstance(outcome, Written):
            for claimed in outcome.answers:
                if isinstance(claimed, Claimed):
                    self.note(process, "claims the item of", claimed.execution_id, str(claimed.fence))
        else:
            name = getattr(unit, "execution_id", "") or ",".join(getattr(unit, "nudges", ())) or getattr(unit, "item_id", "")
            self.note(process, type(unit).__name__, name, type(outcome).__name__)

    def _check_capacity(self, unit: Unit) -> None:
        """Check that only a claim of items, and a commit that marks one, changes how many slots are used."""
        if isinstance(unit, ClaimItems) or (isinstance(unit, Commit) and unit.mark is not None):
            used = sum(lane.claimed + lane.dispatched for lane in self.store.lanes(QUEUED_IN))
            if used > CAPACITY:
                self.violations.append(f"I7: {used} items of {QUEUED_IN} are active, and {CAPACITY} may be")

    def _leased(self, process: SimulatedProcess, lease: Lease) -> None:
        self.note(process, "claims", lease.name, str(lease.fence))
        if lease.fence <= self._fences.get(lease.name, 0):
            self.violations.append(f"I8: {lease.name} was leased with fence {lease.fence} after {self._fences[lease.name]}")
        self._fences[lease.name] = max(lease.fence, self._fences.get(lease.name, 0))

    def _commit_landed(self, process: SimulatedProcess, commit: Commit, outcome: Outcome) -> None:
        mutations = [f"{each['type']} {_name_in(each)}".strip() for each in decode(commit.body)]
        self.note(process, type(outcome).__name__, commit.execution_id, f"{commit.revision} {', '.join(mutations)}")
        if not isinstance(outcome, Written):
            return
        name = commit.execution_id
        self.acknowledged.append(commit)
        self.landed_commits[name] = self.landed_commits.get(name, 0) + 1
        newest = self._fences.get(name, 0)
        if commit.fence is not None and commit.fence < newest:
            self.violations.append(f"I8: {name} took a commit with fence {commit.fence} after {newest} was given out")
        if commit.creation is not None and commit.creation.holder is not None:
            self._fences[name] = 1
        self._recorded |= {(name, each["name"]) for each in decode(commit.body) if each["type"] == "record_step"}

    def attempted(self, process: SimulatedProcess, step: StepContext) -> None:
        """Check that no process that is up to date runs a recorded step again."""
        self.note(process, "attempts", step.execution_id, f"{step.step} {step.attempt}")
        if (step.execution_id, step.step) in self._recorded and process not in self._went_away:
            self.violations.append(f"P1: {process.name} made step {step.step!r} of {step.execution_id} again, which was recorded")

    # Weather.

    async def disturb(self, seconds: float) -> None:
        """Cause faults for so long; then heal every living process."""
        ends = self.clock.elapsed + seconds
        while self.clock.elapsed < ends:
            await asyncio.sleep(pick(self.scheduler, "until the next trouble", (0.5, 2, 5)))
            troubles = (self._kill, self._pause, self._cut, self._go_away, self._replace, self._replace)
            await pick(self.scheduler, "trouble", troubles)()
        self.is_calm = True
        for process in self.workers:
            process.is_connected = True
            process.go_on()
        while len(self.workers) < 2:
            self.add_worker()

    def _victim(self) -> SimulatedProcess | None:
        return pick(self.scheduler, "victim", self.workers) if self.workers else None

    async def _kill(self) -> None:
        victim = self._victim()
        if victim is not None:
            self.note(victim, "is killed")
            victim.kill()

    async def _replace(self) -> None:
        if len(self.workers) < _WORKERS:
            self.add_worker()

    async def _pause(self) -> None:
        victim = self._victim()
        if victim is not None:
            self._stop(victim)

    def _stop(self, victim: SimulatedProcess) -> None:
        self._went_away.add(victim)
        seconds = pick(self.scheduler, "pause", (0.5, LEASE_SECONDS, 3 * LEASE_SECONDS))
        self.note(victim, "is paused", detail=str(seconds))
        victim.pause()
        # In a context of its own, or it would be stopped with the victim.
        asyncio.get_running_loop().call_later(seconds, victim.go_on, context=Context())

    async def _cut(self) -> None:
        victim = self._victim()
        if victim is not None:
            await self._cut_off([victim])

    async def _go_away(self) -> None:
        await self._cut_off(list(self.workers))

    async def _cut_off(self, victims: list[SimulatedProcess]) -> None:
        seconds = pick(self.scheduler, "cut", (0.5, 2, 2 * LEASE_SECONDS))
        self._went_away.update(victims)
        for victim in victims:
            self.note(victim, "is cut off", detail=str(seconds))
            victim.is_connected = False
        await asyncio.sleep(seconds)
        for victim in victims:
            victim.is_connected = not victim.is_dead

    async def bury(self) -> None:
        """End all processes."""
        for process in self.all:
            await process.bury()


def _name_in(mutation: dict[str, Any]) -> str:
    return mutation.get("name") or mutation.get("token_id") or mutation.get("status") or ""

"""Sessions whose store does not answer for a moment: each hands its execution back once, in time or not at all (T10, T41, T42)."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.module_state import cleared
from tests.unit.queue.test_dispatcher import Bureau

import stepwell
from stepwell import AsyncStepwell, CommitUnknown, ItemStatus, Status, Stepwell, StoreUnavailable, step, workflow
from stepwell.flow import call, define
from stepwell.model.commit import Acquire, ClaimDue, Commit, Outcome, Unit, Unlock
from stepwell.model.queue_item import Claimed, ClaimItems, ReturnItem
from stepwell.queue.dispatcher import BATCH
from stepwell.runtime import shutdown
from stepwell.testing.store_access import parts_of, store_under, worker_of

WAIT = 60
LONG = 600
"""A lease that nobody waits for."""

calls: Counter[str] = Counter()
entered, release = threading.Event(), threading.Event()
on_first: list[Callable[[], None]] = []


@step(name="retreat.first")
async def first() -> str:
    calls["first"] += 1
    if on_first:
        on_first.pop()()
    return "first"


@step(name="retreat.second")
async def second() -> str:
    calls["second"] += 1
    return "second"


@step(name="retreat.hold")
def hold() -> str:
    entered.set()
    release.wait(WAIT)
    return "held"


@workflow(name="retreat.code")
async def code() -> str:
    return f"{await first()} {await second()}"


@workflow(name="retreat.plain")
def plain() -> str:
    return f"{first()} {second()}"


@workflow(name="retreat.holding")
async def holding() -> str:
    return await hold()


@workflow(name="retreat.both")
async def both() -> list[str]:
    return await asyncio.gather(hold(), second())


@workflow(name="retreat.waiting")
async def waiting() -> str:
    return await stepwell.wait_signal("go")


@workflow(name="retreat.short")
async def short() -> str:
    return "short"


DECLARED = define("retreat.declared", call("retreat.first"), call("retreat.second"))
KINDS: dict[str, Any] = {"code": code, "plain": plain, "declared": DECLARED}


_cleared = cleared(calls, entered, release, on_first, set_after=(release,))


@pytest.fixture(autouse=True)
def _no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.runtime.sessions.session.AGAIN_MS", 0)


@pytest.fixture
def well(tmp_path: Path) -> Iterator[Any]:
    with Stepwell(f"sqlite:///{tmp_path}/well.db?synchronous=NORMAL", lease_seconds=LONG) as opened:
        yield opened


class Trouble:
    """Stands before a store. While something ``is_hit``, its writes come to something else; and nobody can look commits up."""

    def __init__(self, well: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        store = store_under(well)
        self.write_really, self._commit_of = store.write, store.commit_of
        self.is_hit: Callable[[Commit], bool] = lambda _: False
        self.instead: Callable[[Any], list[Outcome]] = self.write_really
        self.blind = 0
        monkeypatch.setattr(store, "write", self.write)
        monkeypatch.setattr(store, "commit_of", self.commit_of)

    def write(self, units: Any) -> list[Outcome]:
        is_hit = any(isinstance(unit, Commit) and self.is_hit(unit) for unit in units)
        return self.instead(units) if is_hit else self.write_really(units)

    def commit_of(self, *arguments: Any) -> Any:
        if self.blind:
            self.blind -= 1
            raise StoreUnavailable("away")
        return self._commit_of(*arguments)

    def be_away(self, writes: int) -> None:
        """The next so many writes of commits meet no store."""
        left = writes

        def is_hit(_: Commit) -> bool:
            nonlocal left
            left -= 1
            return left >= 0

        def fail(_: Any) -> list[Outcome]:
            raise StoreUnavailable("away")

        self.is_hit, self.instead = is_hit, fail

    def lose_reply(self, is_meant: Callable[[Commit], bool]) -> None:
        """The reply to one commit is lost, and for a while nobody can say what became of it."""

        def lose(units: Any) -> list[Outcome]:
            self.is_hit, self.blind = (lambda _: False), 3
            self.write_really(units)
            raise CommitUnknown

        self.is_hit, self.instead = is_meant, lose


@pytest.fixture
def trouble(well: Any, monkeypatch: pytest.MonkeyPatch) -> Trouble:
    return Trouble(well, monkeypatch)


def rests(well: Any, execution_id: str) -> int:
    """How often an execution was handed back."""
    changes = [each for receipt in well.receipts(execution_id) for each in receipt.mutations]
    return sum("WAITING" in str(change) for change in changes)


def writer_of(well: Any, execution_id: str) -> Any:
    return worker_of(well).sessions[execution_id]._writer


def wait_until(is_so: Callable[[], Any]) -> None:
    """Look again and again until something is so; the test's own time limit ends it."""
    while not is_so():
        threading.Event().wait(0.005)


@pytest.mark.parametrize("kind", KINDS)
def test_run_whose_output_met_no_store_goes_on_when_that_is_back(well: Any, trouble: Trouble, kind: str) -> None:
    """T10, T41: by the same worker, long before its lease ends. The step is made again, since its output is nowhere."""
    on_first.append(lambda: trouble.be_away(3))
    run = well.start(KINDS[kind], execution_id="r")
    run.result(WAIT)
    assert calls == {"first": 2, "second": 1}
    assert rests(well, "r") == 1
    assert well.verify("r").ok


@pytest.mark.parametrize("kind", KINDS)
def test_output_whose_reply_was_lost_is_found_and_its_step_not_made_again(well: Any, trouble: Trouble, kind: str) -> None:
    """T03: nobody could say whether it landed when the session had to stop; the next one finds it on record."""
    on_first.append(lambda: trouble.lose_reply(lambda _: True))
    run = well.start(KINDS[kind], execution_id="r")
    run.result(WAIT)
    assert calls == {"first": 1, "second": 1}
    assert rests(well, "r") == 1
    assert well.verify("r").ok


@pytest.mark.parametrize("mishap", ["away", "lost"])
def test_item_whose_first_commit_met_no_store_runs_when_that_is_back(well: Any, trouble: Trouble, mishap: str) -> None:
    """T41: before its claim ends, with no attempt used up, and as one execution, whatever became of that commit."""
    on_first.append(lambda: trouble.be_away(3) if mishap == "away" else trouble.lose_reply(lambda _: True))
    item = well.enqueue(code)
    assert item.result(WAIT) == "first second"
    assert calls["first"] == (2 if mishap == "away" else 1)
    found = item.state()
    assert (found.status, found.attempts) == (ItemStatus.COMPLETED, 1)
    assert len(well.executions.list()) == 1


def test_hand_back_whose_reply_was_lost_is_not_made_twice(well: Any, trouble: Trouble) -> None:
    """T03: it has landed, and whoever tries again is told so as soon as anybody can say it."""
    trouble.lose_reply(lambda commit: commit.status == Status.WAITING)
    run = well.start(waiting, execution_id="w")
    sessions = worker_of(well).sessions
    wait_until(lambda: run.status() == Status.WAITING and "w" not in sessions)
    assert (rests(well, "w"), trouble.blind) == (1, 0)
    run.signal("go", "on")
    assert run.result(WAIT) == "on"


def test_end_that_lands_while_its_session_is_abandoned_is_the_end(
    well: Any, trouble: Trouble, caplog: pytest.LogCaptureFixture
) -> None:
    """T42: the last commit is under way when the grace ends; nothing is handed back after it."""
    gate, is_writing = threading.Event(), threading.Event()

    def wait(units: Any) -> list[Outcome]:
        is_writing.set()
        gate.wait(WAIT)
        return trouble.write_really(units)

    well.start(holding, execution_id="h")
    entered.wait(WAIT)
    trouble.is_hit, trouble.instead = lambda commit: commit.status == Status.COMPLETED, wait
    well.start(short, execution_id="s")
    is_writing.wait(WAIT)
    writer = writer_of(well, "s")
    well.drain(0)
    wait_until(lambda: writer._waiting)
    gate.set()
    well._host._thread._thread.join(WAIT)
    assert not [message for message in caplog.messages if "handed back" in message]
    with Stepwell(parts_of(well).address, worker=False) as other:
        assert (other.load("s").status, rests(other, "s")) == (Status.COMPLETED, 0)
        assert (other.load("h").status, rests(other, "h")) == (Status.WAITING, 1)


def test_worker_whose_store_says_nothing_ends_in_time_and_hands_nothing_back_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """T42: a commit is under way for longer than there is patience. What it comes to stays; the lease ends by itself."""
    monkeypatch.setattr(shutdown, "LAST_SECONDS", 0.2)
    gate, is_writing, url = threading.Event(), threading.Event(), f"sqlite:///{tmp_path}/well.db?synchronous=NORMAL"

    async def scenario() -> str:
        async with AsyncStepwell(url, lease_seconds=LONG) as well:
            trouble = Trouble(well, monkeypatch)

            def wait(units: Any) -> list[Outcome]:
                is_writing.set()
                gate.wait(WAIT)
                return trouble.write_really(units)

            trouble.is_hit, trouble.instead = lambda commit: b"retreat.second" in commit.body, wait
            await well.start(both, execution_id="b")
            await asyncio.to_thread(entered.wait, WAIT)
            await asyncio.to_thread(is_writing.wait, WAIT)
            worker, work = worker_of(well), well._host._task
            writer = worker.sessions["b"]._writer
            await well.drain(0)
            await work
            gate.set()
            while writer.is_busy:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.005)
            return worker.holder

    holder = asyncio.run(scenario())
    assert any("could not be handed back" in message for message in caplog.messages)
    with Stepwell(url, worker=False) as other:
        head: Any = store_under(other).head("b")
        assert (rests(other, "b"), head.holder) == (0, holder)
        assert list(other.load("b").steps) == ["retreat.second"]


@pytest.mark.parametrize("kind", [ClaimDue, ClaimItems, Acquire, Unlock])
def test_worker_that_is_told_to_stop_while_its_store_says_nothing_ends_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type
) -> None:
    """T42: whatever it was asking for at that moment: due executions, items, or the lock of its sweep, which it gives back."""
    monkeypatch.setattr(shutdown, "LAST_SECONDS", 0.05)
    may_answer, is_asked = threading.Event(), threading.Event()

    async def scenario() -> None:
        async with AsyncStepwell(f"sqlite:///{tmp_path}/well.db?synchronous=NORMAL") as well:
            write = store_under(well).write

            def say_nothing(units: Any) -> list[Outcome]:
                if any(isinstance(unit, kind) for unit in units):
                    is_asked.set()
                    may_answer.wait(WAIT)
                return write(units)

            monkeypatch.setattr(store_under(well), "write", say_nothing)
            await well.executions.list()  # the first call has the worker begin
            await asyncio.to_thread(is_asked.wait, WAIT)
            work = well._host._task
            await well.drain(0)
            await asyncio.wait_for(work, WAIT / 2)
            may_answer.set()

    asyncio.run(scenario())


def test_claimed_items_are_given_back_until_the_store_has_taken_each_once() -> None:
    """T42: a dispatcher that stops; the first try meets no store, the reply to the second is lost, the third is told."""
    tries: Counter[str] = Counter()

    class Flaky(Bureau):
        def _write(self, units: list[Unit]) -> list[Outcome]:
            (unit,) = units
            if not isinstance(unit, ReturnItem):
                return super()._write(units)
            tries[unit.item_id] += 1
            if tries[unit.item_id] == 1:
                raise StoreUnavailable("away")
            outcome = super()._write(units)
            if tries[unit.item_id] == 2:
                raise CommitUnknown
            return outcome

    def stop(_: Claimed) -> None:
        bureau.dispatcher.stop()

    bureau = Flaky(BATCH, BATCH, stop)
    asyncio.run(bureau.dispatcher.run())
    assert bureau.count() == {"CLAIMED": 1, "QUEUED": BATCH - 1}
    assert set(tries.values()) == {3}
    items = [bureau.store.item(item_id) for item_id in tries]
    assert {item.attempts for item in items if item is not None} == {0}


@pytest.mark.parametrize("begun", ["waiting", "pending"])
def test_run_that_cannot_be_resumed_without_its_store_is_handed_back(
    well: Any, trouble: Trouble, tmp_path: Path, begun: str
) -> None:
    """It goes back as it was, WAITING or PENDING, and long before the lease of the session that could not begin ends."""
    if begun == "waiting":
        run = well.start(waiting, execution_id="w")
        wait_until(lambda: run.status() == Status.WAITING and "w" not in worker_of(well).sessions)
        trouble.be_away(3)
        run.signal("go", "on")
    else:
        with Stepwell(f"sqlite:///{tmp_path}/well.db?synchronous=NORMAL", worker=False) as other:
            trouble.be_away(3)
            other.start(waiting, execution_id="w").signal("go", "on")
        run = well.run("w")
    assert run.result(WAIT) == "on"
    assert well.verify("w").ok

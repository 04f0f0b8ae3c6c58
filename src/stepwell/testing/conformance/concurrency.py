"""Concurrency: many threads through one group committer, and readers beside them. One winner, no gap, one view."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from msgspec.structs import replace

from stepwell.contract.store import ExecutionQuery, Store
from stepwell.errors import AlreadyExists, Conflict, LockHeld
from stepwell.model.commit import Acquire, Archiving, Claim, Commit, LockGuard, Outcome, Seen, StateBatch, Unit, Unlock, Written
from stepwell.model.queue_item import ItemQuery
from stepwell.model.receipt_chain import rebuild
from stepwell.model.scoped_operations import Delete, Increment
from stepwell.pipeline.group_commit import GroupCommit
from stepwell.testing.conformance.samples import (
    HOUR,
    SCOPE,
    SampleExecution,
    add,
    answers,
    content,
    everything,
    landed,
    new_item,
    put,
    refused,
    variable,
    walk,
    write_state,
)

RACES = 1_000
THREADS = 8

Writer = Callable[[Commit], Outcome]


def race(writers: Sequence[Writer], execution: SampleExecution, races: int) -> None:
    """Have all writers write the next revision at the same moment, again and again; each time exactly one of them may."""
    gate = threading.Barrier(len(writers) + 1, timeout=60)
    commits, outcomes = list[Commit](), dict[int, Outcome]()

    def run(number: int) -> None:
        for _ in range(races):
            gate.wait()
            outcomes[number] = writers[number](commits[number])
            gate.wait()

    with ThreadPoolExecutor(len(writers)) as pool:
        threads = [pool.submit(run, number) for number in range(len(writers))]
        try:
            for round_ in range(races):
                commits[:] = [execution.commit(variable("winner", [round_, number])) for number in range(len(writers))]
                gate.wait()
                gate.wait()
                [winner] = (commits[number] for number, outcome in outcomes.items() if isinstance(outcome, Written))
                assert sum(type(outcome) is Conflict for outcome in outcomes.values()) == len(writers) - 1
                execution.catch_up()
                assert execution.state.receipt == winner.digest
        except BaseException:
            gate.abort()  # only then: the last round's waiters may still be on their way out of it
            raise
        for thread in threads:
            thread.result()


def together(*jobs: Callable[[], object]) -> None:
    """Run jobs at the same time, each in a thread of its own; the first error that any of them meets is raised."""
    gate = threading.Barrier(len(jobs), timeout=60)

    def run(job: Callable[[], object]) -> None:
        gate.wait()
        job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        threads: list[Future[None]] = [pool.submit(run, job) for job in jobs]
    for thread in threads:
        thread.result()


def read_while(write: Callable[[], None], read: Callable[[threading.Event], None]) -> None:
    """Read in two threads until a third has written all it has to, or failed."""
    ended = threading.Event()

    def write_on() -> None:
        try:
            write()
        finally:
            ended.set()

    together(write_on, lambda: read(ended), lambda: read(ended))


def write_together(committer: GroupCommit, units: Sequence[Unit]) -> list[Outcome]:
    """Write units at the same moment, each from a thread of its own; their outcomes, in no order."""
    outcomes: list[Outcome] = []
    together(*(lambda unit=unit: outcomes.append(committer.write(unit)) for unit in units))
    return outcomes


@pytest.mark.timeout(300)
def test_every_race_for_a_revision_has_exactly_one_winner(store: Store, committer: GroupCommit, execution: SampleExecution) -> None:
    """T05: no merge, no fork; the losers get a Conflict."""
    race([committer.write] * 4, execution, RACES)
    assert execution.head.revision == RACES
    assert walk(store, execution.id).ok


def test_every_race_to_create_an_execution_has_exactly_one_winner(store: Store, committer: GroupCommit) -> None:
    for number in range(20):
        new = [SampleExecution(store, f"new-{number}", workspace=f"w{thread}").creation() for thread in range(THREADS)]
        kinds = Counter(type(outcome) for outcome in write_together(committer, new))
        assert kinds == {Written: 1, AlreadyExists: THREADS - 1}


def test_commit_sent_by_many_threads_lands_once(committer: GroupCommit, execution: SampleExecution) -> None:
    """T03: every sender but one gets the stored commit."""
    commit = execution.commit(ops=(Increment(SCOPE, "n"),))
    kinds = Counter(type(outcome) for outcome in write_together(committer, [commit] * THREADS))
    assert kinds == {Written: 1, Seen: THREADS - 1}
    assert content(execution.store) == {"n": 1}


def test_commits_of_many_threads_leave_no_gap(store: Store, committer: GroupCommit, execution: SampleExecution) -> None:
    """I3: each thread tries again until it was first; revisions are contiguous and the chain verifies."""

    def work(name: str) -> None:
        view = SampleExecution(store, execution.id)
        view.follow()
        done = 0
        while done < 25:
            outcome = committer.write(view.commit(variable(name, done)))
            assert isinstance(outcome, Written | Conflict), outcome
            done += isinstance(outcome, Written)
            view.catch_up()

    together(*(lambda name=name: work(name) for name in "abcdefgh"))
    assert execution.head.revision == THREADS * 25
    assert [row.revision for row in store.history(execution.id, -1, 1_000)] == list(range(THREADS * 25 + 1))
    assert walk(store, execution.id).ok
    assert set(execution.follow().sections["variables"].values()) == {b"24"}


def test_executions_do_not_wait_for_each_other(store: Store, committer: GroupCommit) -> None:
    """Writers of different executions never meet a conflict."""

    def work(number: int) -> None:
        mine = SampleExecution(store, f"mine-{number}")
        for _ in range(30):
            landed(committer.write(mine.foresee()))

    together(*(lambda number=number: work(number) for number in range(THREADS)))
    assert all(walk(store, f"mine-{number}").receipts == 30 for number in range(THREADS))


def test_counter_counts_every_increment_of_every_thread(store: Store, committer: GroupCommit) -> None:
    def work() -> None:
        for _ in range(50):
            landed(committer.write(StateBatch((Increment(SCOPE, "n"), Increment(SCOPE, "m", -1)))))

    together(*[work] * THREADS)
    assert content(store) == {"n": 50 * THREADS, "m": -50 * THREADS}


def test_every_race_for_a_lock_has_exactly_one_winner(committer: GroupCommit) -> None:
    for number in range(20):
        units = [Acquire(f"door-{number}", f"holder-{thread}", HOUR) for thread in range(THREADS)]
        kinds = Counter(type(outcome) for outcome in write_together(committer, units))
        assert kinds == {Written: 1, LockHeld: THREADS - 1}


def test_every_race_for_a_lease_has_exactly_one_winner(committer: GroupCommit, execution: SampleExecution) -> None:
    outcomes = write_together(committer, [Claim(execution.id, f"holder-{thread}", HOUR) for thread in range(THREADS)])
    [winner] = (outcome for outcome in outcomes if isinstance(outcome, Written))
    assert execution.head.holder == answers(winner)[0].holder


def test_lock_lets_one_thread_at_a_time_read_and_write(store: Store, committer: GroupCommit) -> None:
    """T19: a counter that is read, and written one higher, under the lock is exact."""

    def work(name: str) -> None:
        for turn in range(10):
            lease = take(f"{name}-{turn}")
            number = content(store).get("n", 0)
            landed(committer.write(StateBatch((put("n", number + 1),), (LockGuard("door", lease),))))
            landed(committer.write(Unlock("door", f"{name}-{turn}", lease)))

    def take(holder: str) -> int:
        while True:
            outcome = committer.write(Acquire("door", holder, HOUR))
            if isinstance(outcome, Written):
                return answers(outcome)[0].fence
            refused(outcome, LockHeld)

    together(*(lambda name=name: work(name) for name in "abcd"))
    assert content(store) == {"n": 40}


def test_load_is_one_consistent_view_while_others_write(store: Store, committer: GroupCommit, execution: SampleExecution) -> None:
    """I1: head, snapshot and commits of one moment, never the head of one and the commits of another."""

    def write_on() -> None:
        for number in range(1, 201):
            snapshot = execution.snapshot() if number % 7 == 0 else None
            landed(committer.write(execution.foresee(snapshot=snapshot)))
            if number % 40 == 0 and store.capabilities().has_archiving:
                landed(committer.write(Archiving(execution.id, execution.snapshot())))

    def read_on(ended: threading.Event) -> None:
        newest = 0
        while not ended.is_set():
            loaded = store.load(execution.id)
            assert loaded is not None
            revision = rebuild(loaded).revision
            assert revision >= newest
            newest = revision

    read_while(write_on, read_on)


def test_readers_see_a_batch_whole_or_not_at_all(store: Store, committer: GroupCommit) -> None:
    def write_on() -> None:
        for number in range(200):
            landed(committer.write(StateBatch((put("a", number), put("b", number), put("c", number)))))

    def read_on(ended: threading.Event) -> None:
        while not ended.is_set():
            assert len(set(content(store).values())) <= 1

    read_while(write_on, read_on)


def test_signed_commits_of_many_threads_keep_their_own_signature(store: Store, committer: GroupCommit) -> None:
    """Rows of one group are never mixed up."""

    def work(number: int) -> None:
        mine = SampleExecution(store, f"mine-{number}")
        for turn in range(10):
            landed(committer.write(replace(mine.foresee(), signature=b"%d-%d" % (number, turn))))
            assert mine.head.signature == b"%d-%d" % (number, turn)

    together(*(lambda number=number: work(number) for number in range(THREADS)))


def test_consistent_view_stays_as_others_write(store: Store, execution: SampleExecution) -> None:
    execution.land(variable("n", 1))
    write_state(store, put("k", "before"), put("gone", 1))
    before, totals = everything(store, execution.id), store.totals(SCOPE)
    with store.consistent_view() as view:
        execution.land(variable("n", 2))
        later = SampleExecution(store, "later").create()
        write_state(store, put("k", "after"), Delete(SCOPE, "gone"), put("new", 1))
        add(store, new_item())
        if not store.capabilities().has_consistent_view:
            assert view.head(execution.id) == execution.head
            return
        assert everything(view, execution.id) == before
        assert [head.execution_id for head in view.find(ExecutionQuery())] == [execution.id]
        assert view.head(later.id) is None
        assert content(view) == {"k": "before", "gone": 1}
        assert (view.totals(SCOPE), view.items(ItemQuery())) == (totals, [])
        assert view.lanes() == []
    assert content(store) == {"k": "after", "new": 1}
    assert walk(store, execution.id).ok
    assert len(store.items(ItemQuery())) == 1

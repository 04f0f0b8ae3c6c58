"""T16, T17, T20, T21: a Redis server that crashes, is paused, or loses data; what is left is whole, or refused."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.redis_server import RedisServer

from stepwell.clock import FakeClock
from stepwell.errors import Conflict, Corrupted, LeaseLost, NotFound, StepwellError
from stepwell.model.commit import Claim, Commit, Extension, LockGuard, Release, Renew, StateBatch, Unlock, Written
from stepwell.model.limits import Limits
from stepwell.model.receipt_chain import rebuild
from stepwell.model.scoped_operations import Increment
from stepwell.stores.redis.store import RedisStore
from stepwell.testing.conformance.samples import (
    HOUR,
    SCOPE,
    SampleExecution,
    acquire,
    answers,
    claim,
    content,
    landed,
    put,
    refused,
    variable,
    walk,
    write,
)

_COMMITS = 40


class Site:
    """A server of the test's own, with a way to persist, and a store on it."""

    def __init__(self, folder: Path, **options: str) -> None:
        self.folder, self.clock = folder, FakeClock()
        self.server = RedisServer(folder, **options).start()
        self.store = self.open()

    def open(self) -> RedisStore:
        store = RedisStore(self.server.url("mine"), self.clock, Limits())
        store.open()
        return store

    def crash(self) -> None:
        """Kill the server, and start it again on what it left."""
        self.server.kill()
        self.server.start()

    def log(self) -> Path:
        """The file that the server appends its writes to; versions before 7 have one, later ones number them."""
        return max((each for each in self.folder.rglob("*.aof") if "base" not in each.name), key=lambda each: each.stat().st_mtime)

    def close(self) -> None:
        self.store.close()
        self.server.stop()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)


def grow(store: RedisStore, commits: int = _COMMITS) -> list[Commit]:
    """An execution with a counter beside it; what was acknowledged."""
    execution = SampleExecution(store, "run").create()
    return [execution.land(ops=(Increment(SCOPE, "n"),)) for _ in range(commits)]


@pytest.mark.parametrize("fsync", ["always", "everysec"])
def test_crash_loses_nothing_but_a_suffix_and_leaves_the_chain_whole(folder: Path, fsync: str) -> None:
    """T16: nothing with `always`; with `everysec` at most the last two seconds, never something in the middle."""
    site = Site(folder, appendonly="yes", appendfsync=fsync)
    acked = grow(site.store)
    site.crash()
    store = site.open()
    head = store.head("run")
    assert head is not None
    assert walk(store, "run").ok
    assert head.digest == acked[head.revision - 1].digest
    assert content(store) == {"n": head.revision}
    if fsync == "always":
        assert head.revision == _COMMITS
    # The process that lived through it goes on with the same store.
    refusal = write(site.store, acked[-1])
    assert not isinstance(refusal, Corrupted)
    store.close()
    site.close()


def test_crashed_server_without_persistence_is_refused_as_corrupted(folder: Path) -> None:
    """T16, T17: it was never called durable; who lived through it is told, until the store is opened again."""
    site = Site(folder)
    assert site.store.durability().level == "none"
    execution = SampleExecution(site.store, "run").create()
    site.crash()
    refused(write_twice(site.store, execution.commit()), Corrupted)
    refused(write_twice(site.store, SampleExecution(site.store, "run").creation()), Corrupted)
    with pytest.raises(Corrupted, match="restarted without persistence"):
        site.store.head("run")
    fresh = site.open()
    refused(write(fresh, execution.commit()), NotFound)
    fresh.close()
    site.close()


def write_twice(store: RedisStore, unit: Commit) -> object:
    """The first write after a crash may meet the connection at its end, and be in doubt."""
    try:
        return write(store, unit)
    except StepwellError:
        return write(store, unit)


def test_snapshot_only_server_goes_back_to_its_last_snapshot_and_the_loss_is_reported(folder: Path) -> None:
    """T16: the chain is whole up to an older head; the next commit of who knew better says what was lost."""
    site = Site(folder, save="3600 1")
    assert (site.store.durability().level, "snapshots" in site.store.durability().reason) == ("none", True)
    execution = SampleExecution(site.store, "run").create()
    execution.grow(3)
    with site.server.client() as client:
        client.save()
    execution.grow(2)
    site.crash()
    lost = refused(write_twice(site.store, execution.commit()), Conflict)
    assert (lost.expected, lost.actual) == (5, 3)
    assert "lost" in lost.message
    assert walk(site.store, "run").receipts == 4
    site.close()


def test_truncated_log_loses_whole_commits_only(folder: Path) -> None:
    """T17: wherever the tail is cut, no commit is there by half: not its row without its head, not its counter without its row."""
    site = Site(folder, appendonly="yes", appendfsync="always")
    acked = grow(site.store, 5)
    whole = site.log().read_bytes()
    for cut in (1, 7, 60, 150, 400, 700):
        site.server.kill()
        site.log().write_bytes(whole[:-cut])
        site.server.start()
        store = site.open()
        head = store.head("run")
        assert head is not None
        assert 0 < head.revision < 5
        assert head.digest == acked[head.revision - 1].digest
        assert walk(store, "run").receipts == head.revision + 1
        assert content(store) == {"n": head.revision}
        store.close()
    site.close()


def test_flipped_bit_is_found_by_the_server_or_by_the_digests(folder: Path) -> None:
    """T17: in the log's own marks the server refuses to start; in a commit's bytes the chain does not verify."""
    site = Site(folder, appendonly="yes", appendfsync="always")
    execution = SampleExecution(site.store, "run").create()
    execution.land(variable("secret", "find-me-later"))
    execution.grow(3)
    site.server.kill()
    whole = site.log().read_bytes()

    site.log().write_bytes(whole.replace(b"find-me-later", b"find-me-mater"))
    site.server.start()
    loaded = site.open().load("run")
    assert loaded is not None
    with pytest.raises(Corrupted, match="run"):
        rebuild(loaded)
    assert not walk(site.open(), "run").ok

    site.server.kill()
    at = whole.index(b"find-me-later") - 3
    mark = whole.rindex(b"\r\n$", 0, at)
    site.log().write_bytes(whole[: mark + 2] + b"%" + whole[mark + 3 :])
    with pytest.raises(RuntimeError, match="did not start"):
        site.server.start()
    site.store.close()


# Two holders


def test_of_two_holders_after_a_loss_only_the_one_with_the_higher_fence_commits(folder: Path) -> None:
    """T21: both were granted the lease, since the first grant was lost; fences grow over the loss, so the older is refused."""
    site = Site(folder, save="3600 1")
    execution = SampleExecution(site.store, "run").create()
    with site.server.client() as client:
        client.save()
    first = claim(site.store, "run", holder="a")
    site.crash()
    store = site.open()
    second = claim(store, "run", holder="b")
    assert second.fence > first.fence
    late = execution.commit(variable("by", "a"), fence=first.fence)
    refused(write(store, late), LeaseLost)
    refused(write(store, Extension("run", "a", first.fence, HOUR)), LeaseLost)
    refused(write(store, Release("run", "a", first.fence)), LeaseLost)
    landed(write(store, execution.commit(variable("by", "b"), fence=second.fence)))
    store.close()
    site.close()


def test_lease_that_was_lost_with_the_data_is_over_even_if_nobody_took_it(folder: Path) -> None:
    """T21."""
    site = Site(folder, save="3600 1")
    execution = SampleExecution(site.store, "run").create()
    with site.server.client() as client:
        client.save()
    lease = claim(site.store, "run", holder="a")
    site.crash()
    store = site.open()
    refused(write(store, execution.commit(fence=lease.fence)), LeaseLost)
    store.close()
    site.close()


@pytest.mark.parametrize("persistence", [{}, {"save": "3600 1"}])
def test_of_two_holders_of_a_lock_after_a_loss_only_the_newer_one_writes(folder: Path, persistence: dict[str, str]) -> None:
    """T21: the counter of fences went with the data, and fences grow all the same."""
    site = Site(folder, **persistence)
    first = acquire(site.store, holder="a")
    site.crash()
    store = site.open()
    second = acquire(store, holder="b")
    assert second.fence > first.fence
    refused(write(store, StateBatch((put("k", "a"),), (LockGuard("door", first.fence),))), LeaseLost)
    landed(write(store, StateBatch((put("k", "b"),), (LockGuard("door", second.fence),))))
    refused(write(store, Unlock("door", "a", first.fence)), LeaseLost)
    assert content(store) == {"k": "b"}
    store.close()
    site.close()


def test_replica_that_was_promoted_too_early_grants_a_higher_fence(folder: Path) -> None:
    """T21: the lock was granted by the primary and never reached the replica."""
    (folder / "replica").mkdir()
    site = Site(folder)
    with RedisServer(folder / "replica") as replica, replica.client() as client:
        acquire(site.store, "other")
        first = acquire(site.store, holder="a")
        site.server.kill()
        client.execute_command("REPLICAOF", "NO", "ONE")
        promoted = RedisStore(replica.url("mine"), site.clock, Limits())
        promoted.open()
        second = acquire(promoted, holder="b")
        assert second.fence > first.fence
        refused(write(promoted, StateBatch((put("k"),), (LockGuard("door", first.fence),))), LeaseLost)
        promoted.close()
    site.close()


def test_holder_paused_past_its_ttl_cannot_write_extend_or_free_the_next_lock(redis_url: str, clock: FakeClock) -> None:
    """T20, 200 times: the write is refused by the fence, and giving back does not delete the new owner's lock."""
    store = RedisStore(redis_url, clock, Limits())
    store.open()
    for number in range(200):
        slept = acquire(store, holder=f"a{number}")
        clock.advance(1.5 * HOUR)
        present = acquire(store, holder=f"b{number}")
        outcomes = store.write(
            [
                StateBatch((put("k", "late"),), (LockGuard("door", slept.fence),)),
                Renew("door", f"a{number}", slept.fence, HOUR),
                Unlock("door", f"a{number}", slept.fence),
                StateBatch((put("k", "present"),), (LockGuard("door", present.fence),)),
                Renew("door", f"b{number}", present.fence, HOUR),
                Unlock("door", f"b{number}", present.fence),
            ]
        )
        assert [type(each) for each in outcomes] == [LeaseLost] * 3 + [Written] * 3
    assert content(store) == {"k": "present"}
    store.close()


def test_claims_of_a_paused_and_a_present_worker_never_both_commit(redis_url: str, clock: FakeClock) -> None:
    """T06, T20: 100 pauses, 0 stale accepts."""
    store = RedisStore(redis_url, clock, Limits())
    store.open()
    for number in range(100):
        execution = SampleExecution(store, f"run-{number}").create()
        slept = claim(store, execution.id, holder="a")
        clock.advance(1.5 * HOUR)
        outcomes = store.write([Claim(execution.id, "b", HOUR), execution.commit(fence=slept.fence)])
        [present] = answers(outcomes[0])
        refused(outcomes[1], LeaseLost)
        landed(write(store, execution.commit(fence=present.fence)))
    store.close()

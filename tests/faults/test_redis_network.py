"""T03, T08, T25 on Redis: replies that are lost, cut, half-read or late, by a proxy between the store and a real server."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.proxy import Proxy, Verdict, at_match
from tests.support.redis_server import RedisServer

from stepwell.clock import FakeClock
from stepwell.contract.store import ExecutionQuery
from stepwell.errors import CommitUnknown, LockHeld, StoreUnavailable
from stepwell.model.commit import Acquire, LockGuard, Seen, StateBatch, Unit, Unlock, Written
from stepwell.model.limits import Limits
from stepwell.model.scoped_operations import Increment
from stepwell.pipeline.group_commit import GroupCommit
from stepwell.stores.redis.connection import Wire
from stepwell.stores.redis.scripts import SCRIPTS
from stepwell.stores.redis.store import RedisStore
from stepwell.testing.conformance.samples import (
    HOUR,
    SCOPE,
    SampleExecution,
    acquire,
    content,
    landed,
    put,
    refused,
    walk,
    write,
    write_state,
)

_RUNS = 100


class Site:
    """A store whose connections go through a proxy, and one that sees the server directly."""

    def __init__(self, proxy: Proxy, url: str, server: RedisServer) -> None:
        self.proxy, self.clock = proxy, FakeClock()
        self.direct = self._open(url)
        self.store = self._open(url.replace(f":{server.port}/", f":{proxy.port}/") + "&timeout=3&connect_timeout=20")

    def _open(self, url: str) -> RedisStore:
        store = RedisStore(url, self.clock, Limits())
        store.open()
        return store

    def close(self) -> None:
        self.store.close()
        self.direct.close()

    def spoil(self, script: str, verdict: Verdict) -> None:
        """Have the next call of a script go wrong."""
        self.proxy.acted.clear()
        self.proxy.on_request = at_match(SCRIPTS[script].sha.encode(), verdict)


@pytest.fixture
def site(redis_server: RedisServer, redis_url: str) -> Iterator[Site]:
    with Proxy(redis_server.port) as proxy:
        site = Site(proxy, redis_url, redis_server)
        yield site
        site.close()


@pytest.mark.parametrize("verdict", [Verdict.SWALLOW, Verdict.HOLD])
def test_commit_whose_reply_is_lost_is_unknown_and_its_id_tells(site: Site, verdict: Verdict) -> None:
    """T03: it landed; a retry gives back the first receipt, and a counter that rode with it counts once."""
    execution = SampleExecution(site.store, "run").create()
    commit = execution.foresee(ops=(Increment(SCOPE, "n"),))
    site.spoil("commit", verdict)
    with pytest.raises(CommitUnknown):
        site.store.write([commit])
    assert site.proxy.acted.wait(60)
    assert site.store.commit_of("run", commit.commit_id) == site.direct.history("run", 0, 1)[0]
    assert write(site.store, commit) == Seen(commit.header, commit.body)
    assert content(site.store) == {"n": 1}
    assert walk(site.store, "run").ok


def test_commit_that_never_reached_the_server_is_unknown_and_its_id_tells(site: Site) -> None:
    """T03: the other ending; the sender cannot see the difference."""
    execution = SampleExecution(site.store, "run").create()
    commit = execution.foresee()
    site.spoil("fast_commits", Verdict.CUT)
    with pytest.raises(CommitUnknown):
        site.store.write([commit])
    assert site.store.commit_of("run", commit.commit_id) is None
    landed(write(site.store, commit))


def test_blind_retries_after_lost_replies_never_count_twice(site: Site) -> None:
    """T03: the counter comes to the number of distinct commit ids."""
    execution = SampleExecution(site.store, "run").create()
    for number in range(_RUNS):
        commit = execution.foresee(ops=(Increment(SCOPE, "n"),))
        site.spoil("commit", (Verdict.SWALLOW, Verdict.CUT, Verdict.PASS)[number % 3])
        try:
            site.store.write([commit])
        except CommitUnknown:
            assert not isinstance(write(site.store, commit), Exception)
    assert content(site.store) == {"n": _RUNS}
    assert (execution.head.revision, walk(site.store, "run").ok) == (_RUNS, True)


def test_caller_of_a_group_is_told_its_own_commit_id(site: Site) -> None:
    """T03."""
    commit = SampleExecution(site.store, "run").create().foresee()
    group = GroupCommit(site.store.write)
    site.spoil("fast_commits", Verdict.SWALLOW)
    with pytest.raises(CommitUnknown) as caught:
        group.write(commit)
    assert (caught.value.commit_id, caught.value.execution_id) == (commit.commit_id, "run")
    group.close()


def test_group_that_breaks_in_the_middle_knows_what_was_answered(site: Site) -> None:
    """Units land one after another: those whose replies came are known, and only the others are unknown."""
    commits = [SampleExecution(site.store, f"run-{number}").creation() for number in range(5)]
    left = len(b"$2\r\nok\r\n") * 2 + 3

    def break_off(data: bytes) -> bytes:
        nonlocal left
        data = data[:left]  # of whatever comes at once, it may be all replies or some of them
        left -= len(data)
        return data

    site.proxy.on_reply = break_off
    outcomes = site.store.write(commits)
    assert [type(each) for each in outcomes] == [Written, Written, CommitUnknown, CommitUnknown, CommitUnknown]
    assert [getattr(each, "commit_id", "") for each in outcomes[2:]] == [commit.commit_id for commit in commits[2:]]
    assert all(site.direct.head(f"run-{number}") for number in range(5))


def test_state_whose_reply_is_lost_is_unknown(site: Site) -> None:
    site.spoil("write_state", Verdict.SWALLOW)
    with pytest.raises(CommitUnknown):
        site.store.write([StateBatch((put("k"),))])
    assert site.proxy.acted.wait(60)
    assert content(site.store) == {"k": 1}


def test_reply_that_comes_too_late_is_never_taken_for_that_of_another(site: Site) -> None:
    """T08: the reply of the first read is still on its way when the second is asked."""
    make_two(site.store)
    site.proxy.on_request = at_match(b"first", Verdict.HOLD)
    assert workflow_of(site.store, "first") == "of first"  # asked again on another connection, by itself
    assert [workflow_of(site.store, name) for name in ("second", "first")] == ["of second", "of first"]


def make_two(store: RedisStore) -> None:
    """Two executions whose rows differ."""
    for name in ("first", "second"):
        SampleExecution(store, name, workflow=f"of {name}").create()


def workflow_of(store: RedisStore, execution_id: str) -> str | None:
    head = store.head(execution_id)
    return None if head is None else head.workflow_id


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_interrupted_connection_is_closed_and_never_used_again(
    site: Site, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """T08, B10: an interrupt between sending and reading leaves a reply behind, which nobody may ever read."""
    make_two(site.store)
    read = Wire.read

    def interrupted(self: Wire) -> object:
        monkeypatch.setattr(Wire, "read", read)
        raise error

    monkeypatch.setattr(Wire, "read", interrupted)
    with pytest.raises(error):
        site.store.head("first")
    assert workflow_of(site.store, "second") == "of second"
    assert workflow_of(site.store, "first") == "of first"


def test_connections_that_were_cut_while_idle_are_replaced_without_a_word(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """T41: a server that restarted between two writes is not a reason for doubt."""
    monkeypatch.setattr("stepwell.stores.redis.connection._FRESH_SECONDS", 0.0)
    execution = SampleExecution(site.store, "run").create()
    for _ in range(3):
        site.proxy.cut()
        site.proxy.cut()  # by the time it answers, the first one has been carried out
        execution.land()
    assert walk(site.store, "run").receipts == 4


def test_server_that_is_away_is_a_typed_error_and_all_goes_on_when_it_is_back(tmp_path: Path) -> None:
    """T41: nothing was sent, so nothing is in doubt; nothing has to be opened again."""
    with RedisServer(tmp_path, appendonly="yes", appendfsync="always") as server:
        store = RedisStore(server.url("mine"), FakeClock(), Limits())
        store.open()
        execution = SampleExecution(store, "run").create()
        commit = execution.foresee()
        server.kill()
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            write_until_known(store, commit)
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            store.head("run")
        server.start()
        landed(write(store, commit))
        assert walk(store, "run").receipts == 2
        store.close()


def write_until_known(store: RedisStore, unit: Unit) -> None:
    """The first write after a crash may be in doubt: it met the connection at its end."""
    try:
        store.write([unit])
    except CommitUnknown:
        store.write([unit])


def test_server_that_pauses_makes_a_write_unknown_within_the_timeout(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server:
        store = RedisStore(server.url("mine", timeout=2, connect_timeout=2), FakeClock(), Limits())
        store.open()
        commit = SampleExecution(store, "run").create().foresee()
        os.kill(server.pid, signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(CommitUnknown):
            store.write([commit])
        with pytest.raises(StoreUnavailable, match="in time"):
            store.head("run")
        assert time.monotonic() - began < 60  # and not when the server is back
        os.kill(server.pid, signal.SIGCONT)
        assert not isinstance(write(store, commit), Exception)
        assert walk(store, "run").receipts == 2
        store.close()


# Locks


def test_lock_whose_reply_was_lost_recognises_its_own_holder(site: Site) -> None:
    """T25: the retry gets the same lock with the same fence, and everybody else stays out."""
    site.spoil("acquire", Verdict.SWALLOW)
    with pytest.raises(CommitUnknown):
        site.store.write([Acquire("door", "me", HOUR)])
    assert site.proxy.acted.wait(60)
    refused(write(site.direct, Acquire("door", "other", HOUR)), LockHeld)
    mine = acquire(site.store, "door", holder="me")
    again = acquire(site.store, "door", holder="me")
    assert mine.fence == again.fence
    landed(write(site.store, Unlock("door", "me", mine.fence)))


def test_lock_that_could_not_be_asked_for_is_held_by_nobody(site: Site) -> None:
    """T25: nobody runs on a guess."""
    site.spoil("acquire", Verdict.CUT)
    with pytest.raises(CommitUnknown):
        site.store.write([Acquire("door", "me", HOUR)])
    acquire(site.direct, "door", holder="other")
    refused(write(site.store, Acquire("door", "me", HOUR)), LockHeld)


def test_orphan_of_a_lost_reply_ends_by_itself(site: Site) -> None:
    """T25: after its TTL somebody else gets the lock, and a late guard of the orphan is refused."""
    site.spoil("acquire", Verdict.SWALLOW)
    with pytest.raises(CommitUnknown):
        site.store.write([Acquire("door", "me", HOUR)])
    assert site.proxy.acted.wait(60)
    site.clock.advance(2 * HOUR)
    other = acquire(site.direct, "door", holder="other")
    write_guarded = StateBatch((put("k"),), (LockGuard("door", other.fence - 1),))
    assert not isinstance(write(site.store, write_guarded), Written)
    write_state(site.direct, put("k"))


def test_slow_server_only_slows_down(site: Site) -> None:
    site.proxy.delay_seconds = 0.02
    execution = SampleExecution(site.store, "run").create()
    execution.land()
    assert walk(site.store, "run").receipts == 2


@pytest.mark.parametrize("verb", ["head", "find", "scan", "totals", "load"])
def test_read_that_was_cut_is_asked_again_by_itself(site: Site, verb: str) -> None:
    SampleExecution(site.store, "run").create()
    write_state(site.store, put("k"))
    reads: dict[str, Callable[[], object]] = {
        "head": lambda: site.store.head("run"),
        "find": lambda: site.store.find(ExecutionQuery()),
        "scan": lambda: site.store.scan(SCOPE),
        "totals": lambda: site.store.totals(SCOPE),
        "load": lambda: site.store.load("run"),
    }
    wanted = reads[verb]()
    site.proxy.on_request = at_match(b"GET", Verdict.SWALLOW)
    assert reads[verb]() == wanted
    assert site.proxy.acted.is_set()

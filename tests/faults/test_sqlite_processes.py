"""T12: many processes on one SQLite file: the version gate, checkpoints, locks that are held, forks, and interrupts."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import apsw
import pytest
from tests.faults.acks import AckLog
from tests.faults.callers import Blocking
from tests.faults.checkpointer import COMMITS
from tests.faults.children import Child
from tests.faults.hooks import at
from tests.faults.invariants import check_acks, check_chain
from tests.faults.leases import claim

from stepwell import LockHeld, Stepwell, StepwellError, StoreUnavailable
from stepwell.fault_points import armed
from stepwell.stores.sqlite.connection import journal_mode


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "well.db"


@pytest.mark.parametrize("version", ["3.7.0", "3.40.1", "3.51.2", "3.52.0", "3.52.1"])
def test_a_library_that_can_lose_the_log_does_not_get_one(version: str) -> None:
    """T12: from 3.7.0 to 3.51.2, and in 3.52, two connections that write and checkpoint can lose commits."""
    assert journal_mode(version) != "wal"


@pytest.mark.parametrize("version", ["3.51.3", "3.53.0", "3.53.0.beta", "3.54.1", "4.0.0"])
def test_a_library_with_the_fix_uses_the_log(version: str) -> None:
    """T12: the fix is in 3.51.3 and in 3.53.0."""
    assert journal_mode(version) == "wal"


def test_the_library_in_use_passes_the_gate(path: Path) -> None:
    """T12: what is installed is safe, and the file says so."""
    assert journal_mode(apsw.sqlite_lib_version()) == "wal"
    with Stepwell(f"sqlite:///{path}"):
        assert apsw.Connection(str(path)).execute("PRAGMA journal_mode").get == "wal"


def test_an_unsafe_library_is_warned_about_and_works_without_the_log(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """T12: commits are as durable there, only slower."""
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.40.1")
    with caplog.at_level(logging.WARNING), Stepwell(f"sqlite:///{path}") as well:
        well.create("run")
        with well.transaction("run") as tx:
            tx.set_variable("x", 1)
        assert well.verify("run").ok
    assert "3.40.1" in caplog.text
    assert apsw.Connection(str(path)).execute("PRAGMA journal_mode").get == "delete"
    with Stepwell(f"sqlite:///{path}") as well:
        assert well.load("run").variables == {"x": 1}


def test_processes_that_write_and_checkpoint_together_lose_nothing(path: Path, tmp_path: Path) -> None:
    """T12, short: three processes, each with a second connection that checkpoints all the time."""
    caller, names = Blocking(f"sqlite:///{path}"), ["a", "b", "c"]
    for execution_id in (*names, "shared"):
        caller.create(execution_id, "creation")
    with ExitStack() as stack:
        children = [stack.enter_context(Child("checkpointer", path, name, tmp_path / f"{name}.acks")) for name in names]
        assert [child.end() for child in children] == [0, 0, 0]
    acks = [ack for name in names for ack in AckLog.read(tmp_path / f"{name}.acks")]
    assert len(acks) >= len(names) * COMMITS
    check_acks(caller, acks)
    for execution_id in (*names, "shared"):
        assert caller.load(execution_id).revision == sum(ack.execution_id == execution_id for ack in acks)
        check_chain(caller, execution_id)
    caller.close()
    assert apsw.Connection(str(path)).execute("PRAGMA integrity_check").get == "ok"


def test_an_open_well_keeps_the_shared_memory_from_being_truncated(path: Path) -> None:
    """T12: POSIX drops a process's locks on a file with any close of it, so nobody here may open and close SQLite's files."""
    with Stepwell(f"sqlite:///{path}") as first, Stepwell(f"sqlite:///{path}") as second:
        for well, execution_id in ((first, "one"), (second, "two"), (first, "three")):
            well.create(execution_id)
            well.load(execution_id)
            with Child("file_lock_holder", "look", path) as child:
                assert child.hear() == str(os.getpid())
        second.close()
        Stepwell(f"sqlite:///{path}").close()
        with Child("file_lock_holder", "look", path) as child:
            assert child.hear() == str(os.getpid())


def test_write_of_another_process_is_seen_at_once_even_after_a_refused_write(path: Path) -> None:
    """T12: a refused write leaves no trace in the file, so it must not be taken for the other's commit."""
    url = f"sqlite:///{path}"
    with Stepwell(url) as ours, Stepwell(url) as theirs:
        for execution_id in ("run", "other"):
            ours.create(execution_id)
        claim(ours, "other", "somebody")
        for number in range(2):
            with ours.transaction("run") as tx:
                tx.set_variable("n", number)
        with theirs.transaction("run") as tx:
            tx.set_variable("n", "theirs")
        with pytest.raises(LockHeld):
            claim(ours, "other", "somebody else")
        assert ours.load("run").variables == {"n": "theirs"}
        with ours.transaction("run") as tx:
            tx.set_variable("n", "ours")
        assert theirs.load("run").variables == {"n": "ours"}


@pytest.mark.parametrize("when", ["idle", "during a write"])
def test_a_well_that_was_opened_before_a_fork_is_refused_after_it(path: Path, when: str) -> None:
    """T12: a typed error at every use in the forked process, no hang, and the parent goes on."""
    with Child("forker", f"sqlite:///{path}", when) as child:
        endings = child.hear().split()
        assert endings == [StoreUnavailable.code] * 5 + ["fine"]
        assert child.hear() == "parent parent True"
        assert child.end() == 0


def test_a_write_lock_held_for_too_long_is_a_typed_error_and_then_all_is_well(path: Path) -> None:
    """Busy: another process writes for longer than busy_seconds; nothing was written, and the same call works later."""
    with Stepwell(f"sqlite:///{path}?busy_seconds=0.05") as well:
        well.create("run")
        with Child("file_lock_holder", "hold", path) as holder:
            assert holder.hear() == "held"
            tx = well.transaction("run").begin()
            tx.set_variable("x", 1)
            for _ in range(2):
                with pytest.raises(StoreUnavailable, match="busy_seconds"):
                    tx.commit()
                assert well.load("run").revision == 0
            holder.tell("let go")
            assert holder.hear() == "free"
            assert tx.commit().revision == 1
        assert well.load("run").variables == {"x": 1}


def test_a_write_waits_for_a_lock_that_is_given_back_in_time(path: Path) -> None:
    """Busy: within busy_seconds nobody notices."""
    with Stepwell(f"sqlite:///{path}?busy_seconds=60") as well, Child("file_lock_holder", "hold", path) as holder:
        assert holder.hear() == "held"
        with armed(at("store.before_begin", 1, lambda: holder.tell("let go"))):
            well.create("run")
        assert well.verify("run").ok


def test_opening_a_file_that_is_locked_for_too_long_is_a_typed_error(path: Path) -> None:
    """Busy: a new file that another process is setting up."""
    with Child("file_lock_holder", "hold", path) as holder:
        assert holder.hear() == "held"
        with pytest.raises(StepwellError) as refused:
            Stepwell(f"sqlite:///{path}?busy_seconds=0.05")
        assert isinstance(refused.value, StoreUnavailable)
    Stepwell(f"sqlite:///{path}").close()


@contextmanager
def interrupt_during_begin(path: Path) -> Iterator[None]:
    """Ctrl-C while BEGIN waits for another process: the lock is given back once the signal is there, so that BEGIN succeeds."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    blocker = apsw.Connection(str(path))
    blocker.execute("BEGIN IMMEDIATE").fetchall()

    def let_go() -> None:
        theirs.recv(1)
        blocker.execute("ROLLBACK").fetchall()

    thread = threading.Thread(target=let_go)
    thread.start()
    handler = signal.signal(signal.SIGALRM, signal.default_int_handler)
    wakeup = signal.set_wakeup_fd(ours.fileno())
    try:
        with armed(at("store.before_begin", 1, lambda: signal.setitimer(signal.ITIMER_REAL, 0.05))):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.set_wakeup_fd(wakeup)
        signal.signal(signal.SIGALRM, handler)
        thread.join()
        blocker.close()
        ours.close()
        theirs.close()


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("is_ordinary", [True, False], ids=["ordinary commit", "commit with state"])
def test_an_interrupt_while_a_commit_waits_for_the_lock_leaves_a_well_that_works(path: Path, is_ordinary: bool) -> None:
    """T08 for blocking callers: Ctrl-C between BEGIN and whatever comes next does not leave a transaction open."""
    with Stepwell(f"sqlite:///{path}") as well:
        well.create("run")
        with well.transaction("run") as tx:
            tx.set_variable("x", 0)
        tx = well.transaction("run").begin()
        tx.set_variable("x", 1)
        if not is_ordinary:
            tx.state(well.state.globals).increment("n")
        with interrupt_during_begin(path), pytest.raises(KeyboardInterrupt):
            tx.commit()
        landed = well.load("run").revision == 2
        assert well.load("run").variables == {"x": 1 if landed else 0}
        assert tx.commit().revision == 2
        assert well.load("run").variables == {"x": 1}
        assert well.state.globals.get("n") == (None if is_ordinary else 1)
        assert well.verify("run").ok

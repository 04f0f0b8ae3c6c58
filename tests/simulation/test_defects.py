"""The simulator finds defects: each of these is planted, and some seed says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stepwell.queue.recovery import QueueRecovery
from stepwell.runtime.sessions.execution_writer import ExecutionWriter
from stepwell.runtime.sessions.function_session import FunctionSession
from stepwell.stores.memory import MemoryStore
from stepwell.stores.memory.executions import MemoryLeases
from stepwell.testing.simulation import simulate
from stepwell.testing.simulation.__main__ import main

MOST_SEEDS = 200
replace = msgspec.structs.replace


def first_violation(first_seed: int = 0) -> str:
    """Return the first violation that a seed finds.

    Which seed that is changes with the code; ``first_seed`` only makes the search short as long as it has not changed much.
    """
    for seed in range(first_seed, first_seed + MOST_SEEDS):
        violations = simulate(seed).violations
        if violations:
            return violations[0]
    return ""


def around(monkeypatch: pytest.MonkeyPatch, kind: type, name: str, make: Callable[[Any], Any]) -> None:
    monkeypatch.setattr(kind, name, make(getattr(kind, name)))


def test_late_writer_is_found_where_fences_are_not_compared(monkeypatch: pytest.MonkeyPatch):
    """T06, I8"""
    around(monkeypatch, MemoryStore, "_check", lambda check: lambda store, commit: check(store, replace(commit, fence=None)))
    assert "I8" in first_violation()


def test_lease_without_a_new_fence_is_found(monkeypatch: pytest.MonkeyPatch):
    """I8"""

    def make(grant: Any) -> Any:
        def stuck(leases: MemoryLeases, head: Any, undo: Any) -> Any:
            return grant(leases, replace(head, fence=1), undo)

        return stuck

    around(monkeypatch, MemoryLeases, "_grant", make)
    assert "I8" in first_violation()


def test_forgotten_nudge_is_found(monkeypatch: pytest.MonkeyPatch):
    """I10"""
    monkeypatch.setattr(MemoryLeases, "nudge", lambda *_: None)
    assert "I10" in first_violation()


def test_nudge_that_is_lost_while_the_execution_goes_to_rest_is_found(monkeypatch: pytest.MonkeyPatch):
    """I10"""

    def make(rest: Any) -> Any:
        def forgetful(leases: MemoryLeases, execution: Any, terms: Any, undo: Any) -> None:
            undo.set(execution, "is_nudged", False)
            rest(leases, execution, terms, undo)

        return forgetful

    around(monkeypatch, MemoryLeases, "rest", make)
    assert "I10" in first_violation(36)


def test_blind_retry_after_a_lost_reply_is_found(monkeypatch: pytest.MonkeyPatch):
    """T03, P9"""

    async def guess(*_: object) -> None:
        return None

    monkeypatch.setattr(ExecutionWriter, "_find_receipt", guess)
    assert first_violation() != ""


def test_commit_that_is_acknowledged_and_not_written_is_found(monkeypatch: pytest.MonkeyPatch):
    """I2"""

    def make(commit: Any) -> Any:
        def forgetful(store: MemoryStore, unit: Any, undo: Any) -> Any:
            outcome = commit(store, unit, undo)
            if unit.revision == 3:
                execution = store._executions.rows[unit.execution_id]
                execution.by_commit_id.pop(unit.commit_id, None)
            return outcome

        return forgetful

    around(monkeypatch, MemoryStore, "_commit", make)
    assert first_violation() != ""


def test_end_that_leaves_tokens_or_tells_nobody_is_found(monkeypatch: pytest.MonkeyPatch):
    """I5, I10"""

    def make(finish: Any) -> Any:
        async def silent(session: Any, status: Any, result: Any) -> None:
            session._identity = replace(session._identity, is_child=False)
            await finish(session, status, result)

        return silent

    around(monkeypatch, FunctionSession, "_finish", make)
    assert "I10" in first_violation()


def test_capacity_that_is_not_counted_is_found(monkeypatch: pytest.MonkeyPatch):
    """T34, I7"""
    monkeypatch.setattr("stepwell.stores.memory.queue.free_slots", lambda *_: 100)
    assert "I7" in first_violation(66)


def test_dead_dispatchers_items_that_nobody_returns_are_found(monkeypatch: pytest.MonkeyPatch):
    """T35, I6"""

    async def idle(*_: object) -> float:
        return 60.0

    monkeypatch.setattr(QueueRecovery, "work", idle)
    assert "the item of" in first_violation(26)


def test_seed_that_fails_is_told_and_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(MemoryLeases, "nudge", lambda *_: None)
    kept = tmp_path / "seeds.txt"
    assert main(["--seeds", "1", "--keep", str(kept)]) == 1
    assert kept.read_text() == "0\n"
    assert "seed 0: I10" in capsys.readouterr().out
    assert main(["--replay", "0"]) == 1
    assert "BROKEN: I10" in capsys.readouterr().out

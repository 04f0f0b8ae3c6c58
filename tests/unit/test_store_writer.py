"""Write hook: of what landed, or may have, those who wait are notified; of a write that surely failed, nobody is."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import pytest

from stepwell.clock import FakeClock
from stepwell.contract.store import Capabilities
from stepwell.errors import CommitUnknown, Corrupted, StoreFull, StoreUnavailable
from stepwell.model.commit import Outcome, StateBatch, Unit, Unlock, Written
from stepwell.pipeline.notifications import LOCK, STATE, Notifications
from stepwell.pipeline.store_clock import StoreClock
from stepwell.pipeline.store_writer import StoreWriter


class OneStore:
    """Writes nothing, and says what it was told to."""

    def __init__(self) -> None:
        self.answer: BaseException | list[Outcome] = []

    def capabilities(self) -> Capabilities:
        return Capabilities(is_shared=False, has_blocking_writes=False)

    def now_ms(self) -> int:
        return 0

    def listen(self, _wake: object) -> object:
        return lambda: None

    def write(self, _units: Sequence[Unit]) -> list[Outcome]:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


@pytest.fixture
def store() -> OneStore:
    return OneStore()


def woken_by(store: OneStore, answer: BaseException | list[Outcome]) -> set[str]:
    """The topics of which a waiter is woken when a lock is released, and the store answers so."""
    notifications, woken = Notifications(store), set[str]()  # type: ignore[arg-type]
    store.answer = answer
    refused = pytest.raises(type(answer)) if isinstance(answer, BaseException) else nullcontext()
    with (
        notifications.subscribed(LOCK, lambda: woken.add(LOCK)),
        notifications.subscribed(STATE, lambda: woken.add(STATE)),
        refused,
    ):
        StoreWriter(store, notifications, StoreClock(store, FakeClock())).write([Unlock("door", "me", 1)])  # type: ignore[arg-type]
    return woken


@pytest.mark.parametrize("error", [StoreUnavailable(), StoreFull(), Corrupted()])
def test_a_write_that_surely_failed_wakes_nobody(store: OneStore, error: Exception) -> None:
    assert woken_by(store, error) == set()


@pytest.mark.parametrize("answer", [CommitUnknown(), KeyboardInterrupt(), [CommitUnknown()], [Written()]])
def test_a_write_that_may_have_landed_wakes_only_those_who_wait_for_it(store: OneStore, answer: object) -> None:
    assert woken_by(store, answer) == {LOCK}  # type: ignore[arg-type]


def test_damage_is_remembered_for_a_while_and_an_outage_is_not(store: OneStore, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, now = StoreWriter(store, Notifications(store), StoreClock(store, FakeClock())), 100.0  # type: ignore[arg-type]
    monkeypatch.setattr("stepwell.pipeline.store_writer.monotonic", lambda: now)
    for store.answer in (StoreFull(), Corrupted("page 7 is damaged")):
        assert writer.recent_damage() is None
        with pytest.raises(StoreUnavailable):
            writer.write([StateBatch(())])
    store.answer = [Written()]
    writer.write([StateBatch(())])
    assert "page 7 is damaged" in str(writer.recent_damage())
    now += 60
    assert writer.recent_damage() is None

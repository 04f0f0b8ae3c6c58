"""Serving hears every signal, also one that comes a moment before the wait for it: that interrupts nothing."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

import pytest

from stepwell.runtime import worker_host

WAIT = 60


class Work:
    """Something that serves, is told to drain, and ends when that is at once or when it is let."""

    def __init__(self, on_drain: Callable[[float | None], None] = lambda _: None) -> None:
        self.graces: list[float | None] = []
        self.may_end = threading.Event()
        self._on_drain = on_drain

    def drain(self, grace_seconds: float | None = None) -> None:
        self.graces.append(grace_seconds)
        if grace_seconds == 0:
            self.may_end.set()
        self._on_drain(grace_seconds)

    def close(self) -> None:
        assert self.may_end.wait(WAIT), "nobody asked for the end"


@pytest.fixture(autouse=True)
def ends(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, int]]:
    """When the process would be ended for good, and with which code; instead of its end."""
    found: list[tuple[float, int]] = []
    monkeypatch.setattr(worker_host, "_end_after", lambda seconds, code: found.append((seconds, code)))
    return found


def unnoticed(number: signal.Signals) -> None:
    """Send a signal to this process as it comes in the worst moment: the system gives it to another thread, and the main one, whose
    it is to handle, goes on waiting for whatever it waits for."""

    def send() -> None:
        signal.pthread_kill(threading.get_ident(), number)

    thread = threading.Thread(target=send)
    thread.start()
    thread.join()


def soon(action: Callable[[], None]) -> None:
    """Do something in another thread, once the main one waits."""
    threading.Timer(0.05, action).start()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_first_signal_drains_even_if_it_interrupts_nothing(number: signal.Signals, ends: list[tuple[float, int]]):
    work = Work(lambda _: work.may_end.set())
    told: list[str] = []
    soon(lambda: unnoticed(number))
    assert worker_host.serve(work, 7, on_ready=lambda: told.append("ready"), on_stop=lambda: told.append("stopping")) == number
    assert (work.graces, told, ends) == ([7], ["ready", "stopping"], [])


def test_second_signal_ends_the_grace_even_if_it_interrupts_nothing(ends: list[tuple[float, int]]):
    work = Work(lambda grace: soon(lambda: unnoticed(signal.SIGTERM)) if grace else None)
    soon(lambda: unnoticed(signal.SIGTERM))
    worker_host.serve(work, 7)
    assert work.graces == [7, 0]
    assert ends == [(worker_host.HAND_BACK_SECONDS, 128 + signal.SIGTERM)]


def test_second_signal_is_heard_while_the_first_is_being_told(ends: list[tuple[float, int]]):
    work = Work()
    worker_host.serve(
        work, 7, on_ready=lambda: signal.raise_signal(signal.SIGINT), on_stop=lambda: signal.raise_signal(signal.SIGTERM)
    )
    assert work.graces == [7, 0]
    assert ends == [(worker_host.HAND_BACK_SECONDS, 128 + signal.SIGTERM)]


def test_third_signal_changes_nothing(ends: list[tuple[float, int]]):
    work = Work()

    def thrice() -> None:
        for _ in range(3):
            signal.raise_signal(signal.SIGTERM)

    worker_host.serve(work, 7, on_ready=thrice)
    assert (work.graces, len(ends)) == ([7, 0], 1)


def test_what_closing_raises_is_raised_and_signals_are_as_before():
    class Broken(Work):
        def close(self) -> None:
            raise OSError("the disk is gone")

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(OSError, match="the disk is gone"):
        worker_host.serve(Broken(), on_ready=lambda: signal.raise_signal(signal.SIGTERM))
    assert signal.getsignal(signal.SIGTERM) is before
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    assert wakeup == -1

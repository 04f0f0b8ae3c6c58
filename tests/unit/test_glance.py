"""Glances: a moment's look for a reply where that is faster than to fall asleep, and a good night's sleep elsewhere."""

from __future__ import annotations

import pytest

from stepwell.stores import glance as module
from stepwell.stores.glance import Glance

MICROSECOND = 0.000001


class Server:
    """A server whose replies take a while, differently for those who look and those who sleep; and a clock that goes by it."""

    def __init__(self, *, looking: int, waiting: int) -> None:
        self.looking, self.waiting = looking * MICROSECOND, waiting * MICROSECOND
        self.now = self.asked_at = 0.0
        self.looks = self.waits = self.stop_for = 0

    def look(self) -> bool:
        self.looks += 1
        self.now, self.stop_for = self.now + MICROSECOND + self.stop_for, 0
        return self.now >= self.asked_at + self.looking

    def wait(self) -> None:
        self.waits += 1
        self.now = max(self.now, self.asked_at + self.waiting)

    def ask(self, glance: Glance, times: int) -> int:
        """How many of some replies were looked for."""
        looked_for = 0
        for _ in range(times):
            self.asked_at, before = self.now, self.looks
            glance.until_ready(self.look, self.wait)
            looked_for += self.looks > before
        return looked_for


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server(looking=30, waiting=80)
    monkeypatch.setattr(module, "perf_counter", lambda: server.now)
    return server


def test_reply_is_looked_for_where_that_is_faster(server: Server) -> None:
    glance = Glance()
    server.ask(glance, 100)
    assert server.ask(glance, 2_000) > 1_900


def test_reply_is_slept_for_where_looking_keeps_the_server_from_answering(server: Server) -> None:
    server.looking, server.waiting = 60 * MICROSECOND, 25 * MICROSECOND
    assert server.ask(Glance(), 4_000) < 100


def test_gain_that_is_not_worth_a_busy_processor_is_left(server: Server) -> None:
    server.looking, server.waiting = 30 * MICROSECOND, 35 * MICROSECOND
    assert server.ask(Glance(), 4_000) < 100


def test_reply_from_afar_is_looked_for_ever_more_seldom_and_never_for_long(server: Server) -> None:
    server.looking = server.waiting = 2_000 * MICROSECOND
    glance = Glance()
    assert server.ask(glance, 4_000) > server.ask(glance, 4_000) > 0
    assert server.looks < 401 * 60


def test_way_is_changed_when_times_change(server: Server) -> None:
    glance = Glance()
    server.ask(glance, 3_000)
    server.looking, server.waiting = 70 * MICROSECOND, 20 * MICROSECOND
    server.ask(glance, 1_100)
    assert server.ask(glance, 1_000) < 100
    server.looking, server.waiting = 20 * MICROSECOND, 70 * MICROSECOND
    server.ask(glance, 1_100)
    assert server.ask(glance, 1_000) > 900


def test_one_long_pause_does_not_change_the_way_for_long(server: Server) -> None:
    """The machine stood still for a minute while somebody looked."""
    glance = Glance()
    server.ask(glance, 100)
    server.stop_for = 60
    server.ask(glance, 10)
    assert server.stop_for == 0
    assert server.ask(glance, 500) > 400


def test_reply_that_nobody_found_is_always_waited_for(server: Server) -> None:
    server.looking = server.waiting = 2_000 * MICROSECOND
    server.ask(Glance(), 1_000)
    assert server.waits == 1_000


@pytest.mark.parametrize("way", ["look", "wait"])
def test_failure_reaches_the_caller(server: Server, way: str) -> None:
    def broken() -> bool:
        raise ConnectionError

    setattr(server, way, broken)
    with pytest.raises(ConnectionError):
        server.ask(Glance(), 200)

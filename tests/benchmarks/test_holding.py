"""The use of locks in the lock benchmarks, without a look at their speed."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from benchmarks.holding import Relay, contended, hand_overs, pairs

THREADS = 4


class Watched:
    """A lock that counts its holds and sees whether there is more than one at a time."""

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        self.holds, self.most = 0, 0

    @contextmanager
    def _hold(self) -> Iterator[None]:
        with self._lock:
            self.holds, self._inside = self.holds + 1, self._inside + 1
            self.most = max(self.most, self._inside)
            yield
            self._inside -= 1

    def take(self) -> AbstractContextManager[None]:
        return self._hold()


def test_pairs_take_the_lock_and_give_it_back_that_often():
    lock = Watched()
    assert pairs(7, lock.take)() > 0
    assert lock.holds == 7


def test_every_contender_gets_its_turns():
    lock = Watched()
    assert contended([lock.take] * THREADS, 5)() > 0
    assert (lock.holds, lock.most) == (5 * THREADS, 1)


def test_a_lock_is_handed_to_another_each_time():
    lock = Watched()
    relay = Relay([lock.take] * THREADS, 50)
    assert relay.run() > 0
    assert len(relay.holders) == 50
    assert all(before != after for before, after in itertools.pairwise(relay.holders))
    assert lock.most == 1


def test_hand_overs_can_be_measured_again_and_again():
    lock = Watched()
    work = hand_overs([lock.take] * 2, 10)
    assert work() > 0
    assert work() > 0

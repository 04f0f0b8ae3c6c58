"""States at hand: bounded in number and size, and never two objects of one revision."""

from __future__ import annotations

import threading

from tests.unit.sample import Chain

from stepwell import Stepwell
from stepwell.model.execution_state import State
from stepwell.state.executions import CachedExecution, ExecutionCache
from stepwell.testing.store_access import parts_of


def live(execution_id: str, size: int = 1, receipt: str = "r") -> CachedExecution:
    state = State()
    state.size, state.receipt = size, receipt
    return CachedExecution(execution_id, "acme", state)


def at_hand(states: ExecutionCache, *names: str) -> list[str]:
    return [name for name in names if states.get(name) is not None]


def test_the_least_used_goes_when_there_are_too_many() -> None:
    states = ExecutionCache(most=2)
    states.put(live("a"))
    states.put(live("b"))
    states.get("a")
    states.put(live("c"))
    assert at_hand(states, "a", "b", "c") == ["a", "c"]


def test_the_least_used_goes_when_they_are_too_large() -> None:
    states = ExecutionCache(most_bytes=100)
    for name in "abc":
        states.put(live(name, 40))
    assert at_hand(states, "a", "b", "c") == ["b", "c"]
    states.forget("b")
    states.put(live("d", 60))
    assert at_hand(states, "c", "d") == ["c", "d"]


def test_a_single_state_stays_however_large() -> None:
    states = ExecutionCache(most_bytes=10)
    states.put(live("a", 1_000))
    assert at_hand(states, "a") == ["a"]
    states.put(live("b", 1))
    assert at_hand(states, "a", "b") == ["b"]


def test_oldest_ended_execution_is_evicted_and_the_others_stay() -> None:
    states = ExecutionCache(most_over=2)
    for name in "abcd":
        states.put(live(name))
    for name in "bcd":
        states.retire(name)
    assert at_hand(states, "a", "b", "c", "d") == ["a", "c", "d"]


def test_commit_that_ends_an_execution_retires_its_state() -> None:
    with Stepwell("memory://") as well:
        executions = parts_of(well).executions
        executions._live = ExecutionCache(most_over=0)
        for name in ("open", "over"):
            well.create(name)
            with well.transaction(name) as transaction:
                transaction.set_status("RUNNING")
        with well.transaction("over") as transaction:
            transaction.set_status("COMPLETED")
        assert [executions.at_hand(name) is not None for name in ("open", "over")] == [True, False]
        assert well.load("over").status == "COMPLETED"


def test_second_object_of_the_same_revision_is_not_taken() -> None:
    states = ExecutionCache()
    first = states.put(live("a"))
    assert states.put(live("a")) is first
    newer = live("a", receipt="s")
    assert states.put(newer) is newer
    assert states.get("a") is newer


def test_replacing_does_not_count_the_size_twice() -> None:
    states = ExecutionCache(most_bytes=100)
    states.put(live("b", 30))
    for number in range(10):
        states.put(live("a", 60, receipt=str(number)))
    assert at_hand(states, "a", "b") == ["a", "b"]


def test_what_is_forgotten_is_gone_and_may_be_forgotten_twice() -> None:
    states = ExecutionCache()
    states.put(live("a"))
    states.forget("a")
    states.forget("a")
    assert states.get("a") is None


def test_threads_may_use_it_freely() -> None:
    states, errors = ExecutionCache(most=5), []

    def work(number: int) -> None:
        try:
            for turn in range(300):
                name = str((turn * 7 + number) % 11)
                states.put(CachedExecution(name, "acme", Chain(name).state) if turn % 50 == 0 else live(name, turn, str(turn)))
                states.get(name)
                states.forget(str(turn % 11))
        except BaseException as error:  # noqa: BLE001 - the test fails on whatever it was
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(at_hand(states, *map(str, range(11)))) <= 5

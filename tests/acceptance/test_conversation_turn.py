"""Turns: one at a time on a conversation; state and history are saved together, or not at all."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from tests.acceptance.conftest import OpenWell
from tests.acceptance.faces import Awaited
from tests.support import store_urls

from stepwell import (
    Answer,
    AsyncStepwell,
    CommitUnknown,
    FakeClock,
    InvalidInput,
    LeaseLost,
    LimitExceeded,
    Limits,
    LockHeld,
    Stepwell,
    Turn,
)
from stepwell.fault_points import armed
from stepwell.model.commit import Acquire, Written
from stepwell.model.lock import conversation_lock
from stepwell.model.scope import internal_path
from stepwell.model.value import canonical
from stepwell.state import conversations
from stepwell.testing.store_access import store_under, write_unit

url = store_urls.url

MINUTE = timedelta(minutes=1)
LONG = 60
"""Seconds that a test waits for what must happen soon; reached only if it fails."""

Run = Callable[[dict[str, Any], Any], Any]


def take_turn(well: Stepwell, run: Run, message: Any = None, conversation_id: str = "c", **options: Any) -> Any:
    """One turn; for a face that awaits, the function is made one that is awaited."""

    async def awaited(state: dict[str, Any], message: Any) -> Any:
        return run(state, message)

    function: Any = awaited if isinstance(well, Awaited) else run
    return well.conversations.turn(conversation_id, function, message, **options)


def echo(state: dict[str, Any], message: Any) -> Answer:
    return Answer(message)


def picture(well: Stepwell, conversation_id: str = "c") -> object:
    """All that can be seen of a conversation."""
    return (
        well.conversations.get(conversation_id),
        well.conversations.history(conversation_id),
        well.conversations.of_user("ada"),
        well.conversations.of_user("bob"),
    )


def is_free(well: Stepwell, conversation_id: str = "c") -> bool:
    lock = well.conversations.lock(conversation_id)
    try:
        lock.acquire()
    except LockHeld:
        return False
    return lock.release()


def test_a_turn_gets_the_state_and_the_message_and_saves_what_it_collected(well: Stepwell, clock: FakeClock) -> None:
    well.conversations.set("c", {"name": "Ada", "cart": ["pen"]})
    seen: list[Any] = []

    def run(state: dict[str, Any], message: Any) -> Answer:
        seen.append((state, message))
        return Answer("added", {"cart": [*state["cart"], message]}, progress=0.5)

    result = take_turn(well, run, "ink")
    assert seen == [({"name": "Ada", "cart": ["pen"]}, "ink")]
    assert result.reply == "added"
    assert result.state == {"name": "Ada", "cart": ["pen", "ink"]} == well.conversations.get("c")
    assert result.progress == 0.5
    assert well.conversations.history("c") == [result.turn]


def test_a_turn_begins_a_conversation_that_is_not_there(well: Stepwell) -> None:
    result = take_turn(well, lambda state, message: Answer("hi", {"was": state}), user="ada")
    assert result.state == {"was": {}}
    assert [summary.conversation_id for summary in well.conversations.of_user("ada")] == ["c"]


def test_a_turn_says_when_it_was_how_long_it_took_and_which_one_it_is(well: Stepwell, clock: FakeClock) -> None:
    turns: list[Turn] = []
    for number in range(1, 4):
        clock.advance(60)
        turns.append(take_turn(well, echo, {"n": number}).turn)
    # A server's clock goes on beside the test's.
    assert all(MINUTE <= later.at - turn.at < 2 * MINUTE for turn, later in itertools.pairwise(turns))
    assert [turn.number for turn in turns] == [1, 2, 3]
    assert [turn.message for turn in turns] == [turn.reply for turn in turns] == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert all(type(turn.duration_ms) is int and turn.duration_ms >= 0 for turn in turns)
    assert well.conversations.history("c") == turns


def test_the_time_a_turn_takes_is_measured(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(conversations, "monotonic", lambda: now)

    def run(state: dict[str, Any], message: Any) -> Answer:
        nonlocal now
        now += 1.25
        return Answer()

    with Stepwell(url) as well:
        assert well.conversations.turn("c", run).turn.duration_ms == 1250


def test_history_goes_on_over_many_chunks_and_none_is_lost(well: Stepwell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "_CHUNK_TURNS", 3)
    for number in range(10):
        take_turn(well, echo, number)
    assert [turn.message for turn in well.conversations.history("c")] == list(range(10))
    assert [turn.number for turn in well.conversations.history("c")] == list(range(1, 11))
    assert [turn.message for turn in well.conversations.history("c", limit=4)] == [6, 7, 8, 9]
    assert well.conversations.history("c", limit=0) == []
    assert len(well.conversations.history("c", limit=99)) == 10
    chunks = store_under(well).scan(internal_path("conversation_record", "default", "c"), prefix="history/")
    assert len(chunks) == 4


def test_a_long_message_after_short_ones_fits_if_it_fits_alone(well: Stepwell) -> None:
    messages = ["a" * 64_000, "b" * 200_000, "c" * 64_000, "d"]
    for message in messages:
        take_turn(well, lambda state, message: Answer(), message)
    assert [turn.message for turn in well.conversations.history("c")] == messages


def test_history_goes_on_in_a_well_of_small_values(open_well: OpenWell, url: str) -> None:
    well = open_well(url, limits=Limits(value_bytes=2_000))
    messages = [str(number) * 50 for number in range(10, 70)]
    for message in messages:
        take_turn(well, lambda state, message: Answer(), message)
    assert [turn.message for turn in well.conversations.history("c")] == messages


def test_history_goes_on_after_the_limit_of_values_was_lowered(open_well: OpenWell, file_url: str) -> None:
    large, small = open_well(file_url), open_well(file_url, limits=Limits(value_bytes=2_000))
    take_turn(large, echo, "a" * 3_000)
    take_turn(small, echo, "b")
    assert [turn.message for turn in small.conversations.history("c")] == ["a" * 3_000, "b"]


@pytest.mark.parametrize("spare", [-1, 0, 1])
def test_a_chunk_is_filled_up_to_the_limit_of_values_and_no_further(spare: int) -> None:
    chunk, record = ["a" * 100], "b" * 100
    limits = Limits(value_bytes=len(canonical([*chunk, record])) + spare)
    full = ([*chunk, record], 7) if spare >= 0 else ([record], 8)
    assert conversations._append(chunk, 7, record, limits) == full


def test_a_message_over_the_limit_is_refused_before_the_function_runs(well: Stepwell) -> None:
    """T43."""
    ran: list[Any] = []
    with pytest.raises(LimitExceeded, match="the message"):
        take_turn(well, lambda state, message: ran.append(message), "a" * 300_000)
    assert ran == []
    assert well.conversations.history("c") == []


def test_a_message_that_json_would_change_is_refused_before_the_function_runs(well: Stepwell) -> None:
    """T45: the history gives back what was said, or it never took it."""
    ran: list[Any] = []
    for message in (b"bytes", (1, 2), {1: 2}, float("nan"), object):
        with pytest.raises(InvalidInput, match="the message"):
            take_turn(well, lambda state, message: ran.append(message), message)
    assert ran == []


BAD_ANSWERS: dict[str, Any] = {
    "none": None,
    "text": "hello",
    "dict": {"reply": "hello"},
    "bytes in the reply": Answer(b"x"),
    "a tuple in the reply": Answer([(1, 2)]),
    "bytes in what was collected": Answer("x", {"k": b"x"}),
    "no dict collected": Answer("x", ["k"]),  # type: ignore[arg-type]
    "a number as a key": Answer("x", {1: 2}),  # type: ignore[dict-item]
    "progress above one": Answer("x", progress=1.5),
    "progress below none": Answer("x", progress=-0.1),
    "progress that is no number": Answer("x", progress="half"),  # type: ignore[arg-type]
    "progress that is true": Answer("x", progress=True),
    "progress that is NaN": Answer("x", progress=float("nan")),
}


def test_an_answer_that_cannot_be_kept_leaves_everything_unchanged(well: Stepwell) -> None:
    take_turn(well, echo, "before", user="ada")
    before = picture(well)
    for name, answer in BAD_ANSWERS.items():
        with pytest.raises(InvalidInput):
            take_turn(well, lambda state, message, answer=answer: answer, "after", user="bob")
        assert picture(well) == before, name
    assert is_free(well)


def test_a_function_that_fails_leaves_everything_unchanged(well: Stepwell) -> None:
    take_turn(well, lambda state, message: Answer("r", {"list": [1]}), "before", user="ada")
    before = picture(well)

    def run(state: dict[str, Any], message: Any) -> Answer:
        state["list"].append(2)
        state["other"] = 1
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        take_turn(well, run, "after", user="bob")
    assert picture(well) == before
    assert is_free(well)


def test_what_the_function_does_to_its_copy_of_the_state_is_not_saved(well: Stepwell) -> None:
    well.conversations.set("c", {"list": [1]})

    def run(state: dict[str, Any], message: Any) -> Answer:
        state["list"].append(2)
        return Answer("r", {"new": True})

    assert take_turn(well, run).state == {"list": [1], "new": True} == well.conversations.get("c")


class Boom(Exception):
    """A failure in the middle of the save."""


def save_points(url: str) -> list[tuple[str, int]]:
    """Every point that the save of a turn passes, with how many times it was passed by then."""
    passed: list[str] = []
    with Stepwell(url, worker=False) as well, armed(passed.append):

        def run(state: dict[str, Any], message: Any) -> Answer:
            passed.clear()
            return Answer("r", {"k": 1})

        well.conversations.turn("first", run, "m", user="ada")
    passed = passed[: passed.index("store.committed") + 1]  # what follows is the release of the lock
    return [(point, passed[: index + 1].count(point)) for index, point in enumerate(passed)]


def test_state_and_history_are_saved_together_wherever_it_fails(url: str, clock: FakeClock) -> None:
    """T01: at every point of the save; neither or both, and the lock is free again or ends by itself."""
    points = save_points(url)
    assert {"store.before_begin", "store.committed"} <= {point for point, _ in points}
    with Stepwell(url, clock=clock, worker=False) as well:
        for index, (point, hit) in enumerate(points):
            conversation_id = f"c{index}"
            outcome = _fail_at(well, conversation_id, point, hit)
            saved = (
                well.conversations.get(conversation_id),
                [turn.message for turn in well.conversations.history(conversation_id)],
                any(each.conversation_id == conversation_id for each in well.conversations.of_user("ada")),
            )
            assert saved in ((None, [], False), ({"k": 1}, ["m"], True)), (point, hit)
            assert (saved[0] is not None) == (outcome is not Boom), (point, hit)
            clock.advance(31)
            assert is_free(well, conversation_id)


def _fail_at(well: Stepwell, conversation_id: str, point: str, hit: int) -> type[BaseException] | None:
    """Take a turn whose save fails at one hit of one point; what came of it."""
    is_saving, hits = False, 0

    def run(state: dict[str, Any], message: Any) -> Answer:
        nonlocal is_saving
        is_saving = True
        return Answer("r", {"k": 1})

    def hook(name: str) -> None:
        nonlocal hits
        if is_saving and name == point:
            hits += 1
            if hits == hit:
                raise Boom

    try:
        with armed(hook):
            well.conversations.turn(conversation_id, run, "m", user="ada")
    except (Boom, CommitUnknown) as error:
        return type(error)
    return None


def test_a_lock_lost_during_a_slow_turn_saves_nothing(well: Stepwell, clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    """T20, T26: somebody else has the conversation; their turn stands, and their lock."""
    take_turn(well, echo, "before", user="ada")
    before = picture(well)

    def run(state: dict[str, Any], message: Any) -> Answer:
        clock.advance(31)
        taken = write_unit(well, Acquire(conversation_lock("c", "default"), "another", 3600))
        assert isinstance(taken, Written)
        return Answer("late", {"k": "late"})

    with pytest.raises(LeaseLost):
        take_turn(well, run, "slow", user="bob")
    assert picture(well) == before
    assert "had expired before it was given back" in caplog.text
    assert not is_free(well)


def test_a_slow_turn_that_nobody_followed_is_saved(well: Stepwell, clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    def run(state: dict[str, Any], message: Any) -> Answer:
        clock.advance(31)
        return Answer("late", {"k": "late"})

    assert take_turn(well, run, "slow").state == {"k": "late"} == well.conversations.get("c")
    assert "had expired before it was given back" in caplog.text


def test_a_turn_waits_for_the_one_before(url: str, clock: FakeClock) -> None:
    with Stepwell(url, clock=clock) as well, ThreadPoolExecutor(2) as threads:
        inside, go_on, ran = threading.Event(), threading.Event(), list[Any]()

        def slow(state: dict[str, Any], message: Any) -> Answer:
            inside.set()
            assert go_on.wait(LONG)
            ran.append(message)
            return Answer("r", {"first": True})

        def quick(state: dict[str, Any], message: Any) -> Answer:
            ran.append(message)
            return Answer("r", {"second": state})

        first = threads.submit(well.conversations.turn, "c", slow, "first")
        assert inside.wait(LONG)
        with pytest.raises(LockHeld):
            well.conversations.turn("c", quick, "too early", timeout=0)
        second = threads.submit(well.conversations.turn, "c", quick, "second")
        go_on.set()
        first.result(LONG)
        assert second.result(LONG).state == {"first": True, "second": {"first": True}}
        assert ran == ["first", "second"]


def test_a_turn_that_cannot_have_the_conversation_does_not_run(well: Stepwell) -> None:
    ran: list[Any] = []
    with well.conversations.lock("c"):
        for timeout in (0, 0.01):
            with pytest.raises(LockHeld, match=r"'c' (is|was) held by another"):
                take_turn(well, lambda state, message: ran.append(message), timeout=timeout)
    assert ran == []


def test_conversations_do_not_wait_for_each_other(url: str, clock: FakeClock) -> None:
    """T26: eight turns are under way at the same time, and none could go on alone."""
    gate = threading.Barrier(8, timeout=LONG)

    def run(state: dict[str, Any], message: Any) -> Answer:
        gate.wait()
        return Answer(message)

    with Stepwell(url, clock=clock) as well, ThreadPoolExecutor(8) as threads:
        turns = [threads.submit(well.conversations.turn, f"c{number}", run, number) for number in range(8)]
        assert [turn.result(LONG).reply for turn in turns] == list(range(8))


def test_tasks_take_their_turns_one_after_the_other(url: str, clock: FakeClock) -> None:
    async def main() -> None:
        async with AsyncStepwell(url, clock=clock) as well:
            inside = 0

            async def run(state: dict[str, Any], message: Any) -> Answer:
                nonlocal inside
                inside += 1
                assert inside == 1
                await asyncio.sleep(0)
                inside -= 1
                return Answer(message, {"seen": [*state.get("seen", []), message]})

            await asyncio.gather(*(well.conversations.turn("c", run, number) for number in range(12)))
            state, history = await well.conversations.get("c"), await well.conversations.history("c")
            assert sorted(state["seen"]) == list(range(12))
            assert [turn.message for turn in history] == state["seen"]

    asyncio.run(main())


def test_a_cancelled_turn_saves_nothing_and_lets_the_next_one_in(url: str, clock: FakeClock) -> None:
    async def main() -> None:
        async with AsyncStepwell(url, clock=clock) as well:
            inside = asyncio.Event()

            async def hang(state: dict[str, Any], message: Any) -> Answer:
                inside.set()
                await asyncio.Event().wait()
                raise AssertionError

            async def answer(state: dict[str, Any], message: Any) -> Answer:
                return Answer(message, {"k": message})

            task = asyncio.create_task(well.conversations.turn("c", hang, "first"))
            await inside.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            result = await well.conversations.turn("c", answer, "second", timeout=0)
            assert result.turn.number == 1
            assert await well.conversations.get("c") == {"k": "second"}

    asyncio.run(main())


def test_turn_inside_a_turn_of_the_same_conversation_is_refused_at_once(url: str) -> None:
    """It would wait for the lock that the outer one holds until it ends."""
    with Stepwell(url, worker=False) as well:

        def nested(state: dict[str, Any], message: Any) -> Answer:
            with pytest.raises(InvalidInput, match=r"'c' is under way.*wait for itself"):
                well.conversations.turn("c", echo, "inner")
            return Answer(well.conversations.turn("another", echo, message).reply)

        assert well.conversations.turn("c", nested, "outer").reply == "outer"
        assert well.conversations.turn("c", echo, "next").turn.number == 2


def test_awaited_turn_inside_a_turn_of_the_same_conversation_is_refused_at_once(url: str) -> None:
    async def main() -> None:
        async with AsyncStepwell(url, worker=False) as well:

            async def answer(state: dict[str, Any], message: Any) -> Answer:
                return Answer(message)

            async def nested(state: dict[str, Any], message: Any) -> Answer:
                with pytest.raises(InvalidInput, match=r"'c' is under way.*wait for itself"):
                    await well.conversations.turn("c", answer, "inner")
                with pytest.raises(InvalidInput, match=r"'c' is under way.*wait for itself"):
                    await asyncio.gather(well.conversations.turn("c", answer, "inner"))
                return Answer((await well.conversations.turn("another", answer, message)).reply)

            assert (await well.conversations.turn("c", nested, "outer")).reply == "outer"

    asyncio.run(asyncio.wait_for(main(), LONG))


def test_task_that_outlives_the_turn_that_started_it_takes_a_turn(url: str) -> None:
    async def main() -> int:
        async with AsyncStepwell(url, worker=False) as well:
            is_over, later = asyncio.Event(), list[asyncio.Task[Any]]()

            async def answer(state: dict[str, Any], message: Any) -> Answer:
                return Answer(message)

            async def another() -> int:
                await is_over.wait()
                return (await well.conversations.turn("c", answer, "later")).turn.number

            async def starting(state: dict[str, Any], message: Any) -> Answer:
                later.append(asyncio.create_task(another()))
                return Answer(message)

            await well.conversations.turn("c", starting, "now")
            is_over.set()
            return await asyncio.wait_for(later[0], LONG)

    assert asyncio.run(main()) == 2


def test_refusal_of_a_turn_names_the_conversation_and_how_long_was_waited(well: Stepwell) -> None:
    with well.conversations.lock("c"):
        with pytest.raises(LockHeld, match=r"^conversation 'c' was held by another for 0\.05 s; try again later"):
            take_turn(well, echo, timeout=0.05)
        with pytest.raises(LockHeld, match=r"^conversation 'c' is held by another; try again later, or give a timeout"):
            take_turn(well, echo, timeout=0)

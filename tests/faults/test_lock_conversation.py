"""T26: a conversation under load. Turns in strict order and none lost; others are not held up; nothing is left behind."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.faults.children import Child
from tests.faults.killed_conversation import reply
from tests.support import store_urls

from stepwell import Answer, FakeClock, LockHeld, Stepwell, SystemClock
from stepwell.pipeline.notifications import LOCK
from stepwell.stores.memory import MemoryStore
from stepwell.testing.store_access import parts_of, store_under

url = store_urls.url

MESSAGES = 200
OTHERS = 300
HOUR = 3600.0


@pytest.fixture
def well(url: str, clock: FakeClock) -> Iterator[Stepwell]:
    with Stepwell(url, clock=clock, worker=False) as well:
        yield well


def rows(well: Stepwell, url: str) -> dict[str, int]:
    """How many rows there are of what a conversation makes, where that can be counted."""
    store: Any = store_under(well)
    if isinstance(store, MemoryStore):
        return {"locks": len(store._locks._held), "entries": sum(len(each) for each in store._entries.rows.values())}
    if url.startswith("sqlite:"):
        db = apsw.Connection(url.removeprefix("sqlite:///").partition("?")[0])
        counts = {table: db.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0] for table in ("locks", "state_entries")}
        db.close()
        return {"locks": counts["locks"], "entries": counts["state_entries"]}
    return {}


def test_messages_of_one_conversation_are_answered_one_after_the_other(well: Stepwell, url: str, clock: FakeClock) -> None:
    """T26: 200 messages from 8 threads; what each turn saw is all that came before it."""
    before = rows(well, url)
    with ThreadPoolExecutor(8) as threads:
        turns = list(threads.map(lambda number: well.conversations.turn("c", reply, number, user="ada"), range(MESSAGES)))
    history = well.conversations.history("c")
    assert [turn.number for turn in history] == list(range(1, MESSAGES + 1))
    assert sorted(turn.message for turn in history) == list(range(MESSAGES))
    assert well.conversations.get("c") == {"seen": [turn.message for turn in history]}
    for turn in turns:
        assert turn.state["seen"] == [each.message for each in history[: turn.turn.number]]
    assert parts_of(well).lock_renewal.count == 0
    assert LOCK not in parts_of(well).notifications.topics
    well.conversations.delete("c")
    clock.advance(2 * HOUR)
    well.state.sweep()
    assert rows(well, url) == before
    assert well.state.scopes() == []


def test_other_conversations_go_on_while_one_is_slow(well: Stepwell, url: str, clock: FakeClock) -> None:
    """T26: one turn takes its time for as long as 300 others need; then everything is as it was."""
    before = rows(well, url)
    inside, go_on = threading.Event(), threading.Event()

    def slow(state: dict[str, Any], message: Any) -> Answer:
        inside.set()
        assert go_on.wait(60)
        return reply(state, message)

    with ThreadPoolExecutor(8) as threads:
        waiting = threads.submit(well.conversations.turn, "slow", slow, "x", user="ada")
        assert inside.wait(60)
        names = [f"c{number}" for number in range(OTHERS)]
        turns = list(threads.map(lambda name: well.conversations.turn(name, reply, name, user="ada", timeout=0), names))
        assert not waiting.done()
        go_on.set()
        waiting.result(60)
    assert [turn.reply for turn in turns] == names
    assert len(well.conversations.of_user("ada")) == OTHERS + 1
    if before:
        assert rows(well, url)["locks"] == before["locks"]
    with well.conversations.lock("slow"):
        pass
    clock.advance(25 * HOUR)
    swept = well.state.sweep()
    while more := well.state.sweep():
        swept += more
    assert swept == 4 * (OTHERS + 1)
    assert well.state.scopes() == []
    clock.advance(2 * HOUR)
    for _ in range(8):
        well.state.sweep()
    assert rows(well, url) == before


@pytest.mark.parametrize(
    ("point", "hit", "saved"),
    [
        ("store.before_begin", 1, False),
        ("store.entry_written", 1, False),
        ("store.entry_written", 3, False),
        ("store.scope_written", 2, False),
        ("store.before_commit", 1, False),
        ("store.committed", 1, True),
    ],
)
def test_a_turn_killed_in_its_save_is_saved_whole_or_not_at_all(point: str, hit: int, saved: bool, tmp_path: Path) -> None:
    """T01, T26: state and history agree, and once its lease is over the next turn goes on from there."""
    url = f"sqlite:///{tmp_path}/well.db"
    with Child("killed_conversation", url, point, hit) as child:
        assert child.hear() == ""
        assert child.end() == -signal.SIGKILL
    messages = ["first", "second"] if saved else ["first"]
    later = FakeClock(SystemClock().now())
    with Stepwell(url) as well, Stepwell(url, clock=later) as successor:
        assert well.conversations.get("c") == {"seen": messages}
        assert [turn.message for turn in well.conversations.history("c")] == messages
        with pytest.raises(LockHeld):
            well.conversations.turn("c", reply, "third", timeout=0)
        later.advance(31)
        turn = successor.conversations.turn("c", reply, "third", timeout=0)
        assert turn.state == {"seen": [*messages, "third"]}
        assert turn.turn.number == len(messages) + 1


def test_a_conversation_that_ended_leaves_nothing_that_can_be_read(well: Stepwell, clock: FakeClock) -> None:
    """T26: not in the scope, not in the user's list."""
    well.conversations.turn("c", reply, "x", user="ada")
    clock.advance(25 * HOUR)
    assert well.conversations.get("c") is None
    assert well.conversations.history("c") == []
    assert well.conversations.of_user("ada") == []

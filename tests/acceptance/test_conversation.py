"""Conversations: a state that lives for a day after its last use, checked when it is read, and found by its user."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec
import pydantic
import pytest
from tests.acceptance.conftest import OpenWell
from tests.acceptance.faces import Awaited
from tests.support import store_urls

from stepwell import Answer, Conflict, FakeClock, HeldLock, InvalidInput, LeaseLost, LockHeld, Scope, Stepwell
from stepwell.fault_points import armed
from stepwell.model.commit import StateBatch
from stepwell.model.scope import internal_path
from stepwell.model.scoped_operations import Touch
from stepwell.state import conversations
from stepwell.testing.store_access import store_under, write_unit

url = store_urls.url

HOUR = 3600.0
DAY = 24 * HOUR


RECORD = internal_path("conversation_record", "default", "c")


def say(well: Stepwell, conversation_id: str, message: Any = "hello", **options: Any) -> Any:
    """One turn that replies with what was said."""

    def reply(state: dict[str, Any], message: Any) -> Answer:
        return Answer(message, {"said": message})

    async def reply_async(state: dict[str, Any], message: Any) -> Answer:
        return reply(state, message)

    run: Any = reply_async if isinstance(well, Awaited) else reply
    return well.conversations.turn(conversation_id, run, message, **options)


def users(well: Stepwell, user: str = "ada") -> list[str]:
    return [summary.conversation_id for summary in well.conversations.of_user(user)]


def test_what_was_set_can_be_read(well: Stepwell) -> None:
    state = {"cart": ["pen", {"ink": 2}], "step": None, "näme": "Ä"}
    well.conversations.set("c", state)
    assert well.conversations.get("c") == state
    well.conversations.set("c", {"cart": []})
    assert well.conversations.get("c") == {"cart": []}


def test_a_conversation_that_is_not_there_is_none(well: Stepwell) -> None:
    assert well.conversations.get("c") is None
    assert well.conversations.get("c", type=Cart) is None
    assert well.conversations.history("c") == []
    assert well.conversations.delete("c") is False
    assert well.conversations.of_user("ada") == []


def test_a_deleted_conversation_is_forgotten_with_all_that_belongs_to_it(well: Stepwell) -> None:
    say(well, "c", user="ada")
    well.conversations.set("other", {"k": 1}, user="ada")
    assert well.conversations.delete("c") is True
    assert well.conversations.get("c") is None
    assert well.conversations.history("c") == []
    assert users(well) == ["other"]
    assert well.conversations.delete("c") is False
    assert say(well, "c").turn.number == 1


def test_a_state_is_a_dict(well: Stepwell) -> None:
    for state in (None, [], "text", 7, [("k", 1)]):
        with pytest.raises(InvalidInput, match="the state of a conversation is a dict"):
            well.conversations.set("c", state)  # type: ignore[arg-type]
    assert well.conversations.get("c") is None


def test_a_state_that_json_cannot_keep_is_refused(well: Stepwell) -> None:
    well.conversations.set("c", {"k": 1})
    for state in ({"k": b"x"}, {"k": float("nan")}, {1: 2}, {"k": {2}}):
        with pytest.raises(InvalidInput, match="the state of the conversation"):
            well.conversations.set("c", state)  # type: ignore[arg-type]
    assert well.conversations.get("c") == {"k": 1}


USES: dict[str, Callable[[Stepwell], object]] = {
    "set": lambda well: well.conversations.set("c", {"k": 2}, user="ada"),
    "turn": lambda well: say(well, "c"),
    "get": lambda well: well.conversations.get("c"),
    "get with a type": lambda well: well.conversations.get("c", type=dict),
    "history": lambda well: well.conversations.history("c"),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_every_use_starts_the_day_anew_for_all_of_a_conversation(
    well: Stepwell, clock: FakeClock, use: Callable[[Stepwell], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state without its history, or in no user's list, would be half a conversation: its parts end together."""
    monkeypatch.setattr(conversations, "_CHUNK_TURNS", 1)
    for message in "abc":
        say(well, "c", message, user="ada")
    for _ in range(3):
        clock.advance(23 * HOUR)
        use(well)
    clock.advance(23 * HOUR)
    assert well.conversations.get("c") is not None
    assert [turn.message for turn in well.conversations.history("c")][:3] == ["a", "b", "c"]
    assert users(well) == ["c"]
    clock.advance(DAY + 1)
    assert well.conversations.get("c") is None
    assert well.conversations.history("c") == []
    assert users(well) == []


def test_an_unused_conversation_ends_after_a_day(well: Stepwell, clock: FakeClock) -> None:
    well.conversations.set("c", {"k": 1}, user="ada")
    clock.advance(DAY - 10)
    assert users(well) == ["c"], "a look at the list is no use of its conversations"
    clock.advance(11)
    assert users(well) == []
    assert well.conversations.get("c") is None
    assert well.conversations.delete("c") is False


def test_a_conversation_lasts_as_long_as_it_is_told(well: Stepwell, clock: FakeClock) -> None:
    brief = well.conversations.lasting(timedelta(minutes=1))
    brief.set("c", {"k": 1})
    well.conversations.set("long", {"k": 1})
    clock.advance(40)
    assert brief.get("c") == {"k": 1}
    clock.advance(40)
    assert well.conversations.get("c") == {"k": 1}, "a read starts the minute anew, through whichever object"
    clock.advance(61)
    assert brief.get("c") is None
    assert well.conversations.get("long") == {"k": 1}


WRITES: dict[str, Callable[[Stepwell, Any], object]] = {
    "set": lambda well, lasting: lasting.set("c", {"k": 2}),
    "turn": lambda well, lasting: lasting.turn("c", _silent(well), "d"),
}


def _silent(well: Stepwell) -> Any:
    async def silent_async(state: dict[str, Any], message: Any) -> Answer:
        return Answer()

    return silent_async if isinstance(well, Awaited) else lambda state, message: Answer()


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_all_of_a_conversation_takes_the_ttl_of_its_last_write(
    well: Stepwell, clock: FakeClock, write: Callable[[Stepwell, Any], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversations, "_CHUNK_TURNS", 1)
    for message in "abc":
        well.conversations.lasting(60).turn("c", _silent(well), message, user="ada")
    write(well, well.conversations)
    clock.advance(23 * HOUR)
    assert users(well) == ["c"]
    assert well.conversations.get("c") is not None
    assert [turn.message for turn in well.conversations.history("c")][:3] == ["a", "b", "c"]
    write(well, well.conversations.lasting(60))
    clock.advance(61)
    assert store_under(well).scan(RECORD) == [], "no part outlives the others"
    assert well.conversations.get("c") is None
    assert well.conversations.history("c") == []
    assert users(well) == []
    say(well, "c", "new")
    assert [(turn.number, turn.message) for turn in well.conversations.history("c")] == [(1, "new")]


def test_what_outlived_its_conversation_does_not_come_back_with_a_new_one(
    well: Stepwell, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part whose TTL was restarted without the others'."""
    monkeypatch.setattr(conversations, "_CHUNK_TURNS", 1)
    for message in ("old", "older"):
        say(well, "c", message)
    clock.advance(23 * HOUR)
    left = ["history/00000000", "history/00000001", "state"]
    write_unit(well, StateBatch(tuple(Touch(RECORD, key) for key in left)))
    clock.advance(2 * HOUR)
    assert [key for key, _ in store_under(well).scan(RECORD)] == left
    assert well.conversations.get("c") is None
    assert well.conversations.history("c") == []
    well.conversations.set("c", {})
    assert well.conversations.history("c") == []
    for count, message in enumerate(("new", "newer"), 1):
        result = say(well, "c", message)
        assert (result.turn.number, result.state) == (count, {"said": message})
        assert [turn.message for turn in well.conversations.history("c")] == ["new", "newer"][:count]


def test_a_turn_after_the_end_begins_without_what_was_left(well: Stepwell, clock: FakeClock) -> None:
    well.conversations.set("c", {"secret": 1})
    clock.advance(23 * HOUR)
    write_unit(well, StateBatch((Touch(RECORD, "state"),)))
    clock.advance(2 * HOUR)
    assert say(well, "c").state == {"said": "hello"}


def test_a_new_conversation_under_an_old_name_has_nothing_of_the_old_one(well: Stepwell, clock: FakeClock) -> None:
    say(well, "c", "old", user="ada")
    clock.advance(DAY + 1)
    assert say(well, "c", "new").turn.number == 1
    assert [turn.message for turn in well.conversations.history("c")] == ["new"]
    assert users(well) == []


@dataclass
class Cart:
    items: list[str]
    paid: bool = False


class CartStruct(msgspec.Struct):
    items: list[str]
    paid: bool = False


class CartModel(pydantic.BaseModel):
    items: list[str]
    paid: bool = False


KINDS: tuple[type[Any], ...] = (Cart, CartStruct, CartModel)


def test_a_state_is_checked_against_a_type_when_it_is_read(well: Stepwell) -> None:
    well.conversations.set("c", {"items": ["pen"]})
    for kind in KINDS:
        assert well.conversations.get("c", type=kind) == kind(items=["pen"], paid=False)


def test_a_state_that_does_not_fit_its_type_is_refused_with_the_place(well: Stepwell) -> None:
    for state in ({}, {"items": "pen"}, {"items": ["pen", 7]}, {"items": [], "paid": "perhaps"}):
        well.conversations.set("c", state)
        for kind in KINDS:
            with pytest.raises(InvalidInput, match=rf"(?s)the stored value is not a {kind.__name__}: .*(items|paid)"):
                well.conversations.get("c", type=kind)
        assert well.conversations.get("c") == state


def test_a_users_conversations_come_newest_first(well: Stepwell, clock: FakeClock) -> None:
    for name in ("a", "b", "c"):
        well.conversations.set(name, {"k": 1}, user="ada")
        clock.advance(1)
    well.conversations.set("other", {"k": 1}, user="bob")
    well.conversations.set("nobody's", {"k": 1})
    assert users(well) == ["c", "b", "a"]
    say(well, "a")
    assert users(well) == ["a", "c", "b"]
    moments = [summary.updated_at for summary in well.conversations.of_user("ada")]
    assert moments == sorted(moments, reverse=True)
    assert timedelta(seconds=1) <= moments[0] - moments[1] < timedelta(seconds=60)
    assert users(well, "bob") == ["other"]


KEYS_OF_RECORDS = ("about", "history/00000000", "state")


def test_keys_of_ones_own_never_meet_the_records_of_conversations(well: Stepwell) -> None:
    say(well, "c", user="ada")
    for key in KEYS_OF_RECORDS:
        well.state.conversation("c").set(key, "mine")
    well.state.at(Scope.of_user("ada")).set("x", "mine")
    assert users(well) == ["c"]
    assert well.conversations.get("c") == {"said": "hello"}
    assert [turn.number for turn in well.conversations.history("c")] == [1]
    well.conversations.delete("c")
    assert well.state.conversation("c").all() == dict.fromkeys(KEYS_OF_RECORDS, "mine")
    assert well.state.at(Scope.of_user("ada")).all() == {"x": "mine"}


def test_records_of_conversations_are_in_no_scope_of_the_list(well: Stepwell) -> None:
    say(well, "c", user="ada")
    assert well.state.scopes() == []


def test_a_conversation_keeps_its_user_until_it_gets_another(well: Stepwell) -> None:
    well.conversations.set("c", {"k": 1}, user="ada")
    well.conversations.set("c", {"k": 2})
    assert users(well) == ["c"]
    well.conversations.set("c", {"k": 3}, user="bob")
    assert (users(well, "ada"), users(well, "bob")) == ([], ["c"])
    say(well, "c", user="cid")
    assert (users(well, "bob"), users(well, "cid")) == ([], ["c"])
    well.conversations.delete("c")
    assert users(well, "cid") == []


def test_users_and_sessions_of_similar_names_do_not_meet(well: Stepwell) -> None:
    """T47."""
    for user in ("al", "alice", "al/ice", "al%2Fice", "al*"):
        well.conversations.set(f"of {user}", {"k": user}, user=user)
    for user in ("al", "alice", "al/ice", "al%2Fice", "al*"):
        assert users(well, user) == [f"of {user}"]
    assert users(well, "a") == []


def test_workspaces_are_apart(well: Stepwell) -> None:
    """T57: the same ids in another workspace are other conversations, of other users, with other locks."""
    acme = well.conversations.within("acme")
    well.conversations.set("c", {"of": "default"}, user="ada")
    acme.set("c", {"of": "acme"}, user="ada")
    acme.set("only here", {"of": "acme"}, user="ada")
    assert (well.conversations.get("c"), acme.get("c")) == ({"of": "default"}, {"of": "acme"})
    assert well.conversations.get("only here") is None
    assert users(well) == ["c"]
    assert {summary.conversation_id for summary in acme.of_user("ada")} == {"c", "only here"}
    with well.conversations.lock("c"), acme.lock("c"), pytest.raises(LockHeld):
        acme.lock("c").acquire()
    assert acme.delete("c") is True
    assert well.conversations.get("c") == {"of": "default"}


def test_lasting_and_within_go_together(well: Stepwell, clock: FakeClock) -> None:
    brief = well.conversations.lasting(60).within("acme")
    brief.set("c", {"k": 1})
    assert well.conversations.within("acme").get("c") == {"k": 1}
    clock.advance(61)
    assert brief.get("c") is None


def test_a_state_set_under_a_lock_needs_that_lock(well: Stepwell, clock: FakeClock) -> None:
    lock = well.conversations.lock("c", seconds=30)
    held: HeldLock = lock.acquire()
    well.conversations.set("c", {"k": 1}, lock=held)
    clock.advance(31)
    with well.conversations.lock("c"), pytest.raises(LeaseLost):
        well.conversations.set("c", {"k": 2}, user="ada", lock=held)
    assert well.conversations.get("c") == {"k": 1}
    assert users(well) == []


@store_urls.on_shared_stores
def test_conversations_are_those_of_the_store_and_not_of_the_well(open_well: OpenWell, url: str, clock: FakeClock) -> None:
    one, other = open_well(url, clock=clock), open_well(url, clock=clock)
    say(one, "c", "first", user="ada")
    say(other, "c", "second")
    assert [turn.message for turn in one.conversations.history("c")] == ["first", "second"]
    assert users(one) == users(other) == ["c"]


@store_urls.on_shared_stores
def test_a_set_that_meets_a_turn_of_another_well_loses_none_of_its_history(
    url: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The turn lands between what ``set`` reads and what it writes, and begins a new piece of the history."""
    monkeypatch.setattr(conversations, "_CHUNK_TURNS", 1)
    with Stepwell(url, clock=clock, worker=False) as one, Stepwell(url, clock=clock, worker=False) as other:
        say(one, "c", "first")
        pending = ["second"]

        def interfere(point: str) -> None:
            if point == "store.before_begin" and pending:
                say(other, "c", pending.pop())

        with armed(interfere):
            one.conversations.set("c", {"k": 1})
        say(one, "c", "third")
        assert [(turn.number, turn.message) for turn in one.conversations.history("c")] == [
            (1, "first"),
            (2, "second"),
            (3, "third"),
        ]
        assert one.conversations.get("c") == {"k": 1, "said": "third"}


def test_a_conversation_deleted_during_its_turn_stays_deleted(url: str, clock: FakeClock) -> None:
    """T07: what was to be forgotten does not come back with a late save."""
    with Stepwell(url, clock=clock) as well:
        say(well, "c", "secret", user="ada")

        def run(state: dict[str, Any], message: Any) -> Answer:
            well.conversations.delete("c")
            return Answer("late", {"k": 1})

        with pytest.raises(Conflict, match="'c' was saved or deleted during the turn"):
            well.conversations.turn("c", run)
        assert well.conversations.get("c") is None
        assert well.conversations.history("c") == []
        assert users(well) == []


def test_a_state_set_during_a_turn_is_not_overwritten_unseen(url: str, clock: FakeClock) -> None:
    with Stepwell(url, clock=clock) as well:

        def run(state: dict[str, Any], message: Any) -> Answer:
            well.conversations.set("c", {"paid": True})
            return Answer("late", {"paid": False})

        with pytest.raises(Conflict, match="nothing of the turn was saved"):
            well.conversations.turn("c", run)
        assert well.conversations.get("c") == {"paid": True}
        assert well.conversations.history("c") == []

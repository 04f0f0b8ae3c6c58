"""T03: a reply that was lost is an unknown commit, resolved by asking for its id."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.callers import CALLERS, Caller
from tests.faults.hooks import Boom, at
from tests.faults.invariants import check_chain

from stepwell import CommitUnknown, Receipt, Scope, StoreUnavailable
from stepwell.fault_points import armed
from stepwell.state.transaction_buffer import Buffer

_COUNTER = Scope.globals()
_RUNS = 200


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/well.db"


@pytest.fixture(params=list(CALLERS))
def caller(request: pytest.FixtureRequest, url: str) -> Iterator[Caller]:
    caller = CALLERS[request.param](url)
    caller.create("order", "creation")
    yield caller
    caller.close()


def count(tx: Buffer) -> None:
    tx.state(_COUNTER).increment("n")
    tx.increment_step_count()


def lose_reply() -> None:
    raise Boom


def counted(caller: Caller) -> tuple[object, int]:
    whole = caller.whole("order")
    assert whole is not None
    scope = whole.scopes.get(_COUNTER.path)
    return scope[1]["n"] if scope else 0, caller.load("order").step_count


def test_a_reply_lost_after_the_commit_is_unknown_by_its_id_and_the_lookup_finds_it(caller: Caller) -> None:
    """T03: CommitUnknown names the commit; the receipt of that id is the answer; a retry gives the same one."""
    pending = caller.begin("order", "pay-1", count)
    with armed(at("store.committed", 1, lose_reply)), pytest.raises(CommitUnknown) as unknown:
        pending.commit()
    assert (unknown.value.commit_id, unknown.value.execution_id) == ("pay-1", "order")
    found = caller.receipt("order", "pay-1")
    assert found is not None
    assert pending.commit() == caller.begin("order", "pay-1", count).commit() == found
    assert counted(caller) == (1, 1)


def test_an_unknown_commit_without_an_id_of_its_user_still_has_one_to_look_up(caller: Caller) -> None:
    """T03: the error carries the id that the transaction gave itself."""
    pending = caller.begin("order", None, count)
    with armed(at("store.committed", 1, lose_reply)), pytest.raises(CommitUnknown) as unknown:
        pending.commit()
    found = caller.receipt("order", unknown.value.commit_id)
    assert found is not None
    assert pending.commit() == caller.begin("order", unknown.value.commit_id, count).commit() == found
    assert counted(caller) == (1, 1)


def test_a_commit_that_was_lost_before_it_landed_is_not_found_by_its_id(caller: Caller) -> None:
    """T03: the other answer."""
    pending = caller.begin("order", "pay-1", count)
    with armed(at("store.before_commit", 1, lose_reply)), pytest.raises(Boom):
        pending.commit()
    assert caller.receipt("order", "pay-1") is None
    assert counted(caller) == (0, 0)
    assert pending.commit().commit_id == "pay-1"


def test_retrying_blindly_counts_each_commit_id_once(caller: Caller) -> None:
    """T03: 200 commits whose replies are lost at random, before or after landing, each retried until it is answered."""
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    choice = random.Random(seed)
    for number in range(_RUNS):
        tries = 0
        while not answered(caller, f"pay-{number}", choice):
            tries += 1
            assert tries < 100
    assert counted(caller) == (_RUNS, _RUNS)
    check_chain(caller, "order")


def answered(caller: Caller, commit_id: str, choice: random.Random) -> Receipt | None:
    point = choice.choice(
        ["commit.validated", "store.begun", "store.before_commit", "store.committed", "commit.persisted", "never"]
    )
    try:
        with armed(at(point, 1, lose_reply)):
            return caller.begin("order", commit_id, count).commit()
    except (Boom, CommitUnknown):
        return None


@pytest.mark.parametrize("commit_id", [f"r{number}.{'0' * 32}" for number in (3, 2, 0, 99999999999)] + ["r3.mine"])
def test_a_commit_id_that_looks_like_one_of_our_own_lands_once_too(caller: Caller, commit_id: str) -> None:
    """T03: a user may choose any id, even one in the form that transactions give themselves."""
    first = caller.begin("order", commit_id, count).commit()
    for number in range(5):
        caller.begin("order", f"other-{number}", count).commit()
        assert caller.begin("order", commit_id, count).commit() == first
        assert caller.receipt("order", commit_id) == first
    assert counted(caller) == (6, 6)


def test_every_caller_of_a_group_whose_reply_is_lost_is_told_its_own_commit_id(url: str) -> None:
    """T03: one lost transaction, many callers, each with the id to ask for."""
    import asyncio

    from stepwell import AsyncStepwell

    async def lose_a_group() -> None:
        async with AsyncStepwell(url) as well:
            for number in range(20):
                await well.create(f"order-{number}")

            async def pay(number: int) -> None:
                async with well.transaction(f"order-{number}", commit_id=f"pay-{number}") as tx:
                    tx.increment_step_count()

            with armed(lambda point: lose_reply() if point == "store.committed" else None):
                errors = await asyncio.gather(*(pay(number) for number in range(20)), return_exceptions=True)
            assert all(isinstance(error, CommitUnknown) for error in errors)
            assert [error.commit_id for error in errors if isinstance(error, CommitUnknown)] == [f"pay-{n}" for n in range(20)]
            for number in range(20):
                assert await well.receipt(f"order-{number}", f"pay-{number}") is not None

    asyncio.run(lose_a_group())


def test_state_outside_an_execution_whose_reply_is_lost_is_unknown_too(caller: Caller) -> None:
    """T03: there is no commit id to ask for, so the error says that it is not known."""
    from stepwell.model.commit import StateBatch
    from stepwell.model.scoped_operations import Increment

    with armed(at("store.committed", 1, lose_reply)), pytest.raises(CommitUnknown):
        caller.write(StateBatch((Increment(_COUNTER.path, "n"),)))
    with armed(at("store.before_commit", 1, lose_reply)), pytest.raises((Boom, StoreUnavailable)):
        caller.write(StateBatch((Increment(_COUNTER.path, "n"),)))
    assert counted(caller) == (1, 0)

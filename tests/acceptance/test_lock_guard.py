"""Guards: what is written under a lock lands while its fence is the newest, and never afterwards."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support import store_urls

from stepwell import Conflict, FakeClock, HeldLock, LeaseLost, Scope, Stepwell

url = store_urls.url

SHARED = Scope.globals()


def write_execution(well: Stepwell, held: HeldLock) -> None:
    with well.transaction("run", lock=held) as tx:
        tx.set_variable("by", held.fence)
        tx.state(SHARED).set("by", held.fence)


def write_state(well: Stepwell, held: HeldLock) -> None:
    with well.state.transaction(lock=held) as tx:
        tx.state(SHARED).set("by", held.fence)
        tx.state(Scope.custom("audit")).increment("writes")


def write_conversation(well: Stepwell, held: HeldLock) -> None:
    well.conversations.set("c", {"by": held.fence}, user="u", lock=held)


WRITES = {"transaction": write_execution, "state.transaction": write_state, "conversations.set": write_conversation}
Write = Callable[[Stepwell, HeldLock], None]


@pytest.fixture(params=WRITES)
def write(request: pytest.FixtureRequest) -> Write:
    return WRITES[request.param]


def everything(well: Stepwell) -> object:
    scopes = {scope.path: well.state.at(scope).all() for scope in well.state.scopes()}
    return well.load("run").revision, well.load("run").variables, scopes, well.conversations.get("c")


def test_a_guarded_write_lands_while_the_lock_is_held(well: Stepwell, write: Write) -> None:
    well.create("run")
    before = everything(well)
    with well.lock("door") as held:
        write(well, held)
        write(well, held)
    assert everything(well) != before


@pytest.mark.parametrize("loss", ["taken over", "released", "given to the next"])
def test_a_guarded_write_is_refused_after_the_loss(well: Stepwell, clock: FakeClock, write: Write, loss: str) -> None:
    """T20: and nothing of it is written."""
    well.create("run")
    lock = well.lock("door", seconds=30)
    held = lock.acquire()
    if loss == "taken over":
        clock.advance(31)
        well.lock("door").acquire()
    else:
        lock.release()
    if loss == "given to the next":
        well.lock("door").acquire()
    before = everything(well)
    with pytest.raises(LeaseLost, match="was lost; nothing was written") as refusal:
        write(well, held)
    assert refusal.value.fence == held.fence
    assert everything(well) == before


def test_the_fence_decides_and_not_the_time(well: Stepwell, clock: FakeClock, write: Write) -> None:
    """A holder that is late, but whom nobody has followed, does no harm."""
    well.create("run")
    held = well.lock("door", seconds=30).acquire()
    clock.advance(40)
    before = everything(well)
    write(well, held)
    assert everything(well) != before


def test_a_guard_stands_beside_the_revision(well: Stepwell) -> None:
    """A lock does not replace the order of commits: a second transaction from the same state is refused as ever."""
    well.create("run")
    with well.lock("door") as held:
        first, second = (well.transaction("run", lock=held).__enter__() for _ in range(2))
        first.set_variable("n", 1)
        second.set_variable("n", 2)
        first.commit()
        with pytest.raises(Conflict):
            second.commit()
    assert well.load("run").variables == {"n": 1}


def test_accepted_fences_never_decrease(well: Stepwell, clock: FakeClock) -> None:
    """I8: whoever has an older fence than the newest holder is refused, in any order."""
    held: list[HeldLock] = []
    accepted: list[int] = []
    for number in range(12):
        held.append(well.lock("door", seconds=30).acquire())
        clock.advance(31)
        for one in (held[-1], held[number // 2], held[-1]):
            try:
                write_state(well, one)
                accepted.append(one.fence)
            except LeaseLost:
                pass
    assert accepted == sorted(accepted)
    assert set(accepted) == {one.fence for one in held}
    assert well.state.globals.get("by") == held[-1].fence


def test_a_guarded_transaction_that_is_rolled_back_writes_nothing(well: Stepwell) -> None:
    def fail(held: HeldLock) -> None:
        with well.state.transaction(lock=held) as tx:
            tx.state(SHARED).set("k", 1)
            raise ZeroDivisionError

    with well.lock("door") as held, pytest.raises(ZeroDivisionError):
        fail(held)
    assert well.state.scopes() == []

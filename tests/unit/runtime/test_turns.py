"""While workers run, threads get the interpreter from each other sooner; afterwards all is as it was."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from stepwell import Stepwell, workflow
from stepwell.runtime.turns import TURN_SECONDS, quick_turns


@workflow(name="turns.tell")
async def tell() -> float:
    return sys.getswitchinterval()


@pytest.fixture(autouse=True)
def _as_python_has_it() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield
    sys.setswitchinterval(before)


def test_turns_are_quick_while_anybody_wants_it_and_not_after():
    with quick_turns():
        with quick_turns():
            assert sys.getswitchinterval() == pytest.approx(TURN_SECONDS)
        assert sys.getswitchinterval() == pytest.approx(TURN_SECONDS)
    assert sys.getswitchinterval() == pytest.approx(0.005)


def test_what_is_quicker_already_stays():
    sys.setswitchinterval(0.0005)
    with quick_turns():
        assert sys.getswitchinterval() == pytest.approx(0.0005)
    assert sys.getswitchinterval() == pytest.approx(0.0005)


def test_what_somebody_sets_meanwhile_stays():
    with quick_turns():
        sys.setswitchinterval(0.01)
    assert sys.getswitchinterval() == pytest.approx(0.01)


def test_worker_has_quick_turns_for_as_long_as_it_runs():
    with Stepwell("memory://") as well:
        assert well.start(tell).result(60) == pytest.approx(TURN_SECONDS)
    assert sys.getswitchinterval() == pytest.approx(0.005)

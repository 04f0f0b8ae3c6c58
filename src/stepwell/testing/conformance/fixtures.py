"""The fixtures of the suite. The author of a store gives one more, ``make_store``, and these follow from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from stepwell.clock import Clock, FakeClock
from stepwell.contract.store import Store
from stepwell.model.limits import Limits
from stepwell.pipeline.group_commit import GroupCommit
from stepwell.testing.conformance.samples import SampleExecution

__all__ = [
    "MakeStore",
    "OpenStore",
    "archiving_store",
    "clock",
    "committer",
    "execution",
    "make_shared_store",
    "open_store",
    "other_store",
    "small_store",
    "store",
]

MakeStore = Callable[[Clock, Limits], Store]
"""Gives a store, not opened yet, on a place that is empty when a test begins and stays the same for the whole test."""

OpenStore = Callable[..., Store]
"""Gives an opened store on the test's place; takes ``limits``, and closes the store after the test."""


@pytest.fixture
def clock() -> FakeClock:
    """Time, standing still until a test moves it on."""
    return FakeClock()


@pytest.fixture
def open_store(make_store: MakeStore, clock: FakeClock) -> Iterator[OpenStore]:
    """Opens stores on the place of this test."""
    opened: list[Store] = []

    def open_one(*, limits: Limits | None = None) -> Store:
        store = make_store(clock, limits or Limits())
        store.open()
        opened.append(store)
        return store

    yield open_one
    for store in reversed(opened):
        store.close()


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    """The store under test, opened and empty."""
    return open_store()


@pytest.fixture
def make_shared_store(make_store: MakeStore, clock: FakeClock) -> MakeStore:
    """``make_store`` of a store that many processes can open on one place; skips stores that cannot be shared."""
    if not make_store(clock, Limits()).capabilities().is_shared:
        pytest.skip("this store cannot be shared")
    return make_store


@pytest.fixture
def other_store(make_shared_store: MakeStore, store: Store, open_store: OpenStore) -> Store:
    """A second store on the same place, as another process would open it; skips stores that cannot be shared."""
    return open_store()


@pytest.fixture
def small_store(open_store: OpenStore) -> Store:
    """A store whose scopes hold no more than three keys and a hundred bytes."""
    return open_store(limits=Limits(scope_keys=3, scope_bytes=100))


@pytest.fixture
def archiving_store(store: Store) -> Store:
    """The store under test, if it archives; skips stores that do not."""
    if not store.capabilities().has_archiving:
        pytest.skip("this store does not archive")
    return store


@pytest.fixture
def committer(store: Store) -> Iterator[GroupCommit]:
    """The store's group committer, through which any number of threads may write."""
    committer = GroupCommit(store.write, is_instant=not store.capabilities().has_blocking_writes)
    yield committer
    committer.close()


@pytest.fixture
def execution(store: Store) -> SampleExecution:
    """An execution that has just been created, at revision 0."""
    return SampleExecution(store).create()

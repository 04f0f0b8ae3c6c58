"""The fixtures of the suite. A store author gives one, ``make_store``; the others follow from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from stepwell.clock import Clock, FakeClock
from stepwell.contract.store import Store
from stepwell.model.limits import Limits
from stepwell.stores.group import GroupCommit
from stepwell.testing.conformance.sample import Execution

__all__ = ["MakeStore", "OpenStore", "clock", "execution", "group", "make_store", "open_store", "other_store", "store"]

MakeStore = Callable[[Clock, Limits], Store]
"""Gives a store, not opened yet, on a place that is empty when a test begins and stays the same for the whole test."""

OpenStore = Callable[..., Store]
"""Gives an opened store on the test's place; takes ``limits``, and closes the store after the test."""


@pytest.fixture
def make_store() -> MakeStore:
    """To be replaced by the author of a store."""
    pytest.fail("define a fixture make_store that gives your store; stepwell.testing.conformance says how", pytrace=False)


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
def other_store(store: Store, open_store: OpenStore) -> Store:
    """A second store on the same place, as another process would open it; skips stores that cannot be shared."""
    if not store.capabilities().is_shared:
        pytest.skip("this store cannot be shared")
    return open_store()


@pytest.fixture
def group(store: Store) -> Iterator[GroupCommit]:
    """The store's group committer, through which any number of threads may write."""
    group = GroupCommit(store.write, is_instant=not store.capabilities().has_blocking_writes)
    yield group
    group.close()


@pytest.fixture
def execution(store: Store) -> Execution:
    """An execution that has just been created, at revision 0."""
    return Execution(store).create()

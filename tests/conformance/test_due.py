"""The role of ``due`` on the stores that have it."""

import pytest
from tests.support.stores import STORES

from stepwell.testing.conformance.due import *  # noqa: F403
from stepwell.testing.conformance.fixtures import MakeStore


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def make_store(request: pytest.FixtureRequest) -> MakeStore:
    """Makes stores of one kind."""
    return STORES[request.param](request)

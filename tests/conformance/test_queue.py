"""The roles of the queue on the stores that have one. A store joins by its name in the list."""

import pytest
from tests.support.stores import STORES

from stepwell.testing.conformance.combinations import *  # noqa: F403
from stepwell.testing.conformance.fixtures import MakeStore
from stepwell.testing.conformance.queue import *  # noqa: F403
from stepwell.testing.conformance.queue_again import *  # noqa: F403
from stepwell.testing.conformance.queue_claim import *  # noqa: F403
from stepwell.testing.conformance.queue_commit import *  # noqa: F403
from stepwell.testing.conformance.queue_depth import *  # noqa: F403
from stepwell.testing.conformance.queue_life import *  # noqa: F403
from stepwell.testing.conformance.queue_machine import *  # noqa: F403
from stepwell.testing.conformance.queue_put import *  # noqa: F403
from stepwell.testing.conformance.queue_rates import *  # noqa: F403
from stepwell.testing.conformance.queue_request import *  # noqa: F403
from stepwell.testing.conformance.queue_runs import *  # noqa: F403
from stepwell.testing.conformance.queue_state import *  # noqa: F403


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def make_store(request: pytest.FixtureRequest) -> MakeStore:
    """Makes stores of one kind."""
    return STORES[request.param](request)

"""The roles of the queue on the stores that have one. A store joins by its name in the list."""

import pytest
from tests.support.stores import STORES

from stepwell.testing.conformance.fixtures import MakeStore
from stepwell.testing.conformance.group_equivalence import *  # noqa: F403
from stepwell.testing.conformance.queue import *  # noqa: F403
from stepwell.testing.conformance.queue_claim import *  # noqa: F403
from stepwell.testing.conformance.queue_commit import *  # noqa: F403
from stepwell.testing.conformance.queue_enqueue_and_claim import *  # noqa: F403
from stepwell.testing.conformance.queue_lifecycle import *  # noqa: F403
from stepwell.testing.conformance.queue_limits import *  # noqa: F403
from stepwell.testing.conformance.queue_model import *  # noqa: F403
from stepwell.testing.conformance.queue_overrides import *  # noqa: F403
from stepwell.testing.conformance.queue_retry import *  # noqa: F403
from stepwell.testing.conformance.queue_settings import *  # noqa: F403
from stepwell.testing.conformance.queue_started import *  # noqa: F403
from stepwell.testing.conformance.queue_whole_runs import *  # noqa: F403
from stepwell.testing.conformance.state_quotas import *  # noqa: F403


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def make_store(request: pytest.FixtureRequest) -> MakeStore:
    """Makes stores of one kind."""
    return STORES[request.param](request)

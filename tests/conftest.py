"""Fixtures for all tests. ``store`` and its companions run a test once on each store of ``tests.support.stores``."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from hypothesis import settings
from tests.support.postgres_server import fresh_postgres_url, postgres_schema, postgres_server, postgres_url
from tests.support.redis_server import redis_server, redis_url
from tests.support.stores import STORES

from stepwell.flow import function
from stepwell.testing.conformance.fixtures import *  # noqa: F403 - fixtures are found by their names
from stepwell.testing.conformance.fixtures import MakeStore

__all__ = ["fresh_postgres_url", "postgres_schema", "postgres_server", "postgres_url", "redis_server", "redis_url"]

# Here as on any machine: the same examples each time, however slow they are. To search for others, with a seed of one's own:
# pytest --hypothesis-profile=default --hypothesis-seed=7
settings.load_profile("ci")


@pytest.fixture(params=STORES)
def make_store(request: pytest.FixtureRequest) -> MakeStore:
    """Makes stores of one kind, all on the same place within a test."""
    return STORES[request.param](request)


_simulated: dict[str, function.Step[..., Any]] = {}


def pytest_configure() -> None:
    """Have Ctrl-C end what it should: a run in the background of a shell has it ignored, and passes that on to its children."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collectreport() -> None:
    """Modules of tests are programs of their own, though they are loaded into one process: each may use any name."""
    function._workflows.clear()


def pytest_collection_finish() -> None:
    """Take away the workflows and steps that the test modules registered: with them, every well would have a worker."""
    _simulated.update({name: each for name, each in function._steps.items() if each.function.__module__.startswith("stepwell.")})
    function._workflows.clear()
    function._steps.clear()


@pytest.fixture(autouse=True)
def own_workflows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a test the workflows and steps of its own module, and a simulation those that it simulates."""
    here = [each for each in vars(request.module).values() if isinstance(each, function.Workflow)]
    own = {each.name: each for each in here if each.function.__module__ == request.module.__name__}
    monkeypatch.setattr(function, "_workflows", own)
    steps = {each.name: each for each in vars(request.module).values() if isinstance(each, function.Step)}
    monkeypatch.setattr(function, "_steps", {**(_simulated if "simulation" in request.module.__name__ else {}), **steps})

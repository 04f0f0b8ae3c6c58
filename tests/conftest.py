"""Fixtures for all tests. ``store`` and its companions run a test once on each store of ``tests.support.stores``."""

from __future__ import annotations

import signal
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from tests.support.postgres_server import (
    empty_postgres_schema,
    fresh_postgres_url,
    postgres_schema,
    postgres_server,
    postgres_url,
)
from tests.support.redis_server import redis_server, redis_url
from tests.support.stores import STORES

from stepwell.flow import function
from stepwell.model.state_versions import registered_alone
from stepwell.testing.conformance.fixtures import *  # noqa: F403 - fixtures are found by their names
from stepwell.testing.conformance.fixtures import MakeStore

__all__ = [
    "empty_postgres_schema",
    "fresh_postgres_url",
    "postgres_schema",
    "postgres_server",
    "postgres_url",
    "redis_server",
    "redis_url",
]

# Run the same examples on every machine, however slow they are. To search for others, with a seed of your own:
# pytest --hypothesis-profile=default --hypothesis-seed=7
settings.load_profile("ci")

# New examples each time, and ten times as many of them wherever a test counts with `scaled`; see `make soak`.
settings.register_profile(
    "soak", max_examples=1000, derandomize=False, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck)
)

# The same examples as ever, and the first failure as it comes: a mutation run asks only whether there is one; see `make mutants`.
settings.register_profile("mutants", settings.get_profile("ci"), phases=[Phase.explicit, Phase.generate])


@pytest.fixture(params=STORES)
def make_store(request: pytest.FixtureRequest) -> MakeStore:
    """Makes stores of one kind, all on the same place within a test."""
    return STORES[request.param](request)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape halves of surrogate pairs, which hostile texts leave in the log: xdist would end the run that sends them."""
    report = yield
    report.sections = [(title, text.encode(errors="backslashreplace").decode()) for title, text in report.sections]
    return report


_simulated: dict[str, function.Step[..., Any]] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--stores``: the stores to test, all of them by default."""
    parser.addoption(
        "--stores",
        default=",".join(STORES),
        metavar="NAMES",
        help=f"test only these stores, separated by commas (default: {','.join(STORES)}); tests that name no store always run",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Check ``--stores``, and let Ctrl-C end the run.

    A run in the background of a shell ignores Ctrl-C, and passes that on to its children.
    """
    unknown = _chosen_stores(config) - set(STORES)
    if unknown:
        raise pytest.UsageError(f"--stores: no store is called {sorted(unknown)[0]!r}; choose from {', '.join(STORES)}")
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the stores that ``--stores`` does not name, and tests of two processes on a store that has only one."""
    chosen = _chosen_stores(config)
    left_out = [item for item in items if not _stores_of(item) <= chosen or _shares_memory(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def _chosen_stores(config: pytest.Config) -> set[str]:
    return set(config.getoption("--stores").split(","))


def _stores_of(item: pytest.Item) -> set[str]:
    """Return the stores that a test runs on: those of its parameters, and those whose servers it uses."""
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    named = {each for each in parameters if isinstance(each, str) and each in STORES}
    return named | {name for name in STORES if f"{name}_server" in getattr(item, "fixturenames", ())}


def _shares_memory(item: pytest.Item) -> bool:
    return "memory" in _stores_of(item) and "make_shared_store" in getattr(item, "fixturenames", ())


def pytest_collectreport() -> None:
    """Take away the workflows and steps that a test module registered.

    Test modules are programs of their own, though they are loaded into one process: each may use any name. And with them, every
    well would have a worker.
    """
    registered = function.registered_functions()
    steps = [each for each in registered if isinstance(each, function.Step)]
    _simulated.update({each.name: each for each in steps if each.function.__module__.startswith("stepwell.")})
    function.unregister(*registered)


@pytest.fixture(autouse=True)
def own_migrations() -> Iterator[None]:
    """Begin each test without migrations of state."""
    with registered_alone():
        yield


@pytest.fixture(autouse=True)
def own_workflows(request: pytest.FixtureRequest) -> Iterator[None]:
    """Give a test the workflows and steps that its module defines or imports, and a simulation those that it simulates."""
    own = [each for each in vars(request.module).values() if isinstance(each, function.Workflow | function.Step)]
    simulated = _simulated.values() if "simulation" in request.module.__name__ else ()
    with function.registered_alone(*simulated, *own):
        yield

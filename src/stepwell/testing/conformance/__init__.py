"""The conformance suite: what every store must do, as pytest tests that you can run on yours.

Write one test file that imports the suite and says how your store is made. That is all::

    import pytest
    from mystore import MyStore
    from stepwell.testing.conformance import *

    @pytest.fixture
    def make_store(tmp_path):
        return lambda clock, limits: MyStore(tmp_path / "well.db", clock, limits)

``make_store`` gives a function that makes a store, not opened yet; the suite opens and closes it. Its place (a file, a schema, a
prefix) is empty when a test begins, and the same for all stores that one test makes: two of them are two processes on one place.

- **Clock.** Leases and TTLs are tested by moving ``clock`` on. A store that lives by the clock of its server adds
  ``clock.ahead_ms()`` to that time. The tests move hours at a time, so it does not matter that the server's clock goes on.
- **Writes.** ``write`` is called by one thread at a time, by the test itself or by a ``GroupCommit``. Reads come from any thread.
- **Capabilities.** A store is held to what it declares: one that is not ``is_shared`` is never opened twice on one place, and one
  that has not ``has_archiving`` is never asked to archive.
- **Roles.** Each module is one role of a store and can be run alone: import everything from it and from ``fixtures``. The roles of
  the queue (``QUEUE_ROLES``) are always run in this way.
- **The machine** drives your store and a plain model of it side by side, by random rules, and compares them after each one.
- **Faults.** A store that calls ``stepwell.fault_points.fault`` on its way is made to fail at each of those points, too.
"""

from __future__ import annotations

from importlib import import_module

import pytest

ROLES = (
    "commit",
    "concurrency",
    "due",
    "expiry",
    "group_commit",
    "history",
    "lease",
    "lock",
    "reference_model",
    "scan",
    "scoped_state",
    "sharing",
    "ttl",
    "value",
)
"""The modules of the suite."""

QUEUE_ROLES = (
    "group_equivalence",
    "queue",
    "queue_claim",
    "queue_commit",
    "queue_enqueue_and_claim",
    "queue_lifecycle",
    "queue_limits",
    "queue_model",
    "queue_overrides",
    "queue_retry",
    "queue_settings",
    "queue_started",
    "queue_whole_runs",
    "state_quotas",
)
"""The roles of a store with a queue; a test file imports from these modules what it wants to run."""

# Before anything of them is imported, so that their asserts tell what they compared, as those of any test file do.
pytest.register_assert_rewrite(*(f"{__name__}.{role}" for role in (*ROLES, *QUEUE_ROLES, "samples")))
pytest.register_assert_rewrite("stepwell.testing.reference_model")

from stepwell.testing.conformance import fixtures  # noqa: E402
from stepwell.testing.conformance.fixtures import *  # noqa: E402, F403 - what the tests take comes with them

_tests = {
    name: test for role in ROLES for name, test in vars(import_module(f"{__name__}.{role}")).items() if name.startswith("test_")
}
globals().update(_tests)

# By name, so that no test can be forgotten.
__all__ = [*fixtures.__all__, *_tests]  # pyright: ignore[reportUnsupportedDunderAll]  # noqa: PLE0604

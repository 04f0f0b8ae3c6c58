"""The conformance suite: what every store must do, as pytest tests that you can run on yours.

Write one test file that imports the suite and says how your store is made. That is all::

    import pytest
    from mystore import MyStore
    from stepwell.testing.conformance import *

    @pytest.fixture
    def make_store(tmp_path):
        return lambda clock, limits: MyStore(tmp_path / "well.db", clock, limits)

``make_store`` gives a function that makes a store, not opened yet. The suite opens and closes it. Its place (a file, a schema, a
prefix) is empty when a test begins, and the same for all stores that one test makes: two of them are two processes on one store.

- **Clock.** Leases and TTLs are tested by moving ``clock`` on. A store that lives by the clock of its server adds
  ``clock.ahead_ms()`` to that time. The tests move hours at a time, so that it does not matter that the server's clock goes on.
- **Writes.** ``write`` is called by one thread at a time, by the test or by a ``GroupCommit``. Reads come from any thread.
- **Capabilities.** A store is held to what it declares: one that is not ``is_shared`` is never opened twice, one that has not
  ``has_archiving`` never archives.
- **Roles.** Each module is one role of a store, and can be run alone: ``from stepwell.testing.conformance.lease import *`` with
  ``from stepwell.testing.conformance.fixtures import *``.
- **The machine** drives your store and a plain model of it side by side with random rules, and compares them after each one.
"""

from __future__ import annotations

import pytest

# Before the roles are imported: their asserts shall tell what was compared, as those of any test file do.
ROLES = ("commit", "group")
pytest.register_assert_rewrite(*(f"{__name__}.{role}" for role in (*ROLES, "sample")))

"""The conformance suite on every store; ``make_store`` is in ``tests/conftest.py``."""

from stepwell.testing.conformance import *  # noqa: F403

"""Fixtures of the crash tests."""

from __future__ import annotations

import pytest
from tests.faults.crash_case import ACTS, Picture, picture

STORES = ("memory", "sqlite")


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Picture]]:
    """For each store, every act as it goes without faults."""
    folder = tmp_path_factory.mktemp("pictures")
    return {store: [picture(act, store, folder) for act in ACTS.values()] for store in STORES}

"""One browser and one set of sites for all browser tests of a process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.browser.chromium import Chromium
from tests.browser.site import Site

__all__ = ["chromium", "sites"]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    """A real Chromium."""
    browser = Chromium()
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def sites() -> Iterator[dict[str, Site]]:
    """Servers in a process of their own.

    ``filled``; ``work`` and ``fresh``, with nothing, for tests that change them; ``empty``; ``away`` without its store.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.browser.site"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield {name: Site(**facts) for name, facts in json.loads(process.stdout.readline()).items()}
    finally:
        process.stdin.close()
        process.wait(20)
        process.stdout.close()

"""T19: mutual exclusion. Many threads and many processes read, yield and write one number under a lock; none is lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.faults.children import Child
from tests.faults.lock_counter import count
from tests.support import store_urls

from stepwell import Stepwell
from stepwell.pipeline import notifications

url = store_urls.url


def test_threads_that_count_under_a_lock_lose_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """T19: eight threads; each is handed the lock by notification, not by looking."""
    monkeypatch.setattr(notifications, "_LONGEST_SLEEP_SECONDS", 60.0)
    with Stepwell(url) as well, ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(count, well, 12) for _ in range(8)]:
            done.result(60)
        assert well.state.globals.get("n") == 96


@store_urls.on_shared_stores
def test_processes_that_count_under_a_lock_lose_nothing(url: str) -> None:
    """T19: four processes that know nothing of each other but the store."""
    with Stepwell(url) as well:
        children = [Child("lock_counter", url, 20) for _ in range(4)]
        try:
            assert [child.hear() for child in children] == ["ready"] * 4
            for child in children:
                child.tell("go")
            count(well, 20)
            assert [child.hear() for child in children] == ["done"] * 4
            assert well.state.globals.get("n") == 100
        finally:
            for child in children:
                child.__exit__(None, None, None)

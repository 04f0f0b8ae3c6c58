"""Watching: whoever watches a scope sees every change, from this process and from others."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.acceptance.conftest import OpenWell

from stepwell import AsyncStepwell, StateChange, Stepwell

PATIENCE = 60  # for what must happen; reached only by a failing test


def first(well: Stepwell, count: int, is_ready: threading.Event) -> list[StateChange]:
    """The first changes that a watcher sees; it says when it watches by taking what is there already."""
    found = []
    for change in well.state.globals.watch(since=0, idle_seconds=PATIENCE):
        if change.key == "ready":
            is_ready.set()
        else:
            found.append(change)
        if len(found) == count:
            break
    return found


def test_watcher_sees_changes_as_they_happen(open_well: OpenWell, url: str) -> None:
    well, is_ready = open_well(url), threading.Event()
    well.state.globals.set("ready", 1)
    well.state.globals.set("old", 1)
    well.create("run")
    with ThreadPoolExecutor(1) as pool:
        watcher = pool.submit(first, well, 4, is_ready)
        assert is_ready.wait(PATIENCE)
        well.state.custom("other").set("noise", 1)
        well.state.globals.set("a", [1])
        well.state.globals.delete("old")
        with well.transaction("run") as tx:
            tx.state(well.state.globals).set("b", 2)
            tx.state(well.state.globals).set("c", 3)
        changes = watcher.result(PATIENCE)
    seen = [change for change in changes if change != StateChange("old", 1, 2)]
    assert StateChange("a", [1], 3) in seen
    assert StateChange("old", None, 4, is_deleted=True) in seen
    assert StateChange("b", 2, 5) in seen
    assert [change.revision for change in changes] == sorted(change.revision for change in changes)


def test_many_watchers_all_see_the_same(open_well: OpenWell, url: str) -> None:
    well, events = open_well(url), [threading.Event() for _ in range(3)]
    well.state.globals.set("ready", 1)
    with ThreadPoolExecutor(3) as pool:
        watchers = [pool.submit(first, well, 5, event) for event in events]
        assert all(event.wait(PATIENCE) for event in events)
        for number in range(5):
            well.state.globals.set(f"k{number}", number)
        found = [[(change.key, change.value) for change in watcher.result(PATIENCE)] for watcher in watchers]
    assert found == [[(f"k{number}", number) for number in range(5)]] * 3


def test_watch_ends_when_its_scope_is_idle_however_busy_others_are(open_well: OpenWell, url: str) -> None:
    """A watch that counts changes of other keys as its own never ends; the time limit of the test shows it."""
    well, stop = open_well(url), threading.Event()

    def noise() -> None:
        while not stop.is_set():
            well.state.custom("busy").increment("n")

    with ThreadPoolExecutor(1) as pool:
        pool.submit(noise)
        try:
            assert list(well.state.globals.watch(idle_seconds=0.2)) == []
        finally:
            stop.set()


def test_awaited_watchers_share_one_loop(url: str) -> None:
    async def watch(well: AsyncStepwell, key: str) -> StateChange:
        async for change in well.state.custom(key).watch(since=0, idle_seconds=PATIENCE):
            return change
        pytest.fail("no change came")

    async def main() -> list[StateChange]:
        async with AsyncStepwell(url) as well:
            watchers = [asyncio.create_task(watch(well, str(number))) for number in range(20)]
            await asyncio.sleep(0)
            await asyncio.gather(*(well.state.custom(str(number)).set("k", number) for number in range(20)))
            return await asyncio.gather(*watchers)

    assert [change.value for change in asyncio.run(main())] == list(range(20))


def test_watcher_that_is_left_alone_can_be_cancelled(url: str) -> None:
    async def main() -> None:
        async with AsyncStepwell(url) as well:

            async def watch() -> None:
                async for _ in well.state.globals.watch():
                    pass

            task = asyncio.create_task(watch())
            await well.state.custom("x").set("k", 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())


WRITER = """
import sys
from stepwell import Stepwell
with Stepwell(sys.argv[1]) as well:
    sys.stdin.readline()
    well.state.globals.set("from", "another process")
"""


def test_watcher_sees_a_change_of_another_process(open_well: OpenWell, file_url: str) -> None:
    well, is_ready = open_well(file_url), threading.Event()
    well.state.globals.set("ready", 1)
    with (
        ThreadPoolExecutor(1) as pool,
        subprocess.Popen([sys.executable, "-c", WRITER, file_url], stdin=subprocess.PIPE, text=True) as child,
    ):
        watcher = pool.submit(first, well, 1, is_ready)
        assert is_ready.wait(PATIENCE)
        child.communicate("go\n", timeout=PATIENCE)
        changes = watcher.result(PATIENCE)
    assert changes == [StateChange("from", "another process", 2)]


def test_two_wells_of_one_process_see_each_other(open_well: OpenWell, file_url: str, tmp_path: Path) -> None:
    one, two, is_ready = open_well(file_url), open_well(file_url), threading.Event()
    one.state.globals.set("ready", 1)
    with ThreadPoolExecutor(1) as pool:
        watcher = pool.submit(first, one, 1, is_ready)
        assert is_ready.wait(PATIENCE)
        two.state.globals.set("a", 1)
        assert watcher.result(PATIENCE)[0].value == 1

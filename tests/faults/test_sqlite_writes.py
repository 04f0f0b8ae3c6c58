"""T01: SQLite's two ways to write, cut at each write to the file: by a kill of the process, and by the power."""

from __future__ import annotations

import json
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest
from tests.faults.callers import Blocking
from tests.faults.children import Child
from tests.faults.crash_case import ORDER, follow_up, prepare, world
from tests.faults.faulty_disk import FaultyDisk
from tests.faults.invariants import check_chain
from tests.faults.write_killer import CHANGES

import stepwell.stores.sqlite.connection
from stepwell import Scope, Stepwell
from stepwell.clock import FakeClock
from stepwell.model.limits import Limits
from stepwell.stores.sqlite.store import SQLiteStore

_CUTS_PER_OPERATION = 2


@pytest.fixture
def template(quick_path: Path) -> Path:
    path = quick_path / "template.db"
    caller = Blocking(f"sqlite:///{path}")
    prepare(caller)
    caller.close()
    return path


@pytest.fixture
def killer() -> Iterator[Child]:
    with Child("write_killer") as child:
        yield child


def check_old_or_new(caller: Blocking, way: str) -> bool:
    """Everything of the commit is there, or nothing; whether it is, and work goes on."""
    name = "pack" if way == "fast path" else "charge"
    has_landed, scopes = name in caller.load(ORDER).steps, caller.scopes()
    assert (Scope.globals().path in scopes) == (has_landed and way == "transaction")
    check_chain(caller, ORDER)
    if not has_landed:
        caller.begin(ORDER, None, CHANGES[way]).commit()
    caller.begin(ORDER, None, follow_up).commit()
    assert {name, "ship"} <= caller.load(ORDER).steps.keys()
    check_chain(caller, ORDER)
    return has_landed


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("way", CHANGES)
def test_process_killed_at_any_write_to_the_file_leaves_old_or_new(way: str, is_after: bool, template: Path, killer: Child) -> None:
    number, has_ended, found = 0, False, set[bool]()
    while not has_ended:
        number += 1
        path = template.with_name(f"{number}.db")
        shutil.copy(template, path)
        killer.tell(json.dumps([f"sqlite:///{path}", way, number, is_after]))
        code = int(killer.hear())
        has_ended = code == 0
        assert has_ended or code == -signal.SIGKILL
        caller = Blocking(f"sqlite:///{path}")
        has_landed = check_old_or_new(caller, way)
        caller.close()
        assert has_landed or not has_ended
        found.add(has_landed)
    assert number > 3, "the commit made hardly any writes"
    assert found == {False, True}


@pytest.fixture
def disk() -> Iterator[FaultyDisk]:
    disk = FaultyDisk("cut disk")
    yield disk
    disk.unregister()


def on_disk(path: Path, disk: FaultyDisk) -> Blocking:
    caller = Blocking.__new__(Blocking)
    caller.well = Stepwell(SQLiteStore(f"sqlite:///{path}", FakeClock(), Limits(), vfs=disk.name), clock=FakeClock())
    return caller


@pytest.mark.parametrize("pages", [1, 1000], ids=["checkpoint each time", "log only"])
@pytest.mark.parametrize("way", CHANGES)
def test_power_cut_at_any_write_to_the_file_leaves_old_or_new(
    way: str, pages: int, disk: FaultyDisk, quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepwell.stores.sqlite.connection, "_CHECKPOINT_PAGES", pages)
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    choice = random.Random(seed)
    caller = on_disk(quick_path / "well.db", disk)
    prepare(caller)
    caller.begin(ORDER, None, lambda tx: tx.set_variable("is_warm", True)).commit()
    pending, old = caller.begin(ORDER, None, CHANGES[way]), world(caller)
    images: list[dict[str, bytes]] = []
    cut: Callable[[], None] = lambda: images.extend(disk.cut_power(choice) for _ in range(_CUTS_PER_OPERATION))  # noqa: E731
    disk.watch = cut
    pending.commit()
    disk.watch = lambda: None
    acknowledged, new = disk.cut_power(choice), world(caller)
    caller.close()
    assert len(images) > 4
    for number, image in enumerate([*images, acknowledged]):
        folder = quick_path / str(number)
        folder.mkdir()
        for name, content in image.items():
            (folder / name).write_bytes(content)
        found = Blocking(f"sqlite:///{folder}/well.db")
        assert world(found) in ((new,) if image is acknowledged else (old, new))
        check_old_or_new(found, way)
        found.close()
        assert apsw.Connection(f"{folder}/well.db").execute("PRAGMA integrity_check").get == "ok"
        shutil.rmtree(folder)

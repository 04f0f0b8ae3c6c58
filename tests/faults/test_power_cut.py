"""T09: syncs that fail or lie, and power cuts: what was acknowledged is there, or the damage is found, never silence."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from tests.faults.callers import Blocking
from tests.faults.crash_case import ORDER, Picture, follow_up, prepare, world
from tests.faults.faulty_disk import FaultyDisk, Image
from tests.faults.invariants import check_chain

import stepwell.app.composition
import stepwell.stores.sqlite.connection
from stepwell import CommitUnknown, StoreUnavailable
from stepwell.clock import Clock
from stepwell.model.limits import Limits
from stepwell.stores.sqlite.store import SQLiteStore

_CUTS_PER_OPERATION = 2


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyDisk]:
    """A disk that every SQLite store opened in the test is on."""
    disk = FaultyDisk("faulty disk")

    def store_of(url: str, clock: Clock, limits: Limits) -> SQLiteStore:
        return SQLiteStore(url, clock, limits, vfs=disk.name)

    monkeypatch.setattr(stepwell.app.composition, "store_of", store_of)
    yield disk
    disk.unregister()


@pytest.fixture(params=[False, True], ids=["log only", "checkpoint each time"])
def is_checkpointing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether every commit also copies the log back into the file, so that power goes there, too."""
    if request.param:
        monkeypatch.setattr(stepwell.stores.sqlite.connection, "_CHECKPOINT_PAGES", 1)
    return request.param


@pytest.fixture
def choice() -> random.Random:
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    return random.Random(seed)


def open_prepared(path: Path) -> Blocking:
    caller = Blocking(f"sqlite:///{path}")
    prepare(caller)
    return caller


@pytest.mark.usefixtures("is_checkpointing")
@pytest.mark.parametrize("is_persistent", [False, True], ids=["once", "from then on"])
def test_a_commit_whose_sync_fails_is_not_acknowledged_and_lands_once_the_disk_works(
    disk: FaultyDisk, quick_path: Path, pictures: dict[str, list[Picture]], is_persistent: bool
) -> None:
    """T09: EIO on the nth sync. A commit record that was written but not synced may or may not be found later: unknown."""
    case, number = pictures["sqlite"][-1], 0
    while number == 0 or disk.was_hit:
        number += 1
        caller = open_prepared(quick_path / f"{number}.db")
        commit = case.act.begin(caller)
        disk.fail_sync(number, is_persistent=is_persistent)
        try:
            told: object = commit()
        except (CommitUnknown, StoreUnavailable) as error:
            told = error
        disk.heal()
        assert told == case.receipt if not disk.was_hit else isinstance(told, CommitUnknown)
        assert world(caller) in (case.old, case.new)
        assert case.act.begin(caller)() == case.receipt
        assert world(caller) == case.new
        caller.begin(ORDER, None, follow_up).commit()
        check_chain(caller, ORDER)
        caller.close()
        assert apsw.Connection(str(quick_path / f"{number}.db")).execute("PRAGMA integrity_check").get == "ok"
    assert number > 1


def crash(path: Path, folder: Path) -> Blocking:
    """The file as a process that dies now leaves it, opened again: the log is recovered."""
    folder.mkdir()
    for file in (path, path.with_name(f"{path.name}-wal")):
        shutil.copy(file, folder / file.name)
    return Blocking(f"sqlite:///{folder}/{path.name}")


@pytest.mark.parametrize("index", [1, 2], ids=["ordinary", "commit"])
def test_a_commit_that_a_lookup_did_not_find_does_not_turn_up_after_a_crash(
    disk: FaultyDisk, quick_path: Path, pictures: dict[str, list[Picture]], index: int
) -> None:
    """T09, P9: its record is in the log, unsynced, where recovery would find it; the answer to a lookup must hold for good."""
    case = pictures["sqlite"][index]
    caller = open_prepared(quick_path / "well.db")
    commit = case.act.begin(caller)
    disk.fail_sync(1)
    with pytest.raises(CommitUnknown):
        commit()
    assert caller.receipt(ORDER, case.act.commit_id) is None
    survivor = crash(quick_path / "well.db", quick_path / "crashed")
    assert survivor.receipt(ORDER, case.act.commit_id) is None
    assert world(survivor) == case.old
    survivor.close()
    assert commit() == case.receipt
    caller.close()


def test_while_the_disk_fails_a_lookup_of_an_unknown_commit_is_not_answered(
    disk: FaultyDisk, quick_path: Path, pictures: dict[str, list[Picture]]
) -> None:
    """T09, P9: never guessed. Once the disk works, asking again settles it for good."""
    case = pictures["sqlite"][-1]
    caller = open_prepared(quick_path / "well.db")
    commit = case.act.begin(caller)
    disk.fail_sync(1, is_persistent=True)
    with pytest.raises(CommitUnknown):
        commit()
    with pytest.raises(StoreUnavailable):
        caller.receipt(ORDER, case.act.commit_id)
    assert caller.receipt(ORDER, "second") is not None
    disk.heal()
    assert caller.receipt(ORDER, case.act.commit_id) is None
    survivor = crash(quick_path / "well.db", quick_path / "crashed")
    assert world(survivor) == case.old
    survivor.close()
    assert commit() == case.receipt == caller.receipt(ORDER, case.act.commit_id)
    caller.close()


class Blackouts:
    """Cuts the power after every operation of the disk, and keeps what each cut leaves with what was acknowledged by then."""

    def __init__(self, disk: FaultyDisk, choice: random.Random) -> None:
        self._disk, self._choice = disk, choice
        self.acknowledged = 0
        self.images: list[tuple[int, Image]] = []
        disk.watch = self._cut

    def _cut(self) -> None:
        self.images += [(self.acknowledged, self._disk.cut_power(self._choice)) for _ in range(_CUTS_PER_OPERATION)]

    def end(self) -> None:
        """One more cut, after everything, and then no more."""
        self._cut()
        self._disk.watch = lambda: None


def lay_out(image: Image, folder: Path) -> None:
    """Put the files that a cut left into a folder; the shared-memory file does not outlive its machine."""
    folder.mkdir()
    for name, content in image.items():
        (folder / name).write_bytes(content)


@pytest.mark.usefixtures("is_checkpointing")
def test_after_a_power_cut_what_was_acknowledged_is_there(
    disk: FaultyDisk, choice: random.Random, quick_path: Path, pictures: dict[str, list[Picture]]
) -> None:
    """T09: unsynced writes survive, are lost, or are torn sector by sector. P2, I1 to I3, integrity."""
    case = pictures["sqlite"][-1]
    caller = open_prepared(quick_path / "well.db")
    commit, blackouts = case.act.begin(caller), Blackouts(disk, choice)
    commit()
    blackouts.acknowledged = 1
    blackouts.end()
    caller.close()
    assert len(blackouts.images) > 20
    for number, (acknowledged, image) in enumerate(blackouts.images):
        folder = quick_path / str(number)
        lay_out(image, folder)
        found = Blocking(f"sqlite:///{folder}/well.db")
        assert world(found) in ((case.new,) if acknowledged else (case.old, case.new))
        assert case.act.begin(found)() == case.receipt
        assert world(found) == case.new
        check_chain(found, ORDER)
        found.close()
        assert apsw.Connection(f"{folder}/well.db").execute("PRAGMA integrity_check").get == "ok"
        shutil.rmtree(folder)


@pytest.mark.usefixtures("is_checkpointing")
def test_a_disk_that_lies_about_syncs_can_lose_commits_but_not_silently_change_one(
    disk: FaultyDisk, choice: random.Random, quick_path: Path
) -> None:
    """T09: with syncs that did nothing, a cut leaves an earlier state or a damage that opening, loading or verifying finds."""
    caller = open_prepared(quick_path / "well.db")
    known = {caller.load(ORDER).revision: caller.load(ORDER)}
    disk.is_lying = True
    blackouts = Blackouts(disk, choice)
    for number in range(4):
        caller.begin(ORDER, None, lambda tx, number=number: tx.set_variable("n", number)).commit()
        known[caller.load(ORDER).revision] = caller.load(ORDER)
    blackouts.end()
    caller.close()
    silent = 0
    for number, (_, image) in enumerate(blackouts.images):
        folder = quick_path / str(number)
        lay_out(image, folder)
        try:
            found = Blocking(f"sqlite:///{folder}/well.db")
        except StoreUnavailable:
            continue
        try:
            state = found.load(ORDER)
            is_sound = found.verify(ORDER).ok
        except StoreUnavailable:
            is_sound, state = False, None
        found.close()
        silent += is_sound and (state is None or state != known[state.revision])
        shutil.rmtree(folder)
    assert silent == 0

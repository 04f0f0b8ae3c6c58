"""Backups: made while a well is in use, added to, checked, restored into every store, and damaged on purpose."""

from __future__ import annotations

import itertools
import json
import os
import threading
import tracemalloc
import zlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.conftest import OpenWell
from tests.support.polling import until
from tests.support.redis_server import RedisServer
from tests.support.store_urls import url as every_url

import stepwell
from stepwell import (
    AlreadyExists,
    Conflict,
    EncryptionKeyMissing,
    FakeClock,
    InvalidBackup,
    InvalidInput,
    KeyRing,
    Limits,
    NotFound,
    Scope,
    Status,
    Stepwell,
    SystemClock,
    ValueErased,
    list_backups,
    step,
    verify_backup,
    workflow,
)
from stepwell.contract.store import Capabilities, StoreReads
from stepwell.flow import call, define, signal
from stepwell.model.scoped_operations import ScopeTotals
from stepwell.stores.memory import MemoryStore

__all__ = ["every_url"]

WAIT = 60


@step(name="backup.count")
async def count(number: int) -> int:
    state = stepwell.current().state(Scope.of_workspace("default"))
    state.increment("steps")
    return number + 1


@workflow(name="backup.work")
async def work(number: int) -> int:
    return await count(await count(number))


@workflow(name="backup.wait")
async def wait_for(name: str) -> Any:
    return await stepwell.wait_signal(name)


declared = define("backup.declared", call(count, {"number": 1}), signal("go"))


def fill(well: Any) -> None:
    """A well with ended, waiting and declared runs, state of all kinds, and a queue."""
    well.workspaces.put("acme", tier="startup")
    for number in range(3):
        well.start(work, number, execution_id=f"done-{number}").result(WAIT)
    well.start(wait_for, "go", execution_id="waits", workspace="acme")
    well.start(declared, {}, execution_id="declared")
    until(lambda: well.run("waits").status() is Status.WAITING and well.run("declared").status() is Status.WAITING)
    well.state.globals.set("everywhere", {"a": [1, 2.5, None]})
    well.state.workspace("acme").set("mine", "ü\0")
    well.state.conversation("talk").set("turn", 1)
    well.state.custom("gone").set("soon", 1, ttl=3600)
    made = well.create("by-hand")
    with well.transaction(made.execution_id) as tx:
        tx.set_variable("x", 1)


def content(well: Any) -> Any:
    return {
        "runs": sorted((each.execution_id, each.status, each.revision, each.workspace_id) for each in well.executions.list()),
        "receipts": [[each.digest for each in well.receipts(name)] for name in ("done-0", "waits", "declared", "by-hand")],
        "state": [well.state.globals.all(), well.state.workspace("default").all(), well.state.workspace("acme").all()],
        "more": [well.state.conversation("talk").all(), well.state.custom("gone").all()],
        "definitions": [each.name for each in well.definitions.list()],
        "workspaces": [(each.workspace_id, each.tier) for each in well.workspaces.list()],
    }


@pytest.fixture
def filled(tmp_path: Path) -> Any:
    url = f"sqlite:///{tmp_path}/source.db"
    with Stepwell(url) as well:
        fill(well)
    with Stepwell(url, worker=False) as well:
        yield well


def test_backup_restores_into_another_store_as_it_was(filled: Any, open_well: OpenWell, tmp_path: Path) -> None:
    made = filled.backup(tmp_path / "backup")
    assert made.counts["executions"] == 6
    found = verify_backup(tmp_path / "backup")
    assert (found.ok, found.executions, found.problems) == (True, 6, ())
    for target in ("memory://", f"sqlite:///{tmp_path}/target.db"):
        restored = open_well(target, worker=False)
        report = restored.restore_backup(tmp_path / "backup")
        assert (report.digest, report.counts) == (made.digest, made.counts)
        assert content(restored) == content(filled)
        assert all(restored.verify(each.execution_id).ok for each in restored.executions.list())


def test_backup_goes_to_every_store_and_back(filled: Any, every_url: str, tmp_path: Path) -> None:
    first, expected = filled.backup(tmp_path / "first"), content(filled)
    with Stepwell(every_url, worker=False) as well:
        assert well.restore_backup(tmp_path / "first").digest == first.digest
        assert content(well) == expected
        assert well.resume_restored() == 2
        assert well.backup(tmp_path / "second").digest == first.digest
    assert verify_backup(tmp_path / "second").ok
    with Stepwell(f"sqlite:///{tmp_path}/target.db", worker=False) as well:
        assert well.restore_backup(tmp_path / "second").digest == first.digest


def test_restored_runs_wait_until_they_are_resumed(filled: Any, tmp_path: Path) -> None:
    filled.backup(tmp_path / "backup")
    with Stepwell(f"sqlite:///{tmp_path}/target.db") as well:
        assert well.restore_backup(tmp_path / "backup").held == 2
        assert [each.is_paused for each in well.workspaces.list()] == [True, True]
        assert well.run("waits").status() is Status.WAITING
        assert well.resume_restored() == 2
        assert [each.is_paused for each in well.workspaces.list()] == [False, False]
        well.run("waits").signal("go", 7)
        well.run("declared").signal("go", 8)
        assert well.run("waits").result(WAIT) == 7
        assert well.run("declared").result(WAIT) == 8
        assert well.start(work, 1).result(WAIT) == 3
        with pytest.raises(NotFound, match="nothing to resume"):
            well.resume_restored()


def test_second_backup_adds_only_what_is_new(filled: Any, tmp_path: Path) -> None:
    first = filled.backup(tmp_path / "backup")
    assert first.new_commits == first.counts["commits"]
    with filled.transaction("by-hand") as tx:
        tx.set_variable("x", 2)
    filled.delete("done-2")
    filled.state.globals.set("everywhere", "changed")
    second = filled.backup(tmp_path / "backup")
    assert (second.generation, second.new_commits, second.backup_id) == (2, 1, first.backup_id)
    assert verify_backup(tmp_path / "backup").ok
    with Stepwell("memory://", worker=False) as well:
        assert well.restore_backup(tmp_path / "backup").digest == second.digest
        assert well.load("by-hand").variables["x"] == 2
        assert well.state.globals.get("everywhere") == "changed"
        assert "done-2" not in [each.execution_id for each in well.executions.list()]


def test_archived_runs_are_restored_from_their_snapshot(filled: Any, tmp_path: Path) -> None:
    filled.archive("done-0", tmp_path / "proof", through=1)
    filled.archive("done-1", tmp_path / "proof-all")
    made = filled.backup(tmp_path / "backup")
    assert verify_backup(tmp_path / "backup").ok
    with Stepwell("memory://", worker=False) as well:
        assert well.restore_backup(tmp_path / "backup").digest == made.digest
        assert well.load("done-1").result == {"output": 3}
        assert well.verify("done-0").ok


def test_one_workspace_is_backed_up_alone(filled: Any, tmp_path: Path) -> None:
    made = filled.backup(tmp_path / "acme", workspace="acme")
    assert made.counts["executions"] == 1
    with Stepwell("memory://", worker=False) as well:
        well.start(work, 1, execution_id="other")
        well.restore_backup(tmp_path / "acme")
        assert sorted(each.execution_id for each in well.executions.list()) == ["other", "waits"]
        assert well.state.workspace("acme").get("mine") == "ü\0"
        assert well.state.globals.get("everywhere") is None


def test_queue_items_keep_their_keys_and_their_order(tmp_path: Path) -> None:
    with Stepwell("memory://", worker=False) as well:
        items = [well.enqueue(work, number, key=f"k{number}", priority=number) for number in range(3)]
        items[1].cancel()
        well.backup(tmp_path / "backup")
    with Stepwell(f"sqlite:///{tmp_path}/target.db", worker=False) as well:
        well.restore_backup(tmp_path / "backup")
        assert [(each.item_id, each.status) for each in well.queue.list()] == [
            (items[2].item_id, "QUEUED"),
            (items[1].item_id, "CANCELLED"),
            (items[0].item_id, "QUEUED"),
        ]
        assert well.enqueue(work, 0, key="k0").item_id == items[0].item_id


class Meddling(MemoryStore):
    """A store without views of one moment, in which others write while it is read for a backup."""

    def __init__(self) -> None:
        super().__init__(SystemClock(), Limits())
        self.meddle: list[Callable[[], None]] = []

    def capabilities(self) -> Capabilities:
        """Declare no views, as the store on Redis does."""
        return Capabilities(is_shared=False, has_blocking_writes=False)

    @contextmanager
    def consistent_view(self) -> Generator[StoreReads]:
        """Give the reads of the store itself."""
        yield self

    def totals(self, scope: str) -> ScopeTotals:
        """Let somebody write between the reading of executions and of scopes."""
        if self.meddle:
            self.meddle.pop()()
        return super().totals(scope)


def write_pair(well: Stepwell, number: int) -> None:
    with well.transaction("pair") as tx:
        tx.set_variable("n", number)
        tx.state(Scope.globals()).set("n", number)


def test_backup_of_a_well_in_use_is_of_one_moment(tmp_path: Path) -> None:
    store = Meddling()
    with Stepwell(store, worker=False) as well:
        well.create("pair")
        write_pair(well, 0)
        store.meddle = [lambda: write_pair(well, 2), lambda: write_pair(well, 1)]
        well.backup(tmp_path / "backup")
        assert store.meddle == []
    with Stepwell("memory://", worker=False) as restored:
        restored.restore_backup(tmp_path / "backup")
        assert (restored.load("pair").variables["n"], restored.state.globals.get("n")) == (2, 2)


@contextmanager
def writing_pairs(well: Any) -> Generator[None]:
    """Write a pair again and again in another thread, without a pause."""
    numbers, is_over = itertools.count(1), threading.Event()
    well.create("pair")
    for number in range(200):
        well.create(f"other-{number}")
    write_pair(well, 0)

    def write_all_the_time() -> None:
        while not is_over.is_set():
            write_pair(well, next(numbers))

    writer = threading.Thread(target=write_all_the_time)
    writer.start()
    try:
        until(lambda: well.state.globals.get("n") > 0)
        yield
    finally:
        is_over.set()
        writer.join(WAIT)


def check_backups_of_pairs(folder: Path) -> None:
    """Check that each backup has all that one commit wrote, or nothing of it."""
    for each in list_backups(folder):
        assert verify_backup(folder, at=each.created_at).ok
    with Stepwell("memory://", worker=False) as restored:
        restored.restore_backup(folder)
        assert restored.load("pair").variables["n"] == restored.state.globals.get("n") > 0
        assert restored.verify("pair").ok


@pytest.mark.parametrize("every_url", ["memory", "sqlite", "postgres"], indirect=True)
def test_well_that_is_written_to_without_a_pause_is_backed_up(every_url: str, tmp_path: Path) -> None:
    """T52."""
    with Stepwell(every_url, worker=False) as well, writing_pairs(well):
        for _ in range(3):
            well.backup(tmp_path / "backup")
    assert len(list_backups(tmp_path / "backup")) == 3
    check_backups_of_pairs(tmp_path / "backup")


@pytest.mark.parametrize("every_url", ["redis"], indirect=True)
def test_well_on_redis_that_is_written_to_without_a_pause_is_backed_up_at_one_moment_or_not(every_url: str, tmp_path: Path) -> None:
    """T52: a moment without a write may be found or not; a backup without one is refused, and says what to do."""
    with Stepwell(every_url, worker=False) as well:
        with writing_pairs(well):
            for _ in range(3):
                try:
                    well.backup(tmp_path / "backup")
                except Conflict as refusal:
                    assert "detached replica" in str(refusal)  # noqa: PT017 - it may succeed as well
        well.backup(tmp_path / "backup")
    check_backups_of_pairs(tmp_path / "backup")


def test_well_on_redis_that_is_written_to_without_a_pause_is_backed_up_by_a_detached_replica(tmp_path: Path) -> None:
    """T52: a replica stops at a moment between two commits, since each is one script."""
    with (
        RedisServer(tmp_path, repl_diskless_sync_delay="0", dbfilename="primary.rdb") as primary,
        RedisServer(tmp_path, replicaof=f"127.0.0.1 {primary.port}", dbfilename="replica.rdb") as replica,
        replica.client() as client,
        Stepwell(primary.url("pairs"), worker=False) as well,
        writing_pairs(well),
    ):
        until(lambda: client.info("replication")["master_link_status"] == "up")
        until(lambda: client.info("replication")["slave_repl_offset"] > 0 and client.dbsize() > 200)
        client.replicaof("NO", "ONE")
        with Stepwell(replica.url("pairs"), worker=False) as detached:
            detached.backup(tmp_path / "backup")
            found = detached.state.globals.get("n")
        until(lambda: well.state.globals.get("n") > found)
    check_backups_of_pairs(tmp_path / "backup")


def test_store_without_views_is_not_backed_up_as_it_is_written_to_without_a_pause(tmp_path: Path) -> None:
    store = Meddling()
    with Stepwell(store, worker=False) as well:
        well.create("pair")
        write_pair(well, 0)
        well.backup(tmp_path / "backup")
        store.meddle = [lambda: write_pair(well, 1)] * 100
        with pytest.raises(Conflict, match="no moment could be found"):
            well.backup(tmp_path / "backup")
        store.meddle = []
    assert verify_backup(tmp_path / "backup").ok
    with Stepwell("memory://", worker=False) as restored:
        restored.restore_backup(tmp_path / "backup")
        assert restored.load("pair").variables["n"] == 0


def test_store_with_data_is_not_restored_into(filled: Any, tmp_path: Path) -> None:
    filled.backup(tmp_path / "backup")
    with pytest.raises(AlreadyExists, match="restored into a new store"):
        filled.restore_backup(tmp_path / "backup")


@pytest.mark.parametrize("damage", ["change", "cut", "remove", "manifest", "record"])
def test_damaged_backup_is_refused_before_anything_is_written(filled: Any, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "backup"
    filled.backup(folder)
    segment = sorted(folder.glob("*.z"))[0]
    match damage:
        case "change":
            data = bytearray(segment.read_bytes())
            data[len(data) // 2] ^= 1
            segment.write_bytes(data)
        case "cut":
            segment.write_bytes(segment.read_bytes()[:-10])
        case "remove":
            segment.unlink()
        case "manifest":
            (folder / "manifest.json").write_text("{}")
        case _:
            manifest = json.loads((folder / "manifest.json").read_text())
            manifest["segments"] = [each for each in manifest["segments"] if each["kind"] != "chains"]
            (folder / "manifest.json").write_text(json.dumps(manifest))
    if damage == "manifest":
        with pytest.raises(InvalidBackup):
            verify_backup(folder)
    else:
        assert not verify_backup(folder).ok
    with Stepwell("memory://", worker=False) as well:
        with pytest.raises(InvalidBackup):
            well.restore_backup(folder)
        assert well.executions.list() == []
        assert well.state.globals.all() == {}


def test_folder_with_other_files_is_refused(filled: Any, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    with pytest.raises(InvalidInput, match="has other files"):
        filled.backup(tmp_path / "full")
    filled.backup(tmp_path / "acme", workspace="acme")
    with pytest.raises(InvalidBackup, match="of workspace 'acme'"):
        filled.backup(tmp_path / "acme")


def test_signed_heads_are_checked(tmp_path: Path, clock: FakeClock) -> None:
    key = b"k" * 32
    with Stepwell("memory://", worker=False, signing_key=key, clock=clock) as well:
        well.create("one")
        well.backup(tmp_path / "backup")
    assert verify_backup(tmp_path / "backup", key=key).ok
    assert not verify_backup(tmp_path / "backup", key=b"x" * 32).ok
    with Stepwell("memory://", worker=False, signing_key=key) as well:
        well.restore_backup(tmp_path / "backup")
        assert well.verify("one").ok


def test_earlier_backup_of_a_folder_is_restored_as_the_well_was_then(tmp_path: Path, clock: FakeClock) -> None:
    folder, moments = tmp_path / "backup", list[datetime]()
    with Stepwell(f"sqlite:///{tmp_path}/source.db", worker=False, clock=clock) as well:
        well.create("one")
        for number in range(4):
            with well.transaction("one") as tx:
                tx.set_variable("n", number)
            well.state.globals.set("n", number)
            well.backup(folder, keep=2)
            moments.append(clock.now())
            clock.advance("1h")
    assert [each.generation for each in list_backups(folder)] == [2, 3, 4]
    for number in (1, 2, 3):
        assert verify_backup(folder, at=moments[number]).ok
        with Stepwell(f"sqlite:///{tmp_path}/at-{number}.db", worker=False, clock=clock) as restored:
            restored.restore_backup(folder, at=moments[number])
            assert (restored.load("one").variables["n"], restored.state.globals.get("n")) == (number, number)
            assert restored.verify("one").ok
    with Stepwell("memory://", worker=False) as well, pytest.raises(InvalidBackup, match="by then"):
        well.restore_backup(folder, at=moments[0])
    with pytest.raises(InvalidInput, match="time zone"):
        verify_backup(folder, at=moments[0].replace(tzinfo=None))
    with Stepwell("memory://", worker=False) as well, pytest.raises(InvalidInput, match="keep"):
        well.backup(tmp_path / "other", keep=-1)


RING = KeyRing.of({"k1": b"1" * 32})


def test_backup_of_an_encrypted_well_stays_encrypted_and_goes_to_every_store(every_url: str, tmp_path: Path) -> None:
    with Stepwell(f"sqlite:///{tmp_path}/source.db", encryption=RING) as source:
        done = source.start(work, 1, execution_id="done", subject="user:1")
        assert done.result(timeout=WAIT) == 3
        waits = source.start(wait_for, "go", execution_id="waits")
        until(lambda: waits.status() == "WAITING")
        source.create("archived", "acme", {"who": "Zaphod"}, subject="user:2")
        source.archive("archived", tmp_path / "proof")
        source.create("gone", context={"who": "Zaphod"}, subject="user:3")
        source.erase("user:3", cancel=True)
        source.state.workspace("acme").set("who", "Zaphod")
        source.drain()
        made = source.backup(tmp_path / "backup")
        source.backup(tmp_path / "acme", workspace="acme")
    assert verify_backup(tmp_path / "backup").ok
    with Stepwell(every_url, worker=False, encryption=RING) as target:
        restored = target.restore_backup(tmp_path / "backup")
        assert (restored.digest, restored.counts, restored.held) == (made.digest, made.counts, 1)
        assert target.load("archived").context == {"who": "Zaphod"}
        assert target.load("done").result == {"output": 3}
        assert all(target.verify(name).ok for name in ("done", "waits", "archived", "gone"))
        with pytest.raises(ValueErased):
            target.load("gone")
        assert [each.runs for each in target.erasures()] == [1]
        assert [each.execution_id for each in target.find("user:2")[0].runs] == ["archived"]
    with Stepwell(f"sqlite:///{tmp_path}/acme.db", worker=False, encryption=RING) as only:
        only.restore_backup(tmp_path / "acme")
        assert (only.load("archived").context, only.state.workspace("acme").get("who")) == ({"who": "Zaphod"}, "Zaphod")


def test_encrypted_backup_is_restored_without_keys_and_read_with_them(tmp_path: Path) -> None:
    with Stepwell(f"sqlite:///{tmp_path}/source.db", worker=False, encryption=RING) as source:
        source.create("one", context={"who": "Zaphod"})
        made = source.backup(tmp_path / "backup")
    target = f"sqlite:///{tmp_path}/target.db"
    with Stepwell(target, worker=False) as blind:
        assert blind.restore_backup(tmp_path / "backup").digest == made.digest
    with Stepwell(target, worker=False, encryption=RING) as well:
        assert well.load("one").context == {"who": "Zaphod"}


def test_plain_backup_is_restored_into_an_encrypted_well_as_it_is(filled: Any, tmp_path: Path) -> None:
    made = filled.backup(tmp_path / "backup")
    with Stepwell(f"sqlite:///{tmp_path}/target.db", worker=False, encryption=RING) as well:
        assert well.restore_backup(tmp_path / "backup").digest == made.digest
        well.resume_restored()
        well.create("new", context={"who": "Zaphod"})
        assert well.load("new").context == {"who": "Zaphod"}


def test_backup_under_other_keys_is_refused_and_leaves_the_store_its_own(tmp_path: Path) -> None:
    other = KeyRing.of({"k9": b"9" * 32})
    with Stepwell(f"sqlite:///{tmp_path}/source.db", worker=False, encryption=other) as source:
        source.create("one", workspace="acme", context={"who": "Zaphod"})
        source.backup(tmp_path / "backup", workspace="acme")
    url = f"sqlite:///{tmp_path}/target.db"
    with Stepwell(url, worker=False, encryption=RING, compress_over=100) as well:
        well.create("own", context={"who": "Ford"})
        with pytest.raises(EncryptionKeyMissing, match="k9"):
            well.restore_backup(tmp_path / "backup")
        assert [each.execution_id for each in well.executions.list()] == ["own"]
    both = KeyRing.of({**other.keys, **RING.keys})
    with Stepwell(url, worker=False, encryption=both) as well:
        well.restore_backup(tmp_path / "backup")
        assert (well.load("one").context, well.load("own").context) == ({"who": "Zaphod"}, {"who": "Ford"})
    with pytest.raises(EncryptionKeyMissing), Stepwell(url, worker=False, encryption=other):
        pass
    with Stepwell(url, worker=False, encryption=RING) as well:
        assert well.load("own").context == {"who": "Ford"}


@pytest.mark.parametrize(
    ("field", "value"), [("created_ms", 10**30), ("created_ms", -1), ("generation", 0), ("generation", 10**30)]
)
def test_manifest_with_impossible_numbers_is_refused(filled: Any, tmp_path: Path, field: str, value: int) -> None:
    folder = tmp_path / "backup"
    filled.backup(folder)
    changed_manifest(folder, lambda manifest: manifest.update({field: value}))
    for look in (verify_backup, list_backups):
        with pytest.raises(InvalidBackup):
            look(folder)


@pytest.mark.parametrize("name", ["a\0b", "", ".", "..", "/etc/passwd", "x" * 300])
def test_hostile_names_of_segments_are_refused(filled: Any, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "backup"
    filled.backup(folder)
    changed_manifest(folder, lambda manifest: manifest["segments"][0].update(name=name))
    with pytest.raises(InvalidBackup), Stepwell("memory://", worker=False) as target:
        target.restore_backup(folder)


def test_manifest_without_counts_is_a_problem(filled: Any, tmp_path: Path) -> None:
    filled.backup(tmp_path / "backup")
    changed_manifest(tmp_path / "backup", lambda manifest: manifest.update(counts={}))
    assert "executions" in verify_backup(tmp_path / "backup").problems[0]


@pytest.mark.skipif(os.name != "posix", reason="links and pipes as POSIX has them")
def test_pipes_and_devices_in_a_folder_are_not_read(filled: Any, tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    filled.backup(folder)
    segment = next(folder.glob("*.jsonl.z"))
    segment.unlink()
    os.mkfifo(segment)
    assert "regular" in verify_backup(folder).problems[0]
    segment.unlink()
    segment.symlink_to("/dev/zero")
    assert "regular" in verify_backup(folder).problems[0]
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").symlink_to("/dev/zero")
    with pytest.raises(InvalidBackup, match="regular"):
        list_backups(folder)


@pytest.mark.parametrize("name", ["manifest.json.new", "manifest-000001.json", "000002-chains-000001.jsonl.z"])
def test_link_in_a_folder_is_not_written_through(filled: Any, tmp_path: Path, name: str) -> None:
    folder, victim = tmp_path / "backup", tmp_path / "victim"
    filled.backup(folder)
    precious = (folder / "manifest.json").read_bytes()
    victim.write_bytes(precious)
    (folder / name).symlink_to(victim)
    filled.create("more")
    filled.backup(folder)
    assert victim.read_bytes() == precious
    assert not (folder / "manifest.json").is_symlink()
    assert verify_backup(folder).ok


def test_few_bytes_that_unpack_to_many_lines_do_not_fill_the_memory(filled: Any, tmp_path: Path) -> None:
    folder, bomb = tmp_path / "backup", zlib.compress(b"\n" * 40_000_000, 9)
    filled.backup(folder)

    def put_bomb(manifest: dict[str, Any]) -> None:
        segment = manifest["segments"][0]
        (folder / segment["name"]).write_bytes(bomb)
        segment.update(size=len(bomb), sha256=sha256(bomb).hexdigest())

    changed_manifest(folder, put_bomb)
    tracemalloc.start()
    try:
        assert not verify_backup(folder).ok
        assert tracemalloc.get_traced_memory()[1] < 40_000_000
    finally:
        tracemalloc.stop()


def changed_manifest(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))

"""One run as a file: exported, taken into another store with every receipt, and refused if it does not fit."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.conftest import OpenWell
from tests.support.command_line import Shell, shell
from tests.support.polling import until
from tests.support.store_urls import url

import stepwell
from stepwell import AlreadyExists, ExecutionRemoved, InvalidInput, KeyRing, NotFound, Status, Stepwell, step, workflow

__all__ = ["shell", "url"]

WAIT = 60


@step(name="import.double")
async def double(number: int) -> int:
    return 2 * number


@workflow(name="import.work")
async def work(number: int) -> int:
    return await double(await double(number))


@workflow(name="import.wait")
async def wait_for(number: int) -> int:
    number = await double(number)
    return number + await stepwell.wait_signal("more")


@pytest.fixture
def ended() -> bytes:
    with Stepwell("memory://") as well:
        well.start(work, 3, execution_id="one").result(WAIT)
        return well.export("one")


def live() -> bytes:
    with Stepwell("memory://") as well:
        run = well.start(wait_for, 3, execution_id="live")
        until(lambda: run.status() is Status.WAITING)
        return well.export("live")


def test_imported_run_is_that_of_the_proof_on_every_store(ended: bytes, open_well: OpenWell, url: str) -> None:
    well: Any = open_well(url, worker=False)
    found = well.import_(ended)
    assert (found.execution_id, found.workflow_id, found.status) == ("one", "import.work", "COMPLETED")
    assert well.export("one") == ended
    assert (well.verify("one").ok, well.load("one").result, well.run("one").result(0)) == (True, {"output": 12}, 12)
    assert well.import_(ended) == found


def test_run_that_has_not_ended_is_held_until_a_signal_or_resumed(open_well: OpenWell, url: str) -> None:
    proof = live()
    well: Any = open_well(url)
    well.import_(proof)
    well.run("live").signal("more", 1)
    assert well.run("live").result(WAIT) == 7
    assert well.verify("live").ok


def test_resumed_run_goes_on_where_it_was(open_well: OpenWell) -> None:
    with Stepwell("memory://") as well:
        run = well.start(wait_for, 3, execution_id="live")
        until(lambda: run.status() is Status.WAITING)
        run.signal("more", 2)
        assert run.result(WAIT) == 8
        proof = well.fork("live", "again", at=1) and well.export("again")
    held: Any = open_well("memory://")
    held.import_(proof)
    assert held.run("again").status() is not Status.COMPLETED
    other: Any = open_well("memory://")
    other.import_(proof, resume=True)
    until(lambda: other.run("again").status() is Status.WAITING)
    other.run("again").signal("more", 5)
    assert other.run("again").result(WAIT) == 11


def test_archived_run_is_imported_from_its_snapshot(ended: bytes, open_well: OpenWell, tmp_path: Path) -> None:
    source: Any = open_well("memory://", worker=False)
    source.import_(ended)
    source.archive("one", tmp_path / "first", through=1)
    target: Any = open_well("memory://", worker=False)
    target.import_(source.export("one"))
    assert (target.verify("one").ok, target.load("one").result) == (True, {"output": 12})
    assert target.import_(source.export("one")).revision == source.load("one").revision


def test_broken_proof_is_refused_before_anything_is_written(ended: bytes, open_well: OpenWell) -> None:
    well: Any = open_well("memory://", worker=False)
    lines = ended.splitlines(keepends=True)
    for broken in (ended.replace(b"COMPLETED", b"FAILED___"), b"".join(lines[:-1]), b"", b"{}\n", lines[0], ended[:-9]):
        with pytest.raises(InvalidInput):
            well.import_(broken)
    with pytest.raises(InvalidInput):
        well.import_("one.proof")
    assert well.executions.list() == []
    signed: Any = open_well("memory://", worker=False, signing_key=b"k" * 32)
    with pytest.raises(InvalidInput, match="signature"):
        signed.import_(ended)


def test_other_history_under_the_id_is_not_touched(ended: bytes, open_well: OpenWell) -> None:
    well: Any = open_well("memory://", worker=False)
    well.create("one", context={"a": 1})
    with pytest.raises(AlreadyExists, match="another history"):
        well.import_(ended)
    assert well.load("one").context == {"a": 1}
    well.delete("one")
    with pytest.raises(AlreadyExists):
        well.import_(ended)
    with pytest.raises((NotFound, ExecutionRemoved)):
        well.load("one")


def test_what_a_proof_does_not_hold_is_refused(ended: bytes, open_well: OpenWell) -> None:
    ring = KeyRing.of({"k1": b"1" * 32})
    encrypted: Any = open_well("memory://", worker=False, encryption=ring)
    with pytest.raises(InvalidInput, match="without encryption"):
        encrypted.import_(ended)
    encrypted.create("two", context={"a": 1})
    well: Any = open_well("memory://")
    with pytest.raises(InvalidInput, match="by a backup"):
        well.import_(encrypted.export("two"))
    well.workspaces.put("acme")
    run = well.start(wait_for, 1, execution_id="slot", workspace="acme")
    until(lambda: run.status() is Status.WAITING)
    other: Any = open_well("memory://")
    with pytest.raises(InvalidInput, match="queue item"):
        other.import_(well.export("slot"))


PROGRAM = textwrap.dedent("""
    import sys
    from pathlib import Path
    from tests.faults.hooks import at, kill_this_process
    from stepwell import Stepwell
    from stepwell.fault_points import armed
    from stepwell.maintenance import restore

    restore._BATCH = 2
    with Stepwell(sys.argv[1], worker=False) as well, armed(at("import.batch_written", int(sys.argv[3]), kill_this_process)):
        well.import_(Path(sys.argv[2]).read_bytes())
""")


def test_killed_import_is_finished_by_the_same_call(ended: bytes, tmp_path: Path) -> None:
    (tmp_path / "proof").write_bytes(ended)
    place = f"sqlite:///{tmp_path}/well.db"
    command = [sys.executable, "-c", PROGRAM, place, str(tmp_path / "proof"), "1"]
    assert subprocess.run(command, timeout=WAIT, check=False).returncode == -signal.SIGKILL
    with Stepwell(place, worker=False) as well:
        assert 0 < well.load("one").revision < 3
        well.import_(ended)
        assert well.export("one") == ended


def test_command_line_exports_and_imports(shell: Shell, tmp_path: Path) -> None:
    assert shell.checkout("one").code == 0
    assert shell("export", "one", "one.proof", "--json").json["execution_id"] == "one"
    assert shell("export", "one", "one.proof").code == 5
    other = f"sqlite:///{tmp_path}/other.db"
    assert shell("import", "one.proof", "--json", "--url", other).json["status"] == "COMPLETED"
    assert shell("verify", "one", "--url", other).code == 0
    assert shell("import", "none.proof", "--url", other).code == 3

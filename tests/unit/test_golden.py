"""Files of schema 1, written once and kept: every later version must read them."""

from __future__ import annotations

import shutil
from pathlib import Path

import apsw
import msgspec
import pytest
from tests.unit.golden_files import CLOCK_START, KEY
from tests.unit.sample import NOW, story

from stepwell import FakeClock, LimitExceeded, LoopContext, StepOutput, Stepwell, StoreNewer, Token, migration, verify_proof
from stepwell.model.execution_state import ExecutionState
from stepwell.model.queue_item import TIERS
from stepwell.model.snapshot import read_snapshot
from stepwell.stores.sqlite.connection import SCHEMA_VERSION

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def well_file(tmp_path: Path) -> Path:
    """A copy of the golden store, to be opened without touching the original."""
    return Path(shutil.copy(GOLDEN / "well-1.sqlite", tmp_path / "well.db"))


def open_well(path: Path) -> Stepwell:
    return Stepwell(f"sqlite:///{path}", clock=FakeClock(CLOCK_START), signing_key=KEY)


def test_snapshot_of_schema_1_is_read() -> None:
    """T48."""
    snapshot, state = read_snapshot((GOLDEN / "snapshot-1.json").read_bytes())
    view = ExecutionState(state)
    assert (snapshot.execution_id, snapshot.revision) == ("run-1", 7)
    assert view == story().view
    assert view.variables == {"paid": "yes"}
    assert view.trigger == {"by": "hand"}


def test_proof_of_schema_1_verifies() -> None:
    """T48."""
    result = verify_proof((GOLDEN / "proof-1.jsonl").read_bytes(), key=KEY)
    assert result.ok
    assert result.receipts == 8


def test_store_of_schema_1_is_read_and_verifies(well_file: Path) -> None:
    """T48."""
    with open_well(well_file) as well:
        state = well.load("order-7")
        assert state.revision == 2
        assert state.status == "RUNNING"
        assert state.context == {"cart": ["pen"], "total": 12.5}
        assert state.variables == {"näme": "ü\0😀"}
        assert state.steps["charge"] == StepOutput("node-charge", "charge", "COMPLETED", {"paid": True, "big": 2**53 + 1}, NOW, 12)
        assert state.loops == {"photos": LoopContext("photos", 1, "b.png", 3)}
        assert state.tokens == {"t": Token("t", "ship", "root", [1, 2.5, None])}
        assert [receipt.commit_id for receipt in well.receipts("order-7")] == ["first", "second", "third"]
        assert well.verify("order-7").ok
        old = well.verify("old")
        assert (old.ok, old.receipts) == (True, 2)
        assert well.load("old", at=3).variables == {"n": 3}
        assert well.state.workspace("acme").workflow("checkout").all() == {"orders": 1}
        assert well.state.custom("notes").all() == {"a/b": {"kept": True}, "short": 1}


def test_store_of_schema_1_can_be_written_to(well_file: Path) -> None:
    """T48."""
    with open_well(well_file) as well:
        with well.transaction("order-7") as tx:
            tx.set_status("COMPLETED")
        assert well.verify("order-7").ok
        assert well.receipt("order-7", "second").revision == 1
        assert well.state.custom("notes").increment("short") == 2


def test_store_of_schema_1_counts_state_and_has_a_queue(well_file: Path) -> None:
    """T48: the golden store has one key in the state of acme, of a workflow, and no item."""
    with open_well(well_file) as well:
        assert {tier.name: tier for tier in well.workspaces.tiers()} == {tier.name: tier for tier in TIERS}
        well.workspaces.put_tier("small", state_keys=2, workflow_state_keys=1)
        well.workspaces.put("acme", tier="small")
        assert well.workspaces.override("acme", "concurrency", 7, span="1h").overrides["concurrency"].value == 7
        checkout = well.state.workspace("acme").workflow("checkout")
        with pytest.raises(LimitExceeded, match="workflow_state_keys=1"):
            checkout.set("more", 1)
        well.state.workspace("acme").set("more", 1)
        with pytest.raises(LimitExceeded, match="state_keys=2"):
            well.state.workspace("acme").set("most", 1)
        assert well.queue.stats() == []


def test_values_of_schema_1_are_migrated(well_file: Path) -> None:
    """T48: brought forward in memory, and stored so only by a write."""
    migration(scope="custom/notes", from_version=1, to_version=2)(lambda value: len(str(value)))
    migration(workflow="manual", from_version=1, to_version=2)(lambda value: {**value, "context": {"all": value["context"]}})
    with open_well(well_file) as well:
        assert well.state.custom("notes").all() == {"a/b": 14, "short": 1}
        assert well.load("order-7").context == {"all": {"cart": ["pen"], "total": 12.5}}
        assert len(well.receipts("order-7")) == 3
        report = well.migrate_state()
        assert (report.migrated, report.is_verified) == (4, True)
        assert (well.verify("order-7").ok, well.verify("old").ok) == (True, True)
        assert well.load("old", at=3).variables == {"n": 3}


def test_store_of_a_newer_schema_is_refused_and_not_touched(well_file: Path) -> None:
    """T48: with both versions named; nothing is written."""
    database = apsw.Connection(str(well_file))
    database.execute("PRAGMA journal_mode = delete").fetchall()
    database.execute("PRAGMA user_version = 1000")
    database.close()
    before = well_file.read_bytes()
    with pytest.raises(StoreNewer, match=rf"schema 1000.*up to {SCHEMA_VERSION}\b.*upgrade") as caught:
        open_well(well_file)
    assert caught.value.code == "SW-303"
    assert well_file.read_bytes() == before
    assert [path.name for path in well_file.parent.iterdir()] == ["well.db"]


def test_receipt_of_a_newer_schema_quarantines_one_execution_and_no_other(well_file: Path) -> None:
    """T48."""
    with open_well(well_file) as well:
        header = msgspec.json.decode(_first_header(well_file))
    assert header["schema"] == 1
    database = apsw.Connection(str(well_file))
    newer = _first_header(well_file).replace(b'"schema":1', b'"schema":2')
    database.execute("UPDATE commits SET header = ? WHERE header = ?", (newer, _first_header(well_file)))
    database.close()
    with open_well(well_file) as well:
        result = well.verify("order-7")
        assert "receipt 0 has schema 2; this Stepwell reads up to 1, upgrade it" in result.problems[0]
        assert well.load("old").variables == {"n": 5}


def _first_header(path: Path) -> bytes:
    database = apsw.Connection(str(path))
    try:
        return next(iter(database.execute("""SELECT header FROM commits WHERE commit_id = 'first'""")))[0]
    finally:
        database.close()

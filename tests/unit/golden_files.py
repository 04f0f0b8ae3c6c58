"""Writes the golden files of the present schema. Run it once for a new schema, never to make a test pass."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

from tests.unit.sample import step, story

from stepwell import FakeClock, LoopContext, Scope, Stepwell
from stepwell.model.receipt_chain import write_proof
from stepwell.model.snapshot import write_snapshot

KEY = b"k" * 32
CLOCK_START = datetime(2026, 1, 1, tzinfo=UTC)


def fill(well: Stepwell, folder: Path) -> None:
    """Two executions and some state, the same every time but for the ids that the clock is in."""
    well.create("order-7", "acme", {"cart": ["pen"], "total": 12.5}, commit_id="first")
    with well.transaction("order-7", commit_id="second") as tx:
        tx.set_trigger({"by": "hand"})
        tx.set_status("RUNNING")
        tx.record_step(step("charge", {"paid": True, "big": 2**53 + 1}))
        tx.set_loop_context(LoopContext("photos", 1, "b.png", 3))
        tx.add_token("t", node="ship", value=[1, 2.5, None])
        tx.state(Scope.of_workflow("checkout", "acme")).set("orders", 1)
    with well.transaction("order-7", commit_id="third") as tx:
        tx.set_variable("näme", "ü\0😀")
    well.create("old", commit_id="old-0")
    for number in range(1, 6):
        with well.transaction("old", commit_id=f"old-{number}") as tx:
            tx.set_variable("n", number)
    well.archive("old", folder / "archive.tmp", through=3)
    well.state.custom("notes").set("a/b", {"kept": True})
    well.state.custom("notes").set("short", 1, ttl=60)


def write(folder: Path) -> None:
    """All files of the present schema."""
    from tests.unit.test_digest import golden_digests

    chain = story(key=KEY)
    (folder / "snapshot-1.json").write_bytes(write_snapshot(chain.state))
    (folder / "proof-1.jsonl").write_bytes(write_proof(chain.head, None, chain.rows, KEY))
    (folder / "digests.json").write_text(json.dumps(golden_digests(), indent=1) + "\n")
    path = folder / "well-1.sqlite"
    path.unlink(missing_ok=True)
    with Stepwell(f"sqlite:////{path.resolve().relative_to('/')}", clock=FakeClock(CLOCK_START), signing_key=KEY) as well:
        fill(well, folder)
    (folder / "archive.tmp").unlink()


if __name__ == "__main__":
    write(Path(sys.argv[1]))

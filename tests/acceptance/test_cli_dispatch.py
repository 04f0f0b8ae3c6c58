"""`stepwell dispatch`, which serves a store without running workflows, and `stepwell bench`, which measures one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.command_line import Shell, shell
from tests.support.polling import until

from stepwell import Stepwell, workflow

__all__ = ["shell"]


@workflow
async def report() -> str:
    """Report."""
    return "done"


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_schedules_fire_where_no_worker_runs(tmp_path: Path, shell: Shell, is_encrypted: bool, monkeypatch: pytest.MonkeyPatch):
    url = f"sqlite:///{tmp_path}/w.db"
    if is_encrypted:
        shell("encryption", "key", str(tmp_path / "keys.json"))
        monkeypatch.setenv("STEPWELL_KEYRING", str(tmp_path / "keys.json"))
    with Stepwell(url, worker=False) as well:
        well.schedules.put("often", report, every="200ms")
        command = [sys.executable, "-m", "stepwell", "dispatch", "--json", "--url", url]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline()) == {"event": "ready"}
            until(lambda: len(well.queue.list()) >= 2)
            assert {item.status for item in well.queue.list()} == {"QUEUED"}  # it runs nothing
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def test_a_store_is_measured_and_left_as_it_was(shell: Shell):
    done = shell("bench", "--runs", "3", "--json")
    found = json.loads(done.out)
    assert found["runs"] == 3
    assert all(found[name] > 0 for name in ("runs_per_second", "steps_per_second", "commit_p50_ms", "commit_p99_ms"))
    assert shell("list", "--json").out == ""

"""The command line: backups."""

from __future__ import annotations

from pathlib import Path

from tests.support.command_line import Shell, shell

__all__ = ["shell"]


def test_store_is_backed_up_checked_restored_and_resumed(shell: Shell, tmp_path: Path):
    assert shell.checkout("a").code == 0
    folder = str(tmp_path / "backup")
    made = shell("backup", "create", folder, "--json").json
    assert made["counts"]["executions"] == 1
    assert "ok: 1 executions" in shell("backup", "verify", folder).out
    shell.url = f"sqlite:///{tmp_path}/target.db"
    assert shell("backup", "restore", folder, "--json").json["digest"] == made["digest"]
    assert shell("verify", "a").code == 0
    assert shell("backup", "restore", folder).code == 4
    assert shell("backup", "resume", "--json").json == {"resumed": 0}
    assert shell("backup", "resume").code == 3


def test_damaged_backup_is_told_with_its_file(shell: Shell, tmp_path: Path):
    assert shell.checkout("a").code == 0
    folder = tmp_path / "backup"
    assert shell("backup", "create", str(folder)).code == 0
    segment = next(folder.glob("*.z"))
    segment.write_bytes(b"x")
    done = shell("backup", "verify", str(folder))
    assert done.code == 1
    assert segment.name in done.out
    assert shell("backup", "verify", str(tmp_path / "none")).code == 5

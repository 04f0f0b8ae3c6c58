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
    assert "ok: 1 execution," in shell("backup", "verify", folder).out
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


def test_state_is_exported_and_imported_into_another_store(shell: Shell, tmp_path: Path):
    shell("state", "set", "custom/a%2Fb", "key", '{"n": [1, 2.5, null]}', "-w", "acme")
    shell("state", "set", "global", "ü\n", '"x"')
    shell("state", "set", "global", "soon", "1", "--ttl", "1h")
    file = str(tmp_path / "state.jsonl")
    assert shell("state", "export", file, "--json").json["keys"] == 3
    assert shell("state", "export", file).code == 5
    shell.url = f"sqlite:///{tmp_path}/target.db"
    assert shell("state", "import", file, "--json").json == {"keys": 3}
    assert shell("state", "get", "custom/a%2Fb", "key", "-w", "acme").json == {"n": [1, 2.5, None]}
    assert shell("state", "get", "global", "ü\n").json == "x"
    assert shell("state", "get", "global", "soon", "--json").json["expires_at"] is not None
    assert shell("state", "export", str(tmp_path / "acme"), "-w", "acme", "--json").json["keys"] == 1


def test_export_that_was_changed_is_refused_before_anything_is_written(shell: Shell, tmp_path: Path):
    shell("state", "set", "global", "a", "1")
    shell("state", "set", "global", "b", "2")
    file = tmp_path / "state.jsonl"
    shell("state", "export", str(file))
    lines = file.read_bytes().splitlines(keepends=True)
    shell.url = f"sqlite:///{tmp_path}/target.db"
    for damaged in (lines[:-1], lines[1:], [lines[0].replace(b"1", b"3"), *lines[1:]], [*lines, lines[0]], [b"{}", *lines], [b"x"]):
        file.write_bytes(b"".join(damaged))
        assert shell("state", "import", str(file)).code == 5
    assert shell("state", "import", str(tmp_path / "none")).code == 3
    assert shell("state", "set", "global", "new", "1").code == 0
    assert shell("state", "list", "global").out == "new\t1\n"

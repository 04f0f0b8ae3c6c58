"""A damaged page under a live worker: it may stop all claims or commits and no probe, and ``health()`` says so."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from stepwell import Corrupted, Stepwell, step, workflow

WAIT = 60


@step
def add_one(number: int) -> int:
    return number + 1


@workflow
def damaged_chore(number: int) -> int:
    return add_one(number)


def damage(path: Path, name: str) -> None:
    """Overwrite the first page of a table or index of a file that nobody has open."""
    with apsw.Connection(str(path)) as db:
        page, size = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (name,)).get, db.pragma("page_size")
    db.close()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xaa" * size)


@pytest.mark.parametrize(
    ("damaged", "task"),
    [("executions_by_wake", "the claiming of executions"), ("items_ready", "the dispatcher"), ("locks_by_end", None)],
)
def test_health_names_what_a_damaged_page_stops(tmp_path: Path, damaged: str, task: str | None) -> None:
    path = tmp_path / "well.db"
    with Stepwell(f"sqlite:///{path}", worker=False) as well:
        well.start(damaged_chore, 1)
        well.enqueue(damaged_chore, 2)
    damage(path, damaged)
    with Stepwell(f"sqlite:///{path}") as well:
        if task is None:
            with pytest.raises(Corrupted):
                well.lock("door").acquire()
            health = well.health()
        else:
            while task not in (health := well.health()).parts["worker"]:
                pass  # the test's own time limit ends this
        assert not health.is_ok
        assert "damaged" in (health.parts["commits"] if task is None else health.parts["worker"])


def tables(path: Path) -> list[str]:
    with apsw.Connection(str(path)) as db:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'")]
    db.close()
    return names


def test_health_notices_the_damage_of_any_table(tmp_path: Path) -> None:
    """A damaged table may also keep the file from being opened, which says it as well."""
    path = tmp_path / "well.db"
    with Stepwell(f"sqlite:///{path}", worker=False) as well:
        well.start(damaged_chore, 1)
    whole = path.read_bytes()
    noticed: list[str] = []
    for name in (names := tables(path)):
        path.write_bytes(whole)
        damage(path, name)
        try:
            with Stepwell(f"sqlite:///{path}", worker=False) as well:
                if "damaged" in well.health().parts["read"]:
                    noticed.append(name)
        except Corrupted:
            noticed.append(name)
    assert noticed == names
    assert "snapshots" in names

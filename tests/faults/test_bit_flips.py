"""T11: a bit that flips at rest is found: the file does not open, or the execution it hit is quarantined; others go on."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import apsw
import pytest

from stepwell import ExecutionState, FakeClock, NotFound, StepOutput, Stepwell, StoreUnavailable
from stepwell.model import receipt_chain

_VICTIM, _OTHERS = "victim", ("before", "behind")
_STRIDE = 64
_PAGES, _FLIPS_PER_PAGE = 60, 3
_DONE_AT = datetime(2026, 1, 1, tzinfo=UTC)


class Original:
    """A closed file with three executions, and all that is true about them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with Stepwell(f"sqlite:///{path}", clock=FakeClock()) as well:
            for execution_id in (_OTHERS[0], _VICTIM, _OTHERS[1]):
                write_history(well, execution_id)
            names = (_VICTIM, *_OTHERS)
            self.states = {name: [well.load(name, at=at) for at in range(well.load(name).revision + 1)] for name in names}
            self.receipts = {name: well.receipts(name) for name in names}

    def copy(self, path: Path) -> Stepwell:
        shutil.copy(self.path, path)
        return Stepwell(f"sqlite:///{path}", clock=FakeClock())


def write_history(well: Stepwell, execution_id: str) -> None:
    well.create(execution_id, context={"customer": "somebody", "items": [1, 2, 3]})
    for number in range(8):
        with well.transaction(execution_id) as tx:
            tx.record_step(StepOutput(f"n{number}", f"step {number}", "COMPLETED", {"text": "x" * 40, "n": number}, _DONE_AT, 3))
            tx.set_variable("last", number)
            tx.increment_step_count()


@pytest.fixture
def original(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> Original:
    """Snapshots are small and come every few commits, so that there are both commits before and after the newest."""
    monkeypatch.setattr(receipt_chain, "_SNAPSHOT_BYTES", 700)
    return Original(quick_path / "original.db")


def answer(call: Callable[[], object]) -> object:
    """Return the result of a call; an error that reports damage or an absent record is returned as a value."""
    try:
        return call()
    except (StoreUnavailable, NotFound) as error:
        return error


def is_refused(given: object) -> bool:
    return isinstance(given, StoreUnavailable | NotFound)


def check_execution(well: Stepwell, original: Original, execution_id: str) -> bool:
    """Whatever is given about an execution is true or refused; whether anything was found to be wrong."""
    states, receipts = original.states[execution_id], original.receipts[execution_id]
    given: list[tuple[object, object]] = [(answer(lambda: well.load(execution_id)), states[-1])]
    given += [(answer(lambda at=at: well.load(execution_id, at=at)), state) for at, state in enumerate(states)]
    given += [(answer(lambda: well.receipts(execution_id)), receipts)]
    verified = answer(lambda: well.verify(execution_id))
    is_verified = not is_refused(verified) and verified.ok  # type: ignore[attr-defined]
    for found, truth in given:
        assert is_refused(found) or found == truth or not is_verified, "wrong, and nothing says so"
        if isinstance(found, ExecutionState):
            assert found == truth, "a state is never wrong"
    return not is_verified or any(is_refused(found) for found, _ in given)


def blobs(connection: apsw.Connection) -> list[tuple[str, str, int, bytes | str]]:
    """Everything that is stored about the victim's commits and snapshots: table, column, rowid, content."""
    number = connection.execute("SELECT number FROM executions WHERE execution_id = ?", (_VICTIM,)).get
    found: list[tuple[str, str, int, bytes | str]] = []
    for table, columns in (("commits", ("header", "body")), ("snapshots", ("data", "accumulator", "digest"))):
        for column in columns:
            rows = connection.execute(f"SELECT rowid, {column} FROM {table} WHERE position >> 32 = ?", (number,)).fetchall()
            found += [(table, column, rowid, content) for rowid, content in rows]
    return found


def flipped(content: bytes | str, at: int, bit: int) -> bytes | str:
    data = bytearray(content.encode("latin-1") if isinstance(content, str) else content)
    data[at] ^= 1 << bit
    return data.decode("latin-1") if isinstance(content, str) else bytes(data)


def test_every_bit_flip_in_a_receipt_body_or_snapshot_is_found_alone(original: Original, quick_path: Path) -> None:
    """T11: a bit at each 64-byte stride of everything that is stored of one execution's history."""
    choice, path = random.Random(11), quick_path / "flipped.db"
    original.copy(path).close()
    connection = apsw.Connection(str(path))
    rows = blobs(connection)
    assert {table for table, _, _, _ in rows} == {"commits", "snapshots"}
    assert len({rowid for table, _, rowid, _ in rows if table == "snapshots"}) >= 2
    for table, column, rowid, content in rows:
        update = f"UPDATE {table} SET {column} = ? WHERE rowid = ?"
        for start in range(0, len(content), _STRIDE):
            at = min(start + choice.randrange(_STRIDE), len(content) - 1)
            connection.execute(update, (flipped(content, at, choice.randrange(8)), rowid))
            with Stepwell(f"sqlite:///{path}") as well:
                assert check_execution(well, original, _VICTIM), f"{column} of {table}: not found"
                assert table != "commits" or not well.verify(_VICTIM).ok, f"{column} of {table}: not found by verify"
                for execution_id in _OTHERS:
                    assert well.load(execution_id) == original.states[execution_id][-1]
            connection.execute(update, (content, rowid))
    with Stepwell(f"sqlite:///{path}") as well:
        assert not check_execution(well, original, _VICTIM)
    connection.close()


def test_a_flip_anywhere_in_the_file_never_gives_a_wrong_state(original: Original, quick_path: Path) -> None:
    """T11: some bits of each page; the file is refused, or each execution is what it was, or is refused."""
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    choice, path = random.Random(seed), quick_path / "flipped.db"
    content = original.path.read_bytes()
    size = int.from_bytes(content[16:18], "big")
    pages = range(0, len(content), size)
    refused = 0
    for start in choice.sample(pages, min(_PAGES, len(pages))):
        for _ in range(_FLIPS_PER_PAGE):
            data = bytearray(content)
            data[start + choice.randrange(size)] ^= 1 << choice.randrange(8)
            path.write_bytes(data)
            refused += open_and_check(original, path)
            for file in quick_path.glob("flipped.db*"):
                file.unlink()
    assert refused > 0


def open_and_check(original: Original, path: Path) -> bool:
    """Whether the flip was found."""
    try:
        well = Stepwell(f"sqlite:///{path}", clock=FakeClock())
    except StoreUnavailable:
        return True
    try:
        found = [check_execution(well, original, execution_id) for execution_id in (_VICTIM, *_OTHERS)]
    finally:
        well.close()
    return any(found)


def test_an_execution_that_is_quarantined_takes_no_commits(original: Original, quick_path: Path) -> None:
    """T11: nothing is built on a state that cannot be trusted; the error says so, and the others go on."""
    path = quick_path / "flipped.db"
    original.copy(path).close()
    connection = apsw.Connection(str(path))
    table, column, rowid, content = [row for row in blobs(connection) if row[1] == "body"][-1]
    connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (flipped(content, 20, 0), rowid))
    connection.close()
    with Stepwell(f"sqlite:///{path}") as well:
        with pytest.raises(StoreUnavailable, match="quarantined"):
            well.transaction(_VICTIM).begin()
        with well.transaction(_OTHERS[0]) as tx:
            tx.set_variable("goes", "on")
        assert well.verify(_OTHERS[0]).ok

"""Ids of commits that users choose: also those that look like the ones that Stepwell makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepwell import Conflict, ReceiptArchived, Stepwell


def count(well: Any, execution_id: str, commit_id: str) -> Any:
    with well.transaction(execution_id, commit_id=commit_id) as tx:
        tx.update_context(lambda context: {"n": context.get("n", 0) + 1})
    return tx.receipt


@pytest.mark.parametrize("commit_id", ["r1.abc", f"r1.{'a' * 32}", "mine"])
def test_commit_that_was_archived_does_not_land_again(well: Any, tmp_path: Path, commit_id: str) -> None:
    well.create("run")
    count(well, "run", commit_id)
    well.archive("run", tmp_path / "proof")
    with pytest.raises(ReceiptArchived):
        well.receipt("run", commit_id)
    with pytest.raises(ReceiptArchived):
        count(well, "run", commit_id)
    assert well.load("run").context == {"n": 1}


@pytest.mark.parametrize("revision", [2**31, 2**32, 2**33])
def test_id_that_says_a_revision_beyond_all_is_nobody_elses(well: Any, revision: int) -> None:
    commit_id = f"r{revision}.{'0' * 32}"
    for execution_id in ("a", "b", "c"):
        well.create(execution_id, commit_id=commit_id)
    assert count(well, "a", "another").execution_id == "a"
    assert count(well, "b", "another").execution_id == "b"
    assert [well.receipt(each, commit_id).execution_id for each in ("a", "b", "c")] == ["a", "b", "c"]


def test_commit_inside_a_function_of_another_transaction_is_not_overwritten(url: str) -> None:
    with Stepwell(url, worker=False) as well:
        well.create("run", context={"n": 0})
        tx = well.transaction("run").begin()

        def change(context: dict[str, Any]) -> dict[str, Any]:
            with well.transaction("run") as inner:
                inner.set_context({"n": 100})
            return {"n": context["n"] + 1}

        tx.update_context(change)
        with pytest.raises(Conflict):
            tx.commit()
        assert well.load("run").context == {"n": 100}


def test_function_of_a_transaction_that_was_not_begun_gets_the_newest_state(file_url: str) -> None:
    """The state at hand may be behind: another process has written."""
    with Stepwell(file_url, worker=False) as here, Stepwell(file_url, worker=False) as there:
        here.create("run")
        with there.transaction("run") as tx:
            tx.set_context({"n": 1})
        late = here.transaction("run")
        late.update_context(lambda context: {"n": context["n"] + 1})
        late.commit()
        assert here.load("run").context == {"n": 2}

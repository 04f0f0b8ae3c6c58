"""Ids of commits that users choose: also those that look like the ones that Stepwell makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepwell import Conflict, FakeClock, Limits, ReceiptArchived, Stepwell
from stepwell.testing.conformance.fixtures import MakeStore


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


def pay(well: Stepwell, cents: int, **fields: Any) -> Any:
    with well.transaction("run", commit_id="pay") as tx:
        tx.set_variable("paid", cents)
        tx.update_context(lambda context: {"n": context["n"] + 1})
        for name, value in fields.items():
            tx.set_variable(name, value)
    return tx.receipt


def test_second_commit_of_an_id_with_the_same_changes_gives_its_receipt(make_store: MakeStore, clock: FakeClock) -> None:
    with Stepwell(make_store(clock, Limits()), worker=False) as well:
        well.create("run", context={"n": 0})
        first = pay(well, 700)
        assert pay(well, 700) == first
        assert well.load("run").context == {"n": 1}


def test_second_commit_of_an_id_with_other_changes_is_a_conflict(make_store: MakeStore, clock: FakeClock) -> None:
    with Stepwell(make_store(clock, Limits()), worker=False) as well:
        well.create("run", context={"n": 0})
        pay(well, 700)
        before = well.load("run")
        for again in (lambda: pay(well, 800), lambda: pay(well, 700, tip=1)):
            with pytest.raises(Conflict, match="commit 'pay' of execution 'run' landed with other changes, at revision 1"):
                again()
        assert well.load("run") == before


def test_creation_with_the_commit_id_of_another_creation_is_a_conflict(make_store: MakeStore, clock: FakeClock) -> None:
    with Stepwell(make_store(clock, Limits()), worker=False) as well:
        first = well.create("run", context={"n": 0}, commit_id="made")
        assert well.create("run", context={"n": 0}, commit_id="made") == first
        for context, workspace in (({"n": 1}, "default"), ({"n": 0}, "acme")):
            with pytest.raises(Conflict):
                well.create("run", workspace, context, commit_id="made")


def test_refused_retry_of_a_commit_compares_its_changes_too(make_store: MakeStore, clock: FakeClock) -> None:
    """A retry that the state refuses, since its own first try is in it, finds the receipt of that."""

    def leave(well: Stepwell, token: str) -> Any:
        tx = well.transaction("run", commit_id="leave")
        tx.remove_token(token)
        return tx.commit()

    with Stepwell(make_store(clock, Limits()), worker=False) as well:
        well.create("run")
        with well.transaction("run") as tx:
            tx.add_token("here", node="n")
        first = leave(well, "here")
        assert leave(well, "here") == first
        with pytest.raises(Conflict, match="landed with other changes"):
            leave(well, "elsewhere")

"""Bad input: each a typed error with a stable code that says what to do; nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stepwell import (
    AlreadyExists,
    Conflict,
    InvalidInput,
    LimitExceeded,
    NotFound,
    Stepwell,
)

USES: dict[str, Callable[[Stepwell, object], object]] = {
    "load": lambda well, name: well.load(name),
    "load at": lambda well, name: well.load(name, at=0),
    "transaction": lambda well, name: well.transaction(name).commit(),
    "receipts": lambda well, name: well.receipts(name),
    "verify": lambda well, name: well.verify(name),
    "snapshot": lambda well, name: well.snapshot(name),
    "export": lambda well, name: well.export(name),
    "fork": lambda well, name: well.fork(name, "new"),
    "diff": lambda well, name: well.diff(name, 0, 0),
    "delete": lambda well, name: well.delete(name),
}


@pytest.mark.parametrize("use", USES)
def test_unknown_execution(well: Stepwell, use: str) -> None:
    with pytest.raises(NotFound, match="there is no execution 'missing'") as caught:
        USES[use](well, "missing")
    assert caught.value.code == "SW-200"
    assert well.executions.list() == []


def test_unknown_execution_leaves_no_archive(well: Stepwell, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        well.archive("missing", tmp_path / "proof")
    assert not (tmp_path / "proof").exists()


ID_USES: dict[str, Callable[[Stepwell, object], object]] = {
    **USES,
    "create": lambda well, name: well.create(name),
    "receipt": lambda well, name: well.receipt(name, "c"),
    "receipt of": lambda well, name: well.receipt("run", name),
    "fork to": lambda well, name: well.fork("run", name),
    "commit id": lambda well, name: well.transaction("run", commit_id=name or "").commit(),
    "workspace": lambda well, name: well.create("other", workspace=name),
    "workflow": lambda well, name: well.create("other", workflow=name),
    "create with commit id": lambda well, name: well.create("other", commit_id=name or ""),
}


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800", None, 7, "x" * 513], ids=ascii)
def test_bad_ids(well: Stepwell, name: str) -> None:
    """T46."""
    well.create("run")
    for use, act in ID_USES.items():
        with pytest.raises((InvalidInput, LimitExceeded)) as caught:
            act(well, name)
        assert caught.value.code in ("SW-101", "SW-102"), use
    assert [summary.execution_id for summary in well.executions.list()] == ["run"]
    assert well.load("run").revision == 0


def test_reused_id(well: Stepwell) -> None:
    well.create("run", context={"first": True})
    with pytest.raises(AlreadyExists, match="ids are never used twice") as caught:
        well.create("run", workspace="other")
    assert caught.value.code == "SW-202"
    assert isinstance(caught.value, Conflict)
    assert well.load("run").context == {"first": True}
    assert len(well.receipts("run")) == 1


def test_stale_revision(well: Stepwell) -> None:
    well.create("run")
    with (  # noqa: PT012 - leaving the block is what raises
        pytest.raises(Conflict, match="at revision 1, and this transaction began at 0; begin again") as caught,
        well.transaction("run") as tx,
    ):
        well.transaction("run").commit()
        tx.set_variable("a", 1)
    assert caught.value.code == "SW-201"
    assert well.load("run").variables == {}


def test_over_limit_value(well: Stepwell) -> None:
    """T43."""
    big = "x" * (256 * 1024 - 1)
    well.create("run")
    for use in (
        lambda: well.create("big", context={"a": big}),
        lambda: well.state.globals.set("k", big),
        lambda: _commit(well, lambda tx: tx.set_variable("a", big)),
        lambda: _commit(well, lambda tx: tx.set_context({"a": big})),
        lambda: _commit(well, lambda tx: tx.update_context(lambda _: {"a": big})),
        lambda: _commit(well, lambda tx: tx.set_trigger(big)),
        lambda: _commit(well, lambda tx: tx.add_token("t", node="n", value=big)),
        lambda: _commit(well, lambda tx: tx.state(well.state.globals).set("k", big)),
    ):
        with pytest.raises(
            LimitExceeded, match=r"over the limit value_bytes=262,144; .* raise Limits\(value_bytes=\.\.\.\)"
        ) as caught:
            use()
        assert caught.value.code == "SW-102"
    assert well.load("run").revision == 0
    assert well.state.globals.all() == {}
    assert [summary.execution_id for summary in well.executions.list()] == ["run"]


def _commit(well: Stepwell, change: Callable[[object], object]) -> None:
    with well.transaction("run") as tx:
        change(tx)


@pytest.mark.parametrize("at", [1, 2**31, 2**63, 2**70])
def test_revision_that_is_not_there(well: Stepwell, at: int) -> None:
    well.create("run")
    for use in (lambda: well.load("run", at=at), lambda: well.diff("run", 0, at), lambda: well.fork("run", "new", at=at)):
        with pytest.raises(NotFound, match="has revisions 0 to 0"):
            use()
    assert well.receipts("run", after=at) == []


@pytest.mark.parametrize("at", [-1, "1", 1.0, True])
def test_revision_that_is_no_number(well: Stepwell, at: int, tmp_path: Path) -> None:
    well.create("run")
    for use in (
        lambda: well.load("run", at=at),
        lambda: well.diff("run", 0, at),
        lambda: well.fork("run", "new", at=at),
        lambda: well.archive("run", tmp_path / "proof", through=at),
    ):
        with pytest.raises(InvalidInput, match="a revision is a whole number"):
            use()
    assert not (tmp_path / "proof").exists()


@pytest.mark.parametrize("arguments", [{"after": "x"}, {"after": None}, {"limit": -1}, {"limit": "5"}, {"limit": 1.5}])
def test_receipts_by_bad_numbers(well: Stepwell, arguments: dict[str, int]) -> None:
    well.create("run")
    with pytest.raises(InvalidInput):
        well.receipts("run", **arguments)


@pytest.mark.parametrize(
    "arguments", [{"version": -1}, {"version": "1"}, {"version": 2**64}, {"context": [1]}, {"context": {1: 1}}]
)
def test_create_with_bad_arguments(well: Stepwell, arguments: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        well.create("run", **arguments)
    assert well.executions.list() == []


@pytest.mark.parametrize(
    "query",
    [
        {"status": "DONE"},
        {"status": ""},
        {"limit": 0},
        {"limit": 10_001},
        {"limit": "1"},
        {"workspace": ""},
        {"workspace": "\ud800"},
        {"workflow": 5},
    ],
)
def test_listing_by_a_bad_query(well: Stepwell, query: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        well.executions.list(**query)


@pytest.mark.parametrize("revision", [-1, "1", None, 1.0, 2**70])
def test_compare_and_set_with_a_bad_revision(well: Stepwell, revision: int) -> None:
    well.create("run")
    with pytest.raises(InvalidInput, match="a revision is a whole number"):
        well.state.globals.compare_and_set("k", 1, revision=revision)
    with pytest.raises(InvalidInput, match="a revision is a whole number"), well.transaction("run") as tx:
        tx.state(well.state.globals).compare_and_set("k", 1, revision=revision)
    assert well.state.globals.all() == {}


def test_one_bad_write_stops_no_other(well: Stepwell) -> None:
    """A number that overflows in the middle of a group must not take the group with it."""
    scope = well.state.globals
    scope.set("f", 1.5)
    with pytest.raises(InvalidInput):
        scope.increment("f", 10**400)
    with pytest.raises(InvalidInput):
        scope.increment("f", 1.7e308) and scope.increment("f", 1.7e308)
    assert scope.increment("other") == 1

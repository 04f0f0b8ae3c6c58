"""Settings of a well: wrong ones are refused at once, and all are shown without their secrets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stepwell import AsyncStepwell, DataStore, InvalidInput, Limits, Metadata, Stepwell, SystemClock
from stepwell.testing.store_access import store_under

WRONG: dict[str, list[Any]] = {
    "url": [5, b"memory://", object(), "", "memory", "http://x", "sqlite://", ["memory://"]],
    "worker": ["no", 0, None],
    "concurrency": [0, -1, "many", 1.5, True, None],
    "lease_seconds": [0, 0.5, 86_401, "soon", True, None, float("nan")],
    "queues": ["default", 5, [5], [""]],
    "clock": [5, "now", SystemClock, object()],
    "limits": [{}, 5, Limits],
    "signing_key": ["text", b"", 5],
}
CASES = [pytest.param(name, value, id=f"{name}-{number}") for name in WRONG for number, value in enumerate(WRONG[name])]


@pytest.mark.parametrize("face", [Stepwell, AsyncStepwell])
@pytest.mark.parametrize(("name", "value"), CASES)
def test_a_setting_of_the_wrong_kind_is_refused_at_once(face: Any, name: str, value: Any, tmp_path: Path) -> None:
    file = tmp_path / "well.db"
    with pytest.raises(InvalidInput):
        face(**{"url": f"sqlite:///{file}", name: value})
    assert not file.exists()


@pytest.mark.parametrize("span", ["90s", 90])
def test_the_lease_of_a_worker_is_any_span(span: Any) -> None:
    with Stepwell("memory://", lease_seconds=span) as well:
        assert well.lease_seconds == 90


def test_a_well_shows_its_store_and_whether_it_is_closed(tmp_path: Path) -> None:
    well = Stepwell(f"sqlite:///{tmp_path}/well.db")
    assert repr(well) == f"<Stepwell 'sqlite:///{tmp_path}/well.db'>"
    well.close()
    assert repr(well).endswith("closed>")


def test_a_password_is_not_shown() -> None:
    for url in (
        "postgresql://ada:s3cret@db.invalid/well",
        "redis://:s3cret@cache.invalid/0",
        "postgresql://db.invalid/well?password=s3cret",
    ):
        well = AsyncStepwell(url)
        for shown in (repr(well), repr(well.executions), repr(store_under(well)._settings)):  # type: ignore[attr-defined]
            assert "s3cret" not in shown
            assert ".invalid" in shown


def test_parts_show_what_they_are_of() -> None:
    with Stepwell("memory://") as well:
        well.create("run", context={"secret": "s3cret"})
        transaction = well.transaction("run")
        transaction.set_variable("secret", "s3cret")
        held = well.lock("door").acquire()
        (receipt,) = well.receipts("run")
        shown = {
            repr(well.state): "<State>",
            repr(well.state.globals): "<ScopedState 'global/'>",
            repr(well.state.workspace("acme").workflow("w/1").step("s")): "<ScopedState 'step/acme/w%2F1/s'>",
            repr(well.conversations): "<Conversations workspace='default'>",
            repr(well.lock("door")): "<Lock 'door'>",
            repr(held): f"<HeldLock 'door' fence={held.fence}>",
            repr(transaction): "<Transaction of 'run': 1 changes, open>",
            repr(transaction.state(well.state.custom("s"))): "<BufferedScope 'custom/default/s'>",
            repr(well.executions): "<ExecutionIndex of 'memory://'>",
            repr(well.state.transaction()): "<StateTransaction: 0 changes>",
            repr(receipt): f"<Receipt 'run' revision=0 commit_id={receipt.commit_id!r} digest={receipt.digest[:12]}>",
            repr(well.load("run")): "<ExecutionState 'run' revision=0 status=PENDING>",
            repr(well.run("run")): "<Run 'run'>",
        }
        assert list(shown) == list(shown.values())
        transaction.commit()
        assert repr(transaction) == "<Transaction of 'run': 0 changes, committed>"
        held.lose()
        assert repr(held).endswith(" lost>")


def test_a_lock_shows_that_it_is_held() -> None:
    with Stepwell("memory://") as well:
        lock = well.lock("door")
        with lock:
            assert repr(lock) == "<Lock 'door' held>"
        assert repr(lock) == "<Lock 'door'>"


def test_awaited_parts_are_told_from_blocking_ones() -> None:
    async def shown() -> list[str]:
        async with AsyncStepwell("memory://") as well:
            parts = [well, well.state, well.state.globals, well.conversations, well.lock("a"), well.transaction("a")]
            return [repr(part) for part in parts]

    assert all(text.startswith("<Async") for text in asyncio.run(shown()))


def test_a_data_store_shows_its_sizes_and_no_values() -> None:
    data = DataStore(Metadata("run", "acme", "w", 1, SystemClock().now()))
    data.set_variable("secret", "s3cret")
    assert repr(data) == "<DataStore 'run' steps=0 variables=1 loops=0>"


def test_a_data_store_of_wrong_parts_is_refused() -> None:
    made: Any = DataStore
    for metadata, limits in (({}, Limits()), (Metadata("run", "acme", "w", 1, SystemClock().now()), {})):
        with pytest.raises(InvalidInput):
            made(metadata, limits=limits)

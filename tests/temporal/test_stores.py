"""Runs on Temporal whose state is in a store that many machines share."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.queue_urls import SHARED_STORES
from tests.support.store_urls import url_of
from tests.support.temporal_server import TemporalServer
from tests.temporal.program import effect

from stepwell import KeyRing, Limits, Stepwell, TemporalWorker, ValueErased, workflow
from stepwell.flow import call, define, parallel, signal, subworkflow

__all__ = ["effect"]

CHILD = define("stored_child", call("effect", {"name": "child"}, name="e"), output="{{ steps.e.output }}")
PARENT = define(
    "stored",
    parallel(a=call("effect", {"name": "a"}), b=subworkflow("stored_child", name="child")),
    signal("go", name="go"),
    output=["{{ steps.child.output }}", "{{ steps.go.output }}"],
)


@workflow
async def stored_function(name: str) -> str:
    return await effect(name)


@pytest.mark.parametrize("store", SHARED_STORES)
def test_runs_items_signals_and_children_end_on_temporal(
    store: str, request: pytest.FixtureRequest, temporal_server: TemporalServer
) -> None:
    url = url_of(store, request)
    limits = Limits(value_bytes=8_000_000)
    with (
        Stepwell(url, worker=False, limits=limits) as well,
        TemporalWorker(url, address=temporal_server.address, grace_seconds=1, limits=limits),
    ):
        well.definitions.put(CHILD)
        well.choose_engine("temporal", workflow="stored")
        run = well.start(PARENT)
        large = well.enqueue(CHILD, "x" * 2_500_000, engine="temporal")  # more than a payload holds
        items = [well.enqueue(stored_function, f"f{n}", engine="temporal") for n in range(3)]
        run.signal("go", "went")
        assert run.result(timeout=60) == ["child", "went"]
        assert large.result(timeout=60) == "child"
        assert [item.result(timeout=60) for item in items] == ["f0", "f1", "f2"]
        assert all(well.verify(each.execution_id).ok for each in (run, *items))


def test_runs_of_an_encrypted_store_are_erased_on_temporal(tmp_path: Path, temporal_server: TemporalServer) -> None:
    url, ring = f"sqlite:///{tmp_path}/well.db", KeyRing.of({"k1": b"1" * 32})
    with (
        Stepwell(url, worker=False, encryption=ring) as well,
        TemporalWorker(url, address=temporal_server.address, grace_seconds=1, encryption=ring),
    ):
        well.definitions.put(CHILD)
        run = well.start(PARENT, engine="temporal", subject="user:42")
        item = well.enqueue(stored_function, "Zaphod", engine="temporal", subject="user:42")
        run.signal("go", "Zaphod")
        assert run.result(timeout=60) == ["child", "Zaphod"]
        assert item.result(timeout=60) == "Zaphod"
        assert len(well.find("user:42")[0].runs) == 3
        well.erase("user:42")
        with pytest.raises(ValueErased):
            well.load(item.execution_id)
        assert all(well.verify(each).ok for each in (run.execution_id, item.execution_id))
    assert b"Zaphod" not in (tmp_path / "well.db").read_bytes()

"""A tree of functions on Temporal keeps to its root's child_concurrency, too."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.module_state import cleared

import stepwell
from stepwell import Stepwell, TemporalWorker, step, workflow
from stepwell.runtime.sessions import function_session

WAIT = 120
running: set[str] = set()
most: list[int] = []


_cleared = cleared(running, most)


@step
async def stay(name: str) -> str:
    running.add(name)
    most.append(len(running))
    await asyncio.sleep(0.02)
    running.discard(name)
    return name


@workflow(name="temporal_places.leaf")
async def leaf(name: str) -> str:
    return await stay(name)


@workflow(name="temporal_places.family")
async def family(name: str) -> list[str]:
    return await stepwell.map(leaf, [f"{name}.{number}" for number in range(2)])


@workflow(name="temporal_places.grove")
async def grove(size: int) -> list[list[str]]:
    return await stepwell.map(family, [str(number) for number in range(size)])


def test_tree_of_functions_keeps_to_the_limit(well: Stepwell, worker: TemporalWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function_session, "CHILD_SLOT_POLL_MS", 10**7)
    well.workspaces.put_tier("few", child_concurrency=2)
    well.workspaces.put("acme", tier="few")
    run = well.start(grove, 2, workspace="acme", engine="temporal")
    assert run.result(WAIT) == [["0.0", "0.1"], ["1.0", "1.1"]]
    assert max(most) <= 2

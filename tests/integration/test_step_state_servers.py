"""Scoped state inside steps on the servers: read, and retried when somebody else was quicker."""

from __future__ import annotations

from typing import Any

import pytest

import stepwell
from stepwell import Retry, Scope, Stepwell, step, workflow
from stepwell.flow import call, define

WAIT = 60
STOCK = Scope.custom("stock")
between: dict[int, Any] = {}
attempts: list[int] = []


@step(name="servers.take", retry=Retry(attempts=3, first_seconds=0))
async def take(pieces: int) -> int:
    attempts.append(stepwell.current().attempt)
    state = stepwell.current().state(STOCK)
    stored = await state.entry("lamps")
    between.get(len(attempts), lambda: None)()
    state.compare_and_set("lamps", stored.value - pieces, revision=stored.revision)
    return await state.get("lamps")


@workflow
async def taking(pieces: int) -> int:
    return await take(pieces)


DECLARED = define("servers-taking", call("servers.take", {"pieces": "{{ trigger.input }}"}))


@pytest.mark.parametrize("way", [taking, DECLARED], ids=["function", "declared"])
@pytest.mark.parametrize("server", ["postgres_url", "redis_url"])
def test_conflict_of_state_is_retried_on_a_server(server: str, way: Any, request: pytest.FixtureRequest) -> None:
    attempts.clear()
    url: str = request.getfixturevalue(server)
    with Stepwell(url) as well, Stepwell(url, worker=False) as other:
        well.state.custom("stock").set("lamps", 10)
        between[1] = lambda: other.state.custom("stock").set("lamps", 6)
        run = well.start(way, 1)
        assert run.result(WAIT) == 5
        assert attempts == [1, 2]
        assert other.state.custom("stock").get("lamps") == 5
        assert run.verify().ok

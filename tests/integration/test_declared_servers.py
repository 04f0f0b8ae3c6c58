"""Declared workflows on the servers: one story with branches, waits, a child and a retry, on PostgreSQL and on Redis."""

from __future__ import annotations

import pytest
from tests.support.polling import until

from stepwell import Status, Stepwell, step
from stepwell.flow import call, define, each, loop, parallel, signal, subworkflow, wait

WAIT = 60


@step(name="servers.add")
def add(number: int) -> int:
    return number + 1


STORY = define(
    "servers-story",
    parallel(
        a=each(call("servers.add", "{{ item }}"), items="{{ trigger.input }}"),
        b=loop(call("servers.add", "{{ item }}"), items="{{ trigger.input }}"),
        c=subworkflow("servers-kid", 40),
    ),
    wait("20ms"),
    signal("go"),
    output=["{{ steps.parallel.output }}", "{{ steps.signal.output }}"],
)


@pytest.mark.parametrize("server", ["postgres_url", "redis_url"])
def test_story_runs_on_a_server(server: str, request: pytest.FixtureRequest) -> None:
    url: str = request.getfixturevalue(server)
    with Stepwell(url, worker=False) as elsewhere:
        elsewhere.definitions.put(define("servers-kid", call("servers.add"), call("servers.add")))
        run_id = elsewhere.start(STORY, [1, 2]).execution_id
    with Stepwell(url) as well:
        run = well.run(run_id)
        until(lambda: run.status() == Status.WAITING and bool(run.progress().offers))
        run.signal("go", "on")
        assert run.result(WAIT) == [{"a": [2, 3], "b": [2, 3], "c": 42}, "on"]
        assert run.verify().ok
        assert well.load(run_id).tokens == {}
        assert [each_one.name for each_one in well.definitions.list()] == ["servers-kid", "servers-story"]

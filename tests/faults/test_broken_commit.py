"""A commit that raises something that Stepwell never raises on purpose: its run fails, and does not come back with every lease."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from tests.faults.hooks import Boom, at

import stepwell
from stepwell import ExecutionFailed, Status, Stepwell, fault_points, step, workflow
from stepwell.flow import call, define

WAIT = 30


@step(name="broken.one")
async def one() -> int:
    return 1


@workflow(name="broken.swallows")
async def swallows() -> int:
    try:
        return await one()
    except Exception:  # noqa: BLE001 - a workflow that goes on, whatever happens
        return 2


@workflow(name="broken.sets")
def sets() -> None:
    stepwell.current().variables["a"] = 1
    stepwell.wait_signal("go")


DECLARED = define("broken-declared", call("broken.one"))

_REST = 3
"""Start, wait, rest: the commit that gives the lease back, with the variable in it."""


def boom() -> None:
    raise Boom("out of order")


@pytest.fixture(params=["memory", "sqlite"])
def well(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/well.db"
    with Stepwell(url, lease_seconds=600) as opened:
        yield opened


@pytest.mark.parametrize(("code", "hit"), [(swallows, 2), (swallows, 3), (sets, 2), (sets, _REST), (DECLARED, 2), (DECLARED, 3)])
def test_run_whose_commit_raises_an_unknown_error_has_failed_with_it(
    well: Stepwell, caplog: pytest.LogCaptureFixture, code: Any, hit: int
) -> None:
    with fault_points.armed(at("commit.validating", hit, boom)), caplog.at_level(logging.ERROR):
        run = well.start(code)
        with pytest.raises(ExecutionFailed, match="out of order"):
            run.result(WAIT)
    assert run.status() == Status.FAILED
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [Boom]

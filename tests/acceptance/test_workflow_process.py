"""Steps in processes of their own: for work that keeps a processor busy, and for steps that crash (T38)."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.conftest import OpenWell
from tests.acceptance.faces import step_records
from tests.support import process_steps as steps

import stepwell
from stepwell import ExecutionFailed, InvalidInput, StepFailed, step, workflow

WAIT = 60


@pytest.fixture
def well(open_well: OpenWell) -> Any:
    return open_well("memory://")


@workflow
async def squares(numbers: list[int]) -> list[tuple[int, int]]:
    return await stepwell.map(steps.square, numbers)


@workflow
async def totals(pieces: int) -> int:
    return await steps.total(steps.Order(pieces), price=5)


@workflow
async def crashing(arguments: list[str]) -> str:
    return await steps.crash(*arguments)


@workflow
async def hanging(folder: str) -> None:
    await steps.hang(folder)


@workflow
def telling(what: str) -> str:
    try:
        steps.tell(what)
    except StepFailed as error:
        return str(error)
    return "told"


@workflow
async def giving() -> Any:
    return await steps.nothing_a_process_can_give()


def test_step_runs_in_another_process_that_is_kept_for_the_next(well: Any) -> None:
    given = well.start(squares, list(range(6))).result(WAIT)
    assert [square for square, _ in given] == [0, 1, 4, 9, 16, 25]
    workers = {pid for _, pid in given}
    assert os.getpid() not in workers
    assert len(workers) <= (os.cpu_count() or 1)
    # Outside of a workflow it is just its function.
    assert steps.square(3) == (9, os.getpid())


def test_typed_arguments_and_scoped_state_cross_over(well: Any) -> None:
    assert well.start(totals, 4).result(WAIT) == 20
    assert well.state.custom("totals").get("last") == 20


@pytest.mark.parametrize(("how", "told"), [("segfaults", "SIGSEGV"), ("is killed", "SIGKILL"), ("exits", "exit code 7")])
def test_dead_process_is_a_failed_attempt_and_the_worker_lives(well: Any, tmp_path: Path, how: str, told: str) -> None:
    """T38: dead at exactly the attempts of its policy, with the last error; others proceed."""
    with pytest.raises(ExecutionFailed, match=rf"ProcessDied.*{told}"):
        well.start(crashing, [str(tmp_path), how], execution_id="c").result(WAIT)
    assert (tmp_path / "attempts").read_text().splitlines() == ["1 c:crash", "2 c:crash", "3 c:crash"]
    assert well.start(totals, 1).result(WAIT) == 5


def test_step_whose_process_died_is_tried_again_in_another(well: Any, tmp_path: Path) -> None:
    """T38: a crash is an attempt."""
    assert well.start(crashing, [str(tmp_path), "recovers"]).result(WAIT) == "made it"


def test_process_of_a_step_that_hangs_is_killed(well: Any, tmp_path: Path) -> None:
    """T38: a hang ends by the step's timeout, and its process with it."""
    assert well.start(totals, 1).result(WAIT) == 5  # so that there is a process: to start one takes time on a busy machine
    with pytest.raises(ExecutionFailed, match=r"TimeoutError.*took longer than 2 s"):
        well.start(hanging, str(tmp_path)).result(WAIT)
    pid = int((tmp_path / "pid").read_text())
    while Path(f"/proc/{pid}").exists():  # the test's own time limit ends it
        threading.Event().wait(0.005)


def test_error_of_a_step_keeps_its_kind_and_the_policy_knows_its_classes(well: Any) -> None:
    run = well.start(telling, "who")
    assert "KeyError: 'who'" in run.result(WAIT)
    assert len(step_records(run)["tell"].attempts) == 1


def test_output_that_cannot_be_recorded_is_a_clear_failure(well: Any) -> None:
    """T38: undecodable data."""
    with pytest.raises(ExecutionFailed, match="InvalidInput"):
        well.start(giving).result(WAIT)


def test_step_that_another_process_cannot_find_is_refused_at_once() -> None:
    with pytest.raises(InvalidInput, match="at the top of a module"):

        @step(process=True)
        def local() -> None: ...

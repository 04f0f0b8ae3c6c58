"""Workers, servers and workflows that are killed: nothing is lost, nothing runs twice that is recorded, and all receipts verify."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from temporalio.client import Client, WorkflowExecutionStatus
from tests.support.temporal_server import TemporalServer
from tests.temporal import program
from tests.temporal.processes import WorkerProcess
from tests.temporal.program import DEFINITION, effect, poisoned, poisonous, saga, slow, work

import stepwell
from stepwell import EngineUnavailable, ExecutionFailed, InvalidInput, Retry, Stepwell, TemporalWorker, step, workflow
from stepwell.flow import call, define, each, scope, sequence, signal, subworkflow, wait
from stepwell.model.commit import StateBatch
from stepwell.model.external_engines import TEMPORAL, WORKFLOWS_QUEUE, first_record, recorded
from stepwell.temporal.connection import TemporalAddress, TemporalConnection
from stepwell.temporal.messages import RunInput, payload
from stepwell.temporal.naming import SignalName
from stepwell.testing.store_access import write_unit_or_raise

__all__ = ["effect", "saga", "slow", "work"]

HELD = define("held", call("effect", {"name": "x"}, name="x"), signal("go", name="go"), output="{{ steps.go.output }}")


SAGA = define(
    "declared_saga",
    scope(
        sequence(
            call("effect", {"name": "do"}, name="do", compensate=call("effect", {"name": "undo"}, name="undo")), signal("never")
        )
    ),
)


@workflow
async def signalled() -> Any:
    for number in range(3):
        await effect(f"s{number}")
    return await stepwell.wait_signal("go")


@workflow
async def long_function(n: int) -> list[str]:
    variables = stepwell.current().variables
    variables["n"] = 0
    for number in range(n):
        variables["n"] += 1
        await effect(f"s{number}")
    return await stepwell.map(effect, [f"a{number}" for number in range(60)], concurrency=20)


def until(is_true: Callable[[], Any], seconds: float = 60) -> Any:
    """Wait for something to become true; return it."""
    deadline = time.monotonic() + seconds
    while not (found := is_true()):
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)
    return found


def effects(folder: Path) -> Counter[str]:
    file = folder / "effects"
    return Counter(file.read_text().splitlines()) if file.exists() else Counter()


def asked(server: TemporalServer, call: Callable[[Client], Any], namespace: str = "default") -> Any:
    """Ask the server, as Temporal's own tools do."""

    async def ask() -> Any:
        return await call(await Client.connect(server.address, namespace=namespace))

    return asyncio.run(ask())


@pytest.mark.parametrize(
    "where",
    ["in a", "in b", "in d", *(f"commit.persisted:{hit}" for hit in (1, 2, 3, 4)), "commit.validated:2", "commit.applied:3"],
)
def test_killed_worker_leaves_a_run_that_another_one_ends(
    where: str, url: str, tmp_path: Path, temporal_server: TemporalServer
) -> None:
    (tmp_path / "die").write_text(where)
    with Stepwell(url, worker=False) as well, WorkerProcess(url, temporal_server.address, tmp_path) as first:
        run = well.start(DEFINITION, engine="temporal")
        run.signal("go", "went")
        assert first.wait() == -9, first.output()
        with WorkerProcess(url, temporal_server.address, tmp_path):
            assert run.result(timeout=120) == "went"
        done = effects(tmp_path)
        assert set(done) == {"a 1", "b 1", "c 1", "d 1"}  # the kernel's attempt is still the first
        assert sum(done.values()) <= 6  # what was under way may be done again
        state = well.load(run.execution_id)
        assert (state.variables, state.step_count) == ({"n": 2}, 6)
        assert well.verify(run.execution_id).ok


@pytest.mark.parametrize("where", ["in b", *(f"commit.persisted:{hit}" for hit in (1, 3, 5)), "commit.validated:4"])
def test_killed_worker_leaves_a_function_that_another_one_ends(
    where: str, url: str, tmp_path: Path, temporal_server: TemporalServer
) -> None:
    (tmp_path / "die").write_text(where)
    with Stepwell(url, worker=False) as well, WorkerProcess(url, temporal_server.address, tmp_path) as first:
        run = well.start(work, 1, engine="temporal")
        assert first.wait() == -9, first.output()
        with WorkerProcess(url, temporal_server.address, tmp_path):
            assert run.result(timeout=120) == "b"
        done = effects(tmp_path)
        assert set(done) == {"a 1", "b 1"}
        assert sum(done.values()) <= 3  # what was under way may be done again
        assert well.load(run.execution_id).step_count == 2
        assert well.verify(run.execution_id).ok


@pytest.mark.parametrize("where", ["in do", "commit.persisted:2", "commit.persisted:4"])
def test_cancel_while_the_worker_is_dead_compensates_once(
    where: str, url: str, tmp_path: Path, temporal_server: TemporalServer
) -> None:
    """A function and a definition: the worker dies in one of them, and both are cancelled before the next one comes."""
    (tmp_path / "die").write_text(where)
    with Stepwell(url, worker=False) as well, WorkerProcess(url, temporal_server.address, tmp_path) as first:
        runs = [well.start(each, engine="temporal") for each in (saga, SAGA)]
        assert first.wait() == -9, first.output()
        for run in runs:
            run.cancel()
        with WorkerProcess(url, temporal_server.address, tmp_path):
            until(lambda: all(str(run.status()) == "CANCELLED" for run in runs), 120)
        assert all(well.verify(run.execution_id).ok for run in runs)
        undone = [
            (sum(key in ("effect", "do") for key in steps), sum("undo" in key for key in steps))
            for steps in (well.load(run.execution_id).steps for run in runs)
        ]
        assert all(count_undone <= count_done for count_done, count_undone in undone)
        assert effects(tmp_path)["undo 1"] <= 2


def test_step_or_code_that_brings_workers_down_fails_its_run(url: str, tmp_path: Path, temporal_server: TemporalServer) -> None:
    is_over = threading.Event()

    def keep_a_worker() -> None:
        while not is_over.is_set():
            with WorkerProcess(url, temporal_server.address, tmp_path) as process:
                while process.process.poll() is None and not is_over.wait(0.05):
                    pass

    with Stepwell(url, worker=False) as well, ThreadPoolExecutor(1) as pool:
        keeping = pool.submit(keep_a_worker)
        try:
            for each in (poisoned, poisonous):
                run = well.start(each, engine="temporal")
                with pytest.raises(ExecutionFailed, match="brought down its worker again and again: 3 times"):
                    run.result(timeout=120)
                assert well.verify(run.execution_id).ok
        finally:
            is_over.set()
            keeping.result()
        assert effects(tmp_path) == Counter({"poison": 4, "poisonous": 4})


def test_uncached_workflows_end_under_signals(url: str, tmp_path: Path, temporal_server: TemporalServer) -> None:
    steps = (call("effect", {"name": f"s{n}"}, name=f"s{n}") for n in range(3))
    definition = define("uncached", *steps, signal("go", name="go"), output="{{ steps.go.output }}")
    with (
        Stepwell(url, worker=False) as well,
        TemporalWorker(url, address=temporal_server.address, max_cached_workflows=0, grace_seconds=1),
    ):
        runs = [well.start(each, engine="temporal") for each in (definition, definition, signalled)]
        cancelled = well.start(saga, engine="temporal")
        for run in runs:
            run.signal("other", 1)
            run.signal("go", 2)
        for run in runs:
            assert run.result(timeout=60) == 2
            assert well.verify(run.execution_id).ok
            assert well.load(run.execution_id).step_count == 3
        until(lambda: "effect" in well.load(cancelled.execution_id).steps, 60)
        cancelled.cancel()
        until(lambda: str(cancelled.status()) == "CANCELLED", 60)
        assert "undo:effect" in well.load(cancelled.execution_id).steps


def test_restarted_server_goes_on_with_what_it_had(url: str, tmp_path: Path) -> None:
    with (
        TemporalServer(tmp_path / "temporal.db") as server,
        Stepwell(url, worker=False) as well,
        TemporalWorker(url, address=server.address, grace_seconds=1),
    ):
        run, cancelled = (well.start(HELD, engine="temporal") for _ in range(2))
        until(lambda: all("x" in well.load(each.execution_id).steps for each in (run, cancelled)))
        server.kill()
        run.signal("go", "on")
        later = well.start(HELD, engine="temporal")
        later.signal("go", "later")
        cancelled.cancel()
        server.launch()
        assert run.result(timeout=60) == "on"
        assert later.result(timeout=60) == "later"
        until(lambda: str(cancelled.status()) == "CANCELLED", 60)
        assert all(well.verify(each.execution_id).ok for each in (run, later, cancelled))


def test_items_wait_without_an_attempt_while_the_server_is_away(url: str, tmp_path: Path) -> None:
    with (
        TemporalServer(tmp_path / "temporal.db") as server,
        Stepwell(url, worker=False) as well,
        TemporalWorker(url, address=server.address, grace_seconds=1, lease_seconds=5),
    ):
        server.kill()
        items = [well.enqueue(HELD, engine="temporal") for _ in range(3)]
        until(lambda: any(each.claimed_at is not None for each in well.queue.list()))
        began = time.monotonic()
        until(lambda: all(str(each.status) == "QUEUED" for each in well.queue.list()))
        assert time.monotonic() - began < 8  # two seconds on a quiet machine; the SDK by itself goes on for more than nine
        server.launch()
        for item in items:
            run = well.run(until(lambda item=item: item.execution_id))
            until(lambda run=run: _exists(well, run.execution_id))
            run.signal("go", "on")
            assert item.result(timeout=60) == "on"
        assert {each.attempts for each in well.queue.list()} == {1}


def _exists(well: Stepwell, execution_id: str) -> bool:
    return any(each.execution_id == execution_id for each in well.executions.list())


def test_terminated_workflow_fails_its_run_which_can_be_retried(
    well: Stepwell, worker: TemporalWorker, temporal_server: TemporalServer
) -> None:
    run = well.start(HELD, engine="temporal")
    until(lambda: "x" in well.load(run.execution_id).steps)
    handle = f"execution-{run.execution_id}"
    asked(temporal_server, lambda client: client.get_workflow_handle(handle).terminate("by hand"))
    with pytest.raises(ExecutionFailed, match="TERMINATED"):
        run.result(timeout=60)
    run.retry()
    run.signal("go", "again")
    assert run.result(timeout=60) == "again"
    assert well.verify(run.execution_id).ok


def test_run_whose_workflow_has_vanished_fails_and_can_be_retried(
    well: Stepwell, worker: TemporalWorker, temporal_server: TemporalServer
) -> None:
    from temporalio.api.common.v1 import WorkflowExecution
    from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest

    runs = [well.start(each, engine="temporal") for each in (HELD, signalled)]
    until(lambda: all(len(well.load(run.execution_id).steps) >= 1 for run in runs))
    for run in runs:
        gone = WorkflowExecution(workflow_id=f"execution-{run.execution_id}")
        request = DeleteWorkflowExecutionRequest(namespace="default", workflow_execution=gone)
        asked(temporal_server, lambda client: client.workflow_service.delete_workflow_execution(request))  # noqa: B023
    for run in runs:
        with pytest.raises(ExecutionFailed, match=r"TERMINATED|no such workflow any more"):
            run.result(timeout=60)
        run.retry()
        run.signal("go", "again")
        assert run.result(timeout=60) == "again"
        assert well.verify(run.execution_id).ok


def test_workflow_that_another_program_fails_fails_its_run_which_can_be_retried(url: str, temporal_server: TemporalServer) -> None:
    """A program that is no worker of Stepwell's takes a workflow task, and answers that the workflow failed."""
    from temporalio.api.command.v1 import Command, FailWorkflowExecutionCommandAttributes
    from temporalio.api.enums.v1 import CommandType
    from temporalio.api.failure.v1 import Failure
    from temporalio.api.taskqueue.v1 import TaskQueue
    from temporalio.api.workflowservice.v1 import PollWorkflowTaskQueueRequest, RespondWorkflowTaskCompletedRequest

    address, namespace = temporal_server.address, temporal_server.fresh_namespace("faults")

    async def fail(client: Client) -> str:
        queue = TaskQueue(name=WORKFLOWS_QUEUE)
        poll = PollWorkflowTaskQueueRequest(namespace=namespace, task_queue=queue, identity="another program")
        task = await client.workflow_service.poll_workflow_task_queue(poll, timeout=timedelta(seconds=60))
        failing = FailWorkflowExecutionCommandAttributes(failure=Failure(message="by another program"))
        command = Command(
            command_type=CommandType.COMMAND_TYPE_FAIL_WORKFLOW_EXECUTION, fail_workflow_execution_command_attributes=failing
        )
        answer = RespondWorkflowTaskCompletedRequest(
            namespace=namespace, task_token=task.task_token, identity="another program", commands=[command]
        )
        await client.workflow_service.respond_workflow_task_completed(answer)
        return task.workflow_execution.workflow_id

    with Stepwell(url, worker=False) as well:
        with TemporalWorker(url, address=address, namespace=namespace, grace_seconds=1, lease_seconds=2):
            run = well.start(HELD, engine="temporal")
            until(lambda: "x" in well.load(run.execution_id).steps)
        handle = f"execution-{run.execution_id}"
        asked(temporal_server, lambda client: client.get_workflow_handle(handle).signal(SignalName.LOOK), namespace)
        assert asked(temporal_server, fail, namespace) == handle
        assert _closed(temporal_server, handle, namespace) is WorkflowExecutionStatus.FAILED
        with TemporalWorker(url, address=address, namespace=namespace, grace_seconds=1, sweep_seconds=1):
            with pytest.raises(ExecutionFailed, match="its workflow on Temporal is FAILED"):
                run.result(timeout=60)
            run.retry()
            run.signal("go", "again")
            assert run.result(timeout=60) == "again"
        assert well.verify(run.execution_id).ok


def test_workflow_that_times_out_fails_its_run_which_can_be_retried(url: str, temporal_server: TemporalServer) -> None:
    """Stepwell sets no timeout on the server. A program that starts the workflow under its id before Stepwell does may set one."""
    namespace = temporal_server.fresh_namespace("faults")
    with Stepwell(url, worker=False) as well:
        run = well.start(HELD, engine="temporal")
        handle = f"execution-{run.execution_id}"
        given = RunInput(run.execution_id, "default", HELD.name, HELD.version, is_declared=True)
        starting = {"id": handle, "task_queue": WORKFLOWS_QUEUE, "execution_timeout": timedelta(seconds=3)}
        data = payload(msgspec.json.encode(given))
        asked(temporal_server, lambda client: client.start_workflow(HELD.name, data, **starting), namespace)
        with TemporalWorker(url, address=temporal_server.address, namespace=namespace, grace_seconds=1, sweep_seconds=1):
            with pytest.raises(ExecutionFailed, match="its workflow on Temporal is TIMED_OUT"):
                run.result(timeout=60)
            assert _closed(temporal_server, handle, namespace) is WorkflowExecutionStatus.TIMED_OUT
            run.retry()
            run.signal("go", "again")
            assert run.result(timeout=60) == "again"
        assert well.verify(run.execution_id).ok


def test_run_that_lives_is_never_ended_by_the_sweep(
    well: Stepwell, worker: TemporalWorker, temporal_server: TemporalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for a signal, a time or a step, as a definition or a function, and others that were terminated end beside it."""
    monkeypatch.setattr(program, "FOLDER", tmp_path)
    sleeping = define("asleep", call("effect", {"name": "x"}, name="x"), wait("1h"))
    living = [well.start(each, engine="temporal") for each in (HELD, signalled, sleeping, saga, program.SLOW)]
    until(lambda: all(well.load(run.execution_id).tokens for run in living))
    until(lambda: all(well.load(run.execution_id).steps for run in living[:-1]))
    for _ in range(2):
        # Each is checked once it has not moved for a second, in the same rounds as those that have not moved for longer.
        ended = well.start(HELD, engine="temporal")
        until(lambda: "x" in well.load(ended.execution_id).steps)  # noqa: B023
        asked(temporal_server, lambda client: client.get_workflow_handle(f"execution-{ended.execution_id}").terminate())  # noqa: B023
        with pytest.raises(ExecutionFailed, match="TERMINATED"):
            ended.result(timeout=60)
        assert {str(run.status()) for run in living} <= {"RUNNING", "WAITING"}
    (tmp_path / "go").touch()
    for run in living[:2]:
        run.signal("go", "on")
        assert run.result(timeout=60) == "on"
    assert living[-1].result(timeout=60) == "b"
    for run in living[2:4]:
        run.cancel()
        until(lambda: str(run.status()) == "CANCELLED")  # noqa: B023


def test_status_that_the_server_refuses_to_say_is_not_taken_for_an_end(temporal_server: TemporalServer) -> None:
    async def statuses() -> tuple[Any, str]:
        connection = await TemporalConnection.open(TemporalAddress(temporal_server.address))
        with pytest.raises(InvalidInput, match="refused a call"):
            await connection.status("")  # as good as any other question that the server does not answer
        return await connection.status("unknown")

    assert asyncio.run(statuses()) == (None, "Temporal has no such workflow any more")


def test_run_that_the_server_refuses_leaves_the_others_alone(
    well: Stepwell, worker: TemporalWorker, temporal_server: TemporalServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Its record has no workflow id for a time, which the server refuses like a call without permission."""
    refused = well.start(HELD, engine="temporal")
    until(lambda: "x" in well.load(refused.execution_id).steps)
    record = msgspec.structs.replace(first_record(well.load(refused.execution_id).identity), is_started=True)
    unnamed = msgspec.structs.replace(record, engine_id="")
    write_unit_or_raise(well, StateBatch((recorded(TEMPORAL, refused.execution_id, unnamed).op,)))
    refused.signal("go", "late")

    def lines(words: str) -> int:
        return sum(words in each.message for each in caplog.records if repr(refused.execution_id) in each.message)

    for _ in range(2):
        ended, signalled_run = (well.start(HELD, engine="temporal") for _ in range(2))
        until(lambda: all("x" in well.load(each.execution_id).steps for each in (ended, signalled_run)))  # noqa: B023
        asked(temporal_server, lambda client: client.get_workflow_handle(f"execution-{ended.execution_id}").terminate())  # noqa: B023
        signalled_run.signal("go", "on")
        assert signalled_run.result(timeout=60) == "on"
        with pytest.raises(ExecutionFailed, match="TERMINATED"):
            ended.result(timeout=60)
    words = [f"could not be {each} on Temporal: Temporal refused a call" for each in ("checked", "told of its messages")]
    until(lambda: all(map(lines, words)))
    assert str(refused.status()) in ("RUNNING", "WAITING")
    write_unit_or_raise(well, StateBatch((recorded(TEMPORAL, refused.execution_id, record).op,)))
    assert refused.result(timeout=60) == "late"
    until(lambda: lines("could not be told of its messages on Temporal; that is over"))
    assert [*map(lines, words)] == [1, 1]
    assert not [each.message for each in caplog.records if "failed, and tries again: Temporal refused" in each.message]


def test_cancel_with_temporals_tools_compensates(well: Stepwell, worker: TemporalWorker, temporal_server: TemporalServer) -> None:
    body = sequence(
        call("effect", {"name": "do"}, name="do", compensate=call("effect", {"name": "undo"}, name="undo")), signal("never")
    )
    run = well.start(define("cancelled", scope(body, name="s")), engine="temporal")
    until(lambda: "do" in well.load(run.execution_id).steps)
    handle = f"execution-{run.execution_id}"
    asked(temporal_server, lambda client: client.get_workflow_handle(handle).cancel())
    until(lambda: str(run.status()) == "CANCELLED")
    assert "undo" in well.load(run.execution_id).steps
    found = until(lambda: _closed(temporal_server, handle))
    assert found is WorkflowExecutionStatus.CANCELED


def _closed(server: TemporalServer, handle: str, namespace: str = "default") -> Any:
    status = asked(server, lambda client: client.get_workflow_handle(handle).describe(), namespace).status
    return None if status is WorkflowExecutionStatus.RUNNING else status


def test_cancel_of_a_run_on_temporal_ends_it(well: Stepwell, worker: TemporalWorker) -> None:
    run = well.start(HELD, engine="temporal")
    until(lambda: "x" in well.load(run.execution_id).steps)
    run.cancel()
    until(lambda: str(run.status()) == "CANCELLED")


def test_signal_sent_with_temporals_tools_is_taken(well: Stepwell, worker: TemporalWorker, temporal_server: TemporalServer) -> None:
    run = well.start(HELD, engine="temporal")
    until(lambda: "x" in well.load(run.execution_id).steps)
    handle = f"execution-{run.execution_id}"
    asked(temporal_server, lambda client: client.get_workflow_handle(handle).signal("go", {"by": "hand"}))
    assert run.result(timeout=60) == {"by": "hand"}


ready: list[bool] = []


@pytest.fixture(autouse=True)
def nothing_is_ready() -> None:
    ready.clear()


def test_retry_of_a_failed_run_goes_on_under_another_workflow_id(
    well: Stepwell, worker: TemporalWorker, temporal_server: TemporalServer
) -> None:
    definition = define(
        "again", call("effect", {"name": "ok"}, name="ok"), call("unready", name="u"), output="{{ steps.u.output }}"
    )
    run = well.start(definition, engine="temporal")
    with pytest.raises(ExecutionFailed):
        run.result(timeout=60)
    ready.append(True)
    run.retry()
    assert run.result(timeout=60) == "ready"


def test_retry_of_a_failed_parent_keeps_the_completed_steps_of_its_failed_child(
    well: Stepwell, worker: TemporalWorker, temporal_server: TemporalServer
) -> None:
    steps = call("effect", {"name": "kept"}, name="kept"), call("unready", name="u")
    well.definitions.put(define("kid_again", *steps, output="{{ steps.u.output }}"))
    run = well.start(
        define("parent_again", subworkflow("kid_again", name="kid"), output="{{ steps.kid.output }}"), engine="temporal"
    )
    with pytest.raises(ExecutionFailed):
        run.result(timeout=60)
    kept = well.load(f"{run.execution_id}:kid").steps["kept"].executed_at
    ready.append(True)
    run.retry()
    assert run.result(timeout=60) == "ready"
    assert well.load(f"{run.execution_id}:kid").steps["kept"].executed_at == kept
    assert str(well.run(f"{run.execution_id}:kid").status()) == "COMPLETED"


@step(retry=Retry(attempts=1))
def unready() -> str:
    if not ready:
        raise ValueError("not ready")
    return "ready"


def test_wrong_address_is_a_typed_error(url: str) -> None:
    with pytest.raises(EngineUnavailable, match="no Temporal server answers"):
        TemporalWorker(url, address="127.0.0.1:1")


def test_missing_namespace_is_a_typed_error(url: str, temporal_server: TemporalServer) -> None:
    with pytest.raises(EngineUnavailable, match="does not serve namespace 'nowhere'"):
        TemporalWorker(url, address=temporal_server.address, namespace="nowhere")


def test_tls_that_the_server_does_not_speak_is_a_typed_error(url: str, temporal_server: TemporalServer) -> None:
    with pytest.raises(EngineUnavailable, match="TLS"):
        TemporalWorker(url, address=temporal_server.address, tls=True)


def test_retried_run_of_temporal_is_left_alone_by_stepwells_own_worker(url: str, temporal_server: TemporalServer) -> None:
    definition = define("left", call("unready", name="u"), signal("go", name="go"), output="{{ steps.go.output }}")
    with Stepwell(url) as well:
        with TemporalWorker(url, address=temporal_server.address, grace_seconds=1):
            run = well.start(definition, engine="temporal")
            with pytest.raises(ExecutionFailed):
                run.result(timeout=60)
        ready.append(True)
        run.retry()
        run.signal("go", "to Temporal")  # wakes it while no worker holds it
        for _ in range(2):  # the worker has then looked for what is due more than once
            assert well.start(work, 1).result(timeout=60) == "b"
        assert "u" not in {key for key, each in well.load(run.execution_id).steps.items() if str(each.status) == "COMPLETED"}
        with TemporalWorker(url, address=temporal_server.address, grace_seconds=1):
            assert run.result(timeout=60) == "to Temporal"
        assert well.verify(run.execution_id).ok


def test_long_run_goes_on_with_a_fresh_history(url: str) -> None:
    steps = (call("effect", {"name": f"s{n}"}, name=f"s{n}") for n in range(20))
    definition = define("long", *steps, signal("go", name="go"), output="{{ steps.go.output }}")
    with (
        TemporalServer(limit_historyCount_suggestContinueAsNew=40) as server,
        Stepwell(url, worker=False) as well,
        TemporalWorker(url, address=server.address, grace_seconds=1),
    ):
        run = well.start(definition, engine="temporal")
        run.signal("go", "on")
        assert run.result(timeout=60) == "on"
        assert well.load(run.execution_id).step_count == 20
        assert well.verify(run.execution_id).ok

        async def lives(client: Client) -> int:
            return len([found async for found in client.list_workflows(f"WorkflowId = 'execution-{run.execution_id}'")])

        assert until(lambda: (count := asked(server, lives)) > 1 and count) > 2

        # Some of its steps are always under way, until no more begin: so many steps that their history is long enough for
        # that although a slow machine tells Temporal of many ends at once.
        crowd = each(
            call("effect", {"name": "{{ item }}"}, name="e"), items=[f"{n}" for n in range(200)], concurrency=20, name="all"
        )
        run = well.start(define("crowded", crowd, output="done"), engine="temporal")
        assert run.result(timeout=60) == "done"
        assert well.load(run.execution_id).step_count >= 200
        assert well.verify(run.execution_id).ok
        assert until(lambda: asked(server, lives) > 1)

        run = well.start(long_function, 15, engine="temporal")
        assert run.result(timeout=60) == [f"a{n}" for n in range(60)]
        assert well.load(run.execution_id).step_count == 75
        assert well.load(run.execution_id).variables == {"n": 15}
        assert well.verify(run.execution_id).ok
        assert until(lambda: asked(server, lives) > 2)


def test_commit_from_outside_is_adopted(well: Stepwell, worker: TemporalWorker) -> None:
    run = well.start(HELD, engine="temporal")
    until(lambda: "x" in well.load(run.execution_id).steps)
    with well.transaction(run.execution_id) as tx:
        tx.set_variable("by hand", True)
    run.signal("go", "on")
    assert run.result(timeout=60) == "on"
    assert well.load(run.execution_id).variables == {"by hand": True}
    assert well.verify(run.execution_id).ok


def test_fork_of_a_run_on_temporal_goes_on_there(well: Stepwell, worker: TemporalWorker) -> None:
    run = well.start(HELD, engine="temporal")
    until(lambda: "x" in well.load(run.execution_id).steps)
    well.fork(run.execution_id, "fork")
    well.run("fork").signal("go", "forked")
    run.signal("go", "first")
    assert (run.result(timeout=60), well.run("fork").result(timeout=60)) == ("first", "forked")


def test_run_says_which_workflow_no_worker_on_temporal_has(url: str, temporal_server: TemporalServer, tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("from stepwell import workflow\n\n@workflow\nasync def other() -> None: ...\n")
    command = [sys.executable, "-m", "stepwell", "--url", url, "worker", "other.py", "--engine", "temporal"]
    with Stepwell(url, worker=False) as well:
        run, item = well.start(work, 1, engine="temporal"), well.enqueue(work, 1, engine="temporal")
        waits = run.progress().waiting_on
        assert waits is not None
        assert (waits.kind, "run one with stepwell worker --engine temporal" in waits.message) == ("worker_missing", True)
        with subprocess.Popen([*command, "--address", temporal_server.address], cwd=tmp_path) as process:
            try:
                told = until(lambda: (found := run.progress().waiting_on) and "version 1 of workflow 'work'" in found.message)
                assert told
                with pytest.raises(TimeoutError, match="no worker that was asked has version 1 of workflow 'work'"):
                    run.result(timeout=0.1)
                until(lambda: "with --engine temporal knows workflow 'work'" in item.why().message)
            finally:
                process.terminate()
        # Beside it the server could ask the wrong worker again and again, each time after a longer pause.
        with TemporalWorker(url, address=temporal_server.address, grace_seconds=1):
            assert (run.result(timeout=120), item.result(timeout=120)) == ("b", "b")


def test_cancel_with_temporals_tools_ends_a_function(
    well: Stepwell, worker: TemporalWorker, temporal_server: TemporalServer
) -> None:
    run = well.start(saga, engine="temporal")
    until(lambda: "effect" in well.load(run.execution_id).steps)
    handle = f"execution-{run.execution_id}"
    asked(temporal_server, lambda client: client.get_workflow_handle(handle).cancel())
    until(lambda: str(run.status()) == "CANCELLED")
    assert "undo:effect" in well.load(run.execution_id).steps
    assert until(lambda: _closed(temporal_server, handle)) is WorkflowExecutionStatus.CANCELED


def test_schedule_fires_on_temporal(well: Stepwell, worker: TemporalWorker) -> None:
    definition = define("ticking", call("effect", {"name": "tick"}, name="t"), output="{{ steps.t.output }}")
    well.choose_engine("temporal", workflow="ticking")
    well.schedules.put("often", definition, every=0.2)
    [*_, last] = until(lambda: len(found := well.queue.list(status="COMPLETED")) >= 2 and found)
    well.schedules.delete("often")
    assert well.load(last.execution_id).identity.engine == "temporal"

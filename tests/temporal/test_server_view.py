"""The view of operators on the server: names, summaries, search attributes, queues, TLS, deployments, workers that stop."""

from __future__ import annotations

import asyncio
import signal as signals
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client
from tests.support.temporal_server import TemporalServer
from tests.support.tls import CA, TlsFront
from tests.temporal.processes import WorkerProcess
from tests.temporal.program import ITEM, SLOW, effect, slow
from tests.temporal.test_faults import until

from stepwell import EngineUnavailable, Stepwell, TemporalWorker, workflow
from stepwell.flow import call, define, http_request, wait

__all__ = ["effect", "slow"]


def asked(address: str, call: Callable[[Client], Any]) -> Any:
    async def ask() -> Any:
        return await call(await Client.connect(address))

    return asyncio.run(ask())


def events_of(address: str, execution_id: str) -> list[Any]:
    history = asked(address, lambda client: client.get_workflow_handle(f"execution-{execution_id}").fetch_history())
    return list(history.events)


def summary_of(event: Any) -> str:
    return event.user_metadata.summary.data.decode()


def test_server_shows_the_names_of_workflow_and_steps(
    well: Stepwell, worker: TemporalWorker, temporal_server: TemporalServer
) -> None:
    definition = define("named", call("effect", {"name": "x"}, name="first"), wait("10ms", name="pause"))
    well.workspaces.put("acme", tier="scale")
    item = well.enqueue(definition, workspace="acme", engine="temporal")
    item.result(timeout=60)

    async def described(client: Client) -> Any:
        found = await client.get_workflow_handle(f"execution-{item.execution_id}").describe()
        return found.workflow_type, await found.memo(), await found.static_summary()

    kind, memo, summary = asked(temporal_server.address, described)
    assert kind == "named"
    assert memo == {"execution_id": item.execution_id, "workspace_id": "acme", "version": 1}
    assert summary == f"named v1, execution {item.execution_id}"
    started, *events = events_of(temporal_server.address, item.execution_id)
    assert started.workflow_execution_started_event_attributes.priority.fairness_key == "acme"
    [scheduled] = [each for each in events if each.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED]
    assert scheduled.activity_task_scheduled_event_attributes.activity_type.name == "effect"
    assert summary_of(scheduled) == '"first"'


def test_history_of_one_step_has_at_most_13_events_and_of_ten_at_most_80(
    well: Stepwell, url: str, temporal_server: TemporalServer
) -> None:
    # With a usual lease: tasks that a busy machine does not end within a short one are made again, which the history shows.
    with TemporalWorker(url, address=temporal_server.address, grace_seconds=1):
        check_lengths(well, temporal_server)


def check_lengths(well: Stepwell, temporal_server: TemporalServer) -> None:
    ten = define("ten_events", *(call("effect", {"name": f"{n}"}, name=f"s{n}") for n in range(10)))
    for each, given, most in ((ITEM, "x", 13), (ten, "x", 80), (in_a_row, 1, 13), (in_a_row, 10, 80), (plainly_in_a_row, 10, 80)):
        item = well.enqueue(each, given, engine="temporal")  # type: ignore[arg-type]
        item.result(timeout=60)
        ended = (EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,)
        until(lambda: events_of(temporal_server.address, item.execution_id)[-1].event_type in ended)  # noqa: B023
        assert len(events_of(temporal_server.address, item.execution_id)) <= most


@workflow
async def in_a_row(count: int) -> None:
    for number in range(count):
        await effect.with_summary(f"number {number}")(f"{number}")


@workflow
def plainly_in_a_row(count: int) -> None:
    for number in range(count):
        effect.sync(f"{number}")


@pytest.mark.parametrize("function", [in_a_row, plainly_in_a_row], ids=lambda each: each.name)
def test_steps_of_a_function_are_activities_of_their_own(
    function: Any, well: Stepwell, worker: TemporalWorker, temporal_server: TemporalServer
) -> None:
    run = well.start(function, 2, engine="temporal")
    run.result(timeout=60)
    started, *events = events_of(temporal_server.address, run.execution_id)
    assert started.workflow_execution_started_event_attributes.workflow_type.name == function.name
    scheduled = [each for each in events if each.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED]
    assert [each.activity_task_scheduled_event_attributes.activity_type.name for each in scheduled] == ["effect", "effect"]
    told = [": number 0", ": number 1"] if function is in_a_row else ["", ""]
    assert [summary_of(each) for each in scheduled] == [f'"effect{told[0]}"', f'"effect#2{told[1]}"']


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"ok": true}')

    def log_message(self, format: str, *args: Any) -> None: ...


def test_http_requests_have_a_task_queue_of_their_own(
    well: Stepwell, worker: TemporalWorker, temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPWELL_HTTP_HOSTS", "127.0.0.1")
    with HTTPServer(("127.0.0.1", 0), _Answer) as server, ThreadPoolExecutor(1) as pool:
        pool.submit(server.serve_forever)
        try:
            url = f"http://127.0.0.1:{server.server_port}/"
            definition = define("asks", http_request(url, name="asked"), call("effect", {"name": "x"}, name="x"))
            run = well.start(definition, engine="temporal")
            run.result(timeout=60)
        finally:
            server.shutdown()
    scheduled = [
        each.activity_task_scheduled_event_attributes
        for each in events_of(temporal_server.address, run.execution_id)
        if each.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    ]
    assert [(each.activity_type.name, each.task_queue.name) for each in scheduled] == [
        ("stepwell.http_request", "activities.external-api"),
        ("effect", "workflows.default"),
    ]


def test_unregistered_search_attribute_is_a_typed_error_with_its_remedy(url: str, temporal_server: TemporalServer) -> None:
    with pytest.raises(EngineUnavailable, match=r"temporal operator search-attribute create .* --type Keyword"):
        TemporalWorker(url, address=temporal_server.address, search_attributes=True)


def test_registered_search_attribute_has_the_workspace(url: str) -> None:
    with TemporalServer(attributes=("StepwellWorkspace=Keyword",)) as server, Stepwell(url, worker=False) as well:
        with TemporalWorker(url, address=server.address, grace_seconds=1, search_attributes=True):
            well.workspaces.put("acme", tier="scale")
            item = well.enqueue(ITEM, "x", workspace="acme", engine="temporal")
            well.start(ITEM, "y", engine="temporal").result(timeout=60)
            item.result(timeout=60)

        async def listed(client: Client) -> list[str]:
            return [found.id async for found in client.list_workflows("StepwellWorkspace = 'acme'")]

        assert until(lambda: asked(server.address, listed)) == [f"execution-{item.execution_id}"]


def test_worker_speaks_tls_with_the_server(url: str, temporal_server: TemporalServer) -> None:
    port = int(temporal_server.address.rpartition(":")[2])
    with TlsFront(port, protocols=("h2",)) as front:
        address = f"127.0.0.1:{front.port}"
        with Stepwell(url, worker=False) as well, TemporalWorker(url, address=address, ca_file=str(CA), grace_seconds=1):
            assert well.start(ITEM, "safe", engine="temporal").result(timeout=60) == "safe"
        with pytest.raises(EngineUnavailable, match="TLS"):
            TemporalWorker(url, address=address, tls=True)  # the authority is not known
        with pytest.raises(EngineUnavailable, match="TLS"):
            TemporalWorker(url, address=address)


def test_deployment_has_its_name_and_build_id(url: str, temporal_server: TemporalServer) -> None:
    from temporalio.api.workflowservice.v1 import DescribeWorkerDeploymentRequest, SetWorkerDeploymentCurrentVersionRequest

    async def chosen(client: Client) -> bool:
        try:
            version = SetWorkerDeploymentCurrentVersionRequest(
                namespace="default", deployment_name="shop", version="shop.b1", build_id="b1"
            )
            await client.workflow_service.set_worker_deployment_current_version(version)
        except Exception:  # noqa: BLE001 - the server does not know the version yet
            return False
        request = DescribeWorkerDeploymentRequest(namespace="default", deployment_name="shop")
        found = await client.workflow_service.describe_worker_deployment(request)
        return found.worker_deployment_info.routing_config.current_version == "shop.b1"

    with TemporalServer() as server, Stepwell(url, worker=False) as well:
        with TemporalWorker(url, address=server.address, grace_seconds=1, deployment=("shop", "b1")):
            until(lambda: asked(server.address, chosen))
            run = well.start(ITEM, "deployed", engine="temporal")
            assert run.result(timeout=60) == "deployed"
        [completed, *_] = [
            each.workflow_task_completed_event_attributes
            for each in events_of(server.address, run.execution_id)
            if each.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
        ]
        assert (completed.deployment_version.deployment_name, completed.deployment_version.build_id) == ("shop", "b1")


def test_sigterm_lets_steps_end_and_takes_no_more(url: str, tmp_path: Path, temporal_server: TemporalServer) -> None:
    with Stepwell(url, worker=False) as well, WorkerProcess(url, temporal_server.address, tmp_path, grace="20") as process:
        run = well.start(SLOW, engine="temporal")
        until((tmp_path / "effects").exists)
        process.process.send_signal(signals.SIGTERM)
        process.read_until("stopping")
        (tmp_path / "go").touch()
        assert process.wait() == 0
        assert (tmp_path / "effects").read_text() == "slow 1\nslow ends\n"
        with WorkerProcess(url, temporal_server.address, tmp_path):
            assert run.result(timeout=60) == "b"
        assert (tmp_path / "effects").read_text().count("slow 1") == 1

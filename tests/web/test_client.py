"""`stepwell.Client` against a server on a real socket."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.web.running import Running
from tests.web.servers import approve, fail, greet
from tools.generate_client import TARGET, generate

from stepwell import (
    Client,
    Conflict,
    ExecutionCancelled,
    ExecutionFailed,
    InvalidInput,
    LockHeld,
    NotFound,
    RequestFailed,
    StoreUnavailable,
)
from stepwell.web.api.route_table import TABLE

__all__ = ["approve", "fail", "greet"]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with Running() as running:
        yield running


@pytest.fixture
def client(server: Running) -> Iterator[Client]:
    with Client(server.url, token=server.tokens["acme"]) as client:
        yield client


def test_the_generated_operations_are_those_of_the_routes():
    assert TARGET.read_text(encoding="utf-8") == generate(), "run: python -m tools.generate_client"
    left_out = {route.name for route in TABLE.routes if not hasattr(Client, route.name)}
    assert left_out == {"follow_run", "follow_runs"}


def test_a_run_is_started_signalled_and_read(client: Client):
    assert client.start("greet", "Ada").result(timeout=20) == "Hello, Ada!"
    run = client.start("approve", execution_id="a/b ü")
    with pytest.raises(TimeoutError):
        run.result(timeout=0)
    run.signal("approve", {"by": "ada"})
    assert run.result(timeout=20) == {"by": "ada"}
    assert run.verify().ok
    assert [each.revision for each in run.receipts()] == list(range(len(run.receipts())))
    assert run.state().status == "COMPLETED"
    assert run.progress() is not None
    assert client.run("a/b ü").status() == "COMPLETED"


def test_errors_are_those_of_the_library(client: Client, server: Running):
    with pytest.raises(NotFound):
        client.run("missing").status()
    with pytest.raises(NotFound):
        client.start("nowhere")
    with pytest.raises(ExecutionFailed, match="no way"):
        client.start("fail").result(timeout=20)
    run = client.start("approve")
    run.cancel()
    with pytest.raises(ExecutionCancelled):
        run.result(timeout=20)
    client.start("greet", "Ada", execution_id="once")
    with pytest.raises(Conflict):
        client.start("greet", "Eve", execution_id="once")
    client.acquire_lock("l", holder="a")
    with pytest.raises(LockHeld):
        client.acquire_lock("l", holder="b")
    with pytest.raises(InvalidInput):
        client.enqueue("greet", "x", queue="a\0b")
    with Client(server.url, token="swt_nobody_x") as nobody, pytest.raises(RequestFailed, match="unauthorized"):
        nobody.get_caller()
    with Client("http://127.0.0.1:9", token="x") as away, pytest.raises(StoreUnavailable, match="cannot be reached"):
        away.get_caller()
    for url in ("flows.example.org", "ftp://x", "http://x?y=1"):
        with pytest.raises(InvalidInput):
            Client(url, token="x")


def test_items_schedules_state_and_pages(client: Client):
    item = client.enqueue("greet", "Ada", key="k")
    assert client.enqueue("greet", "Ada", key="k").item_id == item.item_id
    assert client.get_item(item.item_id).workspace_id == "acme"
    assert client.put_schedule("nightly", workflow="greet", cron="0 3 * * *").name == "nightly"
    entry = client.put_entry("workspace", "k", value=[1], if_none_match="*")
    assert client.get_entry("workspace", "k").revision == entry.revision
    for number in range(3):
        client.start("greet", execution_id=f"p{number}").result(timeout=20)
    page = client.list_runs(filter="workflow:greet", limit=2)
    assert page.has_more
    assert client.list_runs(filter="workflow:greet", limit=2, cursor=page.next_cursor).items


def test_a_connection_that_the_server_closed_is_opened_again(client: Client):
    assert client.get_caller().workspace == "acme"
    client._local.connection.sock.close()
    assert client.get_caller().workspace == "acme"

"""The server keeps to its OpenAPI document, whatever is sent: schemathesis makes the requests."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from tests.web.running import Running
from tests.web.servers import approve, greet

from stepwell.web.api.route_table import TABLE
from stepwell.web.settings import HttpLimits

__all__ = ["approve", "greet"]

LEFT_OUT = {"follow_run", "follow_runs", "get_openapi"}
"""Streams do not end by themselves, and the tests of runs read them; the document is not among what it describes."""
EXAMPLES = 4


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """A server with the workspace acme."""
    with Running(worker=False, limits=HttpLimits(wait_seconds=0.1)) as running:
        yield running


@pytest.fixture(scope="module")
def schema(server: Running) -> schemathesis.schemas.BaseSchema:
    """The server's own document, without the parameter that only tokens for all of the store may send."""
    document = httpx.get(f"{server.url}/api/v1/openapi.json").json()
    for path in document["paths"].values():
        for operation in path.values():
            operation["parameters"] = [each for each in operation["parameters"] if each["name"] != "workspace"]
    found = schemathesis.openapi.from_dict(document)
    found.config.update(base_url=f"{server.url}/api/v1")
    # What fits the schema may still be refused: a cursor that was not given, a filter, an unknown tier, another revision.
    found.config.checks.positive_data_acceptance.expected_statuses = ["2xx", "3xx", "4xx"]
    return found


@pytest.mark.parametrize("name", [route.name for route in TABLE.routes if route.name not in LEFT_OUT])
def test_the_server_keeps_to_its_document(name: str, schema: schemathesis.schemas.BaseSchema, server: Running):
    operation = next(found.ok() for found in schema.get_all_operations() if found.ok().definition.raw["operationId"] == name)

    @settings(max_examples=EXAMPLES, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck), database=None)
    @given(case=operation.as_strategy())
    def check(case: schemathesis.Case) -> None:
        case.call_and_validate(headers={"Authorization": "Bearer " + server.tokens["acme"]})

    check()


RUNS = {route.name for route in TABLE.routes if route.path.startswith(("/runs", "/queue/items"))} - LEFT_OUT
"""Operations on runs and items: among those of everything, a short walk may never come to one."""


def test_operations_in_the_order_of_their_links_keep_to_the_document(schema: schemathesis.schemas.BaseSchema, server: Running):
    answered: set[tuple[str, bool]] = set()
    # So that a list names something to follow, whichever operations the walk begins with.
    headers = {"Authorization": "Bearer " + server.tokens["acme"]}
    for path in ("runs", "queue/items"):
        assert httpx.post(f"{server.url}/api/v1/{path}", json={"workflow": "greet"}, headers=headers).status_code == 202
    linked = schema.include(operation_id=sorted(RUNS))

    class Machine(linked.as_state_machine()):
        """Calls operations with what the replies before named."""

        def get_call_kwargs(self, case: schemathesis.Case) -> dict[str, dict[str, str]]:
            return {"headers": {"Authorization": "Bearer " + server.tokens["acme"]}}

        def before_call(self, case: schemathesis.Case) -> None:
            # No made-up name is that of a workflow, and without a run there is little to follow.
            if case.operation.definition.raw["operationId"] in ("start_run", "put_run", "enqueue_item"):
                case.body = {"workflow": "greet"}

        def validate_response(self, response: schemathesis.Response, case: schemathesis.Case, **options: object) -> None:
            super().validate_response(response, case, **options)
            answered.add((case.operation.definition.raw["operationId"], response.status_code < 300))

    Machine.run(
        settings=settings(
            max_examples=12,
            stateful_step_count=8,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
            database=None,
        )
    )
    # What is only found by an id that a reply named.
    follow_ups = {route.name for route in TABLE.routes if {"execution_id", "item_id"} & set(route.parameters)} - {"put_run"}
    assert {name for name, is_success in answered if is_success} & follow_ups

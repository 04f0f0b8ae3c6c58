"""The names on a Temporal server, and that nothing of its client is loaded by those who do not use it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from stepwell import InvalidInput, Stepwell, workspace_queue
from stepwell.model.external_engines import check_engine, engine_id
from stepwell.temporal.naming import EXTERNAL_API_QUEUE, fairness_key, short_summary, step_queue, task_queue

UNUSED = """
import sys
from stepwell import Stepwell, TemporalWorker
import stepwell.cli.main
with Stepwell("memory://") as well:
    well.state.globals.set("a", 1)
print([name for name in sys.modules if name.startswith("temporalio")])
"""


def test_nothing_of_temporals_client_is_loaded_without_its_use() -> None:
    done = subprocess.run([sys.executable, "-c", UNUSED], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_items_of_a_workspaces_own_queue_have_its_task_queue() -> None:
    assert task_queue("acme", workspace_queue("acme")) == "workflow.workspace.acme"
    assert task_queue("acme", "default") == task_queue("acme", workspace_queue("other")) == "workflows.default"


def test_calls_of_services_outside_have_a_task_queue_of_their_own() -> None:
    assert step_queue("external-api", "workflows.default") == EXTERNAL_API_QUEUE == "activities.external-api"
    assert step_queue("worker", "workflow.workspace.acme") == "workflow.workspace.acme"


def test_each_life_of_an_execution_has_its_own_workflow_id() -> None:
    assert (engine_id("order-7"), engine_id("order-7", 12)) == ("execution-order-7", "execution-order-7~12")


def test_no_execution_has_the_workflow_id_of_anothers_later_life() -> None:
    assert engine_id("order-7~12") != engine_id("order-7", 12)
    assert len({engine_id(each) for each in ("a~1", "a%7E1", "a%257E1")}) == 3


def test_fairness_keys_fit_into_temporals_64_bytes() -> None:
    assert fairness_key("acme") == "acme"
    long = [fairness_key("ü" * 40 + each) for each in "ab"]
    assert all(len(key.encode()) <= 64 for key in long)
    assert long[0] != long[1]


def test_summaries_fit_into_temporals_400_bytes_of_json() -> None:
    assert short_summary("charge#2: lamp for ada") == "charge#2: lamp for ada"
    assert all(len(json.dumps(short_summary(each * 300))) <= 400 for each in ("a", "ß", "\n", "😀"))


def test_unknown_engine_is_refused_before_anything_is_written() -> None:
    assert check_engine(None) is check_engine("local") is None
    with Stepwell("memory://", worker=False) as well:
        with pytest.raises(InvalidInput, match="no engine 'cadence'"):
            well.start("nothing", engine="cadence")
        assert well.executions.list() == []

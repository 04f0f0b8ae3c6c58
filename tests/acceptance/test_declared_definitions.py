"""Definitions in a store: versions, status, and workers that run what others have stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.acceptance.conftest import working_well
from tests.support.polling import until

from stepwell import AlreadyExists, InvalidDefinition, NotActive, NotFound, Status, Stepwell, step, workflow
from stepwell.flow import DefinitionStatus, call, define, parallel, parse, sequence, signal
from stepwell.model.mutation import UpdateToken
from stepwell.model.record import encode_token
from stepwell.testing.conformance.samples import SampleExecution
from stepwell.testing.store_access import store_under

well = working_well

WAIT = 60


@step(name="def.triple")
def triple(number: int) -> int:
    return 3 * number


def test_definition_is_stored_and_comes_back(well: Any) -> None:
    definition = define("keep", call("def.triple"), description="thrice")
    assert well.definitions.put(definition) == definition
    assert well.definitions.put(definition) == definition, "the same again changes nothing"
    assert well.definitions.get("keep") == definition
    [found] = well.definitions.list()
    assert (found.name, found.version, found.versions, found.status) == ("keep", 1, (1,), DefinitionStatus.ACTIVE)


def test_text_and_file_are_definitions_too(well: Any, tmp_path: Path) -> None:
    well.definitions.put("name: written\ndo: def.triple\n")
    (tmp_path / "filed.yaml").write_text("name: filed\ndo: def.triple\n")
    well.definitions.put(tmp_path / "filed.yaml")
    well.definitions.put(str(tmp_path / "filed.yaml"))
    assert [each.name for each in well.definitions.list()] == ["filed", "written"]
    assert well.start("filed", 2).result(WAIT) == 6
    with pytest.raises(NotFound, match="cannot be read"):
        well.definitions.put(tmp_path / "none.yaml")
    with pytest.raises(InvalidDefinition, match=r"<text>:2:1"):
        well.definitions.put("name: wrong\nod: x\n")


def test_same_version_with_another_body_is_refused(well: Any) -> None:
    well.definitions.put(define("fixed", call("def.triple")))
    with pytest.raises(AlreadyExists, match="'fixed' version 1"):
        well.definitions.put(define("fixed", call("def.triple", 1)))
    with pytest.raises(AlreadyExists):
        well.start(define("fixed", call("def.triple", 1)))
    well.definitions.put(define("fixed", call("def.triple", 1), version=2))
    assert well.definitions.get("fixed").version == 2
    assert well.definitions.get("fixed", 1) == define("fixed", call("def.triple"))
    with pytest.raises(NotFound, match="no version 3"):
        well.definitions.get("fixed", 3)


def test_run_keeps_the_version_it_began_with(well: Any) -> None:
    well.definitions.put(define("moving", signal("go"), call("def.triple", 1)))
    old = well.start("moving")
    until(lambda: old.status() == Status.WAITING)
    well.definitions.put(define("moving", call("def.triple", 2), version=2))
    assert well.start("moving").result(WAIT) == 6
    old.signal("go")
    assert old.result(WAIT) == 3


@step(name="def.tell")
def tell(text: str) -> str:
    return text


def test_run_goes_on_in_its_branches_where_the_definition_comes_from_the_store(tmp_path: Path) -> None:
    """Nodes without a name have numbers in document order, and their records go by them."""
    url = f"sqlite:///{tmp_path}/well.db"
    branches = {"b": call("def.tell", "b"), "a": sequence(signal("go"), call("def.tell", "a"))}
    with Stepwell(url) as well:
        run = well.start(define("ordered", parallel(branches=branches)), execution_id="run")
        until(lambda: run.progress().offers)
    with Stepwell(url) as well:
        other = well.start("ordered")  # this process reads it from the store, and from then on runs the first one, too
        for each in (other, well.run("run")):
            each.signal("go")
            assert each.result(WAIT) == {"b": "b", "a": "a"}
            assert {key: step.output for key, step in well.load(each.execution_id).steps.items() if "tell" in key} == {
                "def.tell": "b",
                "def.tell-2": "a",
            }


def test_draft_and_paused_workflows_cannot_be_started(well: Any) -> None:
    draft = define("careful", call("def.triple", 1), status="DRAFT")
    with pytest.raises(NotActive, match="DRAFT"):
        well.start(draft)
    well.definitions.activate("careful")
    assert well.start("careful").result(WAIT) == 3
    well.definitions.pause("careful")
    assert well.definitions.list()[0].status == DefinitionStatus.PAUSED
    with pytest.raises(NotActive, match="PAUSED"):
        well.start("careful")
    well.definitions.activate("careful")
    assert well.start("careful").result(WAIT) == 3
    assert well.executions.list(workflow="careful", status="FAILED") == []


def test_paused_workflow_lets_its_runs_go_on(well: Any) -> None:
    run = well.start(define("pausing", signal("go"), call("def.triple", 1)))
    until(lambda: run.status() == Status.WAITING)
    well.definitions.pause("pausing")
    run.signal("go")
    assert run.result(WAIT) == 3


def test_newest_active_version_is_started(well: Any) -> None:
    well.definitions.put(define("ahead", call("def.triple", 1)))
    well.definitions.put(define("ahead", call("def.triple", 2), version=2, status="DRAFT"))
    assert well.start("ahead").result(WAIT) == 3


@workflow(name="def-function")
async def a_function(number: int) -> int:
    return number


def test_name_of_a_function_starts_it_and_is_taken(well: Any) -> None:
    assert well.start("def-function", 5).result(WAIT) == 5
    with pytest.raises(InvalidDefinition, match="is a function"):
        well.definitions.put(define("def-function", "def.triple"))


def test_unknown_name_is_a_clear_error(well: Any) -> None:
    with pytest.raises(NotFound, match="there is no workflow 'nobody'"):
        well.start("nobody")


def test_schema_with_an_unknown_keyword_is_refused(well: Any) -> None:
    with pytest.raises(InvalidDefinition, match="did you mean 'required'"):
        well.definitions.put(define("strange", "def.triple", input_schema={"requird": ["a"]}))


def test_worker_runs_what_another_process_has_stored(file_url: str) -> None:
    with Stepwell(file_url, worker=False) as store_only:
        run_id = store_only.start(define("elsewhere", call("def.triple")), 4).execution_id
        assert store_only.run(run_id).status() == Status.PENDING
    with Stepwell(file_url) as worker:
        assert worker.run(run_id).result(WAIT) == 12


def test_unknown_step_makes_the_run_wait_and_the_worker_serves_the_others(well: Any) -> None:
    run = well.start(define("unknown-step", call("def.nobody"), call("def.triple", 1)))
    until(lambda: run.status() == Status.WAITING)
    [waiting] = run.progress().waiting
    assert (waiting.kind, waiting.name) == ("step", "def.nobody")
    assert well.start(define("known-step", call("def.triple", 1))).result(WAIT) == 3

    @step(name="def.nobody")
    def nobody() -> None:
        """Known at last."""

    run.signal("look again")
    assert run.result(WAIT) == 3
    assert nobody


def test_definition_with_faults_has_all_of_them_in_the_error() -> None:
    with pytest.raises(InvalidDefinition) as caught:
        parse("name: many\ndo:\n  - {step: a, retry: {attempts: 0}}\n  - {loop: b, until: steps.b.output}\n", source="many.yaml")
    assert len(caught.value.errors) == 2


def test_run_that_has_looked_for_its_step_for_days_rests_all_the_same(well: Any, caplog: pytest.LogCaptureFixture) -> None:
    run = well.start(define("def-lost", call("def.nowhere")), execution_id="lost")

    def looked() -> int:
        return well.load("lost").tokens["def.nowhere"].value.get("looked", 0) if well.load("lost").tokens else 0

    until(lambda: looked() and run.status() == Status.WAITING)
    execution = SampleExecution(store_under(well), "lost", workspace="default", workflow="def-lost")
    execution.follow()
    token = well.load("lost").tokens["def.nowhere"]
    many = token.replace(value={**token.value, "looked": 5_000})
    execution.land(UpdateToken("def.nowhere", msgspec.Raw(encode_token(many))))
    run.signal("look")
    until(lambda: looked() > 5_000 and run.status() == Status.WAITING)
    assert [record for record in caplog.records if record.exc_info] == []

"""Live runs moved to another version of their definition: those whose path is one of it, too."""

from __future__ import annotations

from typing import Any

import pytest
from tests.acceptance.conftest import OpenWell
from tests.support.polling import until
from tests.support.store_urls import url as every_url

from stepwell import InvalidInput, NotActive, NotFound, Status, Stepwell, step, workflow
from stepwell.flow import call, choice, define, each, graph, loop, otherwise, parallel, scope, sequence, signal, wait, when
from stepwell.model.commit import Claim
from stepwell.testing.store_access import write_unit

__all__ = ["every_url"]

WAIT = 60


@step(name="upgrade.do")
def do(what: Any = None) -> Any:
    return what


def named(name: str) -> Any:
    return call(do, name, name=name)


def go(name: str = "go", **more: Any) -> Any:
    return signal(name, name=name, **more)


def v1(*nodes: Any, **more: Any) -> Any:
    return define("upgraded", named("start"), *nodes, version=1, **more)


def v2(*nodes: Any, **more: Any) -> Any:
    return define("upgraded", named("start"), *nodes, version=2, **more)


def waiting(well: Stepwell, definition: Any, execution_id: str = "run", value: Any = None) -> Any:
    run = well.start(definition, value, execution_id=execution_id)
    until(lambda: run.status() is Status.WAITING)
    return run


def test_run_goes_on_with_the_new_version(every_url: str) -> None:
    old = v1(named("a"), go(), named("b"))
    new = v2(named("a"), go(), named("c"), call(do, "{{ variables.rate }}", name="d"), variables={"rate": 7})
    with Stepwell(every_url) as well:
        runs = [waiting(well, old, f"run-{n}") for n in range(3)]
        well.definitions.put(new)
        pinned = waiting(well, new, "new")
        looked = well.upgrade_runs("upgraded", to_version=2, dry_run=True)
        assert (sorted(looked.moved), looked.refused, looked.held, looked.is_dry_run) == (["run-0", "run-1", "run-2"], (), (), True)
        assert {each.version for each in well.executions.list(workflow="upgraded")} == {1, 2}
        report = well.upgrade_runs("upgraded", to_version=2)
        assert (sorted(report.moved), report.refused) == (["run-0", "run-1", "run-2"], ())
        assert {each.version for each in well.executions.list(workflow="upgraded")} == {2}
        assert [each["type"] for each in well.receipts("run-0")[-1].mutations] == ["change_version", "set_variable"]
        assert well.upgrade_runs("upgraded", to_version=2).moved == ()
        for run in [*runs, pinned]:
            run.signal("go", 1)
            assert run.result(WAIT) == 7
            assert well.verify(run.execution_id).ok
        assert list(well.load("run-0").steps)[:4] == ["start", "a", "go", "c"]


def test_run_keeps_its_version_unless_it_is_moved(open_well: OpenWell) -> None:
    well = open_well("memory://")
    run = waiting(well, v1(go(), named("old")))
    well.definitions.put(v2(go(), named("new")))
    run.signal("go", 1)
    assert run.result(WAIT) == "old"


def test_moved_run_goes_back_to_the_version_before(open_well: OpenWell) -> None:
    well = open_well("memory://")
    run = waiting(well, v1(go(), named("old")))
    well.definitions.put(v2(go(), named("new")))
    before = well.snapshot("run")
    assert well.upgrade_runs("upgraded", to_version=2).moved == ("run",)
    assert well.upgrade_runs("upgraded", to_version=1).moved == ("run",)
    assert well.upgrade_runs("upgraded", to_version=2).moved == ("run",)
    well.restore("run", before)
    assert (well.executions.get("run").version, well.verify("run").ok) == (1, True)
    run.signal("go", 1)
    assert run.result(WAIT) == "old"


MOVES: dict[str, tuple[list[Any], list[Any], Any]] = {
    "a node is added after": ([go()], [go(), named("later")], "later"),
    "what comes after is another node": ([go(), named("x")], [go(), loop(named("y"), count=2, collect="last")], "y"),
    "a branch that has not begun": (
        [choice(when("steps.start.output == 'start'", sequence(go(), named("a"))), otherwise(named("b")))],
        [choice(when("steps.start.output == 'start'", sequence(go(), named("c"))), otherwise(named("d")))],
        "c",
    ),
    "inside a parallel": (
        [parallel(one=sequence(go(), named("a")), two=named("b"))],
        [parallel(one=sequence(go(), named("c")), two=named("b"))],
        {"one": "c", "two": "b"},
    ),
    "inside a scope": ([scope(sequence(go(), named("a")))], [scope(sequence(go(), named("c")))], "c"),
    "a node of a graph that has not begun": (
        [graph({"first": go(), "then": named("a")}, edges=[("first", "then")])],
        [graph({"first": go(), "then": sequence(call(do, "c", name="c"), name="then")}, edges=[("first", "then")])],
        None,
    ),
    "what is said about a node": ([go(description="one")], [go(description="two"), named("z")], "z"),
}


@pytest.mark.parametrize("what", MOVES)
def test_run_moves_where_only_what_lies_ahead_differs(what: str) -> None:
    before, after, result = MOVES[what]
    with Stepwell("memory://") as well:
        run = waiting(well, v1(*before))
        well.definitions.put(v2(*after))
        report = well.upgrade_runs("upgraded", to_version=2)
        assert (report.moved, report.refused) == (("run",), ())
        run.signal("go", 1)
        found = run.result(WAIT)
        assert found == result or result is None
        assert well.verify("run").ok


def test_run_of_a_single_node_moves_to_a_sequence_and_back(open_well: OpenWell) -> None:
    well = open_well("memory://")
    run = waiting(well, define("upgraded", go(), version=1))
    well.definitions.put(define("upgraded", go(), named("more"), version=2))
    well.definitions.put(define("upgraded", sequence(go(), named("most"), name="all"), version=3))
    well.definitions.put(define("upgraded", named("before"), go(), version=4))
    assert well.upgrade_runs("upgraded", to_version=4).moved == ()
    for version in (2, 3, 1, 3):
        assert well.upgrade_runs("upgraded", to_version=version).moved == ("run",)
    run.signal("go", 1)
    assert run.result(WAIT) == "most"
    assert well.verify("run").ok


STAYS: dict[str, tuple[list[Any], list[Any], str]] = {
    "it stands nowhere": ([go(), named("x")], [go("other"), named("x")], "it is at 'go', which version 2 does not have"),
    "it stands at another node": ([go()], [wait(60, name="go")], "it is at 'go', which is another node in version 2"),
    "its wait has another timeout": ([go()], [go(timeout=5)], "it is at 'go', which is another node in version 2"),
    "it has passed a node that is gone": ([named("a"), go()], [go()], "it has passed 'a', which version 2 does not have"),
    "a node was added before": ([go()], [named("a"), go()], "version 2 has 'a' before 'go', where the run is already"),
    "a node moved to the end": (
        [named("a"), go()],
        [go(), named("a")],
        "it has passed 'a', which version 2 does not have before 'go'",
    ),
    "what it has passed has more inside": (
        [sequence(named("a"), name="s"), go()],
        [sequence(named("a"), named("b"), name="s"), go()],
        "it has passed 's', which has other nodes inside in version 2",
    ),
    "it is in another branch": (
        [parallel(one=go(), two=named("a"))],
        [parallel(one=named("b"), two=go())],
        "in another branch of 'parallel'",
    ),
    "a parallel got a branch": (
        [parallel(one=go(), two=named("a"))],
        [parallel(one=go(), two=named("a"), three=named("b"))],
        "it is at 'parallel', which is another node in version 2",
    ),
    "a branch that has ended is longer": (
        [parallel(one=go(), two=sequence(named("a"), name="s"))],
        [parallel(one=go(), two=sequence(named("a"), named("b"), name="s"))],
        "'s' has begun inside 'parallel', and is another node in version 2",
    ),
    "the body of its loop differs": (
        [loop(sequence(go(), named("a"), name="body"), count=2)],
        [loop(sequence(go(), named("b"), name="body"), count=2)],
        "'body' has begun inside 'loop', and is another node in version 2",
    ),
    "its loop goes on for longer": ([loop(go(), count=2)], [loop(go(), count=3)], "it is at 'loop', which is another node"),
    "the body of its instances differs": (
        [each(sequence(go(), named("a"), name="body"), count=2)],
        [each(sequence(go(), name="body"), count=2)],
        "'body' has begun inside 'each', and is another node",
    ),
    "it is outside now": ([scope(go(), name="s")], [go()], "it is at 's', which version 2 does not have"),
    "it is inside now": ([go()], [scope(go(), name="s")], "it is at 'go', which is inside 's' in version 2"),
    "its graph has another edge": (
        [graph({"first": go(), "then": named("a")}, edges=[("first", "then")])],
        [graph({"first": go(), "then": named("a")}, edges=[("first", "then", "true")])],
        "it is at 'graph', which is another node in version 2",
    ),
}


@pytest.mark.parametrize("what", STAYS)
def test_run_stays_where_its_path_is_none_of_the_new_version(what: str) -> None:
    before, after, reason = STAYS[what]
    with Stepwell("memory://") as well:
        run = waiting(well, v1(*before))
        well.definitions.put(v2(*after))
        revision = well.executions.get("run").revision
        report = well.upgrade_runs("upgraded", to_version=2)
        assert report.moved == ()
        [refused] = report.refused
        assert (refused.execution_id, refused.version) == ("run", 1)
        assert any(reason in each for each in refused.reasons), refused.reasons
        assert (run.status(), well.executions.get("run").revision) == (Status.WAITING, revision)


def test_only_the_runs_that_can_are_moved(open_well: OpenWell) -> None:
    """Two runs of one definition at different places of it."""
    well = open_well("memory://")
    old = v1(go("one"), go("two"), named("x"))
    early, late = waiting(well, old, "early"), waiting(well, old, "late")
    late.signal("one", 1)
    until(lambda: "one" in late.state().get_all_step_outputs() and late.status() is Status.WAITING)
    well.definitions.put(v2(go("one"), named("between"), go("two"), named("y")))
    report = well.upgrade_runs("upgraded", to_version=2)
    assert (report.moved, [each.execution_id for each in report.refused]) == (("early",), ["late"])
    for run in (early, late):
        for name in ("one", "two"):
            run.signal(name, 1)
    assert (early.result(WAIT), late.result(WAIT)) == ("y", "x")


def test_input_must_fit_the_new_version(open_well: OpenWell) -> None:
    well = open_well("memory://")
    waiting(well, v1(go()), value={"n": "text"})
    well.definitions.put(v2(go(), input_schema={"type": "object", "properties": {"n": {"type": "integer"}}}))
    [refused] = well.upgrade_runs("upgraded", to_version=2).refused
    assert refused.reasons[0].startswith("its input does not fit")


def test_held_and_ended_runs_are_left_and_other_workspaces_are_not_seen(open_well: OpenWell) -> None:
    """The fence rules: a session that is under way goes on with the definition that it has."""
    well = open_well("memory://", worker=False)
    well.workspaces.put("acme")
    old = v1(go())
    well.start(old, {}, execution_id="fresh")
    well.start(old, {}, execution_id="held")
    well.start(old, {}, execution_id="there", workspace="acme")
    well.start(old, {}, execution_id="ended").cancel()
    write_unit(well, Claim("held", "somebody", 30))
    well.definitions.put(v2(named("before"), go()))
    report = well.upgrade_runs("upgraded", to_version=2, workspace="default")
    assert (sorted(report.moved), report.held) == (["ended", "fresh"], ("held",))  # nothing has begun, so that any path is one
    assert well.executions.get("there").version == 1


def test_bad_request_is_refused(open_well: OpenWell) -> None:
    @workflow(name="upgrade.function")
    async def function() -> None: ...

    well = open_well("memory://", worker=False)
    well.definitions.put(v1(go()))
    with pytest.raises(InvalidInput, match="is a function: workers run its earlier versions with its newest code"):
        well.upgrade_runs("upgrade.function", to_version=2)
    with pytest.raises(NotFound, match="there is no workflow 'nobody'"):
        well.upgrade_runs("nobody", to_version=2)
    with pytest.raises(NotFound, match="has no version 2; it has 1"):
        well.upgrade_runs("upgraded", to_version=2)
    with pytest.raises(InvalidInput, match="a version is a whole number"):
        well.upgrade_runs("upgraded", to_version=0)
    well.definitions.pause("upgraded")
    with pytest.raises(NotActive):
        well.upgrade_runs("upgraded", to_version=1)

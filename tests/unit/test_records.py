"""Public records are plain data, shown in notebooks, and know the names that people guess."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import pkgutil
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import stepwell
import stepwell.app.blocking
import stepwell.flow
from stepwell import AsyncStepwell, Problem, Retry, Stepwell, step, workflow
from stepwell.flow import define, sequence
from stepwell.name_hints import hinted

NOT_RECORDS = {"KeyRing"}
"""Structs that hold secrets and are no answers."""
NO_ANSWERS = {"Definition", "KeptReply"}
"""A definition has a document of its own, ``stepwell.flow.render``, and a kept reply is for the HTTP server."""

STRUCTS = sorted(
    name for name in stepwell.__all__ if isinstance(getattr(stepwell, name), msgspec.StructMeta) and name not in NOT_RECORDS
)


@step(name="records.charge")
async def charge(item: str) -> str:
    return item


@workflow(name="records.shop")
async def shop(item: str) -> str:
    return await charge.with_summary("a lamp")(item)


@pytest.mark.parametrize("name", STRUCTS)
def test_every_public_record_has_to_dict(name: str) -> None:
    assert callable(getattr(stepwell, name).to_dict)
    assert callable(getattr(stepwell, name)._repr_html_)


def structs_of_stepwell() -> dict[str, type]:
    found: dict[str, type] = {}
    for each in pkgutil.walk_packages(stepwell.__path__, "stepwell."):
        if each.name.split(".")[1] not in ("cli", "demo", "integrations", "script", "temporal", "testing", "web", "__main__"):
            names = vars(importlib.import_module(each.name))
            found |= {name: kind for name, kind in names.items() if isinstance(kind, msgspec.StructMeta)}
    return found


def test_every_record_that_a_public_call_returns_has_to_dict() -> None:
    kinds, returned = structs_of_stepwell(), set[str]()
    for module in pkgutil.iter_modules(stepwell.app.blocking.__path__, "stepwell.app.blocking."):
        for face in vars(importlib.import_module(module.name)).values():
            for function in vars(face).values() if isinstance(face, type) and face.__module__ == module.name else ():
                target = function.fget if isinstance(function, property) else function
                if inspect.isfunction(target):
                    returned |= set(re.findall(r"\w+", str(inspect.signature(target).return_annotation)))
    assert {"Trace", "Durability", "ErrorGroup", "StepRecord"} <= returned
    without = {name for name in returned & kinds.keys() if not hasattr(kinds[name], "to_dict")}
    assert without - NO_ANSWERS == set()


def test_state_of_a_run_is_taken_by_json() -> None:
    with Stepwell("memory://") as well:
        run = well.start(shop, "lamp")
        run.result(10)
        told = json.loads(json.dumps(run.state().to_dict()))
        assert told["trigger"] == "lamp"
        assert told["steps"]["records.charge"]["output"] == "lamp"
        assert (told["variables"], told["loops"]) == ({}, {})
        assert json.loads(json.dumps(run.trace().to_dict()))["level"] == "full"


def test_records_of_a_run_are_taken_by_json() -> None:
    with Stepwell("memory://") as well:
        run = well.start(shop, "lamp")
        run.result(10)
        well.workspaces.put("acme")
        records: list[Any] = [
            *run.steps(),
            *run.receipts(),
            run.progress(),
            run.verify(),
            well.load(run.execution_id),
            well.load(run.execution_id).identity,
            *well.executions.list(),
            well.health(),
            *well.workspaces.list(),
            *well.workspaces.tiers(),
            well.usage.workspace("acme"),
            Problem("SW-101", "bad", "here"),
            Retry(attempts=3),
        ]
        for record in records:
            told = record.to_dict()
            assert json.loads(json.dumps(told)) is not None, record
            assert isinstance(told, dict)
        assert run.steps()[0].to_dict()["summary"] == "a lamp"
        assert "set_status" in str(run.receipts()[0].to_dict()["mutations"])
        assert well.load(run.execution_id).to_dict()["status"] == "COMPLETED"


def test_notebook_shows_a_table_without_what_the_short_text_hides() -> None:
    with Stepwell("memory://") as well:
        run: Any = well.start(shop, "<b>")
        run.result(10)
        record: Any
        [record] = run.steps()
        assert record._repr_html_().startswith("<table><caption>StepRecord</caption>")
        assert "&lt;b&gt;" in record._repr_html_()
        assert "set_status" not in run.receipts()[0]._repr_html_()
        assert run._repr_svg_().startswith("<svg")
    definition: Any = define("records.picture", sequence("records.charge"))
    assert definition._repr_svg_().startswith("<svg")


@pytest.mark.parametrize("store", ["memory://", "sqlite:///well.db"])
def test_notebook_shows_a_run_whose_calls_are_awaited(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def cells() -> None:
        async with AsyncStepwell(store) as well:
            run: Any = await well.start(shop, "a lamp", execution_id="order-7")
            await run.result(10)
            assert run._repr_svg_() == await run.draw()
            assert "a lamp" in run._repr_svg_()
            absent: Any = well.run("no-such-run")
            assert absent._repr_svg_() is None
        assert run._repr_svg_() is None
        never_opened: Any = AsyncStepwell(store).run("order-7")
        assert never_opened._repr_svg_() is None

    asyncio.run(cells())


def test_notebook_shows_a_list_of_records_as_one_table() -> None:
    with Stepwell("memory://") as well:
        run = well.start(shop, "<lamp>", execution_id="order-7")
        run.result(10)
        steps, runs, items = run.steps(), well.executions.list(), well.queue.list()
        assert (isinstance(steps, list), len(steps)) == (True, 1)
        assert steps._repr_html_().startswith("<table><tr><th>name</th>")  # type: ignore[attr-defined]
        assert "<td>&lt;lamp&gt;</td>" in steps._repr_html_()  # type: ignore[attr-defined]
        assert "<th>late_results</th>" not in steps._repr_html_()  # type: ignore[attr-defined]
        assert "<td>order-7</td>" in runs._repr_html_()  # type: ignore[attr-defined]
        assert items._repr_html_() == "<em>nothing</em>"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("wait_for_signal", "stepwell.wait_signal"),
        ("activity", "stepwell.step"),
        ("task", "stepwell.step"),
        ("RetryPolicy", "stepwell.Retry"),
        ("wokflow", "workflow"),
    ],
)
def test_guessed_name_of_the_package_is_answered_with_the_right_one(name: str, right: str) -> None:
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'; did you mean {right}"):
        getattr(stepwell, name)


def test_names_of_the_package_are_named_where_they_are_looked_for_in_flow() -> None:
    with pytest.raises(AttributeError, match=r"did you mean stepwell\.step"):
        _ = stepwell.flow.step
    with pytest.raises(AttributeError, match=r"has no attribute '__wrapped__'$"):
        _ = stepwell.__wrapped__


@pytest.mark.parametrize(
    ("call", "guess", "right"),
    [
        (Retry, "max_attempts", r"attempts"),
        (step, "retries", r"retry=Retry\(attempts=\.\.\.\)"),
        (step, "timeout", "timeout_seconds"),
        (workflow, "timeout_seconds", "timeout"),
        (workflow, "verison", "version"),
    ],
    ids=lambda each: getattr(each, "__name__", str(each)),  # not the address, which each worker of xdist would see differently
)
def test_guessed_keyword_is_answered_with_the_right_one(call: Any, guess: str, right: str) -> None:
    with pytest.raises(TypeError, match=rf"'{guess}'; did you mean {right}\?"):
        call(**{guess: 3})


def test_guessed_option_of_a_start_is_answered_with_the_right_one() -> None:
    start: Any
    with Stepwell("memory://", worker=False) as well:
        start = well.start
        with pytest.raises(TypeError, match=r"'id'; did you mean execution_id\?"):
            start(shop, "lamp", id="a")


@hinted
def careless() -> None:
    guess: Any = {"max_attempts": 3}
    sorted([], **guess)


def test_error_of_the_code_inside_is_left_alone() -> None:
    with pytest.raises(TypeError) as told:
        careless()
    assert "did you mean" not in str(told.value)


def test_guessed_attribute_is_answered_with_the_right_one() -> None:
    with Stepwell("memory://") as well:
        run: Any = well.start(shop, "lamp")
        for guess, right in (("id", "execution_id"), ("get_result", "result"), ("terminate", "cancel"), ("statos", "status")):
            with pytest.raises(AttributeError, match=rf"no attribute '{guess}'; did you mean {right}\?"):
                getattr(run, guess)
        run.result(10)
        execution: Any = well.executions.list()[0]
        for guess in ("id", "run_id"):
            with pytest.raises(AttributeError, match=r"did you mean execution_id\?"):
                getattr(execution, guess)
        assert not hasattr(run, "nothing_like_it")


@pytest.mark.parametrize(
    ("guess", "right"),
    [
        ("start_workflow", "start"),
        ("get_run", "run"),
        ("signal", r"run\(execution_id\).signal\(name, value\)"),
        ("enque", "enqueue"),
    ],
)
def test_guessed_attribute_of_a_well_is_answered_with_the_right_one(guess: str, right: str) -> None:
    with Stepwell("memory://", worker=False) as well, pytest.raises(AttributeError, match=rf"'{guess}'; did you mean {right}\?"):
        getattr(well, guess)


def test_guessed_option_of_a_well_is_answered_with_the_right_one() -> None:
    options: Any = {"database_url": "memory://"}
    with pytest.raises(TypeError, match=r"'database_url'; did you mean url\?"):
        Stepwell(**options)


@pytest.mark.parametrize("of", [charge, shop])
@pytest.mark.parametrize("guess", ["delay", "submit", "apply_async"])
def test_calls_of_task_queues_are_answered_with_what_starts_a_run(of: Any, guess: str) -> None:
    with pytest.raises(AttributeError, match=rf"no attribute '{guess}'; did you mean well.start"):
        getattr(of, guess)

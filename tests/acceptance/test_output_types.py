"""Outputs and their annotations: what could not be read back is never recorded as completed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum, StrEnum
from typing import Any, TypedDict

import pydantic
import pytest
from tests.acceptance.faces import step_records
from tests.support import process_steps

from stepwell import ExecutionFailed, InvalidInput, Status, Stepwell, step, workflow
from stepwell.flow import call, define, map_data

WAIT = 20


class Level(IntEnum):
    LOW = 1


class Colour(StrEnum):
    RED = "red"


class Order(pydantic.BaseModel):
    number: int = pydantic.Field(alias="orderNumber")


class Secretive(pydantic.BaseModel):
    name: str
    password: str = pydantic.Field(default="", exclude=True)


class Shown(pydantic.BaseModel):
    number: int = pydantic.Field(serialization_alias="No")

    @pydantic.computed_field
    def double(self) -> int:
        return self.number * 2


class Options(TypedDict):
    colour: str


@dataclass
class Base:
    number: int


@dataclass
class Wider(Base):
    more: int = 0


@dataclass
class Parcel:
    number: int
    extras: dict[str, Any]


outputs: dict[str, Any] = {}


@step
async def gives_number(name: str) -> int:
    return outputs[name]


@step
def gives_prices(name: str) -> dict[str, list[int]]:
    return outputs[name]


@step
async def gives_secretive(name: str) -> Secretive:
    return outputs[name]


@step
async def gives_ordered(name: str) -> OrderedDict[str, int]:
    return outputs[name]


@step
async def gives_anything(name: str) -> object:
    return outputs[name]


@step
async def gives_parts(name: str) -> dict[str, object]:
    return outputs[name]


@step
async def gives_level(name: str) -> Level:
    return outputs[name]


@step
async def gives_models(name: str) -> tuple[Order, Shown, Colour]:
    return outputs[name]


@step
async def gives_options(name: str) -> Options:
    return outputs[name]


@step
async def gives_base(name: str) -> list[Base]:
    return outputs[name]


@step
async def gives_parcel(name: str) -> Parcel:
    return outputs[name]


@step
async def gives_row(name: str) -> Sequence[int]:
    return outputs[name]


STEPS: dict[str, Any] = {
    each.name: each
    for each in (
        gives_number,
        gives_prices,
        gives_secretive,
        gives_ordered,
        gives_anything,
        gives_parts,
        gives_level,
        gives_models,
        gives_options,
        gives_base,
        gives_parcel,
        gives_row,
    )
}


@workflow
async def calls(name: str) -> str:
    return repr(await STEPS[name](name))


@workflow
async def results_in_number(name: str) -> int:
    return outputs[name]


@workflow
def results_in_list(name: str) -> list[str]:
    return outputs[name]


@workflow
async def calls_process() -> Any:
    return await process_steps.gives_text_for_a_number()  # pyright: ignore


@pytest.fixture
def well(working_well: Stepwell) -> Stepwell:
    """A well that works by the machine's clock."""
    return working_well


MISFITS: list[tuple[Any, Any, str]] = [
    (gives_number, "text", "the output of step 'gives_number' is not an int: Expected `int`, got `str`"),
    (gives_number, Level.LOW, r"the output of step 'gives_number', at \$: Level would come back as a plain int"),
    (gives_number, None, "Expected `int`, got `null`"),
    (gives_prices, {"a": [1, "b"]}, r"Expected `int`, got `str` - at `\$\[...\]\[1\]`"),
    (gives_prices, OrderedDict(a=[1]), "OrderedDict would come back as a plain dict"),
    (gives_secretive, Secretive(name="a", password="b"), "field 'password' does not come back as it was"),
    (gives_ordered, OrderedDict(b=1, a=2), "the output of step 'gives_ordered' is not a .*OrderedDict"),
    (gives_anything, [{"at": Colour.RED}], r"at \$\[0\].at: Colour would come back as a plain str"),
    (gives_parts, {"at": datetime(2026, 1, 1, tzinfo=UTC)}, r"at \$.at: datetime has no JSON form"),
    (gives_parcel, Parcel(1, {"at": [Colour.RED]}), r"at \$.extras.at\[0\]: Colour would come back as a plain str"),
    (gives_parcel, Parcel(1, OrderedDict(a=1)), r"at \$.extras: OrderedDict would come back as a plain dict"),
    (gives_parcel, Parcel(1, {Colour.RED: 1}), r"at \$.extras: the key .*RED.* is not a plain string"),
    (gives_parcel, Parcel(1, {"in": Base(2)}), r"at \$.extras.in: Base has no JSON form"),
    (gives_options, {"colour": "red", "size": 3}, r"at \$: 'size' would be lost"),
    (gives_base, [Base(1), Wider(2, 3)], r"at \$\[1\]: Wider would come back as a plain Base"),
    (gives_row, (1, 2), r"at \$: a tuple would come back as a list"),
]


@pytest.mark.parametrize(("way", "output", "message"), MISFITS)
def test_output_that_could_not_be_read_back_fails_its_attempt(well: Any, way: Any, output: object, message: str) -> None:
    outputs[way.name] = output
    run = well.start(calls, way.name)
    with pytest.raises(ExecutionFailed, match=message):
        run.result(WAIT)
    record = step_records(run)[way.name]
    assert record.error is not None
    assert (record.status, record.output, record.error.kind) == ("FAILED", None, "InvalidInput")


def test_run_heals_by_retry_after_an_output_that_did_not_fit(well: Any) -> None:
    outputs["gives_number"] = "text"
    run = well.start(calls, "gives_number")
    with pytest.raises(ExecutionFailed):
        run.result(WAIT)
    outputs["gives_number"] = 3
    run.retry()
    assert run.result(WAIT) == "3"


def test_output_of_a_declared_step_that_does_not_fit_fails_its_attempt(well: Any) -> None:
    outputs["gives_number"] = "text"
    run = well.start(define("declared-misfit", call("gives_number", {"name": "gives_number"})))
    with pytest.raises(ExecutionFailed, match="the output of step 'gives_number' is not an int"):
        run.result(WAIT)


def test_output_from_a_process_that_does_not_fit_fails_its_attempt(well: Any) -> None:
    with pytest.raises(ExecutionFailed, match="the output of step 'gives_text_for_a_number' is not an int"):
        well.start(calls_process).result(WAIT)


@pytest.mark.parametrize(
    ("way", "output", "message"),
    [
        (results_in_number, "text", "the result of workflow 'results_in_number' is not an int: Expected `int`, got `str`"),
        (results_in_list, ["a", 1], r"the result of workflow 'results_in_list' is not a list.*at `\$\[1\]`"),
        (results_in_list, (1,), r"the result of workflow 'results_in_list', at \$: a tuple would come back as a list"),
    ],
)
def test_run_fails_with_a_result_that_could_not_be_read_back(well: Any, way: Any, output: object, message: str) -> None:
    outputs[way.name] = output
    run = well.start(way, way.name)
    with pytest.raises(ExecutionFailed, match=message):
        run.result(WAIT)
    assert run.status() == Status.FAILED


@pytest.mark.parametrize(
    ("way", "output"),
    [
        (gives_models, (Order(orderNumber=7), Shown(number=2), Colour.RED)),
        (gives_secretive, Secretive(name="a")),
        (gives_level, Level.LOW),
        (gives_anything, {"a": [1, None]}),
        (gives_parts, {"a": [1, {"b": 2.5}]}),
        (gives_prices, {}),
        (gives_parcel, Parcel(1, {"a": [None, {"b": 1}]})),
        (gives_base, [Base(1)]),
        (gives_options, {"colour": "red"}),
    ],
)
def test_output_comes_back_as_its_annotation_says(well: Any, way: Any, output: object) -> None:
    outputs[way.name] = output
    assert well.start(calls, way.name).result(WAIT) == repr(output)


@workflow
async def takes(order: Base, note: Any = None) -> list[Any]:
    return [order.number, note]


@workflow
async def calls_child(kind: str) -> list[Any]:
    return await takes(Base(1), NOTES[kind])


NOTES: dict[str, Any] = {"enum": Colour.RED, "tuple": (1,), "ordered": OrderedDict(a=1), "plain": {"a": [1]}}


@pytest.mark.parametrize("kind", ["enum", "tuple", "ordered"])
def test_input_of_which_a_part_would_change_is_refused(well: Any, kind: str) -> None:
    with pytest.raises(InvalidInput, match=r"the input of workflow 'takes', parameter 'note', at .* would come back as a"):
        well.start(takes, {"order": Base(1), "note": NOTES[kind]})
    with pytest.raises(ExecutionFailed, match=r"parameter 'note', at .* would come back as a"):
        well.start(calls_child, kind).result(WAIT)


def test_input_arrives_as_its_annotations_say(well: Any) -> None:
    assert well.start(takes, {"order": {"number": 1}, "note": {"a": [1]}}).result(WAIT) == [1, {"a": [1]}]
    assert well.start(calls_child, "plain").result(WAIT) == [1, {"a": [1]}]
    with pytest.raises(InvalidInput, match="'size' would be lost"):
        well.start(takes, {"order": {"number": 1, "size": 2}})


ECHO = define("echoes-its-input", map_data("{{ trigger.input }}"))


@pytest.mark.parametrize("kind", ["enum", "tuple", "ordered"])
def test_input_of_a_definition_is_a_plain_value(well: Any, kind: str) -> None:
    for begin in (well.start, well.enqueue):
        with pytest.raises(InvalidInput, match=r"the input of workflow 'echoes-its-input', at .* would come back as a"):
            begin(ECHO, NOTES[kind])
    assert well.start(ECHO, NOTES["plain"]).result(WAIT) == NOTES["plain"]

"""Typed outputs: what an annotation names becomes JSON and comes back as its type."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, ClassVar, NamedTuple, TypedDict
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest

from stepwell import step
from stepwell.errors import InvalidInput
from stepwell.model.value import DEFAULT_LIMITS, canonical, decode, encode_bounded, from_value, recode, to_value

AT = datetime(2026, 1, 2, 3, 4, 5, 123456, tzinfo=UTC)


class Colour(Enum):
    RED = "red"


@dataclass
class Item:
    name: str
    at: datetime
    size: tuple[int, str]
    tags: frozenset[str] = frozenset()


@dataclass
class Order:
    items: list[Item]
    prices: dict[int, Decimal] = field(default_factory=dict)
    colour: Colour = Colour.RED
    day: date = date(2026, 1, 2)
    pause: timedelta = timedelta(seconds=90)
    raw: bytes = b"\0\xff"
    key: UUID = field(default_factory=lambda: UUID(int=7))
    parent: Order | None = None


class Point(msgspec.Struct, frozen=True):
    x: int
    at: datetime
    way: tuple[float, ...] = ()


@attrs.define
class Box:
    width: int
    made: datetime
    corner: tuple[int, int]


class Payment(pydantic.BaseModel):
    amount: Decimal
    at: datetime
    parts: tuple[int, int]


class Pair(NamedTuple):
    a: int
    b: str


class Shape(TypedDict):
    sides: int


@dataclass
class Mixed:
    payment: Payment
    box: Box
    points: list[Point]


ITEM = Item("pen", AT, (3, "cm"), frozenset({"b", "a"}))
ORDER = Order([ITEM], {1: Decimal("1.10"), 20: Decimal("-0.5")}, parent=Order([]))
POINT = Point(1, AT, (0.5, 1.0))
BOX = Box(2, AT, (0, 1))
PAYMENT = Payment(amount=Decimal("9.90"), at=AT, parts=(1, 2))


@pytest.mark.parametrize(
    ("typed", "kind"),
    [
        (ITEM, Item),
        (ORDER, Order),
        (POINT, Point),
        (BOX, Box),
        (PAYMENT, Payment),
        (Mixed(PAYMENT, BOX, [POINT]), Mixed),
        (Pair(1, "x"), Pair),
        ({"sides": 4}, Shape),
        ((1, "x"), tuple[int, str]),
        ([PAYMENT], list[Payment]),
        ({"a": (1, 2)}, dict[str, tuple[int, int]]),
        ({3: "c"}, dict[int, str]),
        ({"a", "b"}, set[str]),
        (AT, datetime),
        (Colour.RED, Colour),
        (b"x", bytes),
        (None, None),
        ({"free": [1, None]}, Any),
    ],
    ids=lambda part: getattr(part, "__name__", None),
)
def test_typed_values_come_back_as_their_type(typed: object, kind: Any) -> None:
    stored = canonical(to_value(typed))
    back = from_value(decode(stored), kind)
    assert back == typed
    assert type(back) is type(typed)


def test_set_has_the_same_bytes_in_every_process() -> None:
    """T51: the order of a set follows PYTHONHASHSEED."""
    code = "from stepwell.model.value import *; print(canonical(to_value({'alpha','beta','gamma','delta','eps'})).decode())"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert outputs == {'["alpha","beta","delta","eps","gamma"]\n'}


def test_typed_value_is_not_shared_with_the_plain_one() -> None:
    plain = {"a": [1]}
    copy = to_value(plain)
    copy["a"].append(2)
    assert plain == {"a": [1]}


def test_what_has_no_json_form_is_refused_with_its_type_named() -> None:
    class Opaque:
        pass

    with pytest.raises(InvalidInput, match="Opaque"):
        to_value([Opaque()])


def test_nan_in_a_typed_value_is_not_turned_into_null() -> None:
    with pytest.raises(InvalidInput, match="nan"):
        canonical(to_value(Point(1, AT, (float("nan"),))))


def test_a_typed_value_that_contains_itself_is_refused() -> None:
    order = Order([])
    order.parent = order
    with pytest.raises(InvalidInput, match="Order cannot become JSON"):
        to_value(order)


@pytest.mark.parametrize(
    ("stored", "kind"),
    [({"x": "one"}, Point), ({"amount": "x"}, Payment), ([1], tuple[int, int]), ("blue", Colour), ("yesterday", datetime)],
)
def test_value_of_another_shape_is_refused(stored: object, kind: Any) -> None:
    with pytest.raises(InvalidInput, match="the stored value is not a"):
        from_value(stored, kind)


def test_a_class_without_a_way_from_json_is_refused() -> None:
    class Opaque:
        pass

    with pytest.raises(InvalidInput, match="Opaque"):
        from_value({}, Opaque)


class Counting(pydantic.BaseModel):
    """A model that counts how often it is turned into JSON, and how often it is read."""

    rows: list[Any]
    dumped: ClassVar[int] = 0
    read: ClassVar[int] = 0

    @pydantic.model_validator(mode="after")
    def count(self) -> Counting:
        Counting.read += 1
        return self

    @pydantic.model_serializer(mode="wrap")
    def dump(self, further: pydantic.SerializerFunctionWrapHandler) -> Any:
        Counting.dumped += 1
        return further(self)


@step(name="typed_value.takes")
def takes(given: Any) -> None:
    """Take anything."""


@pytest.mark.parametrize(
    "large",
    [
        ["x" * 16_400],
        ["x" * 5_000] * 4,
        [Order([Item("x" * 16_400, AT, (1, "m"))])],
        [Counting(rows=["x" * 16_400])],
        [{"x" * 16_400: 1}],
        [list(range(10_000))],
        [object()],
    ],
    ids=["text", "few large members", "dataclass", "model", "key", "many members", "no JSON"],
)
def test_input_that_is_too_large_to_be_shown_is_found_before_anything_is_converted(large: list[Any]) -> None:
    before = Counting.dumped
    assert takes.shown_input(([Counting(rows=[]), *large],), {}, DEFAULT_LIMITS) is None
    assert Counting.dumped == before


def test_value_of_exactly_the_bytes_that_are_allowed_is_encoded() -> None:
    values: list[Any] = [["x" * 10, 1, {}], [[]] * 20, [0] * 50, {"": [None, True]}, (1, 2), {}, [date(2026, 1, 2)]]
    for value in values:
        data = recode(to_value(value))
        assert encode_bounded(value, len(data)) == data
        assert encode_bounded(value, len(data) - 1) is None


def test_typed_value_is_encoded_for_people_without_being_read_back() -> None:
    order = Order([Item("lamp", AT, (1, "m"), frozenset({"b", "a"}))])
    for value in ([order, Colour.RED, Decimal("1.10")], b"data", {"one": b"data"}, Decimal("1.10")):
        assert encode_bounded(value, 1_000) == canonical(to_value(value))
    model = Counting(rows=[{"b": 1, "a": 2}])
    before = Counting.read
    assert encode_bounded({"z": model, 1: 2}, 1_000) == b'{"1":2,"z":{"rows":[{"a":2,"b":1}]}}'
    assert Counting.read == before


def test_value_that_holds_itself_or_no_number_has_no_encoding_for_people() -> None:
    ring: list[Any] = []
    ring.append(ring)
    assert [encode_bounded(value, 1_000) for value in (ring, float("nan"), [float("inf")])] == [None, None, None]
    with pytest.raises(InvalidInput):
        encode_bounded([2**63], 1_000)

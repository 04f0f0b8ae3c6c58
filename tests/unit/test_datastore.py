"""The data store alone: write-once trigger and steps, last-write-wins variables, loops; from any number of threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from tests.unit.sample import NOW, Chain, metadata, step, story, values

from stepwell import (
    AlreadyRecorded,
    DataStore,
    EventTrigger,
    InvalidInput,
    LimitExceeded,
    Limits,
    LoopContext,
    Metadata,
    StepwellError,
)


@pytest.fixture
def data() -> DataStore:
    return DataStore(metadata())


def race(threads: int, act: Callable[[int], object]) -> list[object]:
    """Return the results of several threads that call at the same moment; an error counts as a result."""
    barrier = threading.Barrier(threads)

    def run(number: int) -> object:
        barrier.wait()
        try:
            return act(number)
        except StepwellError as error:
            return error

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(run, range(threads)))


# A1 metadata.


def test_metadata_is_what_it_was_made_for_and_cannot_be_changed(data: DataStore) -> None:
    assert data.metadata == Metadata("run-1", "acme", "checkout", 1, NOW)
    for name in data.metadata.__struct_fields__:
        with pytest.raises(AttributeError):
            setattr(data.metadata, name, "x")


@pytest.mark.parametrize(
    "fields",
    [("", "w", "f", 1, NOW), ("e", "", "f", 1, NOW), ("e", "w", "\0", 1, NOW), ("e", "w", "f", -1, NOW), ("e", "w", "f", "1", NOW),
     ("e", "w", "f", 2**64, NOW), ("e", "w", "f", 1, NOW.replace(tzinfo=None)), ("e", "w", "f", 1, "now")],
)  # fmt: skip
def test_metadata_with_a_bad_field_is_refused(fields: tuple[object, ...]) -> None:
    with pytest.raises(InvalidInput):
        Metadata(*fields)


def test_data_store_is_made_for_metadata_only() -> None:
    with pytest.raises(InvalidInput, match="Metadata, not dict"):
        DataStore({})


# A2 trigger.


def test_trigger_is_stored(data: DataStore) -> None:
    assert data.get_trigger() is None
    data.set_trigger(EventTrigger("created", {"id": 1}))
    assert data.get_trigger() == EventTrigger("created", {"id": 1})


@pytest.mark.parametrize("first", [{"a": 1}, None])
def test_trigger_is_written_once(data: DataStore, first: object) -> None:
    data.set_trigger(first)
    with pytest.raises(AlreadyRecorded):
        data.set_trigger("second")
    assert data.get_trigger() == first


def test_exactly_one_of_racing_triggers_wins() -> None:
    for _ in range(20):
        data = DataStore(metadata())
        outcomes = race(10, lambda number, data=data: data.set_trigger(number) or number)
        winners = [outcome for outcome in outcomes if not isinstance(outcome, AlreadyRecorded)]
        assert winners == [data.get_trigger()]


# A3 steps.


def test_step_is_stored_and_found(data: DataStore) -> None:
    assert data.get_step_output("charge") is None
    data.set_step_output("charge", step("charge", {"paid": True}))
    assert data.get_step_output("charge") == step("charge", {"paid": True})


def test_step_is_written_once(data: DataStore) -> None:
    data.set_step_output("charge", step("charge", 1))
    for output in (1, 2):
        with pytest.raises(AlreadyRecorded, match="'charge' has its output already"):
            data.set_step_output("charge", step("charge", output))
    assert data.get_step_output("charge").output == 1


def test_exactly_one_of_racing_writers_of_a_step_wins() -> None:
    for _ in range(20):
        data = DataStore(metadata())
        outcomes = race(10, lambda number, data=data: data.set_step_output("node1", step("node1", number)) or number)
        winners = [outcome for outcome in outcomes if not isinstance(outcome, AlreadyRecorded)]
        assert winners == [data.get_step_output("node1").output]


def test_racing_writers_of_different_steps_all_win(data: DataStore) -> None:
    race(10, lambda number: data.set_step_output(f"s{number}", step(f"s{number}", number)))
    assert {name: output.output for name, output in data.get_all_step_outputs().items()} == {f"s{n}": n for n in range(10)}


def test_step_output_cannot_be_changed(data: DataStore) -> None:
    data.set_step_output("a", step("a", [1]))
    found = data.get_step_output("a")
    with pytest.raises(AttributeError):
        found.status = "FAILED"
    found.output.append(2)
    assert data.get_step_output("a").output == [1]


@pytest.mark.parametrize("bad", [None, {"output": 1}, step("a", object()), step("a", status="RUNNING")])
def test_bad_step_is_refused_and_its_name_stays_free(data: DataStore, bad: object) -> None:
    with pytest.raises(InvalidInput):
        data.set_step_output("a", bad)
    data.set_step_output("a", step("a"))


# A4 variables.


def test_last_write_of_a_variable_wins(data: DataStore) -> None:
    data.set_variable("v", 1)
    data.set_variable("v", [2])
    assert data.get_variable("v") == [2]


def test_none_is_a_value_and_unset_is_not(data: DataStore) -> None:
    assert not data.has_variable("v")
    assert data.get_variable("v") is None
    assert data.get_variable("v", "default") == "default"
    data.set_variable("v", None)
    assert data.has_variable("v")
    assert data.get_variable("v", "default") is None
    assert data.get_all_variables() == {"v": None}


def test_racing_writers_of_a_variable_all_succeed_and_one_of_them_is_last(data: DataStore) -> None:
    outcomes = race(10, lambda number: data.set_variable("v", {"by": number}))
    assert outcomes == [None] * 10
    assert data.get_variable("v")["by"] in range(10)


@given(values)
@settings(max_examples=100, deadline=None)
def test_any_value_comes_back(value: object) -> None:
    data = DataStore(metadata())
    data.set_variable("v", value)
    assert data.get_variable("v") == value
    assert type(data.get_variable("v")) is type(value)


@pytest.mark.parametrize("name", ["", "a\0", "\ud800", None, 5])
def test_bad_names_are_refused(data: DataStore, name: str) -> None:
    """T46."""
    with pytest.raises(InvalidInput):
        data.set_variable(name, 1)
    with pytest.raises(InvalidInput):
        data.set_step_output(name, step())
    assert data.get_all_variables() == data.get_all_step_outputs() == {}


def test_refused_value_leaves_the_one_before(data: DataStore) -> None:
    """T45."""
    data.set_variable("v", 1)
    for bad in (float("nan"), (1, 2), {1: 2}, 2**63, "\ud800", b"x", object()):
        with pytest.raises(InvalidInput):
            data.set_variable("v", bad)
    assert data.get_variable("v") == 1


def test_limits_are_its_own() -> None:
    """T43."""
    data = DataStore(metadata(), limits=Limits(value_bytes=10))
    data.set_variable("v", "x" * 8)
    for use in (
        lambda: data.set_variable("v", "x" * 9),
        lambda: data.set_step_output("s", step("s", "x" * 9)),
        lambda: data.set_trigger("x" * 9),
        lambda: data.set_loop_context("l", LoopContext("l", 0, "x" * 9, None)),
    ):
        with pytest.raises(LimitExceeded, match="value_bytes=10"):
            use()


# A5 loops.


def test_loop_is_replaced_each_time_and_nested_ones_stand_apart(data: DataStore) -> None:
    assert data.get_loop_context("outer") is None
    data.set_loop_context("outer", LoopContext("outer", 0, "a", 2))
    data.set_loop_context("inner", LoopContext("inner", 5, {"x": 1}, None))
    data.set_loop_context("outer", LoopContext("outer", 1, "b", 2))
    assert data.get_loop_context("outer") == LoopContext("outer", 1, "b", 2)
    assert data.get_all_loop_contexts() == {
        "outer": LoopContext("outer", 1, "b", 2),
        "inner": LoopContext("inner", 5, {"x": 1}, None),
    }


def test_loop_under_another_name_is_refused(data: DataStore) -> None:
    with pytest.raises(InvalidInput, match="of loop 'a', not of 'b'"):
        data.set_loop_context("b", LoopContext("a", 0, None, 1))
    with pytest.raises(InvalidInput):
        data.set_loop_context("b", {"loop_id": "b"})
    assert data.get_loop_context("b") is None


# A6 reads.


def test_what_is_read_is_a_copy(data: DataStore) -> None:
    data.set_variable("v", [1])
    data.set_step_output("s", step("s", [1]))
    data.set_trigger([1])
    data.set_loop_context("l", LoopContext("l", 0, [1], 1))
    data.get_all_variables().clear()
    data.get_all_variables()["v"].append(2)
    data.get_variable("v").append(2)
    data.get_all_step_outputs().clear()
    data.get_trigger().append(2)
    data.get_loop_context("l").current_item.append(2)
    data.get_all_loop_contexts().clear()
    view = data.view()
    assert (view.variables, view.steps["s"].output, view.trigger, view.loops["l"].current_item) == ({"v": [1]}, [1], [1], [1])


def test_what_is_written_is_a_copy(data: DataStore) -> None:
    value = {"a": [1]}
    data.set_variable("v", value)
    value["a"].append(2)
    assert data.get_variable("v") == {"a": [1]}


def test_view_shows_one_moment_even_if_a_writer_comes_in_the_middle(data: DataStore) -> None:
    """The writer sets a step, then a variable, right after the view has taken the steps."""

    def write() -> None:
        data.set_step_output("s", step("s"))
        data.set_variable("v", 1)

    writer = threading.Thread(target=write)

    class Interrupted(dict[str, bytes]):
        def copy(self) -> dict[str, bytes]:
            copied = dict(self)
            writer.start()
            writer.join(0.05)  # long enough for a writer that nothing holds back
            return copied

    data._steps = Interrupted()
    view = data.view()
    writer.join()
    assert (view.steps, view.variables) == ({}, {})
    assert data.get_variable("v") == 1


def test_view_shows_one_moment_across_sections() -> None:
    """A writer always sets the step before the variable: no view may show the variable without its step."""
    data, is_done = DataStore(metadata()), threading.Event()

    def write(number: int) -> None:
        for turn in range(300):
            data.set_step_output(f"{number}-{turn}", step(f"{number}-{turn}"))
            data.set_variable(str(number), turn)

    def read() -> int:
        count = 0
        while not is_done.is_set():
            view = data.view()
            for number, turn in view.variables.items():
                assert all(f"{number}-{each}" in view.steps for each in range(turn + 1))
            count += 1
        return count

    with ThreadPoolExecutor(3) as pool:
        reader = pool.submit(read)
        writers = [pool.submit(write, number) for number in range(2)]
        for writer in writers:
            writer.result()
        is_done.set()
        assert reader.result() > 0
    assert len(data.get_all_step_outputs()) == 600


def test_reading_while_others_write_never_fails(data: DataStore) -> None:
    """A6: the copies of all sections are taken while new keys come in."""

    def use(number: int) -> None:
        for turn in range(400):
            data.set_variable(f"{number}-{turn}", turn)
            if number % 2:
                data.get_all_variables()
                data.get_all_step_outputs()

    assert race(4, use) == [None] * 4
    assert len(data.get_all_variables()) == 1600


# What run.state() gives.


def test_store_of_an_execution_shows_its_state() -> None:
    chain = story()
    chain.change(
        lambda tx: (tx.set_loop_context(LoopContext("l", 1, "x", 2)), tx.set_variable("list", [1]), tx.set_variable("n", None))
    )
    data = DataStore.of(chain.view)
    assert data.metadata == metadata()
    assert data.get_trigger() == {"by": "hand"}
    assert data.get_all_step_outputs() == {"charge": step("charge", {"paid": True})}
    assert data.get_all_variables() == {"paid": "yes", "list": [1], "n": None}
    assert data.has_variable("n")
    assert data.get_loop_context("l") == LoopContext("l", 1, "x", 2)
    assert data.view().variables["list"] == [1]


def test_store_of_an_execution_cannot_be_written() -> None:
    chain = Chain()
    data = DataStore.of(chain.view)
    for write in (
        lambda: data.set_trigger(1),
        lambda: data.set_step_output("a", step("a")),
        lambda: data.set_variable("a", 1),
        lambda: data.set_loop_context("a", LoopContext("a", 0, None, 1)),
    ):
        with pytest.raises(InvalidInput, match=r"use well\.transaction"):
            write()
    assert data.view().variables == {}


def test_store_of_an_execution_does_not_follow_it() -> None:
    chain = Chain()
    chain.set("v", 1)
    data = DataStore.of(chain.view)
    chain.set("v", 2)
    assert data.get_variable("v") == 1


def test_store_of_an_execution_with_larger_limits() -> None:
    chain = Chain()
    chain.state.sections["variables"]["big"] = b'"%b"' % (b"x" * 1_000_000)
    chain.state.sections["variables"]["long"] = b"[%b]" % (b"1," * 500_000 + b"1")
    data = DataStore.of(chain.view)
    assert len(data.get_variable("big")) == 1_000_000
    assert len(data.get_variable("long")) == 500_001

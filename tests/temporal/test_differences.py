"""The same workflows on Stepwell's own worker and on Temporal: same results, step records, variables and valid receipts."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest
from tests.support.temporal_server import TemporalServer
from tests.temporal.comparison import check_same, comparable_state, comparable_steps, without_ids
from tests.temporal.processes import check_replayed
from tests.temporal.test_faults import until

import stepwell
from stepwell import (
    Governance,
    Retry,
    RetryAfter,
    Run,
    Scope,
    StepFailed,
    Stepwell,
    StepwellError,
    TemporalWorker,
    step,
    workflow,
)
from stepwell.flow import (
    Definition,
    call,
    choice,
    define,
    each,
    graph,
    loop,
    otherwise,
    parallel,
    scope,
    script,
    sequence,
    set_variables,
    signal,
    subworkflow,
    throw,
    wait,
    when,
)
from stepwell.flow.definition.node import Node

ENGINES = ("local", "temporal")
GENERATED = 25

ONCE = Retry(attempts=3, first_seconds=0.05, jitter=0)


@step
def double(x: int) -> int:
    return 2 * x


@step
async def add(x: int, y: int) -> int:
    return x + y


@step(retry=ONCE)
def flaky(name: str) -> str:
    attempt = stepwell.current().attempt
    if attempt < 3:
        raise ValueError(f"not at attempt {attempt}")
    return f"{name} at attempt {attempt}"


@step(retry=Retry(attempts=2, first_seconds="5h"))
def hasty(x: int) -> int:
    if stepwell.current().attempt == 1:
        raise RetryAfter(0.05)
    return x


@step(retry=Retry(attempts=1))
async def bad(message: str) -> None:
    raise ValueError(message)


@step
def note(text: str) -> str:
    state = stepwell.current().state(Scope.custom("notes"))
    state.set(text, True)
    return text


@step(effect="tool")
def costly(amount: float) -> float:
    stepwell.current().spend(amount)
    return amount


@step
def large(size: int) -> str:
    return "x" * size


CHILD = define("child", call("double", {"x": "{{ trigger.input }}"}, name="d"), output="{{ steps.d.output }}")

DEFINITIONS: dict[str, Definition] = {
    "one step": define("one", call("double", {"x": "{{ trigger.input }}"}, name="d"), output="{{ steps.d.output }}"),
    "ten steps": define("ten", *(call("double", {"x": n}, name=f"s{n}") for n in range(10)), output="{{ steps.s9.output }}"),
    "parallel": define("parallel_all", parallel(a=call("double", {"x": 1}), b=call("add", {"x": 1, "y": 2})), output="done"),
    "first of two": define("first", parallel(a=wait("1h"), b=call("double", {"x": 4}), join="first")),
    "choice": define(
        "choices",
        choice(when("trigger.input > 5", call("double", {"x": 1}, name="big")), otherwise(call("double", {"x": 2}, name="small"))),
    ),
    "loop": define(
        "loops",
        set_variables(n=0),
        loop(sequence(call("add", {"x": "{{ variables.n }}", "y": 1}, name="a"), set_variables(n="{{ steps.a.output }}")), count=4),
        output="{{ variables.n }}",
    ),
    "each": define(
        "eachs",
        each(call("double", {"x": "{{ item }}"}, name="d"), items=[1, 2, 3, 4], concurrency=2, name="e"),
        output="{{ steps.e.output }}",
    ),
    "graph": define(
        "graphs",
        graph(
            {"a": call("double", {"x": 1}), "b": call("double", {"x": 2}), "c": call("double", {"x": 3})}, [("a", "c"), ("b", "c")]
        ),
    ),
    "retry": define("retries", call("flaky", {"name": "f"}, name="f"), output="{{ steps.f.output }}"),
    "retry after": define("hasties", call("hasty", {"x": 3}, name="h"), output="{{ steps.h.output }}"),
    "failure": define("failures", call("bad", {"message": "no"}, name="b")),
    "failure passed over": define("passed", call("bad", {"message": "no"}, name="b", on_error="continue"), output="on"),
    "compensation": define(
        "sagas",
        scope(
            sequence(call("double", {"x": 1}, name="a", compensate=call("double", {"x": 5}, name="undo")), throw("no")), name="s"
        ),
    ),
    "timer": define("timers", wait("0.2s"), output="woken"),
    "scoped state": define("states", call("note", {"text": "hello"}), output="{{ state.custom.notes.hello }}"),
    "subworkflow": define("parents", subworkflow("child", 21, name="c"), output="{{ steps.c.output }}"),
    "large output": define("larges", call("large", {"size": 200_000}, name="l"), output="kept"),
    "output over the limit": define("over", call("large", {"size": 400_000}, name="l", retry=Retry(attempts=1))),
    "long loop": define(
        "longs", set_variables(n=0), loop(set_variables(n="{{ variables.n + 1 }}"), count=1500), output="{{ variables.n }}"
    ),
    "script": define(
        "scripts",
        script("State.save('notes', 'n', input) return {Tool.execute('double', {x = input}), Tool.execute('note', {text = 't'})}"),
        output=["{{ steps.script.output }}", "{{ state.custom.notes.n }}", "{{ state.custom.notes.t }}"],
    ),
    "script that fails": define("script_fails", script("State.set('lost', 1) error('no')")),
    "script that runs a workflow": define("script_runs", script("return Workflow.get('child'):execute(input).output")),
    "script with functions": define(
        "script_asks",
        script(
            "local n = 0 return Workflow.loop{name = 'w', while_condition = function() return n < 2 end, max_iterations = 5, "
            "body = {{name = 'd', tool = 'double', input = {x = '$iteration'}, on_complete = function(r) n = n + 1 "
            "State.set('last', r.output) end}}}:execute{}.output"
        ),
        output=["{{ steps.script.output }}", "{{ state.workspace.last }}"],
    ),
    "what started it": define("seeing", call("seen", name="s"), output="{{ steps.s.output }}"),
    "spending": define("spends", sequence(call("costly", {"amount": 1.5}), call("costly", {"amount": 2})), output="spent"),
}


@workflow
async def async_function(n: int) -> int:
    first = await add(n, n)
    await stepwell.sleep(0.3)
    others = await stepwell.map(double, [1, 2, 3], concurrency=2)
    stepwell.current().variables["first"] = first
    return await add(first, sum(others))


@workflow
def plain_function(n: int) -> int:
    first = double(n)
    stepwell.sleep(0.3)
    stepwell.current().variables["first"] = first
    return first + 1


@workflow
async def failing_function(n: int) -> None:
    await add(n, n)
    await bad("no")


@workflow
async def parent_function(n: int) -> int:
    return await async_function(n) + 1


@workflow
async def patched_function(n: int) -> list[Any]:
    is_new = stepwell.patched("rounding")
    before = await add(n, 1)
    await stepwell.sleep(0.05)
    return [is_new, before, stepwell.patched("rounding")]


@workflow
async def saga_function(n: int) -> None:
    for number in range(3):
        await add(n, number)
        stepwell.compensate(double, number)
    await bad("undone")


@workflow
async def signalled_function(n: int) -> Any:
    with contextlib.suppress(TimeoutError):
        await stepwell.wait_signal("never", timeout=0.1)
    return await add(n, 1)


@workflow
async def gathering_function(n: int) -> list[int]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(add(n, number)) for number in range(4)]
    return [task.result() for task in tasks]


@workflow
async def hasty_function(n: int) -> int:
    return await hasty.aio(n)


@workflow
async def spending_function(n: int) -> None:
    await costly.aio(3)
    await costly.aio(n)


@dataclass
class Order:
    item: str
    cents: int


@step
def priced(order: Order) -> Order:
    return Order(order.item, order.cents + 1)


@step
def kind_of(given: object) -> str:
    return type(given).__name__


@step(process=True)
def apart(n: int) -> int:
    return n + 1


@step
def seen() -> list[Any]:
    here = stepwell.current()
    key = here.idempotency_key.removeprefix(here.execution_id)
    return [repr(here.trigger), here.step, here.attempt, key]


@step
async def counted(by: int) -> Any:
    here = stepwell.current()
    state = here.state(Scope.custom(here.execution_id))
    state.increment("count", by)
    state.set("last", by, ttl=60, sliding=True)
    return await state.get("count")


@workflow
async def typed_function(n: int) -> list[Any]:
    """Arguments that only this process can pass, beside such as can travel."""
    order = await priced.aio(Order("lamp", n))
    return [order.cents, *[await kind_of.aio(each) for each in (object(), (1, 2), {1}, order)], await apart.aio(n)]


@workflow
def plainly_typed_function(n: int) -> list[Any]:
    order = priced(Order("lamp", n))
    return [order.cents, kind_of(object()), kind_of(order), *stepwell.map(double, [1, 2, 3], concurrency=2)]


@workflow
def plainly_mapping_function(n: int) -> list[Any]:
    """Items whose code calls steps and waits, each in a thread of its own."""

    def code(x: int) -> int:
        y = add(double(x), n)
        if x == 1:
            stepwell.sleep(0.5)
        return add(y, 1)

    return stepwell.map(code, [1, 2, 3, 4], concurrency=2)


@workflow
async def seeing_function(n: int) -> list[Any]:
    return [await seen.aio(), await counted(n), await counted(n)]


@workflow
async def counting_function(n: int) -> list[Any]:
    """Code before a step runs again once the step has ended, and must have its effect on variables once."""
    variables = stepwell.current().variables
    variables["n"] = n
    for _ in range(3):
        variables["n"] += 1
        await add(n, 1)
    return [variables["n"], await add.with_key("k")(n, 2), await add.with_key("k")(n, 2)]


@workflow
async def wide_function(n: int) -> int:
    return sum(await stepwell.map(double, list(range(40)), concurrency=15)) + n


@workflow
async def cancelled_group_function(n: int) -> str:
    with contextlib.suppress(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(lasting(30))
            group.create_task(bad("no"))
    return "over"


LASTING: list[str] = []


@step(retry=ONCE)
async def lasting(seconds: float) -> float:
    LASTING.append(stepwell.current().execution_id)
    await asyncio.sleep(seconds)
    return seconds


@workflow
async def lasting_function(n: int) -> None:
    stepwell.compensate(double, n)
    await lasting(3.0)
    await lasting(3.0)


@workflow
def plainly_lasting_function(n: int) -> None:
    stepwell.compensate(double, n)
    lasting.sync(3.0)
    lasting.sync(3.0)


@workflow(timeout=6)
async def late_function(n: int) -> None:
    stepwell.compensate(double, n)
    await lasting(0.01)
    await lasting(30)


@workflow
async def passing_function(n: int) -> list[str]:
    try:
        await lasting(30)
    except StepFailed as error:
        return [error.kind]
    return []


STOPS = {
    "cancel": (lasting_function, lambda run: run.cancel()),
    "cancel of a def": (plainly_lasting_function, lambda run: run.cancel()),
    "cancel of a step": (passing_function, lambda run: run.cancel_step("lasting")),
    "timeout": (late_function, lambda run: None),
}


FUNCTIONS = [
    typed_function,
    plainly_typed_function,
    plainly_mapping_function,
    seeing_function,
    counting_function,
    wide_function,
    cancelled_group_function,
    hasty_function,
    patched_function,
    saga_function,
    signalled_function,
    gathering_function,
    async_function,
    plain_function,
    failing_function,
    parent_function,
]


def outcome_of(well: Stepwell, run: Run) -> dict[str, Any]:
    """How a run ended, with all attempts at its steps."""
    try:
        result: Any = run.result(timeout=60)
    except StepwellError as error:
        result = type(error).__name__, without_ids(str(error), run.execution_id)
    verification = well.verify(run.execution_id)
    assert verification.ok, verification.problems
    return {"result": result, "steps": comparable_steps(well, run.execution_id)}


def check_both(well: Stepwell, runs: Iterable[Run], what: str) -> dict[str, Any]:
    """Check that the runs of both engines ended the same, and return how."""
    local, temporal = runs
    ended = outcome_of(well, local)
    assert outcome_of(well, temporal) == ended, what
    check_same(*(comparable_state(well, run.execution_id, engine) for run, engine in zip(runs, ENGINES, strict=True)), what)
    return ended


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, temporal_server: TemporalServer) -> Iterator[Stepwell]:
    """A well whose runs are made by either engine, and the workers of both."""
    url = f"sqlite:///{tmp_path_factory.mktemp('both')}/well.db"
    address, namespace = temporal_server.address, temporal_server.fresh_namespace("differences")
    with Stepwell(url, lease_seconds=2) as well, TemporalWorker(url, address=address, namespace=namespace, grace_seconds=1):
        well.definitions.put(CHILD)
        yield well
        found = well.executions.list(limit=1_000)
        on_temporal = [each for each in found if well.load(each.execution_id).identity.engine == "temporal"]
    check_replayed(url, address, namespace, len(on_temporal))


def test_all_definitions_come_to_the_same_on_both_engines(both: Stepwell) -> None:
    """Side by side, as in a well that has both engines; each engine alone has them one by one."""
    compare(both, DEFINITIONS.values())


def compare(well: Stepwell, definitions: Iterable[Definition]) -> None:
    for definition in definitions:
        check_both(well, [well.start(definition, 7, engine=engine) for engine in ENGINES], definition.name)


def generated(seed: int) -> Definition:
    """A definition by chance, of nodes whose results do not hang on who comes first."""
    chance, number = random.Random(seed), count(1)

    def leaf() -> Node:
        name = f"n{next(number)}"
        return chance.choice(
            (
                lambda: call("double", {"x": next(number)}, name=name),
                lambda: call("add", {"x": "{{ trigger.input }}", "y": 1}, name=name),
                lambda: call("flaky", {"name": name}, name=name),
                lambda: call("bad", {"message": name}, name=name, on_error="continue"),
                lambda: call("double", {"x": 1}, name=name, compensate=call("double", {"x": 2}, name=f"undo_{name}")),
                lambda: set_variables({name: "{{ trigger.input }}"}, name=name),
                lambda: wait("20ms", name=name),
                lambda: subworkflow("child", 4, name=name),
            )
        )()

    def tree(depth: int) -> Node:
        if depth == 0 or chance.random() < 0.2:
            return leaf()
        inner = [tree(depth - 1) for _ in range(chance.randint(1, 3))]
        name = f"c{next(number)}"
        return chance.choice(
            (
                lambda: sequence(*inner, name=name),
                lambda: parallel(branches={f"b{at}": node for at, node in enumerate(inner)}, name=name),
                lambda: choice(when("trigger.input > 5", inner[0]), otherwise(leaf()), name=name),
                lambda: loop(inner[0], count=2, name=name),
                lambda: each(inner[0], items=[1, 2, 3], concurrency=chance.choice((1, 2)), name=name),
                lambda: scope(sequence(*inner, name=f"in_{name}"), name=name),
            )
        )()

    return define(f"generated_{seed}", tree(3), *([throw("no")] if chance.random() < 0.2 else []))


def test_generated_definitions_come_to_the_same_on_both_engines(both: Stepwell) -> None:
    definitions = [generated(seed) for seed in range(GENERATED)]
    runs = [[both.start(each, 7, engine=engine) for engine in ENGINES] for each in definitions]
    for definition, pair in zip(definitions, runs, strict=True):
        check_both(both, pair, definition.name)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: each.name)
def test_function_comes_to_the_same_on_both_engines(function: Any, both: Stepwell) -> None:
    check_both(both, [both.start(function, 7, engine=engine) for engine in ENGINES], function.name)


@pytest.mark.parametrize("what", STOPS)
def test_function_that_is_stopped_inside_a_step_comes_to_the_same(what: str, both: Stepwell) -> None:
    function, stop = STOPS[what]
    runs = [both.start(function, 7, engine=engine) for engine in ENGINES]
    for run in runs:
        until(lambda: run.execution_id in LASTING)  # noqa: B023
        stop(run)
    check_both(both, runs, what)


def test_governance_is_kept_on_temporal(both: Stepwell) -> None:
    definition = define("governed", sequence(call("costly", {"amount": 3}), call("costly", {"amount": 3})))
    for rules in (Governance(cost=2), Governance(steps=1), Governance(effects=("model",))):
        for spends in (definition, spending_function):
            runs = [both.start(spends, 7, governance=rules, engine=engine) for engine in ENGINES]
            assert "GovernanceViolated" in str(check_both(both, runs, spends.name)["result"])


def test_signal_reaches_a_run_on_temporal_before_and_during_its_wait(both: Stepwell) -> None:
    definition = define(
        "signals", signal("a", name="a"), signal("b", name="b"), output=["{{ steps.a.output }}", "{{ steps.b.output }}"]
    )
    run = both.start(definition, engine="temporal")
    run.signal("b", 2)
    run.signal("a", 1)
    assert run.result(timeout=60) == [1, 2]

"""Values and ids: stored byte for byte, with the same digests on every store, and no two ids confused."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepwell.contract.store import ExecutionQuery, Store
from stepwell.errors import LockHeld
from stepwell.model.commit import Acquire, Claim, Written
from stepwell.model.mutation import Mutation
from stepwell.model.receipt import Receipt
from stepwell.model.scope import Scope
from stepwell.model.value import RULES, Value, canonical
from stepwell.testing.conformance.samples import (
    HOUR,
    SampleExecution,
    acquire,
    claim,
    content,
    fresh_id,
    put,
    refused,
    step,
    variable,
    walk,
    write,
    write_state,
)

ACCEPTED = {rule.kind: rule.example for rule in RULES if rule.accepted}

# One of each kind that storage engines are known to change: numbers that become others, text that is cut or folded.
ODD: dict[str, Value] = {
    "int and float": [1, 1.0, 0, -0.0, 0.0],
    "borders of 64 bits": [2**63 - 1, -(2**63), 2**53, 2**53 + 1, -(2**53) - 1],
    "odd floats": [0.1, 1e22, 1e-7, 1.7976931348623157e308, 5e-324, 123456789012345680.0],
    "booleans are no numbers": [True, False, 1, 0],
    "empty things": [None, "", [], {}, [[]], [{}], {"": ""}],
    "control characters": "".join(map(chr, range(32))) + "\x7f\x80\x9f",
    "text that looks like another type": ["null", "true", "1", "NaN", "1e5", "{}", "\\u0000", "2026-01-01T00:00:00Z"],
    "text beyond 16 bits": "😀\U0010ffff\ufffe\uffff\u2028\u2029\ufeff",
    "quotes and escapes": "'\"\\`$%_*?;--/*\r\n\t",
    "keys out of order": {"b": 1, "a": 2, "é": 3, "B": 4, "10": 5, "9": 6},
    "same letters, other bytes": ["é", "e\u0301", "Å", "Å", "ﬁ", "fi"],
    "long text": "é" * 100_000,
    "wide": list(range(10_000)),
}

atoms = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
values: st.SearchStrategy[Value] = st.recursive(
    atoms | texts, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=12
)


@pytest.mark.parametrize("kind", [*ACCEPTED, *ODD])
def test_every_accepted_value_comes_back_byte_for_byte(store: Store, kind: str) -> None:
    """T45: the rules of ``model.value.RULES``, and what is known to go wrong."""
    check_round_trip(store, {**ACCEPTED, **ODD}[kind])


@given(value=values)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_value_comes_back_byte_for_byte(store: Store, value: Value) -> None:
    """T45, T51."""
    check_round_trip(store, value)


def check_round_trip(store: Store, value: Value) -> None:
    """A value as a key's, a variable's, a step's, through commits, snapshots and state; digests as the pure model has them."""
    data, scope = canonical(value), Scope.custom(fresh_id("value"), "acme").path
    write_state(store, put("k", value, scope=scope))
    assert store.entries(scope, ["k"])["k"].data == data
    assert store.scan(scope)[0][1].data == data
    assert store.changes(scope, 0)[0][1].data == data
    execution = SampleExecution(store, fresh_id("value")).create()
    mutations: list[Mutation] = [variable("v", value), step("s", value)]
    commit = execution.land(*mutations)
    execution.land(snapshot=execution.snapshot())
    digest, entries = execution.state.digest, execution.state.sections
    assert execution.follow().sections == entries
    assert (execution.state.digest, execution.state.sections["variables"]["v"]) == (digest, data)
    stored = store.commit_of(execution.id, commit.commit_id)
    assert stored is not None
    assert (stored.header, stored.body) == (commit.header, commit.body)
    assert Receipt.read(stored.header, stored.body).digest == commit.digest
    assert walk(store, execution.id).ok


# T46: names that would meet, or mean something else, if they were ever joined, matched, folded or cut.
IDS = [
    *(" ", "  ", ".", "..", "/", "a/b", "a", "b", "a:step:b", "a:shared:b", "a::b", "*", "[a]", "{x}", "{", "}", "%", "_", "?"),
    *(
        "a%",
        "a_",
        "a*",
        "%61",
        "'",
        '"',
        "''",
        "`",
        "\\",
        ";",
        "--",
        "a\nb",
        "a\r\nb",
        "\t",
        "\x01",
        "\x7f",
        "health",
        "null",
        "None",
    ),
    *("1", "10", "01", "1.0", "é", "e\u0301", "É", "ß", "SS", "😀", "\ufeff", "a\u200b", "$1", ":id", "${x}", "<a>"),
    *("0191D0C0-AAAA-7BBB-8CCC-DDDDEEEEFFFF", "0191d0c0-aaaa-7bbb-8ccc-ddddeeeeffff", "x" * 512, "x" * 511, "é" * 256),
]


def test_executions_are_kept_apart_whatever_their_ids(store: Store) -> None:
    """T46: as the id of the execution, of its workspace and of its workflow, and as a commit's id."""
    executions = [SampleExecution(store, name, workspace=name, workflow=name).create() for name in IDS]
    for name, execution in zip(IDS, executions, strict=True):
        execution.land(variable("me", name), commit_id=name)
    for name, execution in zip(IDS, executions, strict=True):
        head = execution.head
        assert (head.execution_id, head.workspace_id, head.workflow_id, head.revision) == (name, name, name, 1)
        assert execution.follow().sections["variables"] == {"me": canonical(name)}
        assert [commit.revision for commit in store.history(name, -1, 10)] == [0, 1]
        assert store.find(ExecutionQuery(workspace_id=name)) == [head]
        assert store.find(ExecutionQuery(workflow_id=name)) == [head]
        found = [each for each in IDS if store.commit_of(name, each) is not None]
        assert found == [name]


def test_leases_and_locks_are_kept_apart_whatever_their_names(store: Store) -> None:
    """T46: as the name of a lock, the id of an execution, and the holder of either."""
    for name in IDS:
        SampleExecution(store, name).create()
        assert acquire(store, name, holder=name).holder == name
        assert claim(store, name, holder=name).holder == name
    for name, other in zip(IDS, IDS[1:] + IDS[:1], strict=True):
        refused(write(store, Acquire(name, other, HOUR)), LockHeld)
        refused(write(store, Claim(name, other, HOUR)), LockHeld)
        assert isinstance(write(store, Acquire(name, name, HOUR)), Written)


def test_state_is_kept_apart_whatever_its_addresses(store: Store) -> None:
    """T46: as the workspace and the name of a scope, and as a key."""
    for name in IDS:
        scope = Scope.custom(name, name).path
        write_state(store, *(put(key, [name, key], scope=scope) for key in IDS))
    for name in IDS:
        assert content(store, Scope.custom(name, name).path) == {key: [name, key] for key in IDS}
        assert [Scope.parse(path).names for path in store.scopes(name)] == [(name,)]


ids = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=6)


@given(one=ids, two=ids, key=ids, other=ids)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_two_addresses_are_one_only_if_they_are_equal(store: Store, one: str, two: str, key: str, other: str) -> None:
    """T46: a property over pairs of addresses."""
    workspace = fresh_id("pairs")
    first, second = (Scope.of_workflow(one, workspace), key), (Scope.of_step(one, two, workspace), other)
    third = (Scope.of_workflow(two, workspace), other)
    addresses = {(scope.path, name): number for number, (scope, name) in enumerate((first, second, third))}
    write_state(store, *(put(name, number, scope=path) for (path, name), number in addresses.items()))
    for (path, name), number in addresses.items():
        assert store.entries(path, [name])[name].data == canonical(number)
    assert sorted(store.scopes(workspace)) == sorted({path for path, _ in addresses})

"""Definitions to test with: any that is sound, drawn by hypothesis, and a few by hand."""

from __future__ import annotations

import re
from itertools import pairwise

from hypothesis import strategies as st

from stepwell.flow import Keep, Range, Retry
from stepwell.flow.definition.node import (
    Approval,
    CancelScopeNode,
    Case,
    Choice,
    Deferred,
    Definition,
    DefinitionStatus,
    Each,
    Edge,
    Graph,
    Loop,
    Node,
    Parallel,
    ScriptNode,
    Sequence,
    Signal,
    StepNode,
    Subworkflow,
    Wait,
)

letters = st.characters(exclude_categories=("Cs",))
texts = st.text(letters, max_size=20).map(lambda text: text.replace("{{", "{ {")) | st.sampled_from(
    [
        "yes",
        "No",
        "on",
        "null",
        "~",
        "1e3",
        "0o17",
        "0123",
        "-",
        "- a",
        "a: b",
        "# x",
        "&a",
        "*a",
        "!t",
        "|",
        "a\nb\n",
        "a\n\n b",
        " x",
    ]
)
"""Any text that is no template, and those that YAML is known to read as something else."""
names = st.text(letters.filter(lambda letter: letter != "\0"), min_size=1, max_size=12).filter(
    lambda name: not re.search(r"(\[[0-9]+\]|#[0-9]+)\Z|^\(", name)
)
"""Names of nodes and branches, without those that the kernel makes of names."""
keys = names | st.sampled_from(["k" * 1100, "<<"])
"""Keys of values; YAML reads a long one only in a form of its own, and another means something without quotes."""
templates = st.sampled_from(
    [
        "{{ trigger.input }}",
        "n={{ trigger.input.n ?? 0 }}, {{ variables.x | default('none') }}",
        "{{ variables.'odd key'[0].a-b }}",
        "{{ state.workflow.count ?? 0 }}",
    ]
)
conditions = st.sampled_from(
    ["trigger.input.total > 100", "variables.x = 'a' AND NOT exists(variables.y)", "trigger.input.country in ['CH', 'LI']"]
)
atoms = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | texts
values = st.recursive(
    atoms | templates, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=6
)
spans = st.none() | st.sampled_from([0.0, 0.5, 1.0, 90.0, 86_400.0, 1.25e7])
counts = st.integers(1, 9)
retries = st.none() | st.builds(
    Retry,
    attempts=counts,
    first_seconds=st.sampled_from([0.0, 0.1, 1.0, 7.0]),
    factor=st.sampled_from([1.0, 1.5, 2.0]),
    max_seconds=st.sampled_from([1.0, 300.0]),
    jitter=st.sampled_from([0.0, 0.1, 1.0]),
    non_retryable=st.sampled_from([(), ("ValueError", "http_client")]),
)


class Trees:
    """Draws trees of nodes whose names are unique."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw, self.named = draw, 0

    def common(self) -> dict[str, str]:
        self.named += 1
        name = self.draw(st.just("") | names.map(lambda key: f"{key}·{self.named}"))
        return {"name": name, "description": self.draw(st.just("") | texts)}

    def action(self, *, may_undo: bool = True) -> dict[str, object]:
        found: dict[str, object] = dict(self.common())
        if self.draw(st.booleans()):
            found["args"] = self.draw(values)
        found["retry"], found["timeout_seconds"] = self.draw(retries), self.draw(spans)
        found["on_error"] = self.draw(st.sampled_from(["fail", "continue", "retry"]))
        if may_undo and self.draw(st.integers(0, 5)) == 0:
            found["compensate"] = StepNode(uses=self.draw(names), **self.action(may_undo=False))
        return found

    def node(self, depth: int) -> Node:
        leaves = [self.step, self.builtin, self.script, self.child, self.wait, self.signal, self.approval]
        inner = [self.sequence, self.parallel, self.choice, self.loop, self.each, self.graph, self.scope, self.deferred]
        make = self.draw(st.sampled_from(leaves if depth <= 0 else leaves[:1] + inner))
        return make(depth - 1)

    def some(self, depth: int, most: int = 3) -> list[Node]:
        return [self.node(depth) for _ in range(self.draw(st.integers(1, most)))]

    def branches(self, depth: int) -> dict[str, Node]:
        found = self.draw(st.lists(names.filter(lambda key: key != "on_timeout"), min_size=1, max_size=3, unique=True))
        return {name: self.node(depth) for name in found}

    def step(self, depth: int) -> Node:
        return StepNode(uses=self.draw(names.filter(lambda key: not key.startswith("stepwell."))), **self.action())

    def builtin(self, depth: int) -> Node:
        uses, args = self.draw(
            st.sampled_from(
                [
                    ("stepwell.log", "hello"),
                    ("stepwell.log", {"message": "{{ trigger.input }}", "level": "warning"}),
                    ("stepwell.map_data", [1, "{{ variables.x }}"]),
                    ("stepwell.set_variables", {"a": 1, "b c": "{{ trigger.input.b }}"}),
                    ("stepwell.throw", {"message": "no", "kind": "validation"}),
                    ("stepwell.http_request", {"url": "https://example.org", "method": "POST", "json": {"a": [1]}}),
                    ("stepwell.validate", {"value": 1, "schema": {"type": "integer"}}),
                    ("stepwell.cancel_scope", {"scope": "root"}),
                ]
            )
        )
        return StepNode(uses=uses, **(self.action() | {"args": args, "on_error": "continue"}))

    def script(self, depth: int) -> Node:
        return ScriptNode(code=self.draw(texts), language=self.draw(st.sampled_from(["lua", "x"])), **self.action())

    def child(self, depth: int) -> Node:
        return Subworkflow(
            workflow=self.draw(names),
            version=self.draw(st.none() | counts),
            context=self.draw(st.sampled_from(["inherit", "isolate", "copy", "share"])),
            is_detached=self.draw(st.booleans()),
            **self.action(),
        )

    def wait(self, depth: int) -> Node:
        time = self.draw(st.sampled_from([0.0, 2.5, 60.0, "2h", "1h30m", "2027-01-01T09:00:00Z", "{{ trigger.input.at }}"]))
        return Wait(time=time, **self.common())

    def signal(self, depth: int) -> Node:
        return Signal(
            signal=self.draw(names),
            timeout_seconds=self.draw(spans),
            on_timeout=self.draw(st.sampled_from(["fail", "continue"])),
            is_transient=self.draw(st.booleans()),
            **self.common(),
        )

    def approval(self, depth: int) -> Node:
        ending = self.draw(
            st.sampled_from(
                [
                    {},
                    {"timeout_seconds": 60.0},
                    {"timeout_seconds": 60.0, "on_timeout": "default", "default": {"is_approved": False}},
                    {"timeout_seconds": 60.0, "on_timeout": "escalate", "escalate_to": ("{{ variables.boss }}", "eve")},
                ]
            )
        )
        return Approval(
            title=self.draw(texts), approvers=("ann", "bob"), needed=2, details=self.draw(values), **ending, **self.common()
        )

    def sequence(self, depth: int) -> Node:
        return Sequence(nodes=tuple(self.some(depth)), **self.common())

    def parallel(self, depth: int) -> Node:
        branches = self.branches(depth)
        return Parallel(
            branches=branches,
            optional=tuple(self.draw(st.lists(st.sampled_from([*branches]), unique=True, max_size=2))),
            join=self.draw(st.sampled_from(["all", "any", "first", "discriminator", len(branches)])),
            cancel_losers=self.draw(st.booleans()),
            fail_fast=self.draw(st.booleans()),
            max_concurrency=self.draw(st.none() | counts),
            merge=self.draw(st.sampled_from(["by_name", "list", "winner", "combine"])),
            **self.common(),
        )

    def choice(self, depth: int) -> Node:
        found = self.draw(st.lists(conditions, min_size=1, max_size=3, unique=True))
        return Choice(
            cases=tuple(Case(when=condition, do=self.node(depth)) for condition in found),
            otherwise=self.node(depth) if self.draw(st.booleans()) else None,
            mode=self.draw(st.sampled_from(["first", "all"])),
            **self.common(),
        )

    def loop(self, depth: int) -> Node:
        source = self.draw(
            st.sampled_from(
                [
                    {"count": 3},
                    {"count": "{{ trigger.input.n }}"},
                    {"range": Range(start=10, stop=0, step=-2)},
                    {"range": Range(stop="{{ variables.n }}")},
                    {"items": [1, "two", {"three": 3.0}]},
                    {"items": "{{ trigger.input.items }}"},
                    {"while_": "variables.n < 3", "max_iterations": 5},
                    {"until": "index >= 2", "max_iterations": 5},
                ]
            )
        )
        return Loop(
            do=self.node(depth),
            break_when=self.draw(st.none() | st.just("item == 3")),
            delay_seconds=self.draw(st.sampled_from([0.0, 1.5, 60.0])),
            collect=self.draw(st.sampled_from(["all", "last", "none", Keep(first=2), Keep(last=3)])),
            **source,
            **self.common(),
        )

    def each(self, depth: int) -> Node:
        source = self.draw(st.sampled_from([{"count": 4}, {"items": "{{ trigger.input.items }}"}, {"items": [4, 5, 6, 7]}]))
        return Each(
            do=self.node(depth),
            concurrency=self.draw(st.none() | counts),
            join=self.draw(st.sampled_from(["all", "any", "first", "none", 2])),
            cancel_losers=self.draw(st.booleans()),
            fail_fast=self.draw(st.booleans()),
            limit=self.draw(st.sampled_from([1000, 10])),
            **source,
            **self.common(),
        )

    def graph(self, depth: int) -> Node:
        self.named += 1
        found = [f"{name}·{self.named}" for name in self.draw(st.lists(names, min_size=1, max_size=4, unique=True))]
        edges = [Edge(source=a, target=b) for a, b in pairwise(found)]
        if len(found) > 2:
            edges.append(Edge(source=found[0], target=found[-1], when=self.draw(conditions)))
        nodes = {name: self.node(depth) for name in found}
        return Graph(nodes=nodes, edges=tuple(edges), max_concurrency=self.draw(st.none() | counts), **self.common())

    def scope(self, depth: int) -> Node:
        return CancelScopeNode(
            do=self.node(depth),
            timeout_seconds=self.draw(spans),
            cancel_on=self.draw(st.none() | names),
            on_cancel=self.draw(st.sampled_from(["continue", "fail"])),
            **self.common(),
        )

    def deferred(self, depth: int) -> Node:
        has_timeout = self.draw(st.booleans())
        return Deferred(
            branches=self.branches(depth),
            timeout_seconds=60.0 if has_timeout else None,
            on_timeout=self.node(depth) if has_timeout else None,
            **self.common(),
        )


@st.composite
def definitions(draw: st.DrawFn, depth: int = 3) -> Definition:
    """Sound definitions of every shape."""
    found: dict[str, object] = {}
    if draw(st.booleans()):
        found["output"] = draw(values)
    return Definition(
        name=draw(names),
        version=draw(counts),
        description=draw(texts),
        status=draw(st.sampled_from(DefinitionStatus)),
        input_schema=draw(st.none() | st.just({"type": "object", "required": ["n"]})),
        variables=draw(st.dictionaries(names, atoms, max_size=2)),
        retry=draw(retries),
        timeout_seconds=draw(spans),
        root=Trees(draw).node(draw(st.integers(0, depth))),
        **found,
    )

"""The node kinds of declared workflows and ``Definition``, as frozen values.

Every kind has a keyword (its tag: ``step``, ``parallel`` ...) and a main field. A document writes a node as ``{keyword: main
field, other: fields}``; stored bytes write it as ``{"type": keyword, ...}``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from stepwell.duration import Seconds
from stepwell.flow.governance import Governance
from stepwell.flow.retry import Retry
from stepwell.model.value import Value

__all__ = [
    "Action",
    "Approval",
    "CancelScopeNode",
    "Case",
    "Choice",
    "Deferred",
    "Definition",
    "DefinitionStatus",
    "Each",
    "Edge",
    "Graph",
    "Keep",
    "Loop",
    "Node",
    "NodeFields",
    "Parallel",
    "Range",
    "ScriptNode",
    "Sequence",
    "Signal",
    "StepNode",
    "Subworkflow",
    "Wait",
    "continues_after_error",
]


Condition = Annotated[str, Meta(extra={"written": "expression"})]
"""An expression whose value is a boolean."""
Templated = Annotated[Any, Meta(extra={"written": "template"})]
"""Any value; texts inside it may be templates."""
TemplateText = Annotated[str, Meta(extra={"written": "template"})]
Positive = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=0)] | TemplateText
Bound = int | TemplateText

OnError = Literal["fail", "continue", "retry"]
JoinRule = Literal["all", "any", "first", "discriminator"]
InstanceRule = Literal["all", "any", "first", "none"]
Merge = Literal["by_name", "list", "winner", "combine"]
Collect = Literal["all", "last", "none"]
ContextRule = Literal["inherit", "isolate", "copy", "share"]


class NodeFields(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, tag_field="type"):
    """The fields of every node."""

    main: ClassVar[str] = ""
    """The field that is written under the kind's keyword."""

    name: str = ""
    """Unique in the definition; a node without a name is named after its step or kind, see ``Outline``."""
    description: str = ""


class Action(NodeFields, frozen=True, kw_only=True):
    """A node that runs code: a step, a subworkflow, a script."""

    args: Templated | UnsetType = msgspec.field(default=UNSET, name="with")
    """The input, which may contain templates; unset: the output of the node before it, see ``Place.args``."""
    retry: Retry | None = None
    """The retry policy; None: the step's, else the definition's."""
    timeout_seconds: Seconds | None = None
    """How long one attempt may take."""
    on_error: OnError = "fail"
    """After the last attempt ``fail``, or ``continue`` with the output None. ``retry``: use the default policy, then fail."""
    compensate: StepNode | None = None
    """The step that undoes it. Compensations run in reverse order if the execution or an enclosing scope fails or is cancelled."""


def continues_after_error(node: NodeFields) -> bool:
    """Return whether the execution continues after this node has failed (``on_error="continue"``)."""
    return isinstance(node, Action) and node.on_error == "continue"


class StepNode(Action, frozen=True, kw_only=True, tag="step"):
    """A call of a registered or built-in step."""

    main: ClassVar[str] = "uses"

    uses: str = msgspec.field(name="step")
    key: str = ""
    """A key of the user's own, with templates: the same key again in the execution gives the result of the first call."""
    summary: str = ""
    """One line about the call for people who look at a run, with templates."""


class Subworkflow(Action, frozen=True, kw_only=True, tag="subworkflow"):
    """Another workflow, run as a child execution."""

    main: ClassVar[str] = "workflow"

    workflow: str = msgspec.field(name="subworkflow")
    version: Positive | None = None
    """None: the newest active version when the child starts."""
    context: ContextRule = "inherit"
    """``inherit``: the child reads the parent's context. ``isolate``: its own context, empty at first. ``copy``: its own context,
    a copy at first. ``share``: it reads and writes the parent's.
    """
    is_detached: bool = False
    """Whether the parent continues at once, with the child's id as output."""


class ScriptNode(Action, frozen=True, kw_only=True, tag="script"):
    """A script in a sandboxed language."""

    main: ClassVar[str] = "code"

    code: str = msgspec.field(name="script")
    language: str = "lua"


class Sequence(NodeFields, frozen=True, kw_only=True, tag="sequence"):
    """Nodes one after another; the output is that of the last node."""

    main: ClassVar[str] = "nodes"

    nodes: tuple[Node, ...] = msgspec.field(name="sequence")


class Parallel(NodeFields, frozen=True, kw_only=True, tag="parallel"):
    """Concurrent branches, and the rule by which they join."""

    main: ClassVar[str] = "branches"

    branches: dict[str, Node] = msgspec.field(name="parallel")
    optional: tuple[str, ...] = ()
    """Branches that may fail without failing the node."""
    join: JoinRule | Positive = "all"
    """When the node ends. ``all``: every branch has ended. ``any``: one has succeeded. ``first``: one has ended, successfully or
    not. A number: that many have succeeded. ``discriminator``: one has succeeded, and the others keep running without effect.
    """
    cancel_losers: bool = True
    """Whether the branches that are still running when the node joins are cancelled; a discriminator never cancels them."""
    fail_fast: bool = True
    """Whether the failure of a required branch cancels the others at once."""
    max_concurrency: Positive | None = None
    merge: Merge = "by_name"
    """The output. ``by_name``: an object by branch. ``list``: a list in branch order. ``winner``: the first success. ``combine``:
    all outputs, which must be objects, merged key by key, later branches over earlier ones.
    """


class Case(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One alternative of a choice."""

    when: Condition
    do: Node


class Choice(NodeFields, frozen=True, kw_only=True, tag="choice"):
    """The first case whose condition holds, or all such cases concurrently. No match without ``otherwise`` is a failure."""

    main: ClassVar[str] = "cases"

    cases: tuple[Case, ...] = msgspec.field(name="choice")
    otherwise: Node | None = None
    mode: Literal["first", "all"] = "first"
    merge: Merge = "by_name"
    """With mode ``all``: how outputs are merged, by the names of the chosen nodes. With ``first`` the output is the chosen
    node's.
    """


class Range(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Integers from ``start`` to ``stop``, which is excluded; downwards with a negative step."""

    start: Bound = 0
    stop: Bound
    step: Bound = 1


class Keep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Keep the outputs of the first or the last iterations only."""

    first: Positive | None = None
    last: Positive | None = None


class Loop(NodeFields, frozen=True, kw_only=True, tag="loop"):
    """A node repeated in iterations one after another. Exactly one of count, range, items, while and until is given."""

    main: ClassVar[str] = "do"

    do: Node = msgspec.field(name="loop")
    count: Count | None = None
    range: Range | None = None
    items: Templated | UnsetType = UNSET
    while_: Condition | None = msgspec.field(default=None, name="while")
    """Evaluated before each iteration."""
    until: Condition | None = None
    """Evaluated after each iteration."""
    break_when: Condition | None = None
    """Evaluated after each iteration, with any kind of loop."""
    max_iterations: Positive | None = None
    """Exceeding it is a failure. A loop with ``while`` or ``until`` must have it."""
    delay_seconds: Seconds = 0.0
    """The delay between iterations."""
    collect: Collect | Keep = "all"
    """The loop's output: a list of the iterations' outputs, the last output, or None."""


class Each(NodeFields, frozen=True, kw_only=True, tag="each"):
    """Concurrent instances of a node: one per item, or a number of them."""

    main: ClassVar[str] = "do"

    do: Node = msgspec.field(name="each")
    items: Templated | UnsetType = UNSET
    count: Count | None = None
    concurrency: Positive | None = None
    join: InstanceRule | Positive = "all"
    """As for parallel branches; ``none``: continue at once while the instances run."""
    cancel_losers: bool = True
    fail_fast: bool = True
    limit: Positive = 1000
    """More instances are a failure."""


class Edge(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """An edge of a graph: taken always, if its condition holds, or if no condition of the source's other edges holds."""

    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    when: Condition | None = None
    is_otherwise: bool = msgspec.field(default=False, name="otherwise")
    id: str = ""
    """The name of the edge for people and tools; unique in its graph."""


class Graph(NodeFields, frozen=True, kw_only=True, tag="graph"):
    """Nodes and edges without a cycle. A node runs once all incoming edges are decided and one was taken; else it is skipped."""

    main: ClassVar[str] = "nodes"

    nodes: dict[str, Node] = msgspec.field(name="graph")
    edges: tuple[Edge, ...] = ()
    start: tuple[str, ...] = ()
    """The first nodes; unset: every node without an incoming edge."""
    max_concurrency: Positive | None = None
    fail_fast: bool = True


class CancelScopeNode(NodeFields, frozen=True, kw_only=True, tag="scope"):
    """A scope that is cancelled as a whole: by its timeout, by a signal, or by the built-in step ``cancel_scope``."""

    main: ClassVar[str] = "do"

    do: Node = msgspec.field(name="scope")
    timeout_seconds: Seconds | None = None
    cancel_on: str | None = None
    """The name of a signal."""
    on_cancel: Literal["continue", "fail"] = "continue"
    """How a cancelled scope counts for the enclosing node: as an output of None, or as a failure."""


class Wait(NodeFields, frozen=True, kw_only=True, tag="wait"):
    """A durable timer. It holds no thread."""

    main: ClassVar[str] = "time"

    time: float | TemplateText = msgspec.field(name="wait")
    """Seconds, a span such as ``2h``, a timestamp with a zone, or a template of one of these."""


class Signal(NodeFields, frozen=True, kw_only=True, tag="signal"):
    """Wait for a signal; its value is the output."""

    main: ClassVar[str] = "signal"

    signal: str
    timeout_seconds: Seconds | None = None
    on_timeout: Literal["fail", "continue"] = "fail"
    is_transient: bool = False
    """Whether a signal that arrives before the node starts waiting is dropped; else it stays in the inbox."""


class Deferred(NodeFields, frozen=True, kw_only=True, tag="deferred"):
    """A choice made from outside: the first of several signals selects its branch, and its value is the ``item`` inside."""

    main: ClassVar[str] = "branches"

    branches: dict[str, Node] = msgspec.field(name="deferred")
    """Branches by the name of their signal."""
    timeout_seconds: Seconds | None = None
    on_timeout: Node | None = None
    """The node that runs if no signal arrives in time; None: a failure."""


class Approval(NodeFields, frozen=True, kw_only=True, tag="approval"):
    """Ask people for a decision; the output is ``{"is_approved": ..., "decisions": [...]}``."""

    main: ClassVar[str] = "title"

    title: TemplateText = msgspec.field(name="approval")
    details: Templated | UnsetType = UNSET
    """The value that is shown to them."""
    approvers: tuple[TemplateText, ...] = ()
    """The people who may answer; empty: all."""
    needed: Positive = 1
    """How many must agree. The approval is refused once that number can no longer be reached."""
    timeout_seconds: Seconds | None = None
    on_timeout: Literal["cancel", "default", "escalate"] = "cancel"
    """Cancel the execution; output ``default``; or ask ``escalate_to`` once, with a new timeout."""
    default: Templated | UnsetType = UNSET
    escalate_to: tuple[TemplateText, ...] = ()


Node = (
    StepNode
    | Subworkflow
    | ScriptNode
    | Sequence
    | Parallel
    | Choice
    | Loop
    | Each
    | Graph
    | CancelScopeNode
    | Wait
    | Signal
    | Deferred
    | Approval
)


class DefinitionStatus(StrEnum):
    """The status of a definition; only an active one can be started."""

    DRAFT = "DRAFT"
    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"


class Definition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A declared workflow. ``define`` and ``parse`` create and check it."""

    name: str
    version: Positive = 1
    description: str = ""
    status: DefinitionStatus = DefinitionStatus.ACTIVE
    input_schema: dict[str, Value] | None = None
    """A JSON Schema for ``trigger.input``."""
    variables: dict[str, Value] = {}
    """The variables with their initial values."""
    retry: Retry | None = None
    """The retry policy of steps without their own."""
    timeout_seconds: Seconds | None = None
    """How long an execution may take."""
    governance: Governance | None = None
    """Budgets and permissions of executions that are started without their own."""
    grants: tuple[str, ...] = ()
    """The names of other workflows whose scoped state its steps may read."""
    root: Node = msgspec.field(name="do")
    output: Templated | UnsetType = UNSET
    """The execution's result, which may contain templates; unset: the output of the root."""

    def _repr_svg_(self) -> str:
        """Return the picture that a notebook shows."""
        from stepwell.flow.drawing import draw_svg

        return draw_svg(self)

"""The nodes that a workflow is made of: frozen values, a tagged union, plain JSON when encoded.

Every kind has a word (its tag: ``step``, ``parallel`` ...) and a main field. In a document a node is written
``{word: main field, other: fields}``; encoded for a store it is ``{"type": word, ...}`` as well.

A definition: a workflow's name, version, nodes and defaults, as one frozen value.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from stepwell.duration import Seconds
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
]


Condition = Annotated[str, Meta(extra={"written": "expression"})]
"""An expression that gives true or false."""
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
    """What every node has."""

    main: ClassVar[str] = ""
    """The field that is written beside the word of the kind."""

    name: str = ""
    """Unique in the definition; without one, a node is named after its step or kind, see ``Outline``."""
    description: str = ""


class Action(NodeFields, frozen=True, kw_only=True):
    """What is carried out by code: a step, a subworkflow, a script."""

    args: Templated | UnsetType = msgspec.field(default=UNSET, name="with")
    """The input, with templates; unset: the output of the node before it, see ``Place.args``."""
    retry: Retry | None = None
    """The policy of retries; None: that of the step, else of the definition."""
    timeout_seconds: Seconds | None = None
    """How long one attempt may take."""
    on_error: OnError = "fail"
    """After the last attempt: fail, or go on with the output None. ``retry``: retry by the default policy, then fail."""
    compensate: StepNode | None = None
    """What undoes it, run in reverse order when the execution or an enclosing scope fails or is cancelled."""


class StepNode(Action, frozen=True, kw_only=True, tag="step"):
    """One call of a registered step or of a built-in one."""

    main: ClassVar[str] = "uses"

    uses: str = msgspec.field(name="step")


class Subworkflow(Action, frozen=True, kw_only=True, tag="subworkflow"):
    """An execution of another workflow as a child of this one."""

    main: ClassVar[str] = "workflow"

    workflow: str = msgspec.field(name="subworkflow")
    version: Positive | None = None
    """None: the newest active one when the child starts."""
    context: ContextRule = "inherit"
    """``inherit``: the child reads the parent's context; ``isolate``: it has its own, empty; ``copy``: it starts with a copy;
    ``share``: it reads and writes the parent's."""
    is_detached: bool = False
    """Whether the parent goes on at once, with the child's id as the output."""


class ScriptNode(Action, frozen=True, kw_only=True, tag="script"):
    """A piece of code in a sandboxed language."""

    main: ClassVar[str] = "code"

    code: str = msgspec.field(name="script")
    language: str = "lua"


class Sequence(NodeFields, frozen=True, kw_only=True, tag="sequence"):
    """Nodes one after another; the output is that of the last."""

    main: ClassVar[str] = "nodes"

    nodes: tuple[Node, ...] = msgspec.field(name="sequence")


class Parallel(NodeFields, frozen=True, kw_only=True, tag="parallel"):
    """Branches at the same time, and the rule by which they join."""

    main: ClassVar[str] = "branches"

    branches: dict[str, Node] = msgspec.field(name="parallel")
    optional: tuple[str, ...] = ()
    """Branches whose failure is not the failure of all."""
    join: JoinRule | Positive = "all"
    """``all``: every branch has ended. ``any``: one has succeeded. ``first``: one has ended, well or not. A number: so many have
    succeeded. ``discriminator``: one has succeeded, and the others run on without effect."""
    cancel_losers: bool = True
    """Whether branches that the join no longer waits for are cancelled; a discriminator never does."""
    fail_fast: bool = True
    """Whether a failed required branch cancels the others at once, or they may finish first."""
    max_concurrency: Positive | None = None
    merge: Merge = "by_name"
    """The output: an object by branch; a list in order of the branches; the output of the first to succeed; or all outputs, which
    must be objects, combined key by key, later branches over earlier ones."""


class Case(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One alternative of a choice."""

    when: Condition
    do: Node


class Choice(NodeFields, frozen=True, kw_only=True, tag="choice"):
    """The first case whose condition holds, or all such cases at the same time. No match and no ``otherwise`` is a failure."""

    main: ClassVar[str] = "cases"

    cases: tuple[Case, ...] = msgspec.field(name="choice")
    otherwise: Node | None = None
    mode: Literal["first", "all"] = "first"
    merge: Merge = "by_name"
    """With ``all``: how outputs come together, by the names of the nodes chosen. With ``first`` the output is the chosen node's."""


class Range(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Whole numbers from ``start`` up to, or with a negative step down to, but without ``stop``."""

    start: Bound = 0
    stop: Bound
    step: Bound = 1


class Keep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Keep the outputs of the first or of the last so many iterations."""

    first: Positive | None = None
    last: Positive | None = None


class Loop(NodeFields, frozen=True, kw_only=True, tag="loop"):
    """A node again and again, one iteration after another; exactly one of count, range, items, while, until says how long."""

    main: ClassVar[str] = "do"

    do: Node = msgspec.field(name="loop")
    count: Count | None = None
    range: Range | None = None
    items: Templated | UnsetType = UNSET
    while_: Condition | None = msgspec.field(default=None, name="while")
    """Asked before each iteration."""
    until: Condition | None = None
    """Asked after each iteration."""
    break_when: Condition | None = None
    """Asked after each iteration, whatever else says how long."""
    max_iterations: Positive | None = None
    """More is a failure. A loop by ``while`` or ``until`` must have it."""
    delay_seconds: Seconds = 0.0
    """The wait between iterations."""
    collect: Collect | Keep = "all"
    """Which outputs of iterations are the loop's output: a list, the last one alone, or None."""


class Each(NodeFields, frozen=True, kw_only=True, tag="each"):
    """Many instances of a node at the same time: one for each item, or so many."""

    main: ClassVar[str] = "do"

    do: Node = msgspec.field(name="each")
    items: Templated | UnsetType = UNSET
    count: Count | None = None
    concurrency: Positive | None = None
    join: InstanceRule | Positive = "all"
    """As for parallel branches; ``none``: go on at once while the instances run."""
    cancel_losers: bool = True
    fail_fast: bool = True
    limit: Positive = 1000
    """More instances are a failure."""


class Edge(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """An arrow of a graph, taken always, under a condition, or when no condition of the other arrows from its source holds."""

    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    when: Condition | None = None
    is_otherwise: bool = msgspec.field(default=False, name="otherwise")


class Graph(NodeFields, frozen=True, kw_only=True, tag="graph"):
    """Nodes and arrows without a cycle. A node runs when all arrows to it are decided and one was taken; else it is skipped."""

    main: ClassVar[str] = "nodes"

    nodes: dict[str, Node] = msgspec.field(name="graph")
    edges: tuple[Edge, ...] = ()
    start: tuple[str, ...] = ()
    """Where it begins; unset: at every node without an arrow to it."""
    max_concurrency: Positive | None = None
    fail_fast: bool = True


class CancelScopeNode(NodeFields, frozen=True, kw_only=True, tag="scope"):
    """A region that is cancelled as one: by its timeout, by a signal, or by the built-in step ``cancel_scope``."""

    main: ClassVar[str] = "do"

    do: Node = msgspec.field(name="scope")
    timeout_seconds: Seconds | None = None
    cancel_on: str | None = None
    """The name of a signal."""
    on_cancel: Literal["continue", "fail"] = "continue"
    """What the cancelled region is for the node around it: an output of None, or a failure."""


class Wait(NodeFields, frozen=True, kw_only=True, tag="wait"):
    """A durable timer that holds no thread."""

    main: ClassVar[str] = "time"

    time: float | TemplateText = msgspec.field(name="wait")
    """Seconds, a span such as ``2h``, a timestamp with a zone, or a template that gives one of these."""


class Signal(NodeFields, frozen=True, kw_only=True, tag="signal"):
    """Wait for a signal; its value is the output."""

    main: ClassVar[str] = "signal"

    signal: str
    timeout_seconds: Seconds | None = None
    on_timeout: Literal["fail", "continue"] = "fail"
    is_transient: bool = False
    """Whether a signal that came before this node was reached is lost; else it waits to be taken."""


class Deferred(NodeFields, frozen=True, kw_only=True, tag="deferred"):
    """A choice made from outside: the first of several signals decides, its value is the ``item`` inside its branch."""

    main: ClassVar[str] = "branches"

    branches: dict[str, Node] = msgspec.field(name="deferred")
    """By the name of the signal."""
    timeout_seconds: Seconds | None = None
    on_timeout: Node | None = None
    """What runs if none comes in time; None: a failure."""


class Approval(NodeFields, frozen=True, kw_only=True, tag="approval"):
    """Ask people; the output is ``{"is_approved": ..., "decisions": [...]}``."""

    main: ClassVar[str] = "title"

    title: TemplateText = msgspec.field(name="approval")
    details: Templated | UnsetType = UNSET
    """What is shown to them."""
    approvers: tuple[TemplateText, ...] = ()
    """Who may answer; empty: anybody."""
    needed: Positive = 1
    """How many must agree; it is refused as soon as so many can no longer agree."""
    timeout_seconds: Seconds | None = None
    on_timeout: Literal["cancel", "default", "escalate"] = "cancel"
    """Cancel the execution; take ``default`` as the output; or ask ``escalate_to`` with the timeout begun anew, once."""
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
    """Whether a definition may be started."""

    DRAFT = "DRAFT"
    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"


class Definition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A declared workflow. Made by ``define`` or ``parse``, which check it."""

    name: str
    version: Positive = 1
    description: str = ""
    status: DefinitionStatus = DefinitionStatus.ACTIVE
    input_schema: dict[str, Value] | None = None
    """A JSON Schema for ``trigger.input``."""
    variables: dict[str, Value] = {}
    """The variables and the values that they begin with."""
    retry: Retry | None = None
    """The policy for steps that have none."""
    timeout_seconds: Seconds | None = None
    """How long an execution may take."""
    root: Node = msgspec.field(name="do")
    output: Templated | UnsetType = UNSET
    """The execution's result, with templates; unset: the output of the root."""

    def _repr_svg_(self) -> str:
        """The picture that a notebook shows."""
        from stepwell.flow.drawing import draw_svg

        return draw_svg(self)

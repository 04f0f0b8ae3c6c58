"""Rewrite a definition for exploration: the same nodes under the same names, with questions in place of data.

Every template or condition that depends on data becomes a question with a few possible answers. Constants stay. Counts are
reduced to the smallest ones that behave alike: no iteration, the first, a later one, and one more than the bound. Of a duration
only its existence matters, because a step may take any time: a timer may fire before or after every other event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, cast

from msgspec import UNSET
from msgspec.structs import replace

from stepwell.errors import ValidationFailed
from stepwell.flow.definition.builtin_steps import PREFIX, builtin_of
from stepwell.flow.definition.node import (
    Action,
    Approval,
    CancelScopeNode,
    Choice,
    Deferred,
    Definition,
    Each,
    Graph,
    Loop,
    Node,
    Parallel,
    Sequence,
    Signal,
    StepNode,
    Wait,
)
from stepwell.flow.definition.outline import Outline, Place
from stepwell.flow.language.expression import compile_expression
from stepwell.flow.language.parser import JoinedExpression, LiteralExpression, Syntax, UnaryExpression
from stepwell.flow.language.template import compile_template
from stepwell.model.value import Value

__all__ = [
    "UNKNOWN",
    "Oracle",
    "OracleAnswer",
    "Question",
    "Questions",
    "abstracted",
]


class _Unknown:
    """The answer of a template or condition that cannot be evaluated."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = _Unknown()


class Question(NamedTuple):
    """A template or condition that depends on data: its text and its possible answers."""

    text: str
    answers: tuple[Any, ...]
    is_event: bool = False
    """Whether it asks if something has happened, which a path reports only if it has."""


class OracleAnswer(NamedTuple):
    """The answer to a question in one transition."""

    question: Question
    number: int

    @property
    def is_failure(self) -> bool:
        """True if the evaluation failed, which fails the node."""
        return self.question.answers[self.number] is UNKNOWN

    def __str__(self) -> str:
        given = self.question.answers[self.number]
        if given is UNKNOWN:
            return f"{self.question.text} cannot be worked out"
        if self.question.is_event:
            return self.question.text if given else ""
        if isinstance(given, bool):
            return f"{self.question.text} {'holds' if given else 'does not hold'}"
        return f"{self.question.text}: {given}"


class Questions(dict[str, Question]):
    """The questions of a definition by the names that stand for them in its conditions and templates."""

    def ask(self, text: str, *answers: Any) -> str:
        """Return a path whose value is one of these answers."""
        name = f"q{len(self)}"
        self[name] = Question(text, (*answers, UNKNOWN))
        return f"state.{name}"

    def template(self, text: str, *answers: Any) -> str:
        """Return a template whose value is one of these answers."""
        return f"{{{{ {self.ask(text, *answers)} }}}}"

    def condition(self, text: str) -> str:
        """Return the condition itself if it is constant, else a question."""
        expression = compile_expression(text)
        if expression.is_constant:
            return text
        return self.ask(f"`{' '.join(text.split())}`", *sorted(_possible(expression.tree), reverse=True))

    def maybe(self, text: str, source: Value, given: Value) -> Value:
        """Return a value in place of a template: always the same, except that a template with references may fail."""
        return self.template(text, given) if compile_template(source).references else given


def _possible(tree: Syntax) -> set[bool]:
    """Return the truth values that a condition can have."""
    match tree:
        case LiteralExpression(value=bool() as value):
            return {value}
        case UnaryExpression(operator="not"):
            return {not value for value in _possible(tree.operand)}
        case JoinedExpression():
            parts = [_possible(part) for part in tree.operands]
            decides = tree.operator == "or"  # one operand with this value decides the result
            found = {decides} if any(decides in part for part in parts) else set[bool]()
            # The other value needs every operand to be able to take it.
            return found | ({not decides} if all((not decides) in part for part in parts) else set[bool]())
        case _:
            return {True, False}


class Oracle(Mapping[str, Any]):
    """Answers questions in the order in which they are asked: from a list of answers (the tape), then with the first answer."""

    def __init__(self, questions: Questions) -> None:
        self._questions = questions
        self._tape: tuple[int, ...] = ()
        self.given: list[OracleAnswer] = []

    def begin(self, tape: tuple[int, ...]) -> None:
        """Start again with this tape."""
        self._tape, self.given = tape, []

    def others(self) -> Iterator[tuple[int, ...]]:
        """Return the tapes that change one default answer after the end of this tape; each leads to another result."""
        numbers = tuple(answer.number for answer in self.given)
        for place in range(len(self._tape), len(numbers)):
            for number in range(1, len(self.given[place].question.answers)):
                yield (*numbers[:place], number)

    def __getitem__(self, name: str) -> Any:
        given = self.answer(self._questions[name])
        if given is UNKNOWN:
            raise KeyError(name)
        return given

    def answer(self, question: Question) -> Any:
        """Return the next answer."""
        count = len(self.given)
        answer = OracleAnswer(question, self._tape[count] if count < len(self._tape) else 0)
        self.given.append(answer)
        return question.answers[answer.number]

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


_SOME_TIME = 1.0
_SOON_DONE = ("set_variables", "map_data", "log", "validate")
"""Built-in steps that end at once and fail only because of their input."""


def abstracted(definition: Definition) -> tuple[Definition, Questions]:
    """Return the definition to explore, and its questions."""
    outline = Outline(definition)
    writer = _Writer(outline)
    root = writer.write(outline.root)
    output: Any = UNSET
    if definition.output is not UNSET:
        output = writer.questions.maybe("the result", definition.output, None)
    timeout = None if definition.timeout_seconds is None else _SOME_TIME
    return Definition(name=definition.name, root=root, output=output, timeout_seconds=timeout), writer.questions


class _Writer:
    def __init__(self, outline: Outline) -> None:
        self.questions = Questions()
        self.scopes = [place.name for place in outline if isinstance(place.node, CancelScopeNode)]

    def write(self, place: Place) -> Node:
        """Return the rewritten node of a place with everything inside."""
        for kind, write in _WRITE.items():
            if isinstance(place.node, kind):
                return write(self, place, place.node)
        inside = {slot: self.write(child) for slot, child in place.children.items()}
        return replace(cast("Sequence", place.node), name=place.name, nodes=tuple(inside.values()))

    def inside(self, place: Place) -> dict[str, Node]:
        return {slot: self.write(child) for slot, child in place.children.items()}

    # Actions.

    def action(self, place: Place, node: Action) -> Node:
        """Rewrite an action: it may complete or fail. Retries are left out, since they change nothing else."""
        undo = place.children.get("compensate")
        changes: dict[str, Any] = {
            "name": place.name,
            "args": self._given(place, node),
            "retry": None,
            "timeout_seconds": None,
            "on_error": "continue" if node.on_error == "continue" else "fail",
            "compensate": None if undo is None else self.write(undo),
        }
        if isinstance(node, StepNode):
            changes["summary"] = ""
            changes["key"] = ""  # a repeated call completes or fails like any other
        builtin = builtin_of(node.uses) if isinstance(node, StepNode) else None
        if builtin is not None and builtin.name in _SOON_DONE:
            changes |= self._done_at_once(place, cast("StepNode", node))
        elif builtin is not None and builtin.name == "cancel_scope":
            changes["args"] = {"scope": self._scope(place)}
        elif builtin is not None and builtin.name == "throw":
            changes["args"] = {"message": ""}
        return cast("Node", replace(node, **changes))

    def _given(self, place: Place, node: Action) -> Value:
        """Rewrite an input that may fail to evaluate; unlike a failed step, this fails at once."""
        is_passed_over = node.on_error == "continue" and not place.args.is_constant
        return self.questions.template(f"what {place.name!r} is given", None) if is_passed_over else None

    def _done_at_once(self, place: Place, node: StepNode) -> dict[str, Any]:
        if node.args is not UNSET and place.args.is_constant:
            return {"args": node.args}
        return {"uses": f"{PREFIX}map_data", "args": self.questions.template(f"what {place.name!r} is given", None)}

    def _scope(self, place: Place) -> Value:
        args = place.args
        if args.is_constant:
            return cast("dict[str, Value]", args.source)["scope"] if isinstance(args.source, dict) else args.source
        return self.questions.template(f"the scope that {place.name!r} cancels", *self.scopes, "root")

    # Branches.

    def parallel(self, place: Place, node: Parallel) -> Node:
        return replace(node, name=place.name, branches=self.inside(place), merge="by_name")

    def choice(self, place: Place, node: Choice) -> Node:
        inside = self.inside(place)
        cases = tuple(
            replace(case, when=self.questions.condition(case.when), do=inside[str(number)])
            for number, case in enumerate(node.cases)
        )
        return replace(node, name=place.name, cases=cases, otherwise=inside.get("otherwise"), merge="by_name")

    def graph(self, place: Place, node: Graph) -> Node:
        edges = tuple(edge if edge.when is None else replace(edge, when=self.questions.condition(edge.when)) for edge in node.edges)
        return replace(node, name=place.name, nodes=self.inside(place), edges=edges)

    def scope(self, place: Place, node: CancelScopeNode) -> Node:
        return replace(node, name=place.name, do=self.write(place.children["do"]), timeout_seconds=_some(node.timeout_seconds))

    # Rounds.

    def loop(self, place: Place, node: Loop) -> Node:
        extent: dict[str, Any] = {"count": None, "range": None, "items": UNSET, "max_iterations": None}
        if node.while_ is not None or node.until is not None:
            extent["max_iterations"] = node.max_iterations and min(node.max_iterations, 3)
        else:
            extent |= self._extent(place, node)
        return replace(
            node,
            name=place.name,
            do=self.write(place.children["do"]),
            while_=self._condition(node.while_),
            until=self._condition(node.until),
            break_when=self._condition(node.break_when),
            delay_seconds=_SOME_TIME if node.delay_seconds else 0.0,
            collect="none",
            **extent,
        )

    def _extent(self, place: Place, node: Loop) -> dict[str, Any]:
        total, most = _total(node), node.max_iterations
        if total is None:
            cap = None if most is None else min(most, 2)
            rounds = range(3 if cap is None else cap + 2)
            return {"count": self.questions.template(f"iterations of {place.name!r}", *rounds), "max_iterations": cap}
        if most is not None and total > most:
            return {"count": 3, "max_iterations": min(most, 2)}
        return {"count": min(total, 2)}

    def _condition(self, text: str | None) -> str | None:
        return None if text is None else self.questions.condition(text)

    def each(self, place: Place, node: Each) -> Node:
        total, join = _total(node), node.join
        limit = 1000
        if total is None:
            join = min(join, 2) if isinstance(join, int) else join
            rounds = range((join if isinstance(join, int) else 1) + 2)
            count: Any = self.questions.template(f"instances of {place.name!r}", *rounds)
        elif total > node.limit:
            count, limit = 2, 1
        else:
            count, join = _few(total, join)
        do = self.write(place.children["do"])
        return replace(node, name=place.name, do=do, items=UNSET, count=count, join=join, limit=limit)

    # Waits.

    def wait(self, place: Place, node: Wait) -> Node:
        return replace(node, name=place.name, time=self.questions.maybe(f"the time of {place.name!r}", node.time, _SOME_TIME))

    def signal(self, place: Place, node: Signal) -> Node:
        return replace(node, name=place.name, timeout_seconds=_some(node.timeout_seconds))

    def deferred(self, place: Place, node: Deferred) -> Node:
        inside = self.inside(place)
        late = inside.pop("on_timeout", None) if node.on_timeout is not None else None
        return replace(node, name=place.name, branches=inside, on_timeout=late, timeout_seconds=_some(node.timeout_seconds))

    def approval(self, place: Place, node: Approval) -> Node:
        """Rewrite an approval to need one decision, whose content is data."""
        asked: Value = [node.title, list(node.approvers), None if node.details is UNSET else node.details]
        default = None if node.default is UNSET else self.questions.maybe(f"the default of {place.name!r}", node.default, None)
        return replace(
            node,
            name=place.name,
            title="",
            details=self.questions.maybe(f"what {place.name!r} shows", asked, None),
            approvers=(),
            needed=1,
            timeout_seconds=_some(node.timeout_seconds),
            default=default,
            escalate_to=(),
        )


_WRITE: dict[type[Any], Callable[[_Writer, Place, Any], Node]] = {
    Action: _Writer.action,
    Parallel: _Writer.parallel,
    Choice: _Writer.choice,
    Graph: _Writer.graph,
    CancelScopeNode: _Writer.scope,
    Loop: _Writer.loop,
    Each: _Writer.each,
    Wait: _Writer.wait,
    Signal: _Writer.signal,
    Deferred: _Writer.deferred,
    Approval: _Writer.approval,
}


def _some(seconds: float | None) -> float | None:
    return None if seconds is None else _SOME_TIME


def _total(node: Loop | Each) -> int | None:
    """Return the number of iterations if it is constant."""
    source: Value = node.count
    if node.items is not UNSET:
        source = node.items
        if isinstance(source, list):
            return len(cast("list[Value]", source))
    elif isinstance(node, Loop) and node.range is not None:
        source = [node.range.start, node.range.stop, node.range.step]
    template = compile_template(source)
    if not template.is_constant:
        return None
    try:
        return _counted(template.fill({}), is_range=isinstance(node, Loop) and node.range is not None)
    except (ValidationFailed, ValueError, TypeError, OverflowError):
        return None


def _counted(value: Any, *, is_range: bool) -> int | None:
    if is_range:
        return len(range(*value))
    if isinstance(value, list):
        return len(cast("list[Value]", value))
    return value if type(value) is int and value >= 0 else None


def _few(total: int, join: Any) -> tuple[int, Any]:
    """Return the smallest numbers of instances and of required ones with which the join can behave in all its ways."""
    if not isinstance(join, int):
        return min(total, 2), join
    if join < total:
        return min(join, 2) + 1, min(join, 2)
    few = min(total, 2)
    return few, few + (join > total)

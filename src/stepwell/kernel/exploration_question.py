"""What a definition asks of data that nobody knows before it runs, and the answers that there can be.

A definition is written anew for exploring: every template and condition that depends on data becomes a question with a few
answers, and every number is brought down to the smallest one that behaves alike. What is constant stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from stepwell.flow.language.expression import compile_expression
from stepwell.flow.language.parser import JoinedExpression, LiteralExpression, Syntax, UnaryExpression
from stepwell.flow.language.template import compile_template
from stepwell.model.value import Value

__all__ = ["UNKNOWN", "Oracle", "OracleAnswer", "Question", "Questions"]


class _Unknown:
    """Not a value: the template or condition cannot be worked out."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = _Unknown()


class Question(NamedTuple):
    """Something that depends on data: what it is, as people read it, and what it can come to."""

    text: str
    answers: tuple[Any, ...]
    is_event: bool = False
    """Whether it asks if something has happened, which is told only if it has."""


class OracleAnswer(NamedTuple):
    """What was answered to a question in one transition."""

    question: Question
    number: int

    @property
    def is_failure(self) -> bool:
        """Whether it could not be worked out, which fails the node that asked."""
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
    """The questions of a definition, by the names that they have in its conditions and templates."""

    def ask(self, text: str, *answers: Any) -> str:
        """A path that leads to one of these answers."""
        name = f"q{len(self)}"
        self[name] = Question(text, (*answers, UNKNOWN))
        return f"state.{name}"

    def template(self, text: str, *answers: Any) -> str:
        """A template that gives one of these answers."""
        return f"{{{{ {self.ask(text, *answers)} }}}}"

    def condition(self, text: str) -> str:
        """A condition: itself if it is constant, else a question."""
        expression = compile_expression(text)
        if expression.is_constant:
            return text
        return self.ask(f"`{' '.join(text.split())}`", *sorted(_possible(expression.tree), reverse=True))

    def maybe(self, text: str, source: Value, given: Value) -> Value:
        """A value that stands for a template: the same always, but if the template has references, it may have none."""
        return self.template(text, given) if compile_template(source).references else given


def _possible(tree: Syntax) -> set[bool]:
    """Which truth values a condition can have, whatever the data."""
    match tree:
        case LiteralExpression(value=bool() as value):
            return {value}
        case UnaryExpression(operator="not"):
            return {not value for value in _possible(tree.operand)}
        case JoinedExpression():
            parts = [_possible(part) for part in tree.operands]
            decides = tree.operator == "or"  # one part with this value decides the whole
            found = {decides} if any(decides in part for part in parts) else set[bool]()
            return found | ({not decides} if all(decides not in part for part in parts) else set[bool]())
        case _:
            return {True, False}


class Oracle(Mapping[str, Any]):
    """Answers questions in the order in which they are asked: by a tape, and after its end with the first answer."""

    def __init__(self, questions: Questions) -> None:
        self._questions = questions
        self._tape: tuple[int, ...] = ()
        self.given: list[OracleAnswer] = []

    def begin(self, tape: tuple[int, ...]) -> None:
        """Answer anew, by this tape."""
        self._tape, self.given = tape, []

    def others(self) -> Iterator[tuple[int, ...]]:
        """The tapes that differ from what was answered first after the end of this tape; each leads somewhere else."""
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
        """The next answer."""
        count = len(self.given)
        answer = OracleAnswer(question, self._tape[count] if count < len(self._tape) else 0)
        self.given.append(answer)
        return question.answers[answer.number]

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0

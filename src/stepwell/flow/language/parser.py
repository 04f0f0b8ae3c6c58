"""Lexer and parser of expressions: operator precedence parsing with a depth limit.

Lexical tokens are called lexemes, because a token is something else here: the position of a branch of an execution.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple, NoReturn

import msgspec

from stepwell.flow.language.errors import MalformedExpression, suggest
from stepwell.flow.language.functions import FUNCTIONS, arity_fault

__all__ = [
    "KEYWORDS",
    "MAX_CHARACTERS",
    "MAX_DEPTH",
    "MAX_LEXEMES",
    "ROOTS",
    "AccessExpression",
    "BinaryExpression",
    "CallExpression",
    "JoinedExpression",
    "Lexeme",
    "ListExpression",
    "LiteralExpression",
    "RootExpression",
    "Syntax",
    "UnaryExpression",
    "parse_expression",
    "split",
]


MAX_CHARACTERS = 10_000
MAX_LEXEMES = 2_000
"""A longer expression is a program and belongs in a step."""

KEYWORDS = frozenset({"and", "or", "not", "in", "contains", "is", "null", "none", "true", "false", "exists"})
"""Keywords, in any case: ``AND`` equals ``and``."""

_INT_MAX = 2**63 - 1
_SPACE = re.compile(r"\s*")
_NUMBER = re.compile(r"\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
# A hyphen between word characters belongs to the word: `steps.my-step` is a path. A minus sign needs a space beside it.
_WORD = re.compile(r"[^\W\d]\w*(?:-\w+)*")
_KEY = re.compile(r"\w+(?:-\w+)*")
_SIGN = re.compile(r"\?\?|==|!=|<>|<=|>=|&&|\|\||[=<>+\-*/%()\[\],.|!]")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "/": "/", "0": "\0"}


class Lexeme(NamedTuple):
    """A word, sign, number or text with its position."""

    kind: str
    """``word``, ``keyword``, ``sign``, ``number``, ``text`` or ``end``."""
    value: str | int | float
    start: int
    end: int


def split(text: str) -> list[Lexeme]:
    """Return the lexemes of an expression, the last of kind ``end``. Raise ``MalformedExpression`` for anything else."""
    if len(text) > MAX_CHARACTERS:
        raise MalformedExpression.at(text, 0, f"the expression has {len(text):,} characters, at most {MAX_CHARACTERS:,} are read")
    found: list[Lexeme] = []
    position = _skip(text, 0)
    while position < len(text):
        after_dot = bool(found) and found[-1].kind == "sign" and found[-1].value == "."
        lexeme = _next(text, position, after_dot=after_dot)
        found.append(lexeme)
        if len(found) > MAX_LEXEMES:
            raise MalformedExpression.at(text, position, f"the expression has more than {MAX_LEXEMES:,} words; split it up")
        position = _skip(text, lexeme.end)
    found.append(Lexeme("end", "", len(text), len(text)))
    return found


def _skip(text: str, position: int) -> int:
    space = _SPACE.match(text, position)
    return space.end() if space else position


def _next(text: str, position: int, *, after_dot: bool) -> Lexeme:
    if text[position] in "'\"":
        return _quoted(text, position)
    if after_dot and (key := _KEY.match(text, position)):
        return Lexeme("word", key[0], position, key.end())
    if number := _NUMBER.match(text, position):
        return _number(text, number)
    if word := _WORD.match(text, position):
        kind = "keyword" if word[0].lower() in KEYWORDS else "word"
        return Lexeme(kind, word[0].lower() if kind == "keyword" else word[0], position, word.end())
    if sign := _SIGN.match(text, position):
        return Lexeme("sign", sign[0], position, sign.end())
    raise MalformedExpression.at(text, position, f"{text[position]!r} has no meaning here")


def _number(text: str, found: re.Match[str]) -> Lexeme:
    is_whole = found[1] is None and found[2] is None
    # Count the digits first: int() of a long text takes quadratic time.
    if is_whole and (len(found[0]) > 19 or int(found[0]) > _INT_MAX):
        raise MalformedExpression.at(text, found.start(), "the number needs more than 64 bits")
    value = int(found[0]) if is_whole else float(found[0])
    if value == float("inf"):
        raise MalformedExpression.at(text, found.start(), "the number is too large")
    return Lexeme("number", value, found.start(), found.end())


def _quoted(text: str, start: int) -> Lexeme:
    """Read a quoted text. A quote inside is doubled, as in SQL, or follows a backslash."""
    quote, parts, position = text[start], list[str](), start + 1
    while position < len(text):
        sign = text[position]
        if sign == "\\":
            part, position = _escape(text, position)
        elif sign == quote and text[position + 1 : position + 2] != quote:
            return Lexeme("text", "".join(parts), start, position + 1)
        else:
            part, position = sign, position + (2 if sign == quote else 1)
        parts.append(part)
    raise MalformedExpression.at(text, start, "the text that begins here has no closing quote")


def _escape(text: str, position: int) -> tuple[str, int]:
    letter = text[position + 1 : position + 2]
    if letter in _ESCAPES and letter:
        return _ESCAPES[letter], position + 2
    digits = text[position + 2 : position + 6]
    if letter == "u" and re.fullmatch(r"[0-9a-fA-F]{4}", digits) and not 0xD800 <= int(digits, 16) <= 0xDFFF:
        return chr(int(digits, 16)), position + 6
    raise MalformedExpression.at(text, position, "there is no such escape; use \\n, \\t, \\\\, \\', \\\" or \\u and four digits")


MAX_DEPTH = 64
"""Each level takes a few frames of Python's stack, which has about a thousand."""

ROOTS = {
    "trigger": "what started the execution; `trigger.input` is its input",
    "variables": "the variables of the execution",
    "steps": "what each node gave: `steps.NAME.output`, `.status`",
    "loops": "where each loop stands: `loops.NAME.current_index`, `.current_item`, `.total_items`",
    "item": "the item of the innermost loop, instance or signal",
    "index": "the index of the innermost loop or instance, from 0",
    "state": "scoped state: `state.global.KEY`, `state.workspace.KEY`, `state.workflow.KEY`, `state.custom.NAMESPACE.KEY`",
    "context": "the context of the execution",
}
"""The names with which a path may begin."""


class LiteralExpression(msgspec.Struct, frozen=True):
    """A number, text, boolean or null."""

    value: Any
    start: int
    depth: int = 1


class ListExpression(msgspec.Struct, frozen=True):
    """A list of expressions."""

    items: tuple[Syntax, ...]
    start: int
    depth: int


class RootExpression(msgspec.Struct, frozen=True):
    """The first name of a path."""

    name: str
    start: int
    depth: int = 1


class AccessExpression(msgspec.Struct, frozen=True):
    """The keys, indexes and computed segments after the root of a path."""

    source: Syntax
    segments: tuple[str | int | Syntax, ...]
    start: int
    depth: int
    text: str
    """The source text, for messages."""


class UnaryExpression(msgspec.Struct, frozen=True):
    """``not`` or a sign before a value."""

    operator: str
    operand: Syntax
    start: int
    depth: int


class BinaryExpression(msgspec.Struct, frozen=True):
    """An operator between two values."""

    operator: str
    left: Syntax
    right: Syntax
    start: int
    depth: int


class JoinedExpression(msgspec.Struct, frozen=True):
    """Conditions joined by ``and`` or ``or``: one flat node, so that a long list is not deeply nested."""

    operator: str
    operands: tuple[Syntax, ...]
    start: int
    depth: int


class CallExpression(msgspec.Struct, frozen=True):
    """A function call with its arguments."""

    name: str
    arguments: tuple[Syntax, ...]
    start: int
    depth: int


Syntax = (
    LiteralExpression
    | ListExpression
    | RootExpression
    | AccessExpression
    | UnaryExpression
    | BinaryExpression
    | JoinedExpression
    | CallExpression
)

_SPELLINGS = {"=": "==", "<>": "!=", "&&": "and", "||": "or", "!": "not"}
_POWERS = {
    "or": 1,
    "and": 2,
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">=", "in", "contains", "is", "not", "exists"), 4),
    "??": 5,
    **dict.fromkeys(("+", "-"), 6),
    **dict.fromkeys(("*", "/", "%"), 7),
}
_NOT, _SIGNED = 3, 8
_WORDS = {"true": True, "false": False, "null": None, "none": None}


def parse_expression(text: str) -> Syntax:
    """Return the syntax tree of an expression. Raise ``MalformedExpression`` at the first fault."""
    parser = _Parser(text)
    tree = parser.expression(0)
    parser.finish()
    return tree


class _Parser:
    __slots__ = ("at", "depth", "lexemes", "text")

    def __init__(self, text: str) -> None:
        self.text, self.lexemes, self.at, self.depth = text, split(text), 0, 0

    @property
    def next(self) -> Lexeme:
        return self.lexemes[self.at]

    def take(self) -> Lexeme:
        lexeme = self.lexemes[self.at]
        self.at += 1
        return lexeme

    def is_next(self, *signs: str) -> bool:
        return self.next.kind in ("sign", "keyword") and self.next.value in signs

    def expect(self, sign: str) -> Lexeme:
        if not self.is_next(sign):
            self.fail(f"expected {sign!r} here")
        return self.take()

    def fail(self, reason: str, position: int | None = None) -> NoReturn:
        raise MalformedExpression.at(self.text, self.next.start if position is None else position, reason)

    def finish(self) -> None:
        if self.next.kind != "end":
            self.fail(f"expected an operator or the end here, not {self.text[self.next.start : self.next.end]!r}")

    def level(self, start: int, *parts: Syntax) -> int:
        """Return the depth of a node with these parts. Raise ``MalformedExpression`` if it exceeds the limit."""
        depth = 1 + max((part.depth for part in parts), default=0)
        if depth > MAX_DEPTH:
            self.fail(f"the expression is nested more than {MAX_DEPTH} deep; split it up", start)
        return depth

    def expression(self, power: int) -> Syntax:
        """Parse an expression up to the first operator that does not bind more tightly than ``power``."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.fail(f"the expression is nested more than {MAX_DEPTH} deep; split it up")
        left = self.prefix()
        while (operator := self.operator()) is not None and _POWERS[operator] > power:
            left = self.infix(left, operator)
        self.depth -= 1
        return left

    def operator(self) -> str | None:
        if self.next.kind not in ("sign", "keyword"):
            return None
        spelled = _SPELLINGS.get(str(self.next.value), str(self.next.value))
        return spelled if spelled in _POWERS else None

    def infix(self, left: Syntax, operator: str) -> Syntax:
        start = self.take().start
        if operator in ("and", "or"):
            return self.joined(left, operator, start)
        if operator == "??":
            right = self.expression(_POWERS[operator] - 1)
            return CallExpression("default", (left, right), start, self.level(start, left, right))
        if _POWERS[operator] == _POWERS["=="]:
            return self.comparison(left, operator, start)
        right = self.expression(_POWERS[operator])
        return BinaryExpression(operator, left, right, start, self.level(start, left, right))

    def joined(self, left: Syntax, operator: str, start: int) -> Syntax:
        operands = [left, self.expression(_POWERS[operator])]
        while self.operator() == operator:
            self.take()
            operands.append(self.expression(_POWERS[operator]))
        return JoinedExpression(operator, tuple(operands), start, self.level(start, *operands))

    def comparison(self, left: Syntax, operator: str, start: int) -> Syntax:
        compared = self.compare(left, operator, start)
        if self.operator() is not None and _POWERS[self.operator() or ""] == _POWERS["=="]:
            self.fail("comparisons cannot be chained; join them with 'and'")
        return compared

    def compare(self, left: Syntax, operator: str, start: int) -> Syntax:
        if operator == "exists":
            return CallExpression("exists", (left,), start, self.level(start, left))
        if operator == "is":
            return self.null_test(left, start)
        is_negated = operator == "not"
        if is_negated:
            operator = self.operator() or ""
            if operator not in ("in", "contains"):
                self.fail("expected 'in' or 'contains' after 'not'")
            self.take()
        right = self.alternatives() if operator == "in" and self.is_next("(") else self.expression(_POWERS["=="])
        found = BinaryExpression(operator, left, right, start, self.level(start, left, right))
        return UnaryExpression("not", found, start, self.level(start, found)) if is_negated else found

    def null_test(self, left: Syntax, start: int) -> Syntax:
        is_negated = self.is_next("not")
        if is_negated:
            self.take()
        if not self.is_next("null", "none"):
            self.fail("expected 'null' or 'not null' after 'is'")
        self.take()
        found = CallExpression("is_null", (left,), start, self.level(start, left))
        return UnaryExpression("not", found, start, self.level(start, found)) if is_negated else found

    def alternatives(self) -> Syntax:
        """Parse the right side of ``in``: ``(1, 2)`` is a list as in SQL, ``(path)`` is just a parenthesized path."""
        start = self.expect("(").start
        items = self.until(")")
        if len(items) == 1 and not isinstance(items[0], LiteralExpression):
            return items[0]
        return ListExpression(items, start, self.level(start, *items))

    def until(self, closing: str) -> tuple[Syntax, ...]:
        """Parse comma-separated expressions and the sign that ends them."""
        items: list[Syntax] = []
        while not self.is_next(closing):
            items.append(self.expression(0))
            if not self.is_next(","):
                break
            self.take()
        self.expect(closing)
        return tuple(items)

    def prefix(self) -> Syntax:
        start = self.next.start
        if self.is_next("not", "!"):
            self.take()
            operand = self.expression(_NOT)
            return UnaryExpression("not", operand, start, self.level(start, operand))
        if self.is_next("-", "+"):
            sign = str(self.take().value)
            operand = self.expression(_SIGNED)
            if isinstance(operand, LiteralExpression) and type(operand.value) in (int, float):
                return LiteralExpression(-operand.value if sign == "-" else operand.value, start)
            return UnaryExpression(sign, operand, start, self.level(start, operand))
        return self.postfix(self.primary())

    def primary(self) -> Syntax:
        lexeme = self.take()
        match lexeme.kind, lexeme.value:
            case (("number" | "text"), value):
                return LiteralExpression(value, lexeme.start)
            case "keyword", ("true" | "false" | "null" | "none") as word:
                return LiteralExpression(_WORDS[str(word)], lexeme.start)
            case "keyword", ("exists" | "contains") if self.is_next("("):
                return self.call(lexeme)
            case "word", _:
                return self.call(lexeme) if self.is_next("(") else self.root(lexeme)
            case "sign", "(":
                inner = self.expression(0)
                self.expect(")")
                return inner
            case "sign", "[":
                items = self.until("]")
                return ListExpression(items, lexeme.start, self.level(lexeme.start, *items))
            case "end", _:
                return self.fail("the expression ends where a value should stand", lexeme.start)
            case _:
                return self.fail(f"expected a value here, not {self.text[lexeme.start : lexeme.end]!r}", lexeme.start)

    def root(self, lexeme: Lexeme) -> RootExpression:
        name = str(lexeme.value)
        if name in ROOTS:
            return RootExpression(name, lexeme.start)
        hint = suggest(name, ROOTS)
        if "-" in name and name.split("-", maxsplit=1)[0] in ROOTS:
            hint = "; for a subtraction write spaces around the minus sign"
        elif not hint:
            hint = f"; a variable is written variables.{name}, a text '{name}'"
        return self.fail(f"unknown name {name!r}; a path begins with {', '.join(ROOTS)}{hint}", lexeme.start)

    def call(self, lexeme: Lexeme, *first: Syntax) -> CallExpression:
        """Parse a call with its arguments in parentheses, which are optional after a pipe."""
        name = str(lexeme.value).lower()
        if name not in FUNCTIONS:
            self.fail(f"there is no function {str(lexeme.value)!r}{suggest(name, FUNCTIONS)}", lexeme.start)
        arguments = first
        if self.is_next("("):
            self.take()
            arguments += self.until(")")
        if fault := arity_fault(name, len(arguments)):
            self.fail(fault, lexeme.start)
        return CallExpression(name, arguments, lexeme.start, self.level(lexeme.start, *arguments))

    def postfix(self, value: Syntax) -> Syntax:
        segments: list[str | int | Syntax] = []
        source = value
        while self.is_next(".", "[", "|"):
            sign = self.take()
            if sign.value == "|":
                value = source = self.call(self.filter_name(), value)
                segments = []
                continue
            segments.append(self.key() if sign.value == "." else self.index())
            inner = [part for part in segments if not isinstance(part, str | int)]
            written = self.text[value.start : self.lexemes[self.at - 1].end]
            value = AccessExpression(source, tuple(segments), source.start, self.level(sign.start, source, *inner), written)
        return value

    def filter_name(self) -> Lexeme:
        if self.next.kind not in ("word", "keyword"):
            self.fail("expected the name of a function after '|'")
        return self.take()

    def key(self) -> str:
        if self.next.kind not in ("word", "text"):
            self.fail("expected a key after '.'; put quotes around one with odd characters")
        return str(self.take().value)

    def index(self) -> str | int | Syntax:
        inner = self.expression(0)
        self.expect("]")
        if isinstance(inner, LiteralExpression):
            if type(inner.value) in (str, int):
                return inner.value
            self.fail("an index is a whole number or a text", inner.start)
        return inner

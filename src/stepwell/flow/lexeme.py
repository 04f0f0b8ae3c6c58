"""The words and signs of an expression. (A token is something else here: where an execution stands.)"""

from __future__ import annotations

import re
from typing import NamedTuple

from stepwell.flow.failure import MalformedExpression

__all__ = ["KEYWORDS", "MAX_CHARACTERS", "MAX_LEXEMES", "Lexeme", "split"]

MAX_CHARACTERS = 10_000
MAX_LEXEMES = 2_000
"""Longer expressions are programs, and belong in a step."""

KEYWORDS = frozenset({"and", "or", "not", "in", "contains", "is", "null", "none", "true", "false", "exists"})
"""Words of the language, in any case: ``AND`` and ``and`` are the same."""

_INT_MAX = 2**63 - 1
_SPACE = re.compile(r"\s*")
_NUMBER = re.compile(r"\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
# A hyphen between word characters belongs to the word: `steps.my-step` is a path. A minus sign needs a space before or after it.
_WORD = re.compile(r"[^\W\d]\w*(?:-\w+)*")
_KEY = re.compile(r"\w+(?:-\w+)*")
_SIGN = re.compile(r"\?\?|==|!=|<>|<=|>=|&&|\|\||[=<>+\-*/%()\[\],.|!]")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "/": "/", "0": "\0"}


class Lexeme(NamedTuple):
    """One word, sign, number or text, and where it stands."""

    kind: str
    """``word``, ``keyword``, ``sign``, ``number``, ``text`` or ``end``."""
    value: str | int | float
    start: int
    end: int


def split(text: str) -> list[Lexeme]:
    """The lexemes of an expression, the last of kind ``end``; ``MalformedExpression`` for what is none."""
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
    # Digits are counted first: turning a very long text into an int takes time that grows with its square.
    if is_whole and (len(found[0]) > 19 or int(found[0]) > _INT_MAX):
        raise MalformedExpression.at(text, found.start(), "the number needs more than 64 bits")
    value = int(found[0]) if is_whole else float(found[0])
    if value == float("inf"):
        raise MalformedExpression.at(text, found.start(), "the number is too large")
    return Lexeme("number", value, found.start(), found.end())


def _quoted(text: str, start: int) -> Lexeme:
    """A text between quotes. A quote in it is doubled, as in SQL, or has a backslash before it."""
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

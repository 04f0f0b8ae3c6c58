"""Names and arguments of the built-in steps. The runtime executes them."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["BUILTINS", "PREFIX", "Builtin", "builtin_of", "fault_of_max_bytes"]

PREFIX = "stepwell."
"""The prefix of built-in step names, so that no user's step can have the same name."""


class Builtin(NamedTuple):
    """The arguments of a built-in step: an object with these keys, or a single value."""

    name: str
    duty: str
    required: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    takes_value: bool = False
    """Whether it accepts any value, so that no keys are checked."""
    main: str = ""
    """The key that a plain text argument stands for."""
    has_output: bool = True
    """Whether the next node should get its output."""

    @property
    def uses(self) -> str:
        """The name by which a step node refers to it."""
        return PREFIX + self.name


BUILTINS = {
    builtin.name: builtin
    for builtin in (
        Builtin("set_variables", "give variables the values under their names", takes_value=True, has_output=False),
        Builtin("map_data", "give the value, with its templates filled, as the output", takes_value=True),
        Builtin(
            "log",
            "write a message to the execution's log",
            required=frozenset({"message"}),
            optional=frozenset({"level", "data"}),
            main="message",
            has_output=False,
        ),
        Builtin(
            "throw",
            "fail with a message and, if given, a kind of error",
            required=frozenset({"message"}),
            optional=frozenset({"kind", "is_retryable", "data"}),
            main="message",
            has_output=False,
        ),
        Builtin("validate", "fail unless the value fits the JSON Schema; give the value", required=frozenset({"value", "schema"})),
        Builtin(
            "http_request",
            "call a server and give status, headers and body",
            required=frozenset({"url"}),
            optional=frozenset({"method", "headers", "secret_headers", "query", "json", "body", "expect", "max_bytes"}),
            main="url",
        ),
        Builtin(
            "cancel_scope",
            "cancel the scope of this name; give `cancelled`, `not_begun` or `ended`",
            required=frozenset({"scope"}),
            main="scope",
            has_output=False,
        ),
    )
}
"""Built-in steps by their keyword in documents."""


def fault_of_max_bytes(most: object) -> str | None:
    """Return why ``http_request`` does not take a ``max_bytes``; None if it does."""
    if type(most) is int and 1 <= most <= 100_000_000:
        return None
    return f"max_bytes is a whole number from 1 to 100,000,000, not {most!r}"


def builtin_of(uses: str) -> Builtin | None:
    """Return the built-in step of this name, or None."""
    return BUILTINS.get(uses.removeprefix(PREFIX)) if uses.startswith(PREFIX) else None

"""The built-in steps: their names and what they take. Carrying them out is the runtime's work."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["BUILTINS", "PREFIX", "Builtin", "builtin_of"]

PREFIX = "stepwell."
"""In front of the name of each built-in step, so that no step of a user has the same."""


class Builtin(NamedTuple):
    """What a built-in step takes: a mapping with these keys, or one value alone."""

    name: str
    duty: str
    required: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    takes_value: bool = False
    """Whether it takes any value; then there are no keys to check."""
    main: str = ""
    """The key that a text alone stands for."""
    has_output: bool = True
    """Whether the output is of use to the node after it."""

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
"""By the word that stands for each in a document."""


def builtin_of(uses: str) -> Builtin | None:
    """The built-in step that a step node uses, if it is one."""
    return BUILTINS.get(uses.removeprefix(PREFIX)) if uses.startswith(PREFIX) else None

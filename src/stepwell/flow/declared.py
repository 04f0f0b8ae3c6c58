"""Run a declared workflow wherever a workflow function can run."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from stepwell.errors import InvalidInput
from stepwell.flow.definition.node import Definition
from stepwell.flow.function import Workflow, caller
from stepwell.flow.json_schema import check_schema
from stepwell.model.limits import Limits
from stepwell.model.value import DEFAULT_LIMITS, Value, canonical, decode

__all__ = ["DeclaredWorkflow"]


class DeclaredWorkflow(Workflow[..., Any]):
    """A ``Workflow`` made of a definition. It has one input, which ``input_schema`` validates, and one result."""

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self.name, self.version = definition.name, definition.version
        self.timeout_seconds, self.governance = definition.timeout_seconds, definition.governance
        self.grants, self.secrets = definition.grants, ()
        self.is_async = True
        self.function = self._refuse

    def _refuse(self, *_arguments: Any, **_keywords: Any) -> Any:
        raise InvalidInput(f"workflow {self.name!r} is a definition and no function; start it with well.start(...)")

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        inside = caller.get()
        return self._refuse() if inside is None else inside.call_workflow(self, self.value_of(arguments, keywords))

    @property
    def takes_input(self) -> bool:
        """True: it may have an input, as ``trigger.input``."""
        return True

    def value_of(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Value:
        """Return the input of a call as one value. ``encode_input`` refuses what is none: no annotation says how to read it."""
        return keywords or (arguments[0] if arguments else None)

    def input_of(self, value: object) -> Value:
        """Return the input to start with; ``UNSET`` becomes None."""
        return None if value is UNSET else value

    def encode_input(self, value: object, limits: Limits = DEFAULT_LIMITS) -> bytes:
        """Return an input as canonical bytes. Raise ``InvalidInput`` if it does not match the schema."""
        data = canonical(value, limits, what=f"the input of workflow {self.name!r}")
        if self.definition.input_schema is not None:
            check_schema(decode(data), self.definition.input_schema)
        return data

    def bind(self, value: Value) -> dict[str, Any]:
        """Return the input under the name ``input``, since a definition has no parameters."""
        return {"input": value}

    def encode(self, result: object, limits: Limits = DEFAULT_LIMITS) -> bytes:
        """Return the result as canonical bytes."""
        return canonical(result, limits)

    def decode(self, data: bytes) -> Any:
        """Return the result from its canonical bytes."""
        return decode(data)

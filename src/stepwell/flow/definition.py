"""A definition: a workflow's name, version, nodes and defaults, as one frozen value."""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec import UNSET, UnsetType

from stepwell.duration import Seconds
from stepwell.flow.node import Node, Positive, Templated
from stepwell.flow.retry import Retry
from stepwell.model.value import Value

__all__ = ["Definition", "DefinitionStatus"]


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

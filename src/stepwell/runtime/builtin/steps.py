"""Built-in steps that reach outside, as steps. Those that need nothing from outside are the kernel's own work."""

from __future__ import annotations

from typing import Any

from stepwell.flow.builtin import BUILTINS
from stepwell.flow.program import Step

__all__ = ["builtin_step"]

_steps: dict[str, Step[..., Any]] = {}


def builtin_step(uses: str) -> Step[..., Any] | None:
    """The built-in step of a name, if it is one."""
    if uses == BUILTINS["http_request"].uses and uses not in _steps:
        from stepwell.runtime.builtin.http_step import http_step  # not needed by workflows that make no requests

        _steps[uses] = http_step
    return _steps.get(uses)

"""Built-in steps that reach outside, as steps. Those that need nothing from outside are the kernel's own work."""

from __future__ import annotations

from typing import Any

from stepwell.flow.definition.builtin_steps import BUILTINS
from stepwell.flow.function import Step

__all__ = ["builtin_step"]


def builtin_step(uses: str, seconds: float | None) -> Step[..., Any] | None:
    """The built-in step of a name, if it is one, for as long as it may take."""
    if uses != BUILTINS["http_request"].uses:
        return None
    from stepwell.runtime.builtin.http_step import http_step  # not needed by workflows that make no requests

    return http_step(seconds)

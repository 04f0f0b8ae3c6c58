"""Engines for scripts, by language. None comes with Stepwell itself: whoever installs one says so here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from stepwell.errors import NoScriptEngine
from stepwell.flow.function import Step
from stepwell.flow.retry import Retry
from stepwell.kernel.protocol import RunStep
from stepwell.model.value import Value

__all__ = ["ScriptEngine", "install_engine", "run_script"]

ScriptEngine = Callable[[str, Value], Awaitable[Value]]
"""Runs a piece of code with an input and gives its output."""

_engines: dict[str, ScriptEngine] = {}


def install_engine(language: str, engine: ScriptEngine | None) -> None:
    """Have scripts of a language run by an engine; None takes it away."""
    if engine is None:
        _engines.pop(language, None)
    else:
        _engines[language] = engine


def run_script(asked: RunStep) -> Step[..., Any]:
    """A script as a step; without an engine for its language, one that fails and says so."""

    async def script(value: Any) -> Any:
        engine = _engines.get(asked.language)
        if engine is None:
            raise NoScriptEngine(f"no script engine is installed for {asked.language!r}")
        return await engine(asked.code, value)

    return Step(script, f"script:{asked.language}", Retry(attempts=1), None, effect="script")

"""Stepwell and AsyncStepwell: the doors to everything, and the place where its parts are put together."""

from stepwell.app.awaited import AsyncExecutionIndex, AsyncStepwell
from stepwell.app.blocking import ExecutionIndex, Stepwell
from stepwell.app.parts import ExecutionSummary, Health

__all__ = ["AsyncExecutionIndex", "AsyncStepwell", "ExecutionIndex", "ExecutionSummary", "Health", "Stepwell"]

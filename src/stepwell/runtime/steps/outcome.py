"""Recorded outcomes of calls: encode results and errors for the record, and decode them again for the code."""

from __future__ import annotations

from typing import Any, cast

from stepwell.errors import ExecutionCancelled, ExecutionFailed, GovernanceViolated, NotFound, StepFailed, StepwellError
from stepwell.flow.function import Workflow
from stepwell.flow.retry import RetryAfter, classify, error_text
from stepwell.model.record import StepOutput, not_undone
from stepwell.model.status import StepStatus
from stepwell.model.value import recode
from stepwell.runtime.steps.user_traceback import Told, user_traceback

__all__ = ["Told", "child_result", "child_status", "error_names", "error_value", "step_output", "was_given_up"]


def step_output(step: StepOutput, name: str, key: str) -> bytes:
    """Return a recorded output. Raise a recorded failure as it was raised the first time."""
    if step.status in (StepStatus.FAILED, StepStatus.CANCELLED):
        error = step.output["error"]
        if error.get("code") == GovernanceViolated.code:
            # Records of earlier releases have the code in the message.
            raise GovernanceViolated(error["message"].removesuffix(f" [{GovernanceViolated.code}]"), key=key)
        raise StepFailed(name, error["kind"], error["message"], key, error.get("class", ""), is_retryable=error.get("is_retryable"))
    return recode(step.output)


def was_given_up(step: StepOutput) -> bool:
    """Return whether the workflow's own code cancelled this call, as a task group does with the others when one fails."""
    return step.status == StepStatus.CANCELLED and step.output is None


def child_status(news: Any) -> StepStatus:
    """Return the status of a child's call, from the child's message."""
    match news:
        case {"status": "COMPLETED"}:
            return StepStatus.COMPLETED
        case {"status": "CANCELLED"}:
            return StepStatus.CANCELLED
        case _:
            return StepStatus.FAILED


def child_result(workflow: Workflow[..., Any], child_id: str, news: Any, key: str = "") -> Any:
    """Return the result of a child from its message to the parent."""
    match news:
        case {"status": "COMPLETED", "result": {"output": output}}:
            return workflow.decode(recode(output))
        case {"status": "CANCELLED"}:
            raise ExecutionCancelled(f"child execution {child_id!r} was cancelled{not_undone(news.get('result'))}")
        case {"result": {"error": {"message": message}} as result}:
            raise ExecutionFailed(f"child execution {child_id!r} failed: {message}{not_undone(result)}", key=key, child_id=child_id)
        case _:
            raise NotFound(f"child execution {child_id!r} left no result")


def error_value(error: BaseException) -> dict[str, Any]:
    """Return an error as it is recorded: kind, message, code and class, what to do, traceback, and its step or child."""
    if isinstance(error, Told):
        return error.told
    code = error.code if isinstance(error, StepwellError) else None
    found = classify(error)
    value: dict[str, Any] = {
        "kind": type(error).__name__,
        # A message may be invalid text: half a surrogate pair could not be recorded.
        "message": error_text(error)[:10_000].encode("utf-8", "replace").decode(),
        "code": code,
        "class": str(found.error_class),
        "is_retryable": found.is_retryable,
        "suggestion": found.suggestion,
    }
    if isinstance(error, RetryAfter):
        value["retry_after_ms"] = round(error.seconds * 1000)
    if error.__traceback__ is not None and (traceback := user_traceback(error)) is not None:
        value["traceback"] = traceback
    culprit = _culprit(error)
    if culprit is None:
        return value
    child_id = culprit.child_id if isinstance(culprit, ExecutionFailed) else None
    return {**value, "step": culprit.key} if child_id is None else {**value, "step": culprit.key, "child_id": child_id}


def error_names(error: BaseException) -> list[str]:
    """Return all names by which a policy may name an error: its classes, its code, its error class."""
    if isinstance(error, Told):
        return error.names
    code = [error.code] if isinstance(error, StepwellError) else []
    return [*(kind.__name__ for kind in type(error).__mro__), *code, str(classify(error).error_class)]


def _culprit(error: BaseException) -> StepFailed | ExecutionFailed | GovernanceViolated | None:
    """Return the failed call that an error comes from; of several that failed together, the first."""
    if isinstance(error, StepFailed | ExecutionFailed | GovernanceViolated):
        return error if error.key else None
    if isinstance(error, BaseExceptionGroup):
        inside = (_culprit(each) for each in cast("BaseExceptionGroup[BaseException]", error).exceptions)
        return next((each for each in inside if each is not None), None)
    return None

"""Recorded outcomes of calls: encode results and errors for the record, and decode them again for the code."""

from __future__ import annotations

from typing import Any, cast

from stepwell.errors import ExecutionCancelled, ExecutionFailed, GovernanceViolated, NotFound, StepFailed, StepwellError
from stepwell.flow.function import Workflow
from stepwell.flow.retry import classify
from stepwell.model.record import StepOutput
from stepwell.model.status import StepStatus
from stepwell.model.value import recode

__all__ = ["Told", "child_result", "child_status", "error_names", "error_value", "step_output"]


def step_output(step: StepOutput, name: str, key: str) -> bytes:
    """A recorded output; a recorded failure is raised as it was the first time."""
    if step.status == StepStatus.FAILED:
        error = step.output["error"]
        if error.get("code") == GovernanceViolated.code:
            # Records of before had the code in the message.
            raise GovernanceViolated(error["message"].removesuffix(f" [{GovernanceViolated.code}]"), key=key)
        raise StepFailed(name, error["kind"], error["message"], key, error.get("class", ""))
    return recode(step.output)


def child_status(news: Any) -> StepStatus:
    """How the call of a child ended, by what the child told."""
    match news:
        case {"status": "COMPLETED"}:
            return StepStatus.COMPLETED
        case {"status": "CANCELLED"}:
            return StepStatus.CANCELLED
        case _:
            return StepStatus.FAILED


def child_result(workflow: Workflow[..., Any], child_id: str, news: Any, key: str = "") -> Any:
    """The result of a child from what it told its parent."""
    match news:
        case {"status": "COMPLETED", "result": {"output": output}}:
            return workflow.decode(recode(output))
        case {"status": "CANCELLED"}:
            raise ExecutionCancelled(f"child execution {child_id!r} was cancelled")
        case {"result": {"error": {"message": message}}}:
            raise ExecutionFailed(f"child execution {child_id!r} failed: {message}", key=key, child_id=child_id)
        case _:
            raise NotFound(f"child execution {child_id!r} left no result")


class Told(Exception):
    """An error that stands for another one, which was raised elsewhere and told."""

    def __init__(self, message: str, told: dict[str, Any], names: list[str]) -> None:
        super().__init__(message)
        self.told, self.names = told, names
        """What ``error_value`` and ``error_names`` made of it there."""


def error_value(error: BaseException) -> dict[str, Any]:
    """An error as it is recorded: kind, message, code and class, what to do, and the step or child that it comes from."""
    if isinstance(error, Told):
        return error.told
    code = error.code if isinstance(error, StepwellError) else None
    found = classify(error)
    value = {
        "kind": type(error).__name__,
        # It comes from anywhere, and may hold what is no text: half a surrogate pair could not be recorded.
        "message": _message(error)[:10_000].encode("utf-8", "replace").decode(),
        "code": code,
        "class": str(found.error_class),
        "is_retryable": found.is_retryable,
        "suggestion": found.suggestion,
    }
    culprit = _culprit(error)
    if culprit is None:
        return value
    child_id = culprit.child_id if isinstance(culprit, ExecutionFailed) else None
    return {**value, "step": culprit.key} if child_id is None else {**value, "step": culprit.key, "child_id": child_id}


def _message(error: BaseException) -> str:
    """What an error says, without its code, which is kept beside it: in the message of another error it would stand beside that
    one's. A group says what is in it."""
    if isinstance(error, StepwellError):
        return error.message
    if not isinstance(error, BaseExceptionGroup):
        try:
            return str(error)
        except Exception:  # noqa: BLE001 - of the user's own class: nothing is known of it but that it failed
            return "what it says cannot be shown"
    inside = cast("BaseExceptionGroup[BaseException]", error).exceptions
    return f"{error.message}: " + "; ".join(f"{type(each).__name__}: {_message(each)}" for each in inside)


def error_names(error: BaseException) -> list[str]:
    """All names that a policy may know an error by: its classes, its code, its error class."""
    if isinstance(error, Told):
        return error.names
    code = [error.code] if isinstance(error, StepwellError) else []
    return [*(kind.__name__ for kind in type(error).__mro__), *code, str(classify(error).error_class)]


def _culprit(error: BaseException) -> StepFailed | ExecutionFailed | GovernanceViolated | None:
    """The failed call that an error comes from; of several that failed together, the first."""
    if isinstance(error, StepFailed | ExecutionFailed | GovernanceViolated):
        return error if error.key else None
    if isinstance(error, BaseExceptionGroup):
        inside = (_culprit(each) for each in cast("BaseExceptionGroup[BaseException]", error).exceptions)
        return next((each for each in inside if each is not None), None)
    return None

"""Hints for names that users of other systems guess: which name of Stepwell is meant."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

__all__ = ["ATTRIBUTES", "CALLS", "ID_NAMES", "MODULE", "RECORDS", "WELL", "hint", "hinted", "missing_attribute", "with_hint"]

F = TypeVar("F", bound=Callable[..., Any])

MODULE: Mapping[str, str] = {
    "DBOS": "stepwell.Stepwell",
    "RetryPolicy": "stepwell.Retry",
    "activity": "stepwell.step",
    "activity_method": "stepwell.step",
    "continue_as_new": "a child workflow, or a loop of a declared workflow",
    "execute_activity": "a call of the step itself: await charge(order)",
    "execute_child_workflow": "a call of the workflow itself: await checkout(order)",
    "gather": "stepwell.map",
    "get_version": "stepwell.patched",
    "human_input": "stepwell.wait_approval",
    "interrupt": "stepwell.wait_approval or stepwell.wait_signal",
    "job": "stepwell.step",
    "recv": "stepwell.wait_signal",
    "retry": "stepwell.Retry, as in @step(retry=Retry(attempts=3))",
    "saga": "stepwell.compensate",
    "send": "run.signal(name, value)",
    "shared_task": "stepwell.step",
    "signal": "run.signal(name, value), and stepwell.wait_signal inside a workflow",
    "start_workflow": "well.start",
    "task": "stepwell.step",
    "wait_condition": "stepwell.wait_signal",
    "wait_for_approval": "stepwell.wait_approval",
    "wait_for_event": "stepwell.wait_signal",
    "wait_for_signal": "stepwell.wait_signal",
}
"""For attributes of the package."""

KEYWORDS: Mapping[str, str] = {
    "backoff": "factor",
    "backoff_coefficient": "factor",
    "backoff_rate": "factor",
    "database_url": "url",
    "db_url": "url",
    "delay": "first_seconds",
    "dsn": "url",
    "id": "execution_id",
    "initial_interval": "first_seconds",
    "interval_seconds": "first_seconds",
    "max_attempts": "attempts",
    "max_delay": "max_seconds",
    "max_retries": "retry=Retry(attempts=...)",
    "max_workers": "concurrency",
    "maximum_attempts": "attempts",
    "maximum_interval": "max_seconds",
    "non_retryable_error_types": "non_retryable",
    "retries": "retry=Retry(attempts=...)",
    "retry_policy": "retry",
    "run_id": "execution_id",
    "start_to_close_timeout": "timeout_seconds",
    "stop_max_attempt_number": "attempts",
    "tenant": "workspace",
    "time_limit": "timeout_seconds",
    "timeout": "timeout_seconds",
    "timeout_seconds": "timeout",
    "workflow_id": "execution_id",
}

ID_NAMES = ("execution_id", "item_id", "workspace_id", "token_id", "endpoint_id", "conversation_id")
"""Names of id fields. ``id`` means the first of them that a record has."""

ATTRIBUTES: Mapping[str, str] = {
    "abort": "cancel",
    "error": "result() raises it, and steps() lists it",
    "get": "result",
    "get_result": "result",
    "get_status": "status",
    "join": "result",
    "run_id": "execution_id",
    "send": "signal",
    "send_signal": "signal",
    "state_history": "history",
    "terminate": "cancel",
    "wait": "result",
    "wait_for_result": "result",
    "workflow_id": "execution_id",
}
"""For attributes of a run."""

WELL: Mapping[str, str] = {
    "cancel": "run(execution_id).cancel()",
    "cancel_workflow": "run(execution_id).cancel()",
    "execute_workflow": "start",
    "executions_list": "executions.list()",
    "get": "run",
    "get_handle": "run",
    "get_run": "run",
    "get_workflow": "run",
    "get_workflow_handle": "run",
    "launch": "the well itself in a with block; worker=True runs workflows",
    "list": "executions.list()",
    "list_runs": "executions.list()",
    "list_workflows": "executions.list()",
    "query": "run(execution_id).progress(), or its state()",
    "register": "@workflow and @step, which register a function when its module is imported",
    "resume": "run(execution_id).retry()",
    "retrieve_workflow": "run",
    "retry": "run(execution_id).retry()",
    "run_workflow": "start",
    "runs": "executions.list()",
    "schedule": "schedules.put",
    "send": "run(execution_id).signal(name, value)",
    "signal": "run(execution_id).signal(name, value)",
    "signal_workflow": "run(execution_id).signal(name, value)",
    "start_workflow": "start",
    "status": "run(execution_id).status()",
    "submit": "start or enqueue",
    "tenants": "workspaces",
    "workflows": "definitions, or executions.list()",
}
"""For attributes of a well."""

CALLS: Mapping[str, str] = {
    "apply_async": "well.start or well.enqueue, with the workflow as the first argument",
    "defer": "well.start or well.enqueue, with the workflow as the first argument",
    "delay": "well.start or well.enqueue, with the workflow as the first argument",
    "enqueue": "well.enqueue, with the workflow as the first argument",
    "execute": "well.start, with the workflow as the first argument",
    "map": "stepwell.map, with the step or workflow as the first argument",
    "options": "with_key and with_summary, or the arguments of @step",
    "run": "well.start, with the workflow as the first argument",
    "send": "well.start or well.enqueue, with the workflow as the first argument",
    "start": "well.start, with the workflow as the first argument",
    "submit": "well.start, with the workflow as the first argument; inside of a workflow, a call or stepwell.map",
    "with_options": "with_key and with_summary, or the arguments of @step",
}
"""For attributes of a step or a workflow."""

RECORDS: Mapping[str, str] = {"run_id": "execution_id"}
"""For attributes of a record."""

_UNEXPECTED = re.compile(r"(?:[Uu]nexpected keyword argument|Unexpected keyword argument) '(\w+)'")


def hint(name: str, known: Iterable[str], guesses: Mapping[str, str]) -> str:
    """Return ``; did you mean x?`` for a guessed or misspelt name, or an empty text."""
    found = guesses.get(name)
    if found is None:
        from difflib import get_close_matches  # only errors need it, and importing it takes milliseconds

        near = get_close_matches(name[:100], list(known), n=1)
        found = near[0] if near else None
    return "" if found is None else f"; did you mean {found}?"


def missing_attribute(thing: object, name: str, guesses: Mapping[str, str]) -> AttributeError:
    """Return the error for an attribute that a thing does not have."""
    message = f"{type(thing).__name__!r} object has no attribute {name!r}"
    if name.startswith("_"):  # tools ask for these, not people who guess
        return AttributeError(message, name=name, obj=thing)
    known = [each for each in dir(thing) if not each.startswith("_")]
    own = next((each for each in ID_NAMES if each in known), None)
    fitting = {guess: right for guess, right in guesses.items() if right in known or not right.isidentifier()}
    told = {"id": own} if name == "id" and own is not None else fitting
    return AttributeError(f"{message}{hint(name, known, told)}", name=name, obj=thing)


def hinted(function: F) -> F:
    """Add a hint to the ``TypeError`` of a call with a keyword that the function does not have."""

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        try:
            return function(*arguments, **keywords)
        except TypeError as error:
            tb = error.__traceback__
            if tb is not None and tb.tb_next is not None:
                raise  # the call was made, and something in it failed
            raise with_hint(error, function) from None

    return cast("F", call)


def with_hint(error: TypeError, function: Callable[..., Any]) -> TypeError:
    """Return the error of a call with a hint for the keyword that it names, if there is one."""
    import inspect

    found = _UNEXPECTED.search(str(error))
    if found is None:
        return error
    known = [each for each in inspect.signature(function).parameters if each != "self"]
    fitting = {guess: right for guess, right in KEYWORDS.items() if right.partition("=")[0] in known and guess not in known}
    text = str(error).partition(". Did you mean")[
        0
    ]  # Python 3.13 suggests a name of its own, without knowing those of other systems
    return TypeError(f"{text}{hint(found[1], known, fitting)}")

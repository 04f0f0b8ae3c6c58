"""Names on the Temporal server: task queues, activities and signals. Workflow ids are ``external_engines.engine_id``."""

from __future__ import annotations

import json
from hashlib import sha256

from stepwell.kernel.protocol import RunPlace
from stepwell.model.external_engines import WORKFLOWS_QUEUE
from stepwell.queue.requests import workspace_queue

__all__ = [
    "EXTERNAL_API_QUEUE",
    "WORKSPACE_ATTRIBUTE",
    "Activity",
    "SignalName",
    "fairness_key",
    "short_summary",
    "step_queue",
    "task_queue",
]

EXTERNAL_API_QUEUE = "activities.external-api"
"""The task queue of ``http_request`` steps, so that calls of services outside get workers and rates of their own."""

WORKSPACE_ATTRIBUTE = "StepwellWorkspace"
"""The search attribute (Keyword) by which an operator lists the workflows of a workspace."""

_MOST_FAIRNESS_BYTES = 64
_MOST_SUMMARY_BYTES = 380
"""Temporal allows 400, of the payload's JSON."""


class Activity:
    """The activities that are not a user's step. No step has a name that begins so."""

    BEGIN = "stepwell.begin"
    COMMIT = "stepwell.commit"
    INBOX = "stepwell.inbox"
    LEAVE_MESSAGES = "stepwell.leave_messages"
    KEEP = "stepwell.keep"
    READ_STATE = "stepwell.read_state"
    START_CHILD = "stepwell.start_child"
    RUN_FUNCTION = "stepwell.run_function"


class SignalName:
    """The signals that Stepwell sends; any other name is a signal of the user's own, sent with Temporal's tools."""

    LOOK = "stepwell.look"


def task_queue(workspace: str, queue: str) -> str:
    """Return the task queue for an item: the workspace's own if it was enqueued there, else the one of all workspaces."""
    own = workspace_queue(workspace)
    return own if queue == own else WORKFLOWS_QUEUE


def step_queue(place: RunPlace, workflow_queue: str) -> str:
    """Return the task queue of a step of a workflow."""
    return EXTERNAL_API_QUEUE if place == "external-api" else workflow_queue


def fairness_key(workspace: str) -> str:
    """Return the key by which Temporal shares workers between workspaces, in its 64 bytes."""
    return workspace if len(workspace.encode()) <= _MOST_FAIRNESS_BYTES else sha256(workspace.encode()).hexdigest()


def short_summary(text: str) -> str:
    """Return the beginning of a text that the server takes as a summary."""
    while len(json.dumps(text)) > _MOST_SUMMARY_BYTES:
        text = text[: len(text) * 3 // 4]
    return text

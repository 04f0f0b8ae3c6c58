# Generated from app/awaited/__init__.py by `make blocking`. Do not edit: change that module and generate again.
"""The public classes for programs that await: `Stepwell` and the objects that it returns.

Each is fetched from its module on first use: a program that imports `Stepwell` alone does not load the others yet.
"""

from typing import TYPE_CHECKING

from stepwell.lazy_import import fetching

if TYPE_CHECKING:
    from stepwell.app.blocking.access import Access
    from stepwell.app.blocking.conversations import Conversations
    from stepwell.app.blocking.errors import Errors
    from stepwell.app.blocking.locks import Lock, Locks
    from stepwell.app.blocking.queue import Queue, QueueItem, Schedules, Workspaces
    from stepwell.app.blocking.requests import Requests
    from stepwell.app.blocking.retention import Retention
    from stepwell.app.blocking.runs import Definitions, Run
    from stepwell.app.blocking.state import CachedState, ScopedState, State, StateTransaction, Transaction
    from stepwell.app.blocking.usage import UsageMeter
    from stepwell.app.blocking.webhooks import Webhooks
    from stepwell.app.blocking.well import ExecutionIndex, Stepwell

__all__ = [
    "Access",
    "CachedState",
    "Conversations",
    "Definitions",
    "Errors",
    "ExecutionIndex",
    "Lock",
    "Locks",
    "Queue",
    "QueueItem",
    "Requests",
    "Retention",
    "Run",
    "Schedules",
    "ScopedState",
    "State",
    "StateTransaction",
    "Stepwell",
    "Transaction",
    "UsageMeter",
    "Webhooks",
    "Workspaces",
]

_HOMES = {
    "access": ("Access",),
    "conversations": ("Conversations",),
    "errors": ("Errors",),
    "locks": ("Lock", "Locks"),
    "queue": ("Queue", "QueueItem", "Schedules", "Workspaces"),
    "requests": ("Requests",),
    "retention": ("Retention",),
    "runs": ("Definitions", "Run"),
    "state": ("CachedState", "ScopedState", "State", "StateTransaction", "Transaction"),
    "usage": ("UsageMeter",),
    "webhooks": ("Webhooks",),
    "well": ("ExecutionIndex", "Stepwell"),
}

__getattr__ = fetching(__name__, _HOMES)

"""The public classes for programs that await: `AsyncStepwell` and the objects that it returns.

Each is fetched from its module on first use: a program that imports `AsyncStepwell` alone does not load the others yet.
"""

from typing import TYPE_CHECKING

from stepwell.lazy_import import fetching

if TYPE_CHECKING:
    from stepwell.app.awaited.access import AsyncAccess
    from stepwell.app.awaited.conversations import AsyncConversations
    from stepwell.app.awaited.errors import AsyncErrors
    from stepwell.app.awaited.locks import AsyncLock, AsyncLocks
    from stepwell.app.awaited.queue import AsyncQueue, AsyncQueueItem, AsyncSchedules, AsyncWorkspaces
    from stepwell.app.awaited.requests import AsyncRequests
    from stepwell.app.awaited.retention import AsyncRetention
    from stepwell.app.awaited.runs import AsyncDefinitions, AsyncRun
    from stepwell.app.awaited.state import AsyncCachedState, AsyncScopedState, AsyncState, AsyncStateTransaction, AsyncTransaction
    from stepwell.app.awaited.usage import AsyncUsageMeter
    from stepwell.app.awaited.webhooks import AsyncWebhooks
    from stepwell.app.awaited.well import AsyncExecutionIndex, AsyncStepwell

__all__ = [
    "AsyncAccess",
    "AsyncCachedState",
    "AsyncConversations",
    "AsyncDefinitions",
    "AsyncErrors",
    "AsyncExecutionIndex",
    "AsyncLock",
    "AsyncLocks",
    "AsyncQueue",
    "AsyncQueueItem",
    "AsyncRequests",
    "AsyncRetention",
    "AsyncRun",
    "AsyncSchedules",
    "AsyncScopedState",
    "AsyncState",
    "AsyncStateTransaction",
    "AsyncStepwell",
    "AsyncTransaction",
    "AsyncUsageMeter",
    "AsyncWebhooks",
    "AsyncWorkspaces",
]

_HOMES = {
    "access": ("AsyncAccess",),
    "conversations": ("AsyncConversations",),
    "errors": ("AsyncErrors",),
    "locks": ("AsyncLock", "AsyncLocks"),
    "queue": ("AsyncQueue", "AsyncQueueItem", "AsyncSchedules", "AsyncWorkspaces"),
    "requests": ("AsyncRequests",),
    "retention": ("AsyncRetention",),
    "runs": ("AsyncDefinitions", "AsyncRun"),
    "state": ("AsyncCachedState", "AsyncScopedState", "AsyncState", "AsyncStateTransaction", "AsyncTransaction"),
    "usage": ("AsyncUsageMeter",),
    "webhooks": ("AsyncWebhooks",),
    "well": ("AsyncExecutionIndex", "AsyncStepwell"),
}

__getattr__ = fetching(__name__, _HOMES)

"""The conversations of a workspace: state, history and turns."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TypeVar

from stepwell.app.awaited.locks import AsyncLock
from stepwell.duration import Span
from stepwell.model.lock import conversation_lock
from stepwell.model.value import Value
from stepwell.pipeline.operations import AsyncDriver
from stepwell.state.conversations import (
    AsyncTurnFunction,
    ConversationOperations,
    ConversationSummary,
    Turn,
    TurnResult,
    check_runnable,
)
from stepwell.state.locks import DEFAULT_SECONDS, HeldLock, LockOperations, lock_request

__all__ = ["AsyncConversations"]

T = TypeVar("T")


class AsyncConversations:
    """The conversations of one workspace."""

    def __init__(self, operations: ConversationOperations, locks: LockOperations, driver: AsyncDriver) -> None:
        self._do, self._locks, self._driver = operations, locks, driver

    def __repr__(self) -> str:
        return f"<AsyncConversations workspace={self._do.workspace!r}>"

    def within(self, workspace: str) -> AsyncConversations:
        """The conversations of another workspace."""
        return AsyncConversations(self._do.within(workspace), self._locks, self._driver)

    def lasting(self, ttl: Span) -> AsyncConversations:
        """The same conversations, living for so long after each use instead of 24 hours."""
        return AsyncConversations(self._do.lasting(ttl), self._locks, self._driver)

    async def get(self, conversation_id: str) -> Value:
        """The state of a conversation, or None."""
        return await self._driver.run(self._do.get(conversation_id))

    async def get_as(self, conversation_id: str, kind: type[T]) -> T | None:
        """The state checked against a type and given as an instance of it; ``InvalidInput`` says where it does not fit."""
        return await self._driver.run(self._do.get_as(conversation_id, kind))

    async def set(
        self, conversation_id: str, state: Mapping[str, Value], *, user: str | None = None, lock: HeldLock | None = None
    ) -> None:
        """Save a state; it then lives for the whole TTL again. Under a ``lock``, only if that is still held."""
        return await self._driver.run(self._do.set(conversation_id, state, user, lock))

    async def delete(self, conversation_id: str) -> bool:
        """Forget a conversation with its history; whether there was one."""
        return await self._driver.run(self._do.delete(conversation_id))

    async def history(self, conversation_id: str, limit: int | None = None) -> list[Turn]:
        """The turns in order; with a limit, the last ones."""
        return await self._driver.run(self._do.history(conversation_id, limit))

    async def of_user(self, user: str) -> list[ConversationSummary]:
        """A user's conversations, the one used last first."""
        return await self._driver.run(self._do.of_user(user))

    def lock(self, conversation_id: str, *, seconds: Span = DEFAULT_SECONDS, timeout: Span | None = 0) -> AsyncLock:
        """The right to be the only one at work on a conversation: fails fast, or waits for up to ``timeout`` seconds."""
        name = conversation_lock(conversation_id, self._do.workspace)
        return AsyncLock(self._locks, lock_request(name, conversation_id, seconds, timeout), self._driver)

    async def turn(
        self,
        conversation_id: str,
        run: AsyncTurnFunction,
        message: Value = None,
        *,
        user: str | None = None,
        seconds: Span = DEFAULT_SECONDS,
        timeout: Span | None = None,
    ) -> TurnResult:
        """One turn, alone on the conversation: lock, load, ``run(state, message)``, merge, save state and history as one.

        If ``run`` raises, or the lock is lost before the save, the conversation stays as it was.
        """
        check_runnable(run)
        async with self.lock(conversation_id, seconds=seconds, timeout=timeout) as held:
            opened = await self._driver.run(self._do.open_turn(conversation_id, user, message))
            answer = await run(copy.deepcopy(opened.state), message)
            return await self._driver.run(self._do.close_turn(opened, held, message, answer))

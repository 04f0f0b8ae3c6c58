"""The conversations of a workspace: state, history and turns."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeVar, overload

from stepwell.app.awaited.locks import AsyncLock
from stepwell.duration import DEFAULT_LOCK_SECONDS, Span
from stepwell.model.ids import Id, id_text
from stepwell.model.lock import conversation_lock
from stepwell.model.value import Value
from stepwell.pipeline.operations import AsyncDriver
from stepwell.state.conversations import (
    AsyncTurnFunction,
    ConversationOperations,
    ConversationSummary,
    Turn,
    TurnResult,
    check_called,
    check_runnable,
)
from stepwell.state.locks import HeldLock, LockOperations, lock_request

__all__ = ["AsyncConversations"]

T = TypeVar("T")


class AsyncConversations:
    """The conversations of one workspace: ``well.conversations``.

    A conversation is a dict of state and a list of turns. Every use starts its TTL (24 hours) anew.
    """

    def __init__(self, operations: ConversationOperations, locks: LockOperations, driver: AsyncDriver) -> None:
        self._do, self._locks, self._driver = operations, locks, driver

    def __repr__(self) -> str:
        return f"<AsyncConversations workspace={self._do.workspace!r}>"

    def within(self, workspace: Id) -> AsyncConversations:
        """Return the conversations of another workspace.

        - ``workspace``: the id of the workspace.
        """
        workspace = id_text(workspace)
        return AsyncConversations(self._do.within(workspace), self._locks, self._driver)

    def lasting(self, ttl: Span) -> AsyncConversations:
        """Return the same conversations with another TTL than 24 hours.

        - ``ttl``: how long a conversation lives after its last use.
        """
        return AsyncConversations(self._do.lasting(ttl), self._locks, self._driver)

    @overload
    async def get(self, conversation_id: Id) -> Value: ...
    @overload
    async def get(self, conversation_id: Id, *, type: type[T]) -> T | None: ...
    async def get(self, conversation_id: Id, *, type: Any = None) -> Any:
        """Return the state of a conversation, or None if there is none.

        - ``conversation_id``: the conversation.
        - ``type``: return it as an instance of this dataclass, msgspec, attrs or pydantic class.

        Raise ``InvalidInput`` if the state does not fit the class.
        """
        conversation_id = id_text(conversation_id)
        return await self._driver.run(self._do.get(conversation_id, type))

    async def set(
        self, conversation_id: Id, state: Mapping[str, Value], *, user: Id | None = None, lock: HeldLock | None = None
    ) -> None:
        """Save the state of a conversation, and start its TTL anew.

        - ``conversation_id``: the conversation.
        - ``state``: the new state, a dict of values.
        - ``user``: the user in whose list (``of_user``) the conversation appears.
        - ``lock``: what ``conversations.lock`` gave; the write lands only if that is still held, else ``LeaseLost`` is
          raised.
        """
        conversation_id = id_text(conversation_id)
        return await self._driver.run(self._do.set(conversation_id, state, id_text(user), lock))

    async def delete(self, conversation_id: Id) -> bool:
        """Delete a conversation with its history; return whether there was one.

        - ``conversation_id``: the conversation.
        """
        conversation_id = id_text(conversation_id)
        return await self._driver.run(self._do.delete(conversation_id))

    async def history(self, conversation_id: Id, limit: int | None = None) -> list[Turn]:
        """Return the turns of a conversation, in order.

        - ``conversation_id``: the conversation.
        - ``limit``: only so many of the last turns; None for all.
        """
        conversation_id = id_text(conversation_id)
        return await self._driver.run(self._do.history(conversation_id, limit))

    async def of_user(self, user: Id) -> list[ConversationSummary]:
        """Return a user's conversations, the most recently used first.

        - ``user``: the id of the user.
        """
        return await self._driver.run(self._do.of_user(id_text(user)))

    def lock(self, conversation_id: Id, *, seconds: Span = DEFAULT_LOCK_SECONDS, timeout: Span | None = 0) -> AsyncLock:
        """Return the lock of a conversation. ``turn`` acquires it by itself.

        - ``conversation_id``: the conversation.
        - ``seconds``: how long after its holder's death the lock expires.
        - ``timeout``: how long to wait for it: 0 not at all, None without a limit.

        Acquiring raises ``LockHeld`` if another holder had the lock during the whole ``timeout``.
        """
        conversation_id = id_text(conversation_id)
        name = conversation_lock(conversation_id, self._do.workspace)
        return AsyncLock(self._locks, lock_request(name, conversation_id, seconds, timeout, "conversation"), self._driver)

    async def turn(
        self,
        conversation_id: Id,
        run: AsyncTurnFunction,
        message: Value = None,
        *,
        user: Id | None = None,
        seconds: Span = DEFAULT_LOCK_SECONDS,
        timeout: Span | None = None,
    ) -> TurnResult:
        """Answer one message: acquire the lock, load, call ``run``, and save its answer and the history together.

        If ``run`` raises, or the lock is lost before the save, the conversation stays as it was.

        - ``conversation_id``: the conversation.
        - ``run``: a function of the state and the message that returns an ``Answer``.
        - ``message``: the message.
        - ``user``: the user in whose list (``of_user``) the conversation appears.
        - ``seconds``, ``timeout``: as for ``lock``.

        Raise ``LockHeld``, ``LeaseLost``, ``Conflict`` if another caller changed the conversation without the lock, and
        ``InvalidInput`` inside a turn of the same conversation, which would wait for itself.

        Example:

            async def shout(state, message):
                return Answer(message.upper(), collected={"last": message})

            result = await well.conversations.turn("c", shout, "hello")
            assert result.reply == "HELLO"
        """
        conversation_id = id_text(conversation_id)
        check_runnable(run)
        lock = self.lock(conversation_id, seconds=seconds, timeout=timeout)
        with self._do.only_turn(conversation_id):
            return await self._take_turn(lock, conversation_id, run, message, id_text(user))

    async def _take_turn(
        self, lock: AsyncLock, conversation_id: str, run: AsyncTurnFunction, message: Value, user: str | None
    ) -> TurnResult:
        async with lock as held:
            opened = await self._driver.run(self._do.open_turn(conversation_id, user, message))
            answer = await check_called(run(copy.deepcopy(opened.state), message), AsyncTurnFunction)
            return await self._driver.run(self._do.close_turn(opened, held, message, answer))

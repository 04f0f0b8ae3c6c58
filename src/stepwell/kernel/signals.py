"""Signals in the inbox, and the tokens that wait for them. Each signal is taken once, by the token that waited longest.

A token stores its position in the line, so that the order is the same after another process resumes the execution.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from stepwell.kernel.token import LiveToken
from stepwell.model.value import Value

__all__ = ["WAITING_ORDER", "SignalInbox"]

WAITING_ORDER = "turn"
"""The key in a token's value for its position in the line of waiting tokens; the first has none."""


class SignalInbox:
    """Messages by name, and waiting tokens by name."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[tuple[str, Value]]] = {}
        self._listeners: dict[str, dict[str, LiveToken]] = {}
        self._names: dict[str, list[str]] = {}
        self._known: set[str] = set()
        self._taken: list[str] = []
        self._only_in_token: dict[str, tuple[str, ...]] = {}
        """Messages taken since the last commit that only a token's value records: the keys of the token and its frames."""

    def accept(self, message_key: str) -> bool:
        """Take a message that no token waits for. Return False if it was taken before."""
        if not message_key or message_key in self._known:
            return not message_key
        self._known.add(message_key)
        self._taken.append(message_key)
        return True

    def arrive(self, message_key: str, name: str, value: Value) -> bool:
        """Keep a signal until a token waits for it. Return False if it is known already."""
        # The driver delivers the whole inbox again after each resume.
        if message_key in self._known:
            return False
        self._known.add(message_key)
        self._waiting.setdefault(name, deque()).append((message_key, value))
        return True

    def has(self, name: str) -> bool:
        """Return whether a signal of this name is in the inbox."""
        return bool(self._waiting.get(name))

    def take(self, name: str, holder: LiveToken | None = None) -> Value:
        """Take the oldest signal of a name for a token, when only that token's value records it."""
        message_key, value = self._waiting[name].popleft()
        self._taken.append(message_key)
        # The node's record comes in a later commit. If the execution fails in between, a retry must find the message again.
        if holder is not None:
            self._only_in_token[message_key] = tuple(_keys_around(holder))
        return value

    def forget(self, name: str) -> None:
        """Drop the signals of a name that arrived too early."""
        while self.has(name):
            self.take(name)

    def listen(self, token: LiveToken, name: str) -> None:
        """Add a token to the line for a name."""
        line = self._listeners.setdefault(name, {})
        # Store the position, since the order of this dict is lost when another process resumes the execution.
        if line:
            last = next(reversed(line.values()))
            token.value[WAITING_ORDER] = max(token.value.get(WAITING_ORDER, 0), last.value.get(WAITING_ORDER, 0) + 1)
        line[token.id] = token
        self._names.setdefault(token.id, []).append(name)

    def is_listening(self, token: LiveToken, name: str) -> bool:
        """Return whether a token is in the line for a name."""
        return token.id in self._listeners.get(name, ())

    def listener(self, name: str) -> LiveToken | None:
        """Return the token that has waited longest for a name."""
        return next(iter(self._listeners.get(name, {}).values()), None)

    def leave(self, token: LiveToken) -> None:
        """Remove a token from all lines."""
        token.value.pop(WAITING_ORDER, None)
        for name in self._names.pop(token.id, ()):
            self._listeners.get(name, {}).pop(token.id, None)

    def unrecorded(self, is_passed: Callable[[str], bool]) -> tuple[str, ...]:
        """Return the messages that a retry must take again if the execution fails now.

        A retry restores the tokens from before this commit, so that only messages of recorded and completed places count as
        used.
        """
        return tuple(message_key for message_key, keys in self._only_in_token.items() if not any(map(is_passed, keys)))

    def settle(self) -> None:
        """Confirm that the records of taken messages are committed."""
        self._only_in_token.clear()

    def taken(self) -> tuple[str, ...]:
        """Return the messages taken since the last call."""
        taken, self._taken = self._taken, []
        return tuple(taken)


def _keys_around(token: LiveToken) -> Iterator[str]:
    """Return the keys of a token and of the frames around it, without the root."""
    while token.parent is not None:
        yield token.key
        token = token.parent

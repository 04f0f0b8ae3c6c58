"""Signals that have come, and who listens for them. A signal is taken once, by whoever has listened for it the longest.

Who came after others says so in its token, so that they are served in the same order by whoever takes the execution up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from stepwell.kernel.token import LiveToken
from stepwell.model.value import Value

__all__ = ["TURN", "SignalInbox"]

TURN = "turn"
"""Where a token says that others listened before it: its number is higher than theirs. The first has none."""


class SignalInbox:
    """Messages by name, and listeners by name."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[tuple[str, Value]]] = {}
        self._ears: dict[str, dict[str, LiveToken]] = {}
        self._names: dict[str, list[str]] = {}
        self._known: set[str] = set()
        self._taken: list[str] = []
        self._told: dict[str, tuple[str, ...]] = {}
        """Messages since the last commit of which only a token tells: the keys of where that stands, from the inside out."""

    def accept(self, letter: str) -> bool:
        """Take a message that is for nobody in particular; False if it was taken before."""
        if not letter or letter in self._known:
            return not letter
        self._known.add(letter)
        self._taken.append(letter)
        return True

    def arrive(self, letter: str, name: str, value: Value) -> bool:
        """Keep a signal until somebody listens; False if it is known already."""
        if letter in self._known:
            return False
        self._known.add(letter)
        self._waiting.setdefault(name, deque()).append((letter, value))
        return True

    def has(self, name: str) -> bool:
        """Whether a signal of this name waits."""
        return bool(self._waiting.get(name))

    def take(self, name: str, teller: LiveToken | None = None) -> Value:
        """Take the oldest signal of a name, for a thread of which nothing but its token tells that it was taken."""
        letter, value = self._waiting[name].popleft()
        self._taken.append(letter)
        if teller is not None:
            self._told[letter] = tuple(_keys_around(teller))
        return value

    def forget(self, name: str) -> None:
        """Lose the signals of a name that came too early."""
        while self.has(name):
            self.take(name)

    def listen(self, thread: LiveToken, name: str) -> None:
        """Have a thread listen for a name, after those who do already."""
        ears = self._ears.setdefault(name, {})
        if ears:
            last = next(reversed(ears.values()))
            thread.value[TURN] = max(thread.value.get(TURN, 0), last.value.get(TURN, 0) + 1)
        ears[thread.id] = thread
        self._names.setdefault(thread.id, []).append(name)

    def is_listening(self, thread: LiveToken, name: str) -> bool:
        """Whether a thread still listens for a name."""
        return thread.id in self._ears.get(name, ())

    def listener(self, name: str) -> LiveToken | None:
        """Who has listened for a name the longest."""
        return next(iter(self._ears.get(name, {}).values()), None)

    def leave(self, thread: LiveToken) -> None:
        """A thread listens no more."""
        thread.value.pop(TURN, None)
        for name in self._names.pop(thread.id, ()):
            self._ears.get(name, {}).pop(thread.id, None)

    def in_vain(self, is_passed: Callable[[str], bool]) -> tuple[str, ...]:
        """Messages that are asked for again when an execution that fails now is retried. Its tokens are then put back as they were
        before this commit, so only what is on record, and passed, is known of it."""
        return tuple(letter for letter, keys in self._told.items() if not any(map(is_passed, keys)))

    def settle(self) -> None:
        """What tells of messages is committed."""
        self._told.clear()

    def taken(self) -> tuple[str, ...]:
        """The messages that were taken since this was last asked."""
        taken, self._taken = self._taken, []
        return tuple(taken)


def _keys_around(thread: LiveToken) -> Iterator[str]:
    """Where a thread stands, and the frames around it, without the root."""
    while thread.parent is not None:
        yield thread.key
        thread = thread.parent

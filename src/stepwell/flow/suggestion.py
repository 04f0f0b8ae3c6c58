"""What somebody may have meant."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["listed", "suggest"]

_SHOWN = 10


def suggest(word: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` for the known word nearest to this one, or nothing."""
    from difflib import get_close_matches  # only when something is wrong: it is not needed otherwise

    near = get_close_matches(word[:100], [text[:100] for text in known], n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def listed(words: Iterable[str]) -> str:
    """Some words for a message, with a hint that there are more."""
    found = sorted(words)
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more

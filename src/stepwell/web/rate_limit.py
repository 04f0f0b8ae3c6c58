"""Rate limits per token and class of request, counted in this process over windows of a minute."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from stepwell.model.access import Identity
from stepwell.web.problem import HttpProblem
from stepwell.web.settings import HttpLimits

__all__ = ["RateLimiter"]

_WINDOW_SECONDS = 60
# Callers that were not seen for a window are forgotten once there are so many.
_MOST_CALLERS = 10_000


class RateLimiter:
    """Counts the requests of each caller."""

    def __init__(self, limits: HttpLimits, clock: Callable[[], float] = monotonic) -> None:
        self._limits, self._clock = limits, clock
        self._windows: dict[tuple[str | None, str | None, str, str], tuple[float, int]] = {}

    def take(self, identity: Identity, *, is_write: bool) -> dict[str, str]:
        """Count a request, and return the headers that tell what is left. Raise ``HttpProblem`` (429) if nothing is."""
        kind = "write" if is_write else "read"
        quota = self._limits.writes_per_minute if is_write else self._limits.reads_per_minute
        now, key = self._clock(), (identity.workspace, identity.token_id, identity.name, kind)
        began, used = self._windows.get(key, (now, 0))
        if now - began >= _WINDOW_SECONDS:
            began, used = now, 0
        if len(self._windows) >= _MOST_CALLERS:
            self._windows = {each: window for each, window in self._windows.items() if now - window[0] < _WINDOW_SECONDS}
        self._windows[key] = began, used + 1
        left = max(1, round(began + _WINDOW_SECONDS - now))
        headers = {
            "RateLimit-Policy": f'"{kind}";q={quota};w={_WINDOW_SECONDS}',
            "RateLimit": f'"{kind}";r={max(0, quota - used - 1)};t={left}',
        }
        if used >= quota:
            detail = f"this token may send {quota:,} {kind} requests a minute; try again in {left} seconds"
            raise HttpProblem("rate_limited", detail, headers={**headers, "Retry-After": str(left)})
        return headers

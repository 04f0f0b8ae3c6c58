"""Draw pages: the templates, and the words and formats that they use.

Templates escape everything. The only markup that is passed through is drawn by our own code (`stepwell.flow.drawing`).
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse

from stepwell.model.status import FINAL, Status
from stepwell.state.history import ExecutionSummary
from stepwell.web.authentication import COOKIE, csrf_token
from stepwell.web.dashboard.assets import asset_url
from stepwell.web.dashboard.screen import segment
from stepwell.web.filters import filter_text

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

__all__ = ["ago", "environment", "html_page", "new_nonce", "pretty", "readable_bytes", "readable_ms", "security_policy", "sentence"]

THEMES = ("auto", "light", "dark")
ZONES = ("utc", "local")


def new_nonce() -> str:
    """Return a nonce for one page."""
    return secrets.token_urlsafe(16)


def security_policy(nonce: str) -> str:
    """Return the content security policy of a page: its own scripts and styles, and nothing from elsewhere."""
    return (
        f"default-src 'none'; script-src 'self' 'nonce-{nonce}'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types htmx"
    )


def readable_ms(ms: float | None) -> str:
    """Return a duration in its two largest units."""
    if ms is None:
        return "\N{EN DASH}"
    if ms < 1000:
        return f"{ms:.0f} ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    seconds = round(ms / 1000)
    for size, unit, smaller, name in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            rest = seconds % size // smaller
            return f"{seconds // size} {unit} {rest} {name}" if rest else f"{seconds // size} {unit}"
    return f"{seconds} s"


def readable_bytes(count: float) -> str:
    """Return a size in the largest unit that fits."""
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def sentence(text: str) -> str:
    """Return a message of the library as a sentence of its own: with a capital letter, and a full stop unless it has an end."""
    begun = text[:1].upper() + text[1:]
    return begun if begun.endswith((".", "!", "?", ":")) or not begun else f"{begun}."


def ago(at: datetime, now: datetime) -> str:
    """Return how long ago a moment was, or how soon it comes, in one unit."""
    seconds = (now - at).total_seconds()
    size = abs(seconds)
    words = "now"
    for span, unit in ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if size >= span:
            words = f"{size // span:.0f} {unit}"
            break
    if words == "now":
        return words
    return f"{words} ago" if seconds > 0 else f"in {words}"


def _stamp(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def pretty(value: object) -> str:
    """Return a value as indented JSON, with numbers exactly as they are stored."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def _compact(value: object, most: int = 120) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _run_ms(run: ExecutionSummary, now: datetime) -> float:
    """Return how long a run took, or has taken until now."""
    end = run.updated_at if run.status in FINAL else now
    return (end - run.created_at).total_seconds() * 1000


@cache
def environment() -> Environment:
    """Return the templates."""
    made = Environment(
        loader=PackageLoader("stepwell.web.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Any] = made.filters
    filters.update(duration=readable_ms, size=readable_bytes, stamp=_stamp, iso=_iso, pretty=pretty, compact=_compact, ago=ago)
    filters.update(run_ms=_run_ms, segment=segment, sentence=sentence, shell=shlex.quote)
    known: dict[str, Any] = made.globals
    known.update(filter_text=filter_text, statuses=tuple(map(str, Status)), finals=FINAL, drawn=Markup, unset=msgspec.UNSET)
    return made


def html_page(
    request: Request, template: str, values: Mapping[str, Any], *, status: int = 200, nonce: str | None = None
) -> Response:
    """Return a page as a response.

    - ``template``: its file in ``templates/``.
    - ``values``: what the template shows, beside what every page has: the nonce, the preferences and the CSRF token.
    """
    nonce = nonce or new_nonce()
    root, session = request.scope.get("root_path", ""), request.cookies.get(COOKIE, "")
    theme, zone = request.cookies.get("stepwell_theme", "auto"), request.cookies.get("stepwell_zone", "utc")

    def asset(name: str) -> str:
        return asset_url(root, name)

    everywhere: dict[str, Any] = {
        "root": root,
        "nonce": nonce,
        "csrf": csrf_token(session) if session else "",
        "theme": theme if theme in THEMES else "auto",
        "zone": zone if zone in ZONES else "utc",
        "has_keys": request.cookies.get("stepwell_keys") != "off",
        "asset": asset,
        "now": datetime.now(UTC),
    }
    text = environment().get_template(template).render({**everywhere, **values})
    headers = {
        "content-security-policy": security_policy(nonce),
        "cache-control": "no-store",
        "vary": "Cookie, HX-Request",
    }
    return HTMLResponse(text, status, headers)

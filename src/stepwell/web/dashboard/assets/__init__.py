"""Style sheet and scripts of the dashboard, served from the wheel.

``htmx.min.js``, ``hx-sse.min.js`` and ``hx-csp.min.js`` are htmx 4.0.1, unchanged, under its licence in ``htmx.LICENSE.txt``.
"""

from __future__ import annotations

import gzip
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING

from starlette.responses import Response

from stepwell.web.problem import HttpProblem

if TYPE_CHECKING:
    from starlette.requests import Request

__all__ = ["ASSETS", "asset_response", "asset_url"]

ASSETS = {
    "app.css": "text/css; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "htmx.min.js": "text/javascript; charset=utf-8",
    "hx-sse.min.js": "text/javascript; charset=utf-8",
    "hx-csp.min.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
"""The media type of each file that is served."""
_YEAR = 31_536_000


@cache
def _asset(name: str) -> tuple[bytes, bytes, str]:
    """Return a file, the same compressed, and its version."""
    data = (files(__name__) / name).read_bytes()
    return data, gzip.compress(data, 9, mtime=0), sha256(data).hexdigest()[:12]


def asset_url(root: str, name: str) -> str:
    """Return the address of a file; it changes with the file's content."""
    return f"{root}/assets/{name}?v={_asset(name)[2]}"


def asset_response(request: Request, name: str) -> Response:
    """Return a file. Raise ``HttpProblem`` (404) for one that is not served."""
    if name not in ASSETS:
        raise HttpProblem("no_such_route")
    data, packed, version = _asset(name)
    headers = {"etag": f'"{version}"', "vary": "Accept-Encoding", "cache-control": "no-cache"}
    if request.query_params.get("v") == version:
        headers["cache-control"] = f"public, max-age={_YEAR}, immutable"
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        data, headers["content-encoding"] = packed, "gzip"
    return Response(data, headers=headers, media_type=ASSETS[name])

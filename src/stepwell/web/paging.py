"""Pages of lists: their query, their cursor and the link to the next one.

Cursors are opaque, signed, and bound to the list and its filter, so that a client can neither forge nor swap them.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta

from stepwell.web.problem import HttpProblem
from stepwell.web.route import Call, Page, PageCount, Reply

__all__ = ["MOST_COUNTED", "Count", "CountedQuery", "Counting", "CursorSigner", "PageQuery", "page_reply", "sorted_page"]

Count = Annotated[int, Meta(ge=1, le=200)]
"""The size of a page."""


Counting = Literal["exact", "estimate"]
"""How to count the items of a list: all of them, up to a hundred thousand, or a thousand at most."""

MOST_COUNTED = {"exact": 100_000, "estimate": 1_000}


class PageQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The query of a list."""

    limit: Count = 50
    cursor: str | None = None


class CountedQuery(PageQuery, frozen=True, forbid_unknown_fields=True):
    """The query of a list whose items can be counted."""

    count: Counting | None = None
    """Count the items, too: ``estimate`` a thousand at most, ``exact`` a hundred thousand."""


def page_reply(call: Call, items: list[Any], cursor: str | None, count: PageCount | None = None) -> Reply:
    """Return a page, with the ``Link`` to the next one.

    - ``cursor``: of the next page; None if this is the last one.
    - ``count``: of the whole list, if the query asks for it.
    """
    headers: dict[str, str] = {}
    if cursor is not None:
        url = call.request.url.include_query_params(cursor=cursor)
        headers["Link"] = f'<{url.path}?{url.query}>; rel="next"'
    page = Page(items=items, next_cursor=cursor, has_more=cursor is not None, count=UNSET if count is None else count)
    return Reply(page, headers=headers)


async def sorted_page(call: Call, found: Sequence[Any], key: Callable[[Any], str], binding: object) -> Reply:
    """Return a page of a list that is read whole, in order of a key.

    - ``binding``: what the cursor is valid for, beside the workspace.
    """
    query: CountedQuery = call.query
    signer, bound = await call.server.signer(), [call.workspace, call.identity.workspace, binding]
    after = "" if query.cursor is None else signer.position(bound, query.cursor)
    left = sorted((each for each in found if key(each) > after), key=key)
    page = left[: query.limit]
    count = None if query.count is None else PageCount(value=len(found), is_exact=True)
    return page_reply(call, page, signer.cursor(bound, key(page[-1])) if len(left) > len(page) else None, count)


_MAC_BYTES = 16


class CursorSigner:
    """Makes and reads cursors with a key of the store, so that every process of the server reads those of the others."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def cursor(self, binding: object, position: object) -> str:
        """Return the cursor of a position in a list.

        - ``binding``: what the cursor is valid for: the workspace, the route and the filter.
        - ``position``: plain data that says where the next page begins.
        """
        data = msgspec.json.encode(position)
        return urlsafe_b64encode(self._mac(binding, data) + data).decode().rstrip("=")

    def position(self, binding: object, cursor: str) -> Any:
        """Return the position of a cursor. Raise ``HttpProblem`` (400) if it was not made for this list and filter."""
        try:
            raw = urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
        except ValueError:
            raw = b""
        mac, data = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(binding, data)):
            raise HttpProblem("malformed", "this cursor is not of this list and filter; begin again without a cursor")
        return msgspec.json.decode(data)

    def sign(self, binding: object) -> str:
        """Return a signature of plain data, as hex."""
        return self._mac(binding, b"").hex()

    def _mac(self, binding: object, data: bytes) -> bytes:
        bound = msgspec.json.encode(binding, order="deterministic")
        return hmac.new(self._key, len(bound).to_bytes(8, "big") + bound + data, sha256).digest()[:_MAC_BYTES]

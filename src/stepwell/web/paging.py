"""Pages of lists: their query, their cursor and the link to the next one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from stepwell.web.route import Call, Page, Reply

__all__ = ["Count", "PageQuery", "page_reply", "sorted_page"]

Count = Annotated[int, Meta(ge=1, le=200)]
"""The size of a page."""


class PageQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The query of a list."""

    limit: Count = 50
    cursor: str | None = None


def page_reply(call: Call, items: list[Any], cursor: str | None) -> Reply:
    """Return a page, with the ``Link`` to the next one.

    - ``cursor``: of the next page; None if this is the last one.
    """
    headers: dict[str, str] = {}
    if cursor is not None:
        url = call.request.url.include_query_params(cursor=cursor)
        headers["Link"] = f'<{url.path}?{url.query}>; rel="next"'
    return Reply(Page(items=items, next_cursor=cursor, has_more=cursor is not None), headers=headers)


async def sorted_page(call: Call, found: Sequence[Any], key: Callable[[Any], str], binding: object) -> Reply:
    """Return a page of a list that is read whole, in order of a key.

    - ``binding``: what the cursor is valid for, beside the workspace.
    """
    query: PageQuery = call.query
    signer, bound = await call.server.signer(), [call.workspace, call.identity.workspace, binding]
    after = "" if query.cursor is None else signer.position(bound, query.cursor)
    left = sorted((each for each in found if key(each) > after), key=key)
    page = left[: query.limit]
    return page_reply(call, page, signer.cursor(bound, key(page[-1])) if len(left) > len(page) else None)

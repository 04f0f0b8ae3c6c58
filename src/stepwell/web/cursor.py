"""Cursors of lists: opaque, signed, and bound to the list and its filter, so that a client can neither forge nor swap them."""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256
from typing import Any

import msgspec

from stepwell.web.problem import HttpProblem

__all__ = ["CursorSigner"]

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

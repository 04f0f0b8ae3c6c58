"""Text from a store is not to be trusted: what could move the cursor, hide or reorder text is shown as an escape instead."""

from __future__ import annotations

import json
import re
from typing import Any

__all__ = ["json_text", "printable", "shortened"]

# Control characters (C0, DEL, C1), line and paragraph separators, and the marks that turn the direction of writing or take no room.
_HOSTILE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def printable(text: str) -> str:
    """The text on one line, with everything in it that a terminal could obey written as an escape."""
    return _HOSTILE.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def json_text(value: Any, *, indent: int | None = None) -> str:
    """A value as JSON that is safe to print: the same value when it is read back."""
    separators = None if indent is not None else (",", ":")
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, allow_nan=False)
    lines = text.split("\n")  # real line ends come from the indent alone: inside of texts they are escaped
    return "\n".join(_HOSTILE.sub(_json_escape, line) for line in lines)


def _json_escape(found: re.Match[str]) -> str:
    return "\\u007f" if found[0] == "\x7f" else json.dumps(found[0])[1:-1]


def shortened(text: str, width: int) -> str:
    """The text, cut to a width with dots at its end."""
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"

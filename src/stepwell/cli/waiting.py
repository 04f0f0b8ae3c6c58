"""What a run waits for, in words."""

from __future__ import annotations

from shlex import quote

from stepwell.cli.plaintext import json_text
from stepwell.runtime.progress import Offer, Waiting

__all__ = ["offer_text", "waiting_text"]


def waiting_text(waiting: Waiting) -> str:
    """What is waited for, and until when."""
    until = "" if waiting.until is None else f" until {waiting.until:%Y-%m-%d %H:%M:%S} UTC"
    match waiting.kind:
        case "retry":
            return f"another attempt at {waiting.name}{until}, after: {waiting.error}"
        case "step":
            return f"a worker that has step {waiting.name}"
        case kind:
            return f"{kind} {waiting.name}".strip() + until


def offer_text(execution_id: str, offer: Offer) -> str:
    """An answer that the run would take now, and the command that gives it."""
    title = f" ({offer.title})" if offer.title else ""
    people = f" by {', '.join(offer.approvers)}" if offer.approvers else ""
    value = "JSON"
    if offer.kind == "approval":
        value = quote(json_text({"is_approved": True, "by": offer.approvers[0] if offer.approvers else None}))
    return f"{offer.kind} {offer.name}{title}{people}: stepwell signal {quote(execution_id)} {quote(offer.name)} {value}"

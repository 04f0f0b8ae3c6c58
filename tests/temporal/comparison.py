"""The state of an execution without what differs from run to run anyway, and its digest: the same on both engines.

A digest covers ids and times, so the digests of two runs always differ. Here exactly these are replaced, in a copy of all sections
of the state, and the digest is computed again, the way the store does it. docs/design/0020-temporal.md lists them with the reasons.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import msgspec

from stepwell import Stepwell
from stepwell.clock import to_ms
from stepwell.model.execution_state import ONLY, ZERO, Entries, State
from stepwell.model.value import canonical

__all__ = ["check_same", "comparable_state", "comparable_steps", "digest_of", "without_ids"]

_EPOCH = "1970-01-01T00:00:00Z"
_TIMES_OF_TOKENS = ("due_ms", "retries_ms", "begins_ms", "took_ms")


def digest_of(entries: Entries) -> str:
    """Return the digest of a state with these entries."""
    return State.of(entries, 0, ZERO, None).digest


def comparable_state(well: Stepwell, execution_id: str, engine: str) -> Entries:
    """Return the entries of an execution's state, with its id, times and durations replaced.

    Check before that the digest of the last receipt is that of the entries as they are, and that ``engine`` ran the execution.
    """
    state = well.load(execution_id)
    [last] = well.receipts(execution_id, after=state.revision - 1)
    entries = state.entries()
    assert digest_of(entries) == state.state_digest == last.after
    assert (state.identity.engine or "local") == engine
    if entries["metadata"].get(ONLY) == b"{}":  # what a mark of a suspected crash leaves when it is taken away
        del entries["metadata"][ONLY]
    return {
        section: {without_ids(key, execution_id): _replaced(section, data, execution_id) for key, data in rows.items()}
        for section, rows in entries.items()
    }


def check_same(local: Entries, temporal: Entries, what: str) -> None:
    """Check that two comparable states have one digest; say which entries differ."""
    differing = {
        (section, key): (rows.get(key), temporal[section].get(key))
        for section, rows in local.items()
        for key in sorted(rows.keys() | temporal[section].keys())
        if rows.get(key) != temporal[section].get(key)
    }
    assert digest_of(temporal) == digest_of(local), f"{what} differs, first on local workers, then on Temporal: {differing}"


def _replaced(section: str, data: bytes, execution_id: str) -> bytes:
    value = msgspec.json.decode(without_ids(data.decode(), execution_id))
    if section == "identity":
        _replace_in_identity(value)
    elif section == "steps":
        value |= {"executed_at": _EPOCH, "duration_ms": 0}
    elif section == "tokens" and isinstance(value["value"], dict):
        value["value"] |= {name: 0 for name in _TIMES_OF_TOKENS if value["value"].get(name) is not None}
    return canonical(value)


def _replace_in_identity(identity: dict[str, Any]) -> None:
    if "deadline_ms" in identity:  # what is left of it, as a time of its own
        identity["deadline_ms"] -= to_ms(datetime.fromisoformat(identity["started_at"]))
    identity |= {"started_at": _EPOCH, "trace_id": ""}
    identity.pop("engine", None)


def without_ids(text: str, execution_id: str) -> str:
    """Return a text with a word in the place of an execution's id; ids of its children begin with it."""
    return re.sub(re.escape(execution_id), "ID", text)


def comparable_steps(well: Stepwell, execution_id: str) -> str:
    """Return the records of all steps with all their attempts, without times and revisions, by name."""
    records = sorted(well.run(execution_id).steps(), key=lambda each: each.name)
    shown = [
        (
            each.name,
            each.node,
            each.status,
            each.output,
            each.error,
            [(tried.number, tried.error, tried.traceback) for tried in each.attempts],
            each.summary,
        )
        for each in records
    ]
    return without_ids(repr(shown), execution_id)

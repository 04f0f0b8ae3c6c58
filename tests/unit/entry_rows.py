"""The smallest thing that keeps scoped state, for tests of its rules."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stepwell.errors import StepwellError
from stepwell.model.limits import Limits
from stepwell.model.scoped_operations import Put, Resolution, ScopeTotals, StateOp, StoredEntry, alive, resolve

S, OTHER = "custom/default/s", "custom/default/other"


def put(key: str, value: object = 1, **options: object) -> Put:
    return Put(options.pop("scope", S), key, msgspec.Raw(msgspec.json.encode(value)), **options)


class Rows:
    """The smallest thing that can keep what ``resolve`` comes to."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.now_ms, self.limits = 1_000, limits or Limits()
        self.entries: dict[tuple[str, str], StoredEntry] = {}
        self.totals: dict[str, ScopeTotals] = {}

    def resolve(self, ops: Sequence[StateOp]) -> Resolution | StepwellError:
        return resolve(ops, self._row, self._totals_of, self.now_ms, self.limits, self._expired)

    def do(self, *ops: StateOp) -> list[object]:
        resolution = self.resolve(ops)
        if isinstance(resolution, StepwellError):
            raise resolution
        for scope, revision in resolution.cleared.items():
            for address, row in list(self.entries.items()):
                if address[0] == scope and row.data is not None:
                    self.entries[address] = StoredEntry(None, revision, self.now_ms)
        self.entries.update(resolution.entries)
        self.totals.update(resolution.totals)
        return resolution.answers

    def live(self, key: str, scope: str = S) -> object:
        row = alive(self.entries.get((scope, key)), self.now_ms)
        return None if row is None else msgspec.json.decode(row.data)

    def check_totals(self) -> None:
        """The totals say what is there."""
        for scope, totals in self.totals.items():
            rows = [(key, row) for (path, key), row in self.entries.items() if path == scope and row.data is not None]
            assert totals.keys == len(rows)
            assert totals.bytes == sum(len(key.encode()) + len(row.data) for key, row in rows)

    def _row(self, scope: str, key: str) -> StoredEntry | None:
        return self.entries.get((scope, key))

    def _totals_of(self, scope: str) -> ScopeTotals:
        return self.totals.get(scope, ScopeTotals())

    def _expired(self, scope: str) -> list[str]:
        rows = [(key, row) for (path, key), row in self.entries.items() if path == scope]
        return [key for key, row in rows if row.data is not None and alive(row, self.now_ms) is None]

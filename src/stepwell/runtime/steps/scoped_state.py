"""Scoped state as steps and templates see it: stored values, overlaid with writes that have not landed yet.

A step's writes wait for the commit that records its output. A read inside the step sees what others have committed and the step's
own writes. On an event loop it is awaited, elsewhere it blocks. Templates of a declared workflow read state that is loaded before
each event, since the kernel does no I/O; the writes of the step that the event completes are overlaid.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from stepwell.contract.store import Store
from stepwell.errors import InvalidInput, StepwellError
from stepwell.flow.language.template import StateKey
from stepwell.kernel.loaded_state import by_scope, inside, scope_of
from stepwell.model.ids import check_key
from stepwell.model.limits import Limits
from stepwell.model.mutation import WriteState
from stepwell.model.record import Metadata
from stepwell.model.scope import Scope
from stepwell.model.scoped_operations import (
    Delete,
    Entry,
    Increment,
    Put,
    ScopeTotals,
    StateOp,
    StoredEntry,
    Touch,
    current_entry,
    resolve,
)
from stepwell.model.value import Value, decode, from_value
from stepwell.pipeline.operations import AsyncDriver, Operation, read
from stepwell.pipeline.paged_reads import all_entries
from stepwell.state.scoped_state import must_slide
from stepwell.state.transaction_buffer import Buffer, BufferedScope

__all__ = [
    "StateReading",
    "StepState",
    "read_state",
]


def read_state(store: Store, keys: Sequence[StateKey], identity: Metadata) -> Operation[Value]:
    """Return the values of keys as templates see them: ``{scope: {key: value}}``, or with the scope's name in between."""
    found: dict[str, Any] = {}
    for (kind, name), names in by_scope(keys).items():
        path = scope_of(kind, name, identity).path
        rows = yield from read(lambda path=path, names=names: store.entries(path, names))
        now = ((key, current_entry(path, key, row)) for key, row in rows.items())
        inside(found, kind, name).update({key: decode(row.data) for key, row in now if row.data is not None})
    return found


T = TypeVar("T")
_OF_ONE_KEY = (Put, Delete, Increment)
Rows = dict[str, StoredEntry]


class StateReading:
    """Reads a store for steps: awaited on an event loop, at once in a thread."""

    def __init__(self, store: Store, driver: AsyncDriver) -> None:
        self.store, self._driver = store, driver

    def ask(self, query: Callable[[], Rows], answer: Callable[[Rows], T]) -> Any:
        """Return a query's result; on an event loop, an awaitable for it."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return answer(query())
        return self._awaited(query, answer)

    async def _awaited(self, query: Callable[[], Rows], answer: Callable[[Rows], T]) -> T:
        return answer(await self._driver.run(read(query)))


class StepState(BufferedScope):
    """One scope of state inside a step.

    Writes land in the commit that records the step's output. Reads see the stored values with this attempt's own writes over
    them; they are awaited in an ``async def`` step and block in a ``def`` step. A step with ``process=True`` cannot read:
    ``InvalidInput``.
    """

    def __init__(
        self, buffer: Buffer, scope: Scope, limits: Limits, reading: StateReading | None, *, is_read_only: bool = False
    ) -> None:
        super().__init__(buffer, scope, limits)
        self._reading, self._slid, self._scope, self._is_read_only = reading, set[str](), scope, is_read_only

    def _write(self, make: Callable[[], StateOp]) -> None:
        if self._is_read_only:
            raise InvalidInput(
                f"the state of workflow {self._scope.names[0]!r} can be read here and not written, by its grant; let a "
                "step of that workflow write it, or use the workspace's scope"
            )
        super()._write(make)

    def get(self, key: str, default: Any = None, *, type: type[Any] | None = None) -> Any:
        """Return the value of a key, or ``default`` if the key is absent.

        - ``type``: return the value as an instance of this class; raise ``InvalidInput`` if it does not fit.
        """

        def answer(rows: Rows) -> Any:
            if key not in rows:
                return default
            value = decode(rows[key].data or b"null")
            return value if type is None else from_value(value, type)

        return self._of([key], answer)

    def get_many(self, keys: Sequence[str]) -> Any:
        """Return the values of several keys at one moment; absent keys are left out."""
        return self._of(keys, lambda rows: {key: decode(rows[key].data or b"null") for key in keys if key in rows})

    def exists(self, key: str) -> Any:
        """Return whether a key exists."""
        return self._of([key], lambda rows: key in rows)

    def entry(self, key: str) -> Any:
        """Return a key's ``Entry`` as stored, without this attempt's writes, or None. Its revision is for ``compare_and_set``."""
        return self._ask([key], lambda rows: Entry.of(rows[key]) if key in rows else None)

    def keys(self, prefix: str = "") -> Any:
        """Return the keys of the scope, sorted; with a prefix, only keys that begin with it."""
        return self._below(prefix, sorted)

    def all(self, prefix: str = "") -> Any:
        """Return every key with its value, sorted by key; with a prefix, only keys that begin with it."""
        return self._below(prefix, lambda rows: {key: decode(rows[key].data or b"null") for key in sorted(rows)})

    def _of(self, keys: Sequence[str], answer: Callable[[Rows], T]) -> Any:
        wanted = set(keys)
        return self._ask(keys, lambda rows: answer(self._overlaid(rows, lambda key: key in wanted)))

    def _ask(self, keys: Sequence[str], answer: Callable[[Rows], T]) -> Any:
        for key in keys:
            self._key(key)
        reading = self._need()
        return reading.ask(lambda: self._seen(reading.store, self._current(reading.store.entries(self._path, list(keys)))), answer)

    def _current(self, rows: Rows) -> Rows:
        return {key: current_entry(self._path, key, row) for key, row in rows.items()}

    def _below(self, prefix: str, answer: Callable[[Rows], T]) -> Any:
        if prefix != "":
            check_key(prefix, "a prefix", self._limits.key_bytes)
        reading = self._need()
        return reading.ask(
            lambda: self._current(dict(all_entries(reading.store, self._path, prefix=prefix))),
            lambda rows: answer(self._overlaid(rows, lambda key: key.startswith(prefix))),
        )

    def _need(self) -> StateReading:
        if self._reading is None:
            raise InvalidInput("a step in a process of its own cannot read scoped state; give it what it needs as an argument")
        return self._reading

    def _seen(self, store: Store, rows: Rows) -> Rows:
        """Restart a sliding TTL after a read, with the step's commit."""
        now = store.now_ms() if any(row.sliding for row in rows.values()) else 0
        for key, row in rows.items():
            if key not in self._slid and not self._is_read_only and must_slide(row, now):
                self._slid.add(key)
                self._buffer.write_state(lambda key=key: Touch(self._path, key))
        return rows

    def _overlaid(self, rows: Rows, is_asked: Callable[[str], bool]) -> Rows:
        """Return stored entries overlaid with the writes of this attempt. Refuse what the commit would refuse."""
        ops = [op for op in self._own() if is_asked(op.key)]
        if not ops:
            return rows
        # Entries that were read are alive, and so are those written now, so no time is needed. The commit checks how full the
        # scope is.
        done = resolve(ops, lambda _, key: rows.get(key), lambda _: ScopeTotals(), 0, self._limits, lambda _: ())
        if isinstance(done, StepwellError):
            raise done
        written = {key: row for (_, key), row in done.entries.items()}
        return {key: row for key, row in {**rows, **written}.items() if row.data is not None}

    def _own(self) -> Iterable[Put | Delete | Increment]:
        for each in self._buffer.batch():
            if isinstance(each, WriteState) and isinstance(each.op, _OF_ONE_KEY) and each.op.scope == self._path:
                yield each.op

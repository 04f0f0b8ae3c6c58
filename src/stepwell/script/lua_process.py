"""Main program of a Lua process: receive scripts from the parent, run each in a fresh Lua, and pass its calls on as frames.

Only plain data crosses the pipe, and no Python object ever enters Lua: a script asks for something by a yield of its coroutine, and
this program answers with tables that it copies. The process is confined before the first script. One thread does everything: while
Lua computes, nothing else runs here, so the parent keeps the time and kills the process when a script's time is over.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from functools import cache
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import Any, cast

import msgspec

from stepwell.runtime.steps.frames import read_frame, write_frame
from stepwell.script.confinement import confine
from stepwell.script.lua_messages import HostReply, ProcessLimits, ScriptMessage, ScriptTask

__all__ = ["main"]

Stream = Any
lupa: Any = import_module("lupa.lua54")  # its stubs know neither bytes nor the members of tables

_HEADROOM_BYTES = 96 * 1024 * 1024
"""Address space for Python beside Lua: the copies of a value on its way in and out."""
_MOST_ITEMS = 1_000_000
_NICENESS = 10
"""A script that computes without end takes a tenth of the processor from a worker that needs it, not half."""
_OLDEST_SAFE = (5, 4, 4)
"""Lua 5.4.0 to 5.4.3 can use memory after it was freed (CVE-2021-44964)."""


class _NotPlain(Exception):
    """A value of Lua cannot be stored."""


def _deny(*_: object) -> Any:
    raise AttributeError("no attributes of Python objects")


def _new_lua(memory_bytes: int) -> Any:
    return lupa.LuaRuntime(
        encoding=None,
        unpack_returned_tuples=True,
        register_eval=False,
        register_builtins=False,
        attribute_handlers=(_deny, _deny),
        max_memory=memory_bytes,
    )


@cache
def _prelude() -> tuple[bytes, bytes]:
    """Return the sandbox and the API as bytecode of this very Lua; to parse them takes longer than most scripts run."""
    lua = _new_lua(0)
    dump: Any = lua.eval(b"string.dump")
    sources = (Path(__file__).with_name(name) for name in ("sandbox.lua", "api.lua"))
    sandbox, api = (dump(lua.compile(source.read_bytes(), name=b"stepwell", mode=b"t"), True) for source in sources)
    return sandbox, api


class _Lua:
    """One script in a Lua of its own."""

    def __init__(self, task: ScriptTask) -> None:
        self._task = task
        self._lua = _new_lua(task.memory_bytes)
        sandbox, api = _prelude()
        box = self._lua.compile(sandbox, mode=b"b")(task.seed, task.now)
        about = self._to_lua(
            {"workflow": task.workflow, "execution": task.execution_id, "step": task.step, "attempt": task.attempt}
        )
        made: tuple[Any, ...] = self._lua.compile(api, mode=b"b")(box, about)
        self._run, self._kind_of, self._mark_list, self._take_printed = made
        self._null: Any = self._lua.execute(b"return null")
        self._items = 0

    def run(self, parent: _Parent) -> ScriptMessage:
        """Run the script to its end, asking the parent for what it calls."""
        try:
            thread = self._run.coroutine(self._task.code.encode(), self._to_lua(self._task.input))
            said = thread.send(None)
            while said[0] == b"ask":
                said = thread.send(self._answer(parent, said))
            if said[0] == b"done":
                return ScriptMessage("done", value=self._out(said[1]), printed=self._printed())
            return self._failure(said[1].decode(), said[2])
        except _NotPlain as error:
            return ScriptMessage("failed", "value", value=str(error), printed=self._printed())
        except (lupa.LuaMemoryError, MemoryError):
            return ScriptMessage("failed", "memory")
        except lupa.LuaError as error:
            return ScriptMessage("failed", "error", value=_text(error.args[0] if error.args else ""))

    def _failure(self, kind: str, message: bytes) -> ScriptMessage:
        if message.endswith(b"not enough memory"):
            return ScriptMessage("failed", "memory", printed=self._printed())
        return ScriptMessage("failed", kind, value=_text(message), printed=self._printed())

    def _answer(self, parent: _Parent, said: tuple[Any, ...]) -> tuple[Any, ...]:
        try:
            arguments = [self._out(each) for each in said[2:]]
        except _NotPlain as error:
            return (False, str(error).encode(), True)  # the worker was not asked
        answer = parent.ask(ScriptMessage("ask", said[1].decode(), arguments, printed=self._printed()))
        return (True, self._to_lua(answer.value)) if answer.error is None else (False, answer.error.encode("utf-8", "replace"))

    def _printed(self) -> list[tuple[str, str]]:
        taken = self._take_printed()
        lines = [] if taken is None else [dict(line.items()) for _, line in sorted(taken.items())]
        return [(_text(line[1]), _text(line[2])) for line in lines]

    # Values, in and out. The members of a table are read without its metamethods.

    def _to_lua(self, value: Any, null: Any = None) -> Any:
        if isinstance(value, str):
            return value.encode()
        if value is None:
            return null
        if isinstance(value, list):
            return self._list_to_lua(cast("list[Any]", value))
        if not isinstance(value, dict):
            return value
        table = self._lua.table()
        for key, item in cast("dict[str, Any]", value).items():
            table[key.encode()] = self._to_lua(item)
        return table

    def _list_to_lua(self, value: list[Any]) -> Any:
        table = self._lua.table()
        for place, item in enumerate(value, 1):
            table[place] = self._to_lua(item, self._null)
        self._mark_list(table)
        return table

    def _out(self, value: Any) -> Any:
        self._items = 0
        return self._from_lua(value, 0)

    def _from_lua(self, value: Any, depth: int) -> Any:
        self._items += 1
        if self._items > _MOST_ITEMS:
            raise _NotPlain(f"a value has more than {_MOST_ITEMS:,} members")
        if value is None or isinstance(value, bool | int):
            return value
        if isinstance(value, float):
            if not isfinite(value):
                raise _NotPlain("a number that is infinite or not a number cannot be stored; use a text or nil")
            return value
        if isinstance(value, bytes):
            try:
                return value.decode()
            except UnicodeDecodeError:
                raise _NotPlain("a text that is not UTF-8 cannot be stored") from None
        if lupa.lua_type(value) != "table":
            raise _NotPlain(f"a {lupa.lua_type(value)} cannot be stored; use texts, numbers, booleans and tables of them")
        return self._of_table(value, depth)

    def _of_table(self, table: Any, depth: int) -> Any:
        if depth > self._task.depth:
            raise _NotPlain(f"a table is nested more than {self._task.depth} levels deep, or contains itself")
        kind: bytes = self._kind_of(table)
        if kind == b"null":
            return None
        if kind == b"frozen":
            raise _NotPlain("a part of Stepwell's own tables cannot be stored")
        members: dict[Any, Any] = dict(table.items())
        count = len(members)
        if kind == b"list" and not members:
            return []
        if count and all(type(key) is int for key in members) and min(members) == 1 and max(members) == count:
            return [self._from_lua(members[place], depth + 1) for place in range(1, count + 1)]
        found: dict[str, Any] = {}
        for key, member in members.items():
            if not isinstance(key, bytes):
                shown = key if isinstance(key, int | float | bool) else "a table"
                raise _NotPlain(
                    f"a table has the key {shown}; what can be stored has texts as keys, or is a list from 1 on without gaps"
                )
            found[self._from_lua(key, depth)] = self._from_lua(member, depth + 1)
        return found


def _text(data: object) -> str:
    return data.decode("utf-8", "replace") if isinstance(data, bytes) else str(data)


class _Parent:
    """The worker at the other end of the pipes."""

    def __init__(self, incoming: Stream, outgoing: Stream) -> None:
        self._incoming, self._outgoing = incoming, outgoing

    def receive(self) -> bytes:
        """Wait for a frame. Without a parent this process ends."""
        data = read_frame(self._incoming)
        if data is None:
            os._exit(0)
        return data

    def send(self, message: ScriptMessage) -> None:
        """Send a message."""
        write_frame(self._outgoing, msgspec.json.encode(message))

    def ask(self, message: ScriptMessage) -> HostReply:
        """Send a call and wait for its answer."""
        self.send(message)
        return msgspec.json.decode(self.receive(), type=HostReply)


def _run(task: ScriptTask, parent: _Parent) -> ScriptMessage:
    lua = _Lua(task)
    return lua.run(parent)  # when this returns, Lua is gone with all its memory, before the parent hears of the end


def _check_version() -> None:
    found = re.search(rb"\$LuaVersion: Lua (\d+)\.(\d+)\.(\d+)", Path(lupa.__file__).read_bytes())
    if found is not None and tuple(int(each) for each in found.groups()) < _OLDEST_SAFE:
        raise SystemExit("this lupa brings a Lua that is known to be unsafe; upgrade it: pip install --upgrade lupa")


def main() -> None:
    """Serve the parent until it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all; the parent decides
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    _check_version()
    parent = _Parent(incoming, outgoing)
    write_frame(outgoing, b"ready")
    limits = msgspec.json.decode(parent.receive(), type=ProcessLimits)
    _run(ScriptTask("return 1", None, "", "", "", 1, 0.0, 0, limits.memory_bytes, 8), parent)  # imports what only a script needs
    os.nice(_NICENESS)
    confine(limits.memory_bytes + _HEADROOM_BYTES, limits.cpu_seconds)
    parent.send(ScriptMessage("done"))
    while True:
        parent.send(_run(msgspec.json.decode(parent.receive(), type=ScriptTask), parent))


if __name__ == "__main__":
    sys.exit(main())

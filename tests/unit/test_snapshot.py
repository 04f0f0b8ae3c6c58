"""Snapshots: bytes that say what they are, cannot be changed unseen, and are only ever read."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.sample import Chain, metadata, story, values

from stepwell.errors import InvalidSnapshot
from stepwell.model.execution_state import SECTIONS, ExecutionState, element, sha256_hex, state_digest
from stepwell.model.record import encode_record
from stepwell.model.snapshot import SNAPSHOT_SCHEMA, Snapshot, read_snapshot, store_snapshot, stored_state, write_snapshot

SNAPSHOT = write_snapshot(story().state)
_encode = msgspec.json.encode


Content = dict[str, Any]


def forge(change: Callable[[Content], object], *, schema: int = SNAPSHOT_SCHEMA, form: str = "stepwell.snapshot") -> bytes:
    """A snapshot whose content was changed and whose digests all fit: what somebody who knows the format can make."""
    content = msgspec.structs.asdict(msgspec.json.decode(SNAPSHOT.partition(b"\n")[2], type=Snapshot))
    change(content)
    rows = {section: {key: _encode(value) for key, value in rows.items()} for section, rows in content["entries"].items()}
    known = [
        (SECTIONS[section], key, data) for section, entries in rows.items() if section in SECTIONS for key, data in entries.items()
    ]
    content["state"] = state_digest(sum(element(*each) for each in known) % 2**4096)
    content["entries"] = {section: {key: msgspec.Raw(data) for key, data in entries.items()} for section, entries in rows.items()}
    body = _encode(content)
    return _encode({"format": form, "schema": schema, "digest": sha256_hex(body)}) + b"\n" + body


def test_snapshot_comes_back_whole() -> None:
    chain = story()
    snapshot, state = read_snapshot(write_snapshot(chain.state))
    assert ExecutionState(state) == chain.view
    assert (snapshot.execution_id, snapshot.workspace_id, snapshot.revision) == ("run-1", "acme", 7)
    assert snapshot.receipt == chain.receipts[-1].digest
    assert snapshot.state == chain.receipts[-1].after


def test_same_state_has_the_same_bytes() -> None:
    """T51."""
    one, two = Chain(), Chain()
    one.change(lambda tx: (tx.set_variable("a", 1), tx.set_variable("b", 2)))
    two.change(lambda tx: (tx.set_variable("b", 2), tx.set_variable("a", 1)))
    first, second = (write_snapshot(chain.state).replace(chain.state.receipt.encode(), b"") for chain in (one, two))
    body = slice(first.index(b"\n"), None)
    assert first[body] == second[body]


@given(st.dictionaries(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1, max_size=9), values))
@settings(max_examples=60, deadline=None)
def test_any_state_survives(variables: dict[str, object]) -> None:
    chain = Chain()
    chain.change(lambda tx: [tx.set_variable(name, value) for name, value in variables.items()])
    assert ExecutionState(read_snapshot(write_snapshot(chain.state))[1]) == chain.view
    assert stored_state(store_snapshot(chain.state)).digest == chain.state.digest


def test_changed_anywhere_it_is_refused() -> None:
    """B4: every byte."""
    for position in range(len(SNAPSHOT)):
        damaged = bytearray(SNAPSHOT)
        damaged[position] ^= 1 << (position % 7)
        with pytest.raises(InvalidSnapshot):
            read_snapshot(bytes(damaged))


def test_cut_or_lengthened_it_is_refused() -> None:
    for length in range(len(SNAPSHOT)):
        with pytest.raises(InvalidSnapshot):
            read_snapshot(SNAPSHOT[:length])
    for extra in (b" ", b"\n", b"\0", b"{}", SNAPSHOT):
        with pytest.raises(InvalidSnapshot):
            read_snapshot(SNAPSHOT + extra)


@pytest.mark.parametrize(
    "data",
    [
        None,
        "text",
        5,
        bytearray(SNAPSHOT),
        b"",
        b"\n",
        b"{}",
        b"null\nnull",
        b"[]\n[]",
        b"\xff\xfe",
        b"SQLite format 3\0",
        b"[" * 100_000,
    ],
    ids=repr,
)
def test_what_is_no_snapshot_is_refused(data: object) -> None:
    with pytest.raises(InvalidSnapshot):
        read_snapshot(data)


def test_newer_snapshot_is_refused_with_both_versions_named() -> None:
    """T48."""
    with pytest.raises(InvalidSnapshot, match="has schema 2 and this Stepwell reads up to 1; upgrade"):
        read_snapshot(forge(lambda content: None, schema=2))


def test_other_formats_are_named() -> None:
    with pytest.raises(InvalidSnapshot, match=r"but 'stepwell\.proof'"):
        read_snapshot(forge(lambda content: None, form="stepwell.proof"))


def test_unchanged_forgery_is_accepted() -> None:
    """The forger of these tests knows the format; what it changes is what is refused."""
    assert read_snapshot(forge(lambda content: None))[1].digest == story().state.digest


def _identity(**changes: object) -> Callable[[Content], object]:
    def change(content: Content) -> None:
        content["entries"]["identity"][""] = {**msgspec.json.decode(content["entries"]["identity"][""]), **changes}

    return change


def _entry(section: str, key: str, value: object) -> Callable[[Content], object]:
    return lambda content: content["entries"].setdefault(section, {}).__setitem__(key, value)


CRAFTED = {
    "unknown section": _entry("plugins", "a", "os.system"),
    "no identity": lambda content: content["entries"].pop("identity"),
    "another execution inside": _identity(execution_id="run-2"),
    "another workspace inside": _identity(workspace_id="evil"),
    "empty id": _identity(execution_id=""),
    "identity of another shape": _entry("identity", "", [1]),
    "unknown status": _entry("status", "", "ROCKET"),
    "status under a name": lambda content: content["entries"].__setitem__("status", {"x": "PENDING"}),
    "no status": lambda content: content["entries"].pop("status"),
    "no step count": lambda content: content["entries"].pop("step_count"),
    "step count as text": _entry("step_count", "", "many"),
    "metadata as a list": _entry("metadata", "", []),
    "no root scope": lambda content: content["entries"].pop("scopes"),
    "step of another shape": _entry("steps", "charge", 5),
    "token of another shape": _entry("tokens", "t", {"token_id": "t"}),
    "token of unknown status": _entry("tokens", "t", {"token_id": "t", "node": "n", "scope": "root", "value": 1, "status": "odd"}),
    "scope of another shape": _entry("scopes", "s", "s"),
    "loop of another shape": _entry("loops", "l", []),
    "unknown trigger": _entry("trigger", "", {"kind": "pickle", "value": "gASV"}),
    "nothing at all": lambda content: content.update(entries={}),
    "revision as text": lambda content: content.update(revision="7"),
}


@pytest.mark.parametrize("name", CRAFTED)
def test_crafted_snapshot_with_fitting_digests_is_refused(name: str) -> None:
    """B4, T48: digests can be made for any content."""
    with pytest.raises(InvalidSnapshot):
        read_snapshot(forge(CRAFTED[name]))


def test_entries_that_do_not_add_up_are_refused() -> None:
    body = SNAPSHOT.partition(b"\n")[2].replace(b'"yes"', b'"no!"')
    label = {"format": "stepwell.snapshot", "schema": 1, "digest": sha256_hex(body)}
    with pytest.raises(InvalidSnapshot, match="do not add up"):
        read_snapshot(msgspec.json.encode(label) + b"\n" + body)


# Pickles, YAML, msgpack extensions and envelopes of other libraries that would call os.system if anybody obeyed them.
HOSTILE = [
    b"\x80\x04\x95\x1f\0\0\0\0\0\0\0\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c\x04true\x94\x85\x94R\x94.",
    b"cposix\nsystem\n(S'true'\ntR.",
    b"!!python/object/apply:os.system ['true']",
    b'{"lc":1,"type":"constructor","id":["os","system"],"kwargs":{"command":"true"}}',
    b'{"py/object":"os.system","py/reduce":[{"py/function":"os.system"},{"py/tuple":["true"]}]}',
    b'{"__class__":"subprocess.Popen","args":["true"]}',
    b"\xc7\x05\x01posix",
    b"__import__('os').system('true')",
    SNAPSHOT,
    forge(_entry("variables", "paid", {"__reduce__": ["os.system", ["true"]], "__class__": "os.system"})),
    forge(_entry("trigger", "", {"kind": "plain", "value": {"py/object": "os.system"}})),
]

WATCHED = """
import json, sys, base64
from stepwell.errors import StepwellError
from stepwell.model.commit import Head, Loaded, StoredCommit
from stepwell.model.receipt_chain import rebuild
from stepwell.model.receipt_chain import verify_proof
from stepwell.model.snapshot import StoredSnapshot, read_snapshot, stored_state
from stepwell.model.execution_state import ExecutionState

payloads = [base64.b64decode(line) for line in json.load(sys.stdin)]
head = Head(execution_id="a", workspace_id="a", workflow_id="a", version=1, status="PENDING", revision=0, digest="")
seen = []

def use(data):
    for read in (
        lambda: ExecutionState(read_snapshot(data)[1]).variables,
        lambda: stored_state(StoredSnapshot(0, data, bytes(512), "")),
        lambda: verify_proof(data),
        lambda: verify_proof(data + b"\\n" + data),
        lambda: rebuild(Loaded(head, None, [StoredCommit(0, data, data)])),
    ):
        try:
            read()
        except StepwellError:
            pass

for payload in payloads:  # once before, so that what loads lazily is loaded
    use(payload)
is_watching = True
harmless = {"object.__getattr__", "object.__setattr__", "sys._getframe", "code.__new__"}
sys.addaudithook(lambda event, args: is_watching and event not in harmless and seen.append(event))
for payload in payloads:
    use(payload)
is_watching = False
print(json.dumps(seen))
"""


def test_stored_bytes_are_never_executed_or_imported() -> None:
    """B4, T59: no import, exec, open, subprocess or unpickling happens while hostile bytes are read."""
    done = subprocess.run(
        [sys.executable, "-c", WATCHED],
        input=json.dumps([base64.b64encode(data).decode() for data in HOSTILE]),
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == []


def test_the_watch_above_would_see_an_execution() -> None:
    code = WATCHED.replace("        lambda: verify_proof(data),", "        lambda: eval(compile('1', 'x', 'eval')),")
    assert code != WATCHED
    done = subprocess.run([sys.executable, "-c", code], input='["e30="]', capture_output=True, text=True, check=True)
    assert {"compile", "exec"} <= set(json.loads(done.stdout))


def test_snapshot_of_an_execution_with_odd_ids() -> None:
    """T46."""
    chain = Chain('a\n"b/../%00', "w\u2028")
    snapshot, state = read_snapshot(write_snapshot(chain.state))
    assert snapshot.execution_id == 'a\n"b/../%00'
    assert state.identity == metadata('a\n"b/../%00', "w\u2028")
    assert encode_record(state.identity) == chain.state.sections["identity"][""]

"""Receipt chain: build a commit on a state, walk stored commits back to a state with every link checked, and write proofs.

A proof is one execution's receipts as a file that can be checked without the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime

import msgspec

from stepwell.clock import to_ms
from stepwell.errors import Corrupted, InvalidInput, InvalidSnapshot, StepwellError, ValidationFailed
from stepwell.model.commit import Commit, Creation, Head, Loaded, LockGuard, Rest, StoredCommit
from stepwell.model.draft import Draft
from stepwell.model.execution_state import ONLY, State, sha256_hex
from stepwell.model.limits import Limits
from stepwell.model.mutation import Mutation, decode_mutations, encode_mutations
from stepwell.model.plain_data import PlainRecord
from stepwell.model.queue_item import ItemMark
from stepwell.model.receipt import RECEIPT_SCHEMA, Receipt, ReceiptHeader, decode_header, encode_header, sign_head
from stepwell.model.record import decode_status
from stepwell.model.sealed_value import is_sealed
from stepwell.model.snapshot import StoredSnapshot, store_snapshot, stored_state, unreadable
from stepwell.model.validation import plan

__all__ = [
    "PROOF_SCHEMA",
    "Verification",
    "build_commit",
    "check_vouched",
    "fast_forward",
    "read_proof",
    "rebuild",
    "replay",
    "settle",
    "snapshot_due",
    "verify",
    "verify_proof",
    "write_proof",
]


_NO_LIMITS = Limits(execution_bytes=2**62, execution_keys=2**62, commit_mutations=2**62)

# A snapshot is due when the commits since the last one weigh as much as half the state: then loading reads at most about 1.5
# states' worth of bytes, and snapshots add at most about two bytes of writing to each byte committed, however large either grows.
_SNAPSHOT_BYTES = 64 * 1024

# Hashing an entry takes about as long as loading it, 4 us, so that loading the largest executions would take twice as long. This
# many entries take 4 ms.
_MOST_ADDED_UP = 1_000


class Verification(PlainRecord, frozen=True):
    """The result of walking a receipt chain."""

    ok: bool
    problems: tuple[str, ...]
    receipts: int = 0
    """The number of verified receipts."""
    head: str = ""
    """Digest of the newest receipt."""
    unreadable: int = 0
    """The number of verified receipts whose content could not be read, since its key was erased or is not here. Their links and the
    digests of what is stored were checked, and not the states between."""


def snapshot_due(state: State) -> bool:
    """Return whether the next commit should carry a snapshot of this state."""
    return state.since_snapshot > _SNAPSHOT_BYTES and state.since_snapshot > state.size // 2


def build_commit(
    draft: Draft,
    *,
    execution_id: str,
    workspace_id: str,
    commit_id: str,
    committed_at: datetime,
    fence: int | None = None,
    guards: tuple[LockGuard, ...] = (),
    rest: Rest | None = None,
    nudges: tuple[str, ...] = (),
    key: bytes | None = None,
    creation: Creation | None = None,
    mark: ItemMark | None = None,
    is_named: bool = True,
    seal: Callable[[bytes, int], bytes] | None = None,
) -> tuple[Commit, ReceiptHeader]:
    """Return the commit of a validated draft, and the header of the receipt that it will have once it is stored.

    - ``seal``: encrypts or compresses the body of a revision. The digests cover what it returns, so that they can be checked
      without the key.
    """
    state = draft.base
    revision = state.revision + 1
    body = encode_mutations(draft.mutations)
    if seal is not None:
        body = seal(body, revision)
    header = ReceiptHeader(
        RECEIPT_SCHEMA,
        execution_id,
        workspace_id,
        revision,
        commit_id,
        committed_at,
        sha256_hex(body),
        state.digest,
        draft.digest,
        state.receipt,
    )
    encoded = encode_header(header)
    digest = sha256_hex(encoded)
    items = () if draft.items is None else tuple(draft.items)
    if creation is not None and creation.slot is not None:
        items = (*items, creation.slot)
    commit = Commit(
        execution_id,
        workspace_id,
        commit_id,
        revision,
        state.receipt,
        digest,
        encoded,
        body,
        to_ms(committed_at),
        draft.status,
        fence,
        None if key is None else sign_head(key, execution_id, revision, digest, draft.digest),
        creation,
        store_snapshot(state) if snapshot_due(state) else None,
        () if draft.ops is None else tuple(draft.ops),
        guards,
        rest,
        nudges,
        items,
        mark,
        is_named,
        draft.version,
    )
    return commit, header


def settle(draft: Draft, commit: Commit) -> None:
    """Apply a stored commit to the state."""
    state = draft.apply()
    state.revision, state.receipt = commit.revision, commit.digest
    state.since_snapshot = len(commit.body) + (0 if commit.snapshot else state.since_snapshot)


def rebuild(loaded: Loaded, *, at: int | None = None) -> State:
    """Return the state of stored rows. Raise ``Corrupted`` if any row does not match its digests.

    Every link of the rows is checked; of the states only the last one, so that each entry is hashed once. ``verify`` checks the
    states between, too, and whether a large snapshot matches its accumulator.
    """
    head = loaded.head
    try:
        state = State() if loaded.snapshot is None else stored_state(loaded.snapshot)
        if sum(map(len, state.sections.values())) <= _MOST_ADDED_UP:
            _check_sum(state, state.revision)
        _fast_forward(state, head, loaded.commits)
        target = head.revision if at is None else at
        if state.revision != target:
            raise _Broken(f"its commits end at revision {state.revision}, not {target}")
        if target == head.revision and state.receipt != head.digest:
            raise _Broken("its last receipt is not the one in its head")
    except (_Broken, InvalidSnapshot) as error:
        raise _quarantined(head, error) from None
    return state


def check_vouched(state: State, beside: Loaded) -> None:
    """Raise ``Corrupted`` unless a state that was built on a snapshot is the one that a receipt names.

    A snapshot's own digests can be made to fit any content. ``beside`` has the receipts of the state's revision and of the next.
    Only where the chain starts there is none of its own; the next one, if there is one, names the state that it follows.
    """
    head, at = beside.head, state.revision
    try:
        _check_sum(state, at)
        row = beside.commits[0] if beside.commits else None
        if at > head.base_revision and (row is None or row.revision != at):
            raise _Broken(f"the receipt at revision {at} is missing")
        if row is not None:
            receipt = Receipt.read(row.header, row.body, row.opened)
            named = (receipt.digest, receipt.after) if row.revision == at else (receipt.previous, receipt.before)
            if named != (state.receipt, state.digest):
                raise _Broken(f"the snapshot that revision {at} is built on is not of the state that the receipts name")
    except _Broken as error:
        raise _quarantined(head, error) from None


def _check_sum(state: State, at: int) -> None:
    """Raise unless a snapshot's entries add up to its accumulator, which the digests in receipts are made from."""
    if state.add_up() != state.accumulator:
        raise _Broken(f"the snapshot that revision {at} is built on does not add up to its digest")


def fast_forward(state: State, loaded: Loaded) -> bool:
    """Apply newer commits to a state. Return False, and leave the state as it was, if they do not follow it."""
    try:
        _fast_forward(state, loaded.head, loaded.commits)
    except _Broken:
        return False
    return state.receipt == loaded.head.digest


class _Broken(Exception):
    """A stored row does not fit the rows before it; the message says which and how."""


def _quarantined(head: Head, error: Exception) -> Corrupted:
    return Corrupted(f"execution {head.execution_id!r} is quarantined: {error.args[0]}")


def _fast_forward(state: State, head: Head, rows: Sequence[StoredCommit]) -> None:
    """Apply all rows to a state, or none."""
    if not rows:
        return
    mutations: list[Mutation] = []
    revision, receipt, after, size = state.revision, state.receipt, "", 0
    for row in rows:
        header = _follow(revision, receipt, head, row)
        mutations += _mutations(row)
        revision, receipt, after = header.revision, sha256_hex(row.header), header.after
        size += len(row.body)
    _replan(state, mutations, after)
    state.revision, state.receipt = revision, receipt
    state.since_snapshot += size


def replay(state: State, head: Head, row: StoredCommit) -> None:
    """Apply one stored commit to the state before it, checking all of it."""
    header = _follow(state.revision, state.receipt, head, row)
    if header.before != state.digest:
        raise _Broken(f"the state before revision {header.revision} does not have the digest in its receipt")
    _replan(state, _mutations(row), header.after)
    state.revision, state.receipt = header.revision, sha256_hex(row.header)


def _replan(state: State, mutations: Sequence[Mutation], after: str) -> None:
    try:
        draft = plan(state, mutations, _NO_LIMITS)
    except (ValueError, ValidationFailed) as error:
        raise _Broken(f"the mutations after revision {state.revision} cannot be applied: {error}") from None
    if draft.digest != after:
        raise _Broken(f"the state after revision {state.revision} does not come to the digest in its receipt")
    draft.apply()


def _mutations(row: StoredCommit) -> list[Mutation]:
    body = row.body
    if row.opened is not None or is_sealed(body):
        if row.opened is None or isinstance(row.opened, StepwellError):
            raise row.opened or unreadable(f"revision {row.revision}")
        body = row.opened
    try:
        return decode_mutations(body)
    except (ValueError, RecursionError):
        raise _Broken(f"the mutations of revision {row.revision} cannot be read") from None


def _follow(last: int, receipt: str, head: Head, row: StoredCommit) -> ReceiptHeader:
    """Return the header of the row that must come after revision ``last`` with that receipt, its links checked."""
    revision = last + 1
    if not (isinstance(row.header, bytes) and isinstance(row.body, bytes)):  # a damaged file may return anything
        raise _Broken(f"the row after revision {last} does not hold what a commit holds")
    try:
        header = decode_header(row.header)
    except (ValueError, RecursionError):
        raise _Broken(f"the receipt after revision {last} cannot be read") from None
    if header.schema > RECEIPT_SCHEMA:
        raise _Broken(f"receipt {revision} has schema {header.schema}; this Stepwell reads up to {RECEIPT_SCHEMA}, upgrade it")
    if header.revision != revision or row.revision != revision:
        raise _Broken(f"revision {revision} is missing: the next receipt says {header.revision}, its row {row.revision}")
    if header.execution_id != head.execution_id or header.workspace_id != head.workspace_id:
        raise _Broken(f"the receipt at revision {revision} belongs to execution {header.execution_id!r}")
    if header.previous != receipt:
        raise _Broken(f"the receipt at revision {revision} does not follow from the one before it")
    if sha256_hex(row.body) != header.mutations:
        raise _Broken(f"the mutations of revision {revision} do not match their digest")
    return header


def verify(
    head: Head,
    base: StoredSnapshot | None,
    commits: Iterable[StoredCommit],
    *,
    key: bytes | None = None,
    anchors: Iterable[Receipt] = (),
    snapshots: Iterable[StoredSnapshot] = (),
    has_row: bool = True,
) -> Verification:
    """Walk a whole chain: every link, every digest, every state, its end against the head, and receipts kept elsewhere.

    ``snapshots`` are those after the base, which loading starts from; each must equal the state of the chain at its revision.
    ``has_row``: whether the head is the execution's row, whose other columns must then say what the state says. A proof has none.
    The walk stops at the first broken link, since nothing after that can be trusted.
    """
    state, walked = State(), 0
    kept: dict[int, list[Receipt]] = {}
    for receipt in anchors:
        kept.setdefault(receipt.revision, []).append(receipt)
    # Only their digests: together the snapshots may be twice as large as all commits.
    seals = {stored.revision: _seal(stored) for stored in snapshots if not stored.is_dark}
    problems: list[str] = []
    unread, is_dark, is_first = 0, base is not None and base.is_dark, True
    try:
        if base is not None and is_dark:
            _check_stored(base)
            state.revision, state.receipt = base.revision, head.digest
        elif base is not None:
            state = stored_state(base)
            _check_sum(state, base.revision)
            _compare_with_kept(state, kept)
        for row in commits:
            if is_dark and is_first:  # only the next receipt says what the snapshot is of
                state.receipt, state.digest = _named_before(row)
            is_dark, is_first = is_dark or _is_dark(row), False
            if is_dark:
                _follow_dark(state, head, row)
                unread += 1
            else:
                replay(state, head, row)
            walked += 1
            _compare_with_kept(state, kept)
            if not is_dark and state.revision in seals and seals[state.revision] != _seal(store_snapshot(state)):
                raise _Broken(f"the snapshot at revision {state.revision} is not of the state there; loading would show another")
        problems += _end_problems(state, head, None if is_dark and is_first else key)
        if has_row and not problems and not is_dark:
            problems += _row_problems(state, head)
    except (_Broken, InvalidSnapshot) as error:
        problems.append(str(error.args[0]))
    gone = sorted(revision for revision in kept if revision > state.revision)
    problems += [f"the receipt you kept for revision {revision} is gone; history was cut" for revision in gone]
    return Verification(not problems, tuple(problems), walked, state.receipt, unread)


def _is_dark(row: StoredCommit) -> bool:
    """Return whether the content of a commit cannot be read here."""
    return isinstance(row.opened, StepwellError) or (row.opened is None and isinstance(row.body, bytes) and is_sealed(row.body))


def _follow_dark(state: State, head: Head, row: StoredCommit) -> None:
    """Check a commit whose content cannot be read: its links, and the digest of its body."""
    header = _follow(state.revision, state.receipt, head, row)
    if header.before != state.digest:
        raise _Broken(f"the state before revision {header.revision} does not have the digest in its receipt")
    state.revision, state.receipt, state.digest = header.revision, sha256_hex(row.header), header.after


def _named_before(row: StoredCommit) -> tuple[str, str]:
    """Return the receipt and the state that a commit says it follows."""
    try:
        header = decode_header(row.header)
    except (TypeError, ValueError, RecursionError):
        raise _Broken(f"the receipt at revision {row.revision} cannot be read") from None
    return header.previous, header.before


def _check_stored(stored: StoredSnapshot) -> None:
    if sha256_hex(stored.data + stored.accumulator) != stored.digest:
        raise _Broken("the stored snapshot does not match its digest")


def _seal(stored: StoredSnapshot) -> str:
    """Return a digest over the content of a whole stored snapshot, even a damaged one."""
    return sha256_hex(msgspec.msgpack.encode(stored.as_opened()))


def _compare_with_kept(state: State, kept: dict[int, list[Receipt]]) -> None:
    for receipt in kept.pop(state.revision, ()):
        if (receipt.digest, receipt.after) != (state.receipt, state.digest):
            raise _Broken(f"the receipt at revision {state.revision} is not the one you kept; history was rewritten")


def _end_problems(state: State, head: Head, key: bytes | None) -> list[str]:
    problems: list[str] = []
    if state.revision != head.revision or state.receipt != head.digest:
        problems.append(
            f"the chain ends at revision {state.revision}, but the head says {head.revision}; its tail was cut or replaced"
        )
    elif key is not None and head.signature != sign_head(key, head.execution_id, head.revision, head.digest, state.digest):
        problems.append("the head's signature does not match: the chain was rewritten or cut, or the key is another one")
    return problems


def _row_problems(state: State, head: Head) -> list[str]:
    """Return where the execution's row differs from its state. Lists and workers use the row alone."""
    who = state.identity
    named = {
        "workspace": (head.workspace_id, who.workspace_id),
        "workflow": (head.workflow_id, who.workflow_id),
        "version": (head.version, who.version),
        "parent": (head.parent_id, who.parent_id),
        "status": (head.status, str(decode_status(state.sections["status"][ONLY]))),
    }
    return [
        f"the execution's row says {what} {row!r}, and its state says {said!r}; the row was edited"
        for what, (row, said) in named.items()
        if row != said
    ]


PROOF_SCHEMA = 1
_FORMAT = "stepwell.proof"


class _Label(msgspec.Struct, frozen=True):
    """The first line of a proof: the format, the execution, the end of the chain, and the snapshot that it starts from, if
    any."""

    format: str
    schema: int
    execution_id: str
    workspace_id: str
    revision: int
    digest: str
    signature: bytes | None
    base: StoredSnapshot | None


class _Line(msgspec.Struct, frozen=True):
    """A receipt and its mutations, as the very bytes that the digests are taken over."""

    receipt: msgspec.Raw
    mutations: msgspec.Raw


_encode = msgspec.json.encode
_decode_label = msgspec.json.Decoder(_Label).decode
_decode_line = msgspec.json.Decoder(_Line).decode


def write_proof(head: Head, base: StoredSnapshot | None, rows: Iterable[StoredCommit], key: bytes | None) -> bytes:
    """Return the proof of these commits; it ends with the last of them."""
    last, lines = None, list[bytes]()
    for last in rows:
        lines.append(_encode(_Line(msgspec.Raw(last.header), msgspec.Raw(last.body))))
    # A proof up to the head contains the head's own signature: a new one would lend the key to whatever the store has now.
    digest, revision, signature = head.digest, head.revision, head.signature
    if last is not None and last.revision < head.revision:
        revision, digest = last.revision, sha256_hex(last.header)
        after = decode_header(last.header).after
        signature = None if key is None else sign_head(key, head.execution_id, revision, digest, after)
    start = None if base is None else base.as_stored()
    label = _Label(_FORMAT, PROOF_SCHEMA, head.execution_id, head.workspace_id, revision, digest, signature, start)
    return b"\n".join([_encode(label), *lines, b""])


def verify_proof(data: bytes, *, key: bytes | None = None) -> Verification:
    """Check a proof by itself, without a store, and return every problem that was found.

    It checks every link, digest and state, up to the end that the first line of the proof names.

    - ``data``: the bytes that ``well.export`` returned, or those of a file of ``well.archive``.
    - ``key``: the signing key of the well, to check the signature of the last receipt, too.

    Raise ``InvalidInput`` for bytes that are no proof. A broken chain raises nothing: it is in the result.
    """
    if key is not None and not isinstance(key, bytes):
        raise InvalidInput(f"key is the bytes that the receipts were signed with, not {type(key).__name__}")
    head, base, rows = read_proof(data)
    try:
        return verify(head, base, rows, key=key, has_row=False)
    except (ValueError, RecursionError) as error:
        return Verification(False, (f"a line of the proof cannot be read: {error}",))


def read_proof(data: bytes) -> tuple[Head, StoredSnapshot | None, Iterator[StoredCommit]]:
    """Return where a proof ends, the snapshot that it starts from, and its commits, unchecked.

    Workflow and status of the head are empty: only its commits have them. Raise ``InvalidInput`` for bytes that are no proof.
    """
    if not isinstance(data, bytes):
        raise InvalidInput(f"a proof is the bytes of a file, not {type(data).__name__}; read it with Path(...).read_bytes()")
    first, _, rest = data.partition(b"\n")
    try:
        label = _decode_label(first)
    except (ValueError, RecursionError):
        raise InvalidInput("these bytes are not a Stepwell proof: the first line is no label") from None
    if label.format != _FORMAT or label.schema > PROOF_SCHEMA:
        raise InvalidInput(f"this is {label.format!r} schema {label.schema}; this Stepwell reads {_FORMAT!r} up to {PROOF_SCHEMA}")
    head = Head(
        execution_id=label.execution_id,
        workspace_id=label.workspace_id,
        workflow_id="",
        version=0,
        status="",
        revision=label.revision,
        digest=label.digest,
        signature=label.signature,
        base_revision=-1 if label.base is None else label.base.revision,
    )
    return head, label.base, _rows(rest, head.base_revision)


def _rows(text: bytes, base_revision: int) -> Iterator[StoredCommit]:
    for number, line in enumerate(text.splitlines(), base_revision + 1):
        decoded = _decode_line(line)
        yield StoredCommit(number, bytes(decoded.receipt), bytes(decoded.mutations))

"""The files of an archive: receipts of executions that retention took out of the store.

A file has the proofs of several executions of one workspace, a line of JSON for each, compressed. Its name ends with the SHA-256 of
its bytes. It is written beside its place, synced and moved there in one step, before anything is removed from the store; a process
that dies in between leaves receipts in both places. Each proof verifies by itself, without the store.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

import msgspec

from stepwell.errors import InvalidBackup, InvalidInput, NotFound, StoreUnavailable
from stepwell.maintenance.packed_lines import pack_lines, read_regular_file, unpacked_lines, write_new_file
from stepwell.model.plain_data import PlainRecord
from stepwell.model.receipt_chain import verify_proof

__all__ = ["ArchiveVerification", "ArchivedProof", "read_archive", "verify_archive", "write_archive"]

_SUFFIX = ".proofs.z"
_LONGEST_NAME = 200
"""File systems take names of 255 bytes."""


class ArchivedProof(msgspec.Struct, frozen=True, kw_only=True):
    """The receipts of one execution in an archive."""

    execution_id: str
    workspace_id: str
    workflow_id: str
    status: str
    """As it was then."""
    first: int
    """The first revision of it."""
    last: int
    """The last revision of it."""
    proof: str
    """What ``verify_proof`` checks, as a text in UTF-8."""


class ArchiveVerification(PlainRecord, frozen=True):
    """The result of checking an archive."""

    ok: bool
    problems: tuple[str, ...]
    files: int = 0
    proofs: int = 0
    receipts: int = 0


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ArchivedProof).decode


def write_archive(folder: Path, workspace: str, proofs: Sequence[ArchivedProof], at: datetime) -> str:
    """Write proofs into a new file of a workspace, and return its path below the folder. It is durable when this returns.

    Raise ``StoreUnavailable`` if it cannot be written.
    """
    data = pack_lines([*map(_encode, proofs)], 6)
    place = folder / _folder_name(workspace)
    name = f"{at:%Y%m%dT%H%M%S}-{sha256(data).hexdigest()}{_SUFFIX}"
    try:
        place.mkdir(parents=True, exist_ok=True)
        beside = place / f".{name}.{os.getpid()}.new"
        write_new_file(beside, data)
        beside.replace(place / name)
        _sync(place)
        _sync(folder)
    except OSError as error:
        raise StoreUnavailable(
            f"the archive cannot be written to {str(place)!r}: {error.strerror}; nothing was removed, and the next round "
            "tries again"
        ) from error
    return f"{place.name}/{name}"


def _folder_name(workspace: str) -> str:
    """Return the name of a workspace's folder: the quoted id, or its digest where that would lead elsewhere or be too long."""
    quoted = quote(workspace, safe="")
    return quoted if len(quoted) <= _LONGEST_NAME and not quoted.startswith(".") else sha256(workspace.encode()).hexdigest()


def _sync(folder: Path) -> None:
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_archive(folder: str | Path, execution_id: str) -> list[bytes]:
    """Return the proofs of an execution in an archive, in the order of their receipts.

    The same receipts may be there twice, if a process died between archiving and removing them. Raise ``NotFound`` if the
    archive has nothing of the execution, and ``InvalidBackup`` for a damaged file.

    - ``folder``: the folder of the archive.
    - ``execution_id``: the execution.

    Example:

        for proof in read_archive("/archive", "order-7"):
            assert verify_proof(proof).ok
    """
    found = [each for path in _files(_folder(folder)) for each in _read(path) if each.execution_id == execution_id]
    if not found:
        raise NotFound(f"the archive in {str(folder)!r} has nothing of execution {execution_id!r}")
    return [each.proof.encode() for each in sorted(found, key=lambda each: (each.first, each.last))]


def verify_archive(folder: str | Path, *, key: bytes | None = None) -> ArchiveVerification:
    """Check an archive without a store, and return every problem: each file against its name, and each receipt of each proof.

    - ``folder``: the folder of the policy.
    - ``key``: the key that the receipts were signed with; None to check no signatures.

    Example:

        assert verify_archive("/archive").ok
    """
    problems: list[str] = []
    files = proofs = receipts = 0
    for path in _files(_folder(folder)):
        files += 1
        try:
            for each in _read(path):
                proofs += 1
                checked = verify_proof(each.proof.encode(), key=key)
                receipts += checked.receipts
                problems += [f"{path.name}: execution {each.execution_id!r}: {problem}" for problem in checked.problems]
        except (InvalidBackup, InvalidInput) as error:
            problems.append(error.message)
    return ArchiveVerification(not problems, tuple(problems), files, proofs, receipts)


def _folder(folder: object) -> Path:
    if not isinstance(folder, str | Path):
        raise InvalidInput(f"an archive is named by the path of its folder, not {folder!r}")
    if not Path(folder).is_dir():
        raise NotFound(f"there is no archive at {str(folder)!r}")
    return Path(folder)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob(f"*/*{_SUFFIX}") if not path.name.startswith("."))


def _read(path: Path) -> Iterator[ArchivedProof]:
    try:
        data = read_regular_file(path)
    except OSError as error:
        raise InvalidBackup(f"{path.name} cannot be read: {error.strerror}") from None
    if not path.name.endswith(f"-{sha256(data).hexdigest()}{_SUFFIX}"):
        raise InvalidBackup(f"{path.name} does not match the checksum in its name: it was changed or cut; look for another copy")
    try:
        for line in unpacked_lines(data, path.name):
            yield _decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidBackup(f"{path.name} cannot be read: {error}") from None

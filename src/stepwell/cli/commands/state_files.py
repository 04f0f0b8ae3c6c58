"""``state export`` and ``state import``: scoped state as a file of JSON lines, to bring it into another store.

The last line has the number of keys and a digest, so that a file that was cut is refused before anything is written.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click
import msgspec

from stepwell.cli.main import CliCommand
from stepwell.cli.options import complete_file, settings
from stepwell.cli.output import printable
from stepwell.cli.report import counted, report
from stepwell.cli.workflow_loader import read_text
from stepwell.errors import InvalidInput, ValueErased
from stepwell.model.scope import Scope
from stepwell.model.state_versions import FIRST_VERSION, converted, current_version
from stepwell.model.value import decode, recode

if TYPE_CHECKING:
    from stepwell.app.blocking import Stepwell

__all__ = ["export", "import_"]

_BATCH = 1_000


class _Line(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A key with its value; or, as the last line, the number of keys and their digest."""

    scope: str | None = None
    key: str = ""
    value: Any = None
    expires_at: datetime | None = None
    version: int = FIRST_VERSION
    is_secret: bool = False
    """Whether the value was left out, since it is declared secret; an import leaves the key as it is."""
    keys: int | None = None
    sha256: str = ""


_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(_Line).decode
_workspace = click.option("--workspace", "-w", default=None, help="Only the scopes of this workspace. Default: all scopes.")


@click.command("export", cls=CliCommand)
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@_workspace
@click.option("--with-secrets", "has_secrets", is_flag=True, help="Write values that are declared secret, too.")
def export(file: Path, workspace: str | None, has_secrets: bool) -> None:
    """Write scoped state into a new file, or to standard output (-): one line of JSON for each key. Each scope is read key by key,
    not at one moment.

    Values that are declared secret are left out, and so are those that were erased.
    """
    given = settings()
    digest, count, hidden = sha256(), 0, 0
    try:
        with given.open() as well, _opened(file) as out:
            for line in _lines_of(well, workspace, has_secrets=has_secrets):
                hidden += line.is_secret
                data = _encode(line) + b"\n"
                digest.update(data)
                count += 1
                out.write(data)
            out.write(_encode(_Line(keys=count, sha256=digest.hexdigest())) + b"\n")
    except FileExistsError:
        raise InvalidInput(f"{str(file)!r} exists already; name a new file") from None
    except OSError as error:
        raise InvalidInput(f"{str(file)!r} cannot be written: {error.strerror}") from None
    if given.is_json and _is_standard(file):
        return  # the lines are there already
    facts = {"keys": count, "secrets": hidden, "sha256": digest.hexdigest()}
    told = f"; left out, since they are secret: {counted(hidden, 'value')} (--with-secrets)" if hidden else ""
    report(given, facts, f"exported {counted(count, 'key')} to {printable(str(file))}{told}")


def _is_standard(file: Path) -> bool:
    return str(file) == "-"


@contextmanager
def _opened(file: Path) -> Generator[IO[bytes]]:
    if not _is_standard(file):
        with file.open("xb") as out:
            yield out
        return
    yield sys.stdout.buffer
    sys.stdout.buffer.flush()


def _lines_of(well: Stepwell, workspace: str | None, *, has_secrets: bool) -> Iterator[_Line]:
    for scope in well.state.scopes(workspace):
        state, after = well.state.at(scope), None
        while keys := state.keys(after=after, limit=_BATCH):
            for key in keys:
                try:
                    entry = state.entry(key)
                except ValueErased:
                    continue
                if entry is None:  # it was deleted meanwhile
                    continue
                shown = entry.value if has_secrets else well.redact({key: entry.value})[key]
                if shown == entry.value:
                    yield _Line(scope.path, key, entry.value, entry.expires_at, current_version(scope.path))
                else:
                    yield _Line(scope.path, key, is_secret=True)
            after = keys[-1]


@click.command("import", cls=CliCommand)
@click.argument("file", metavar="FILE", shell_complete=complete_file)
def import_(file: str) -> None:
    """Set every key of an exported file, or of standard input (-), in transactions of 1,000.

    A key that exists is overwritten; other keys stay.
    """
    given = settings()
    lines = _read(file)
    now = datetime.now(UTC)
    count = 0
    with given.open(creates=True) as well:
        for start in range(0, len(lines), _BATCH):
            with well.state.transaction() as tx:
                for scope, line in lines[start : start + _BATCH]:
                    if line.is_secret:
                        continue
                    ttl = None if line.expires_at is None else (line.expires_at - now).total_seconds()
                    if ttl is None or ttl > 0:
                        tx.state(scope).set(line.key, _current(line), ttl=ttl)
                        count += 1
    report(given, {"keys": count}, f"imported {counted(count, 'key')}")


def _current(line: _Line) -> Any:
    """Return a line's value in the version that this process writes."""
    if line.scope is None or line.version == current_version(line.scope):
        return line.value
    return decode(converted(line.scope, line.key, recode(line.value), line.version)[0])


def _read(file: str) -> list[tuple[Scope, _Line]]:
    """Return the lines of a file with their scopes. Raise ``InvalidInput`` with the number of the first wrong one."""
    found: list[tuple[Scope, _Line]] = []
    digest, end = sha256(), None
    given = sys.stdin.buffer.read() if file == "-" else read_text(file)
    for number, data in enumerate(given.splitlines(keepends=True), 1):
        if end is not None:
            raise InvalidInput(f"{file!r} goes on after its last line, at line {number}")
        try:
            line = _decode(data)
            if line.scope is None:
                end = line
                continue
            found.append((Scope.parse(line.scope), line))
        except (msgspec.MsgspecError, UnicodeDecodeError, InvalidInput) as error:
            raise InvalidInput(f"line {number} of {file!r} is no line of an export: {error}") from None
        digest.update(data)
    if end is None or (end.keys, end.sha256) != (len(found), digest.hexdigest()):
        raise InvalidInput(f"{file!r} was changed or cut after it was exported; nothing was written")
    return found

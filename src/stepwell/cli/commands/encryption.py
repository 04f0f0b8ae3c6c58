"""``encryption``: make keys for the file of ``STEPWELL_KEYRING``, and rotate them."""

from __future__ import annotations

import os
from base64 import b64encode
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from stepwell.cli.main import CommandEntry, Group, command
from stepwell.cli.options import settings
from stepwell.cli.output import printable
from stepwell.cli.report import counted, report
from stepwell.errors import InvalidInput
from stepwell.model.cipher import KeyRing, new_key, parse_keyring

__all__ = ["encryption"]

_AT = "stepwell.cli.commands.encryption"


@click.group(
    "encryption",
    cls=Group,
    entries={
        "key": CommandEntry(f"{_AT}:key", "Add a new key to a file of keys, and make it the active one."),
        "rotate": CommandEntry(f"{_AT}:rotate", "Wrap every data key with the active key."),
    },
)
def encryption() -> None:
    """Manage the keys that the values of a store are encrypted with."""


@command("key")
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--id", "key_id", default=None, metavar="ID", help="The id of the new key. Default: the date and time.")
def key(file: Path, key_id: str | None) -> None:
    """Add a new random key to a file of keys, and make it the active one. A file that does not exist is created.

    Only the owner may read the file. Older keys stay in it, to read what they encrypted.
    """
    given = settings()
    name = datetime.now(UTC).strftime("%Y-%m-%dT%H%M%S") if key_id is None else key_id
    keys = _keys_of(file)
    if name in keys:
        raise InvalidInput(f"the file has a key {name!r} already; give the new one another --id")
    ring = KeyRing.of({**keys, name: new_key()})
    text = {"active": ring.active, "keys": {each: b64encode(data).decode() for each, data in ring.keys.items()}}
    _write(file, msgspec.json.format(msgspec.json.encode(text), indent=1))
    report(
        given,
        {"active": name, "keys": list(ring.keys)},
        f"{printable(str(file))} has {counted(len(ring.keys), 'key')}; {name} is active",
    )


@command("rotate")
def rotate() -> None:
    """Wrap every data key of the store with the active key of STEPWELL_KEYRING. No value is encrypted anew."""
    given = settings()
    with given.open() as well:
        done = well.rotate_keys()
    count = f"wrapped anew: {counted(done.rewrapped, 'data key')}, {done.unchanged:,} had it or are erased"
    report(given, done, f"key {printable(done.active)} is in use everywhere: {count}; older keys can be taken away")


def _keys_of(file: Path) -> dict[str, bytes]:
    try:
        return parse_keyring(file.read_bytes()).keys
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InvalidInput(f"the file of keys {str(file)!r} cannot be read: {error.strerror}") from None


def _write(file: Path, data: bytes) -> None:
    """Replace a file in one step: a half-written one would lose keys."""
    beside = file.with_name(file.name + ".new")
    try:
        beside.unlink(missing_ok=True)
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        beside.replace(file)
    except OSError as error:
        raise InvalidInput(f"the file of keys {str(file)!r} cannot be written: {error.strerror}") from None

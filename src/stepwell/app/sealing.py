"""Protection of values: encryption, compression, and redaction where values are shown."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from stepwell.contract.store import Store
from stepwell.errors import InvalidInput
from stepwell.model.cipher import KeyRing, parse_keyring
from stepwell.model.redaction import Redaction
from stepwell.stores.sealed_store import SealedStore

__all__ = ["NO_SEALING", "Sealing", "sealing_of"]

KEYRING = "STEPWELL_KEYRING"
"""The environment variable with the path of the file of keys."""
COMPRESS_OVER = "STEPWELL_COMPRESS_OVER"
"""The environment variable with the number of bytes over which values are compressed."""
SECRETS = "STEPWELL_SECRETS"
"""The environment variable with names of secret keys and fields, separated by commas."""


class Sealing(msgspec.Struct, frozen=True):
    """The settings of one well."""

    ring: KeyRing | None = None
    compress_over: int | None = None
    redaction: Redaction = Redaction()

    def around(self, store: Store) -> SealedStore | None:
        """Return a store that seals the values of another; None if nothing is encrypted or compressed."""
        if self.ring is None and self.compress_over is None:
            return None
        return SealedStore(store, self.ring, self.compress_over)


NO_SEALING = Sealing()


def sealing_of(
    encryption: KeyRing | str | Path | None,
    compress_over: int | None,
    secrets: Iterable[str],
    environ: Mapping[str, str] = os.environ,
    *,
    is_by_url: bool = True,
) -> Sealing:
    """Return the settings that arguments and the environment name. Raise ``InvalidInput`` for any that cannot be used.

    The environment says how the store of a URL is sealed; a store object of the caller's own (not ``is_by_url``) is left as it is.
    """
    if encryption is None and is_by_url and environ.get(KEYRING):
        encryption = environ[KEYRING]
    if isinstance(encryption, str | Path):
        encryption = _read(Path(encryption))
    given: object = encryption
    if given is not None and not isinstance(given, KeyRing):
        raise InvalidInput(f"encryption is a stepwell.KeyRing or the path of its file, not {type(given).__name__}")
    if compress_over is None and is_by_url and environ.get(COMPRESS_OVER):
        compress_over = _number(environ[COMPRESS_OVER])
    if compress_over is not None and (type(compress_over) is not int or compress_over < 0):
        raise InvalidInput(f"compress_over is a number of bytes, 0 or more, not {compress_over!r}")
    named = (each.strip() for each in environ.get(SECRETS, "").split(","))
    return Sealing(encryption, compress_over, Redaction(secrets).also(filter(None, named)))


def _read(path: Path) -> KeyRing:
    try:
        return parse_keyring(path.read_bytes())
    except OSError as error:
        raise InvalidInput(f"the file of keys {str(path)!r} cannot be read: {error.strerror}") from None


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidInput(f"{COMPRESS_OVER} is a number of bytes, not {text!r}") from None

"""Digests: SHA-256 over canonical bytes, and a state digest that costs O(change), not O(state).

The state digest is an AdHash (Bellare and Micciancio, 1997): every entry is hashed to a 4,096-bit number and the state's
accumulator is their sum modulo 2**4096. Replacing an entry subtracts its old number and adds its new one, in any order and
whatever the size of the rest. Finding two sets of entries with one sum is a generalised birthday problem, which costs about
2**(2*sqrt(4096)) = 2**128 (Wagner, 2002). The accumulator is then closed with SHA-256 to the digest that receipts carry.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256, shake_128

__all__ = ["EMPTY", "MASK", "ZERO", "common_element", "element", "result_element", "sha256_hex", "state_digest"]

_BYTES = 512
_SHORT = 64
MASK = (1 << (8 * _BYTES)) - 1
"""Sums are taken modulo 2**4096, which is the bits under this mask."""

ZERO = "0" * 64
"""The ``previous`` of an execution's first receipt."""


def element(section: bytes, key: str, data: bytes) -> int:
    """The number of one entry; its address is in it, with lengths, so that no two entries can be confused."""
    name = key.encode()
    return int.from_bytes(shake_128(b"%d:%b%d:%b%b" % (len(section), section, len(name), name, data)).digest(_BYTES), "little")


common_element = lru_cache(256)(element)
"""The same for entries that are alike in most executions, so that they are hashed once."""

_short_result = lru_cache(256)(element)


def result_element(section: bytes, key: str, data: bytes) -> int:
    """The same for results: short ones are often alike, and are remembered apart, so that they push out nothing that always is."""
    return _short_result(section, key, data) if len(data) <= _SHORT else element(section, key, data)


def state_digest(accumulator: int) -> str:
    """The digest of a state whose entries add up to ``accumulator``."""
    return sha256(b"stepwell.state.1\0" + accumulator.to_bytes(_BYTES, "little")).hexdigest()


def sha256_hex(data: bytes) -> str:
    """SHA-256 as 64 hex digits."""
    return sha256(data).hexdigest()


EMPTY = state_digest(0)
"""The digest of a state without entries."""

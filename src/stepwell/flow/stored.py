"""A definition as bytes for a store: equal definitions have equal bytes, and reading them back is fast."""

from __future__ import annotations

import msgspec

from stepwell.errors import InvalidDefinition
from stepwell.flow.definition import Definition
from stepwell.flow.rendering import tagged_definition

__all__ = ["decode_definition", "encode_definition"]

_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(Definition).decode


def encode_definition(definition: Definition) -> bytes:
    """The canonical bytes of a definition."""
    return _encode(tagged_definition(definition))


def decode_definition(data: bytes) -> Definition:
    """The definition of ``encode_definition``; ``InvalidDefinition`` for bytes that this version cannot read."""
    try:
        return _decode(data)
    except msgspec.MsgspecError as error:
        raise InvalidDefinition(f"the stored definition cannot be read; was it written by a newer Stepwell? {error}") from None

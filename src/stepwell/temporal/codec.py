"""Encryption of all payloads that a Temporal server gets: AES-256-GCM under named keys, which only the workers have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from temporalio.api.common.v1 import Payload
from temporalio.converter import DataConverter, DefaultFailureConverterWithEncodedAttributes, PayloadCodec

from stepwell.model.cipher import KeyRing, decrypt, encrypt

__all__ = ["EncryptionCodec", "converter_for"]

_ENCODING = b"binary/encrypted"
_PLACE = b"temporal payload of "


class EncryptionCodec(PayloadCodec):
    """Encrypts payloads, each bound to its namespace. One that is not encrypted is read as it is, such as a signal sent by hand."""

    def __init__(self, keys: KeyRing, namespace: str) -> None:
        self._keys, self._place = keys, _PLACE + namespace.encode()

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Encrypt payloads, with their own encoding inside."""
        return [
            Payload(metadata={"encoding": _ENCODING}, data=encrypt(self._keys, each.SerializeToString(), self._place))
            for each in payloads
        ]

    async def decode(self, payloads: Iterable[Payload]) -> list[Payload]:
        """Decrypt payloads. Raise ``EncryptionKeyMissing`` or ``Corrupted`` for one that does not open."""
        return [self._decoded(each) for each in payloads]

    def _decoded(self, payload: Payload) -> Payload:
        if payload.metadata.get("encoding") != _ENCODING:
            return payload
        return Payload.FromString(decrypt(self._keys, payload.data, self._place))


def converter_for(keys: KeyRing | None, namespace: str) -> DataConverter:
    """Return the converter of all that is sent: with keys, payloads and the texts of failures are encrypted."""
    if keys is None:
        return DataConverter.default
    return DataConverter(
        payload_codec=EncryptionCodec(keys, namespace), failure_converter_class=DefaultFailureConverterWithEncodedAttributes
    )

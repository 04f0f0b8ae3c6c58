"""AES-256-GCM with named keys, bound to a place."""

from __future__ import annotations

import base64
import json

import pytest

from stepwell.errors import Corrupted, EncryptionKeyMissing, InvalidInput
from stepwell.model.cipher import KeyRing, decrypt, encrypt, key_id_of, new_key, parse_keyring

OLD, NEW = new_key(), new_key()


def test_what_was_encrypted_decrypts_at_its_place_alone():
    ring = KeyRing.of({"k1": OLD})
    sealed = encrypt(ring, b"secret", b"acme/order-1")
    assert b"secret" not in sealed
    assert decrypt(ring, sealed, b"acme/order-1") == b"secret"
    with pytest.raises(Corrupted):
        decrypt(ring, sealed, b"acme/order-2")


def test_equal_plaintexts_have_different_ciphertexts():
    ring = KeyRing.of({"k1": OLD})
    assert encrypt(ring, b"yes", b"p") != encrypt(ring, b"yes", b"p")


def test_a_rotated_ring_reads_what_the_old_key_encrypted():
    before = encrypt(KeyRing.of({"k1": OLD}), b"secret", b"p")
    ring = KeyRing.of({"k1": OLD, "k2": NEW})
    assert (ring.active, decrypt(ring, before, b"p")) == ("k2", b"secret")
    assert key_id_of(encrypt(ring, b"secret", b"p")) == "k2"


def test_a_missing_key_is_named_and_another_key_of_that_name_is_refused():
    sealed = encrypt(KeyRing.of({"k1": OLD}), b"secret", b"p")
    with pytest.raises(EncryptionKeyMissing, match="'k1'") as caught:
        decrypt(KeyRing.of({"k2": NEW}), sealed, b"p")
    assert caught.value.key_id == "k1"
    with pytest.raises(Corrupted):
        decrypt(KeyRing.of({"k1": NEW}), sealed, b"p")


def test_each_changed_byte_is_found():
    ring = KeyRing.of({"k1": OLD})
    sealed = encrypt(ring, b"secret", b"p")
    for at in range(len(sealed)):
        changed = sealed[:at] + bytes((sealed[at] ^ 1,)) + sealed[at + 1 :]
        with pytest.raises((Corrupted, EncryptionKeyMissing)):
            decrypt(ring, changed, b"p")
        with pytest.raises((Corrupted, EncryptionKeyMissing)):
            decrypt(ring, sealed[:at], b"p")


@pytest.mark.parametrize(
    ("keys", "active"),
    [({}, None), ({"k": b"short"}, None), ({"": OLD}, None), ({"k": OLD}, "other"), ({"é": OLD}, None), ({"k" * 65: OLD}, None)],
)
def test_a_bad_ring_is_refused_without_showing_a_key(keys, active):
    with pytest.raises(InvalidInput) as caught:
        KeyRing.of(keys, active)
    assert repr(OLD)[2:10] not in str(caught.value)


def test_a_ring_is_read_from_json_and_never_shown():
    text = json.dumps({"active": "a", "keys": {"a": base64.b64encode(OLD).decode(), "b": base64.b64encode(NEW).decode()}})
    ring = parse_keyring(text)
    assert (ring.keys, ring.active) == ({"a": OLD, "b": NEW}, "a")
    assert base64.b64encode(OLD).decode() not in repr(ring)
    for bad in ("", "{}", "[1]", '{"keys": {"a": "%%%"}}', text[:-3]):
        with pytest.raises(InvalidInput) as caught:
            parse_keyring(bad)
        assert base64.b64encode(OLD).decode()[:20] not in str(caught.value)

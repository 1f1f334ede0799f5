"""The encryption of a stream: gives back what went in, and refuses everything else before it gives anything wrong."""

import os
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from app.backup.config import BackupConfig
from app.backup.seal import CHUNK_BYTES, TAG_BYTES, key_id, key_named, load_keys, seal, signature, unseal
from app.errors import StartupRefused, VerificationFailed

KEY, OTHER = bytes(range(32)), bytes(32)
HEADER = 8 + 32
SEALED_CHUNK = CHUNK_BYTES + TAG_BYTES


def pieces(data: bytes, size: int) -> Iterable[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


@settings(max_examples=25, deadline=None)
@given(
    length=st.sampled_from([0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES, 3 * CHUNK_BYTES + 7]),
    cut_in=st.integers(1, 2 * CHUNK_BYTES),
    cut_out=st.integers(1, 2 * CHUNK_BYTES),
)
def test_what_goes_in_comes_out_however_it_is_cut(length: int, cut_in: int, cut_out: int) -> None:
    data = os.urandom(length)
    sealed = b"".join(seal(pieces(data, max(cut_in, length // 50 + 1)), KEY, "one"))
    assert b"".join(unseal(pieces(sealed, max(cut_out, length // 50 + 1)), KEY, "one")) == data
    assert len(sealed) == HEADER + length + TAG_BYTES * (length // CHUNK_BYTES + 1)


def flipped(at: int) -> Callable[[bytes], bytes]:
    return lambda sealed: sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a byte of the magic": flipped(0),
    "a byte of the salt": flipped(20),
    "a byte of the first chunk": flipped(HEADER + 5),
    "a byte of a tag": flipped(HEADER + CHUNK_BYTES + 3),
    "the last byte": lambda sealed: flipped(len(sealed) - 1)(sealed),
    "cut within a chunk": lambda sealed: sealed[: HEADER + SEALED_CHUNK + 100],
    "cut between two chunks": lambda sealed: sealed[: HEADER + SEALED_CHUNK],
    "cut within the header": lambda sealed: sealed[:10],
    "nothing": lambda sealed: b"",
    "two chunks in the other order": lambda sealed: (
        sealed[:HEADER]
        + sealed[HEADER + SEALED_CHUNK : HEADER + 2 * SEALED_CHUNK]
        + sealed[HEADER : HEADER + SEALED_CHUNK]
        + sealed[HEADER + 2 * SEALED_CHUNK :]
    ),
    "a chunk too many": lambda sealed: sealed + sealed[-100:],
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_what_is_damaged_is_refused_and_no_wrong_byte_given_out(damage: Callable[[bytes], bytes]) -> None:
    data = os.urandom(2 * CHUNK_BYTES + 1000)
    sealed = b"".join(seal([data], KEY, "one"))
    given_out: list[bytes] = []
    with pytest.raises(VerificationFailed) as refused:
        given_out.extend(unseal([damage(sealed)], KEY, "one"))
    assert refused.value.reason == "damaged"
    assert data.startswith(b"".join(given_out))


def test_a_stream_opens_with_its_own_key_and_name_only() -> None:
    sealed = b"".join(seal([b"x"], KEY, "one"))
    assert sealed != b"".join(seal([b"x"], KEY, "one")), "a key of its own for each stream"
    for key, name in ((OTHER, "one"), (KEY, "two")):
        with pytest.raises(VerificationFailed):
            list(unseal([sealed], key, name))


def test_a_manifest_names_its_key_and_a_missing_key_is_said_to_be_missing() -> None:
    assert key_named((OTHER, KEY), key_id(KEY)) == KEY
    for keys in ((), (OTHER,)):
        with pytest.raises(VerificationFailed) as refused:
            key_named(keys, key_id(KEY))
        assert refused.value.reason == "wrong_key"
        assert KEY.hex() not in refused.value.message
    assert len({signature(key, document) for key in (None, KEY, OTHER) for document in (b"a", b"b")}) == 6


@pytest.mark.parametrize("text", ["", "abc", "g" * 64, "a" * 63, "a" * 65])
def test_a_key_of_another_form_stops_the_start_without_being_shown(text: str) -> None:
    with pytest.raises(StartupRefused) as refused:
        load_keys(BackupConfig(key=SecretStr(text)))
    assert not text or text not in refused.value.message


def test_the_first_key_is_for_new_backups_and_old_ones_need_a_new_one() -> None:
    config = BackupConfig(key=SecretStr(KEY.hex().upper()), old_keys=(SecretStr(OTHER.hex()),))
    assert load_keys(config) == (KEY, OTHER)
    assert load_keys(BackupConfig()) == ()
    with pytest.raises(StartupRefused):
        load_keys(BackupConfig(old_keys=(SecretStr(OTHER.hex()),)))

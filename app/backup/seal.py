"""Authenticated encryption of a stream in chunks, and the seal under a manifest.

Invariant: nothing is given out before it is authenticated, and a stream that lacks its end, or has its parts in another
order, is refused. Layout: magic, salt, then chunks of 1 MiB with 16 bytes of tag, the last one marked in its nonce.
"""

import hmac
import os
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from app.backup.config import BackupConfig
from app.errors import StartupRefused, VerificationFailed

MAGIC: Final = b"MNEMEBK1"
SALT_BYTES: Final = 32
CHUNK_BYTES: Final = 1 << 20
TAG_BYTES: Final = 16
KEY_DIGITS: Final = 64


def load_keys(config: BackupConfig) -> tuple[bytes, ...]:
    """The configured keys, the one for new backups first; empty: backups are not encrypted.

    Raises StartupRefused for a key of another form, or old keys without a new one.
    """
    given = [] if config.key is None else [config.key]
    if config.old_keys and not given:
        raise StartupRefused("MNEME_BACKUP__OLD_KEYS needs MNEME_BACKUP__KEY")
    keys = []
    for secret in (*given, *config.old_keys):
        text = secret.get_secret_value().strip()
        if len(text) != KEY_DIGITS or set(text.lower()) - set("0123456789abcdef"):
            raise StartupRefused(f"a backup key must be {KEY_DIGITS} hexadecimal digits (`openssl rand -hex 32`)")
        keys.append(bytes.fromhex(text))
    return tuple(keys)


def key_id(key: bytes) -> str:
    """Eight hexadecimal digits by which a manifest names its key without revealing anything about it."""
    return hmac.digest(key, b"mneme backup: name of the key", "sha256").hex()[:8]


def key_named(keys: Sequence[bytes], name: str) -> bytes:
    """The key of that id; raises VerificationFailed when it is not configured."""
    for key in keys:
        if key_id(key) == name:
            return key
    said = "no key is configured" if not keys else "the configured keys are others"
    raise VerificationFailed("wrong_key", f"the backup was encrypted with the key {name}, {said}")


def signature(key: bytes | None, document: bytes) -> str:
    """What proves that a document is as it was written; with a key nobody else can make it, else it is a checksum."""
    if key is None:
        return sha256(document).hexdigest()
    return hmac.digest(_derived(key, b"seal"), document, "sha256").hex()


def seal(chunks: Iterable[bytes], key: bytes, name: str) -> Iterator[bytes]:
    """Encrypt a stream with AES-256-GCM under a key of its own, bound to `name`."""
    salt = os.urandom(SALT_BYTES)
    cipher, context = AESGCM(_derived(key, b"stream", salt)), MAGIC + salt + name.encode()
    yield MAGIC + salt
    for number, last, chunk in _numbered(chunks, CHUNK_BYTES):
        yield cipher.encrypt(_nonce(number, last), chunk, context)


def unseal(chunks: Iterable[bytes], key: bytes, name: str) -> Iterator[bytes]:
    """Decrypt what seal() made; raises VerificationFailed at the first chunk that is not as it was written."""
    stream = _Reader(chunks)
    header = stream.take(len(MAGIC) + SALT_BYTES)
    if len(header) < len(MAGIC) + SALT_BYTES or not header.startswith(MAGIC):
        raise VerificationFailed("damaged", "the dump is not an encrypted one, or its first bytes are damaged")
    cipher, context = AESGCM(_derived(key, b"stream", header[len(MAGIC) :])), header + name.encode()
    for number, last, chunk in _numbered(stream.rest(), CHUNK_BYTES + TAG_BYTES):
        try:
            yield cipher.decrypt(_nonce(number, last), chunk, context)
        except InvalidTag:
            where = f"around byte {number * CHUNK_BYTES}" if not last else "at its end: a part may be missing"
            raise VerificationFailed("damaged", f"the dump is damaged {where}") from None


def _numbered(chunks: Iterable[bytes], size: int) -> Iterator[tuple[int, bool, bytes]]:
    """Blocks of exactly `size` bytes, the last one shorter or empty: number, whether it is the last, bytes."""
    stream, number = _Reader(chunks), 0
    block = stream.take(size)
    while len(block) == size:
        following = stream.take(size)
        yield number, False, block
        block, number = following, number + 1
    yield number, True, block


class _Reader:
    """Takes exact numbers of bytes from chunks of any size."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks, self._held = iter(chunks), bytearray()

    def take(self, size: int) -> bytes:
        """`size` bytes, fewer only at the end."""
        while len(self._held) < size and (chunk := next(self._chunks, None)) is not None:
            self._held += chunk
        taken = bytes(self._held[:size])
        del self._held[:size]
        return taken

    def rest(self) -> Iterator[bytes]:
        if self._held:
            yield bytes(self._held)
            self._held.clear()
        yield from self._chunks


def _derived(key: bytes, purpose: bytes, salt: bytes = b"") -> bytes:
    return HKDF(SHA256(), 32, salt, b"mneme backup: " + purpose).derive(key)


def _nonce(number: int, last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([last])

"""Keys and seals: AES-256-GCM over what a frame, a note or a session's body holds. FORMAT.md shows the bytes.

A caller's key seals nothing itself. From it comes a key for each namespace (HKDF), which wraps the random key of each
session, which seals what that session stores. So a new caller's key means new wraps and no new payload, and a session
whose wrap was destroyed is gone, whoever kept a copy of its rows.

Every seal is bound to its place: to the namespace and session, and to whatever its caller names (seq, kind, digest).
Bytes that were moved to another place do not open there.
"""

from __future__ import annotations

import os
import re
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple, cast

from saveslot.codec.frame import KEYED, SEAL, SEALED, VERSION, seal
from saveslot.errors import Corrupt, InvalidInput, KeyMissing, WrongKey
from saveslot.ids import drawn

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

Keys = bytes | str | Mapping[str, bytes | str]

KEY, NONCE, TAG, DIGEST = 32, 12, 16, 32
WRAPPED = NONCE + KEY + TAG
_SEALED_HEAD = bytes((VERSION, SEALED))
_KEYED_HEAD = bytes((VERSION, SEALED | KEYED))
_FRAME = len(_SEALED_HEAD) + NONCE
_ID = re.compile(r"[A-Za-z0-9_.-]{1,40}")


def new_key() -> str:
    """A fresh caller's key, as text."""
    return b64encode(os.urandom(KEY)).decode()


class Keyring:
    """The caller's keys by id, the one for new wraps first."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._keys = dict(keys)
        self.newest = next(iter(self._keys))
        self._spaces: dict[tuple[str, str], AESGCM] = {}
        _aesgcm()  # one that is not installed is missed when the store is opened, not with the first write

    @classmethod
    def of(cls, given: Keys) -> Keyring:
        """From 32 bytes, their base64 text, several texts by comma (`id:text`), or a mapping from ids to either."""
        pairs: list[tuple[str | None, bytes | str]] = []
        if isinstance(given, Mapping):
            pairs = list(given.items())
        elif isinstance(given, str):
            pairs = [_split(part.strip()) for part in given.split(",") if part.strip()]
        else:
            pairs = [(None, given)]
        keys: dict[str, bytes] = {}
        for name, value in pairs:
            key = _key(value)
            key_id = _checked_id(name) if name is not None else fingerprint(key)
            if keys.setdefault(key_id, key) != key:
                raise InvalidInput("encryption_key", f"has two keys of the id {key_id}")
        if not keys:
            raise InvalidInput("encryption_key", "holds no key; `saveslot key new` prints one")
        return cls(keys)

    @property
    def ids(self) -> list[str]:
        return list(self._keys)

    def wrap(self, key: bytes, namespace: str, place: bytes) -> tuple[str, bytes]:
        """The session's key sealed by the newest key, and the id of that."""
        nonce = os.urandom(NONCE)
        return self.newest, nonce + self._space(self.newest, namespace).encrypt(nonce, key, b"wrap" + place)

    def unwrap(self, key_id: str, wrapped: bytes, namespace: str, place: bytes, where: str) -> bytes:
        """The session's key, or why there is none: `KeyMissing`, or `WrongKey` when the id is another key's."""
        if key_id not in self._keys:
            raise missing(where, key_id, self)
        try:
            space = self._space(key_id, namespace)
            return space.decrypt(wrapped[:NONCE], wrapped[NONCE:], b"wrap" + place)
        except _invalid():
            raise WrongKey(
                f"{where} is sealed with a key {key_id}, and the key given under that id does not open it; "
                "give the one it was sealed with (encryption_key, SAVESLOT_ENCRYPTION_KEY)",
                key_id=key_id,
            ) from None

    def _space(self, key_id: str, namespace: str) -> AESGCM:
        """The namespace's own key."""
        found = self._spaces.get((key_id, namespace))
        if found is None:
            from cryptography.hazmat.primitives.hashes import SHA256
            from cryptography.hazmat.primitives.kdf.hkdf import HKDF

            derived = HKDF(SHA256(), KEY, None, b"saveslot namespace " + namespace.encode()).derive(self._keys[key_id])
            found = self._spaces[key_id, namespace] = _aesgcm()(derived)
        return found


class Cipher:
    """One session's key at work. `place` names the session in every seal."""

    def __init__(self, key: bytes, place: bytes) -> None:
        self.key = key
        self._place, self._frames, self._notes = place, place + b"frame", place + b"note"
        aead = _aesgcm()(key)
        self._encrypt, self._decrypt, self._invalid = aead.encrypt, aead.decrypt, (_invalid(), ValueError)
        self._mask = sha256(b"saveslot digest" + key)

    def seal(self, plain: bytes, part: bytes) -> bytes:
        nonce = drawn()[-NONCE:]
        return nonce + self._encrypt(nonce, plain, self._place + part)

    def unseal(self, sealed: bytes, part: bytes) -> bytes | None:
        """What was sealed for this place; None for anything else."""
        return self._opened(sealed[:NONCE], sealed[NONCE:], self._place + part)

    def _opened(self, nonce: bytes, sealed: bytes, place: bytes) -> bytes | None:
        try:
            return self._decrypt(nonce, sealed, place)
        except self._invalid:
            return None

    def seal_frame(self, frame: bytes, part: bytes) -> bytes:
        nonce = drawn()[-NONCE:]
        return _SEALED_HEAD + nonce + self._encrypt(nonce, frame, self._frames + part)

    def unseal_frame(self, frame: bytes, part: bytes) -> bytes:
        """The frame; for one that does not open a frame that nobody can read."""
        plain = None
        if frame[:2] == _SEALED_HEAD:
            plain = self._opened(frame[2:_FRAME], frame[_FRAME:], self._frames + part)
        return _SEALED_HEAD if plain is None else plain

    def seal_note(self, note: bytes, part: bytes) -> bytes:
        """The seal in front is of the bytes as stored: it proves them without a key, and tells nothing."""
        nonce = drawn()[-NONCE:]
        return seal(_SEALED_HEAD + nonce + self._encrypt(nonce, note[SEAL:], self._notes + part))

    def unseal_note(self, note: bytes, part: bytes) -> bytes:
        sound = note[SEAL : SEAL + 2] == _SEALED_HEAD and seal(note[SEAL:]) == note
        start = SEAL + _FRAME
        plain = self._opened(note[SEAL + 2 : start], note[start:], self._notes + part) if sound else None
        return note[:SEAL] if plain is None else seal(plain)

    def masked(self, digest: bytes, part: bytes) -> bytes:
        """A digest as it may be seen: a guess at what it is the digest of cannot be tried on it. Twice is as before."""
        if len(digest) != DIGEST:
            return digest
        pad = self._mask.copy()
        pad.update(part)
        return (int.from_bytes(digest) ^ int.from_bytes(pad.digest())).to_bytes(DIGEST)


class Body(NamedTuple):
    """A session's body as stored: the wrapped key in front stays readable, the rest is sealed by that key."""

    key_id: str
    wrapped: bytes
    sealed: bytes

    def pack(self) -> bytes:
        name = self.key_id.encode()
        return seal(_KEYED_HEAD + bytes((len(name),)) + name + self.wrapped + self.sealed)

    @classmethod
    def unpack(cls, body: bytes) -> Body | None:
        """None for a body that is not sealed."""
        if not is_sealed(body):
            return None
        start = SEAL + 3
        end = start + body[start - 1] if len(body) > start else len(body)
        if seal(body[SEAL:]) != body or len(body) < end + WRAPPED + NONCE + TAG:
            raise Corrupt("a session's body", "does not match its digest")
        return cls(body[start:end].decode(), body[end : end + WRAPPED], body[end + WRAPPED :])


def is_sealed(body: bytes) -> bool:
    """Whether a session's body, as stored, says that the session is sealed."""
    return body[SEAL : SEAL + 2] == _KEYED_HEAD


def place_of(namespace: str, key: bytes) -> bytes:
    """A session in every seal of its own: the format's version, its namespace and its internal key."""
    name = namespace.encode()
    return bytes((VERSION, len(name) >> 8, len(name) & 0xFF)) + name + key


def missing(where: str, key_id: str, keyring: Keyring | None) -> KeyMissing:
    given = "none was given" if keyring is None else f"those given are {', '.join(keyring.ids)}"
    return KeyMissing(
        f"{where} is sealed with the key {key_id}, and {given}; "
        "open the store with that key (encryption_key, SAVESLOT_ENCRYPTION_KEY)",
        key_id=key_id,
    )


def fingerprint(key: bytes) -> str:
    """What a key is known by that nobody named."""
    return sha256(b"saveslot key id" + key).hexdigest()[:8]


def _split(text: str) -> tuple[str | None, str]:
    name, colon, value = text.partition(":")
    return (name, value) if colon else (None, text)


def _checked_id(key_id: str) -> str:
    if not isinstance(cast("object", key_id), str) or not _ID.fullmatch(key_id):
        raise InvalidInput("encryption_key", f"{key_id!r:.42} is no id of a key: letters, digits and _ . - only")
    return key_id


def _key(value: bytes | str) -> bytes:
    if isinstance(value, str):
        try:
            text = value.strip().replace("-", "+").replace("_", "/")
            value = b64decode(text + "=" * (-len(text) % 4), validate=True)
        except (NotBase64, ValueError):
            value = b""
    if not isinstance(cast("object", value), bytes) or len(value) != KEY:
        raise InvalidInput(
            "encryption_key", f"must be {KEY} bytes, or their base64 text; `saveslot key new` prints such a one"
        )
    return value


def _aesgcm() -> type[AESGCM]:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ModuleNotFoundError:
        raise InvalidInput("encryption_key", "encryption needs a package: pip install 'saveslot[crypto]'") from None
    return AESGCM


def _invalid() -> type[Exception]:
    from cryptography.exceptions import InvalidTag

    return InvalidTag

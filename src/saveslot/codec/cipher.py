"""Encryption (*sealing*) of frames, notes and session bodies with AES-256-GCM. FORMAT.md shows the bytes.

A caller's key seals nothing itself. Each namespace's key is derived from it (HKDF) and wraps the random key of each
session, which seals what that session stores. So rotating the caller's key rewraps keys and rewrites no payload, and a
session whose wrapped key was destroyed cannot be read, even from a copy of its rows.

Sealed bytes are bound to their place: the namespace, the session, and what the caller names (seq, kind, digest). Bytes
moved to another place do not open there.
"""

from __future__ import annotations

import hmac
import os
import re
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Mapping
from hashlib import sha256
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, cast

from saveslot.codec.blocks import Cut, sizes_of
from saveslot.codec.frame import CHECKSUM, KEYED, LONG, SEALED, VERSION, add_checksum, head_end
from saveslot.errors import Corrupt, InvalidInput, KeyMissing, WrongKey
from saveslot.values.recipe import read_varint, varint

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

Keys = bytes | str | Mapping[str, bytes | str]

KEY, NONCE, TAG, DIGEST = 32, 12, 16, 32
# Bytes of the HMAC that stands for a name or value of a label; written as twice as many digits.
LABEL = 16
WRAPPED = NONCE + KEY + TAG
_SEALED_HEAD = bytes((VERSION, SEALED))
_KEYED_HEAD = bytes((VERSION, SEALED | KEYED))
_LONG_HEAD = bytes((VERSION, SEALED | LONG))
_FRAME = len(_SEALED_HEAD) + NONCE
# Bytes by which sealed ones are longer.
SEALING = NONCE + TAG
_ID = re.compile(r"[A-Za-z0-9_.-]{1,40}")


def new_key() -> str:
    """Return a new key for a caller, as text."""
    return b64encode(os.urandom(KEY)).decode()


class Keyring:
    """The caller's keys by id, the one that wraps new keys first."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._keys = dict(keys)
        self.newest = next(iter(self._keys))
        self._spaces: dict[tuple[str, str], AESGCM] = {}
        self._labels: dict[tuple[str, str], bytes] = {}
        _aesgcm()  # a missing package is reported when the store is opened, not at the first write

    @classmethod
    def of(cls, given: Keys) -> Keyring:
        """Accept 32 bytes, their base64 text, texts joined by commas (`id:text`), or a mapping from ids to either."""
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
                raise InvalidInput("encryption_key", f"has two keys with the id {key_id}")
        if not keys:
            raise InvalidInput("encryption_key", "contains no key; `saveslot key new` prints one")
        return cls(keys)

    @property
    def ids(self) -> list[str]:
        return list(self._keys)

    def wrap(self, key: bytes, namespace: str, place: bytes) -> tuple[str, bytes]:
        """Return the id of the newest key, and the session's key wrapped with it."""
        nonce = os.urandom(NONCE)
        return self.newest, nonce + self._space(self.newest, namespace).encrypt(nonce, key, b"wrap" + place)

    def unwrap(self, key_id: str, wrapped: bytes, namespace: str, place: bytes, where: str) -> bytes:
        """Return the session's key, or raise `KeyMissing`, or `WrongKey` if the key under that id is another one."""
        if key_id not in self._keys:
            raise missing(where, key_id, self)
        try:
            space = self._space(key_id, namespace)
            return space.decrypt(wrapped[:NONCE], wrapped[NONCE:], b"wrap" + place)
        except _invalid():
            raise WrongKey(
                f"{where} is sealed with a key {key_id}, and the key given under that id does not open it; "
                "give the key it was sealed with (encryption_key, SAVESLOT_ENCRYPTION_KEY)",
                key_id=key_id,
            ) from None

    def _space(self, key_id: str, namespace: str) -> AESGCM:
        """Return the namespace's key."""
        space = self._spaces.get((key_id, namespace))
        if space is None:
            from cryptography.hazmat.primitives.hashes import SHA256
            from cryptography.hazmat.primitives.kdf.hkdf import HKDF

            derived = HKDF(SHA256(), KEY, None, b"saveslot namespace " + namespace.encode()).derive(self._keys[key_id])
            space = self._spaces[key_id, namespace] = _aesgcm()(derived)
        return space

    def hidden(self, labels: dict[str, str], namespace: str, key_id: str | None = None) -> dict[str, str]:
        """Return labels by which entries are found, unreadable: each name and value as its HMAC, by the newest key."""
        key_id = key_id or self.newest
        base = self._labels.get((key_id, namespace))
        if base is None:
            mac = hmac.digest(self._keys[key_id], b"saveslot labels " + namespace.encode(), "sha256")
            base = self._labels[key_id, namespace] = mac
        return {_hidden(base, b"name", name): _hidden(base, b"value", name, value) for name, value in labels.items()}


def _hidden(key: bytes, *parts: bytes | str) -> str:
    text = b"\0".join(part if isinstance(part, bytes) else part.encode() for part in parts)
    return hmac.digest(key, text, "sha256")[:LABEL].hex()


class Cipher:
    """Seals and opens with one session's key. `place` binds everything to that session."""

    def __init__(self, key: bytes, place: bytes) -> None:
        self.key = key
        self._place, self._frames, self._notes = place, place + b"frame", place + b"note"
        aead = _aesgcm()(key)
        self._encrypt, self._decrypt, self._invalid = aead.encrypt, aead.decrypt, (_invalid(), ValueError)
        self._mask = sha256(b"saveslot digest" + key)

    def seal(self, plain: bytes, part: bytes) -> bytes:
        nonce = os.urandom(NONCE)
        return nonce + self._encrypt(nonce, plain, self._place + part)

    def unseal(self, sealed: bytes, part: bytes) -> bytes | None:
        """Return what was sealed for this place; None for anything else."""
        return self._opened(sealed[:NONCE], sealed[NONCE:], self._place + part)

    def _opened(self, nonce: bytes, sealed: bytes, place: bytes) -> bytes | None:
        try:
            return self._decrypt(nonce, sealed, place)
        except self._invalid:
            return None

    def seal_frame(self, frame: bytes, part: bytes) -> bytes:
        """Seal a frame; if blocks follow its head, each by itself."""
        nonce = os.urandom(NONCE)
        end = head_end(frame)
        if end == len(frame):
            return _SEALED_HEAD + nonce + self._encrypt(nonce, frame, self._frames + part)
        head = nonce + self._encrypt(nonce, frame[:end], self._frames + part)
        sealed = [_LONG_HEAD, varint(len(head)), head]
        for number, size in enumerate(sizes_of(frame)):
            sealed.append(self.seal(frame[end : end + size], b"frame" + part + _block(number)))
            end += size
        return b"".join(sealed)

    def unseal_frame(self, frame: bytes, part: bytes) -> bytes:
        """Return the frame, or if it does not open, a frame that cannot be read."""
        if frame[:2] != _LONG_HEAD:
            plain = None
            if frame[:2] == _SEALED_HEAD:
                plain = self._opened(frame[2:_FRAME], frame[_FRAME:], self._frames + part)
            return _SEALED_HEAD if plain is None else plain
        try:
            head, block = self.cut(frame, part)
            return b"".join([head, *map(block, range(len(sizes_of(head))))])
        except Corrupt:
            return _SEALED_HEAD

    def cut(self, frame: bytes, part: bytes) -> Cut:
        """Return the head of a frame with blocks, and how to open each block; `Corrupt` if the head does not open."""
        size, start = read_varint(frame, 2)
        head = self.unseal(frame[start : start + size], b"frame" + part)
        if head is None:
            raise Corrupt("a frame", "is sealed and cannot be opened here (changed, or moved from another place)")
        ends = [*accumulate((size + SEALING for size in sizes_of(head)), initial=start + size)]

        def block(number: int) -> bytes:
            sealed = frame[ends[number] : ends[number + 1]]
            plain = self.unseal(sealed, b"frame" + part + _block(number))
            if plain is None or ends[-1] != len(frame):
                raise Corrupt("a frame", f"has a sealed block ({number}) that does not open")
            return plain

        return Cut(head, block)

    def seal_note(self, note: bytes, part: bytes) -> bytes:
        """The checksum is of the sealed bytes: it verifies them without a key and reveals nothing."""
        nonce = os.urandom(NONCE)
        return add_checksum(_SEALED_HEAD + nonce + self._encrypt(nonce, note[CHECKSUM:], self._notes + part))

    def unseal_note(self, note: bytes, part: bytes) -> bytes:
        intact = note[CHECKSUM : CHECKSUM + 2] == _SEALED_HEAD and add_checksum(note[CHECKSUM:]) == note
        start = CHECKSUM + _FRAME
        plain = self._opened(note[CHECKSUM + 2 : start], note[start:], self._notes + part) if intact else None
        return note[:CHECKSUM] if plain is None else add_checksum(plain)

    def masked(self, digest: bytes, part: bytes) -> bytes:
        """Mask a digest, so that a guess at the content cannot be tested against it. Masking twice restores it."""
        if len(digest) != DIGEST:
            return digest
        pad = self._mask.copy()
        pad.update(part)
        return (int.from_bytes(digest) ^ int.from_bytes(pad.digest())).to_bytes(DIGEST)

    def masked_request(self, request: bytes) -> bytes:
        """The same for the content of a request; the half that identifies the call stays."""
        half = len(request) // 2
        pad = self._mask.copy()
        pad.update(b"request" + request[:half])
        content = int.from_bytes(request[half:]) ^ int.from_bytes(pad.digest()[:half])
        return request[:half] + content.to_bytes(half)


class Body(NamedTuple):
    """A session's body as stored: the wrapped key comes first and stays readable, the rest is sealed with that key."""

    key_id: str
    wrapped: bytes
    sealed: bytes

    def pack(self) -> bytes:
        name = self.key_id.encode()
        return add_checksum(_KEYED_HEAD + bytes((len(name),)) + name + self.wrapped + self.sealed)

    @classmethod
    def unpack(cls, body: bytes) -> Body | None:
        """None for a body that is not sealed."""
        if not is_sealed(body):
            return None
        start = CHECKSUM + 3
        end = start + body[start - 1] if len(body) > start else len(body)
        if add_checksum(body[CHECKSUM:]) != body or len(body) < end + WRAPPED + NONCE + TAG:
            raise Corrupt("a session's body", "does not match its checksum")
        try:
            key_id = body[start:end].decode()
        except UnicodeDecodeError:
            raise Corrupt("a session's body", "names its key by an id that is not text") from None
        return cls(key_id, body[end : end + WRAPPED], body[end + WRAPPED :])


def is_sealed_frame(frame: bytes) -> bool:
    return frame[:2] in {_SEALED_HEAD, _LONG_HEAD}


def is_cut(frame: bytes) -> bool:
    """True if the blocks of a frame are sealed by themselves."""
    return frame[:2] == _LONG_HEAD


def _block(number: int) -> bytes:
    """Bind a block to its place in the frame."""
    return b"block" + number.to_bytes(4, "big")


def is_sealed_note(note: bytes) -> bool:
    return note[CHECKSUM : CHECKSUM + 2] == _SEALED_HEAD


def is_sealed(body: bytes) -> bool:
    """Return whether a session's stored body marks it as sealed."""
    return body[CHECKSUM : CHECKSUM + 2] == _KEYED_HEAD


def place_of(namespace: str, key: bytes) -> bytes:
    """Return what binds sealed bytes to a session: the format's version, its namespace and its internal key."""
    name = namespace.encode()
    return bytes((VERSION, len(name) >> 8, len(name) & 0xFF)) + name + key


def missing(where: str, key_id: str, keyring: Keyring | None) -> KeyMissing:
    given = "none was given" if keyring is None else f"the keys given are {', '.join(keyring.ids)}"
    return KeyMissing(
        f"{where} is sealed with the key {key_id}, and {given}; "
        "open the store with that key (encryption_key, SAVESLOT_ENCRYPTION_KEY)",
        key_id=key_id,
    )


def fingerprint(key: bytes) -> str:
    """Return the id of a key that was given without one."""
    return sha256(b"saveslot key id" + key).hexdigest()[:8]


def _split(text: str) -> tuple[str | None, str]:
    name, colon, value = text.partition(":")
    return (name, value) if colon else (None, text)


def _checked_id(key_id: str) -> str:
    if not isinstance(cast("object", key_id), str) or not _ID.fullmatch(key_id):
        raise InvalidInput("encryption_key", f"{key_id!r:.42} is not a valid key id; use letters, digits and _ . -")
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
            "encryption_key", f"must be {KEY} bytes, or their base64 text; `saveslot key new` prints one"
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

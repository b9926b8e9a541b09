"""A sealed export: the session's readable lines first, then the plain export in sealed parts.

    {"saveslot": 1, "session": {…},
     "sealed": {"key_id": "9f2c41aa", "namespace": "default", "key": "base64 …"},
     "parts": [
      "base64 …",
      "base64 …"]}

Each part is sealed for its number, and the last one as the last: none can be left out, repeated or moved.
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from typing import Any

from saveslot.codec.cipher import KEY, WRAPPED, Cipher, Keyring, missing, place_of
from saveslot.errors import InvalidInput
from saveslot.values.checks import as_name


class Envelope:
    """Seals the parts of one export."""

    def __init__(self, keyring: Keyring, namespace: str) -> None:
        key, place = os.urandom(KEY), place_of(namespace, b"export")
        key_id, wrapped = keyring.wrap(key, namespace, place)
        self.head = {"key_id": key_id, "namespace": namespace, "key": b64encode(wrapped).decode()}
        self._cipher = Cipher(key, place)
        self._count = 0

    def part(self, text: str, *, last: bool = False) -> str:
        sealed = self._cipher.seal(text.encode(), _part(self._count, last=last))
        self._count += 1
        return ("\n  " if self._count == 1 else ",\n  ") + f'"{b64encode(sealed).decode()}"'


def opened(head: Any, parts: Any, keyring: Keyring | None) -> str:
    """Return the plain export inside. Raises `KeyMissing` without its key, `InvalidInput` if anything was changed."""
    try:
        key_id, namespace, wrapped = head["key_id"], head["namespace"], b64decode(head["key"], validate=True)
        sealed = [b64decode(part, validate=True) for part in parts]
        key_id, namespace = as_name(key_id, "key_id"), as_name(namespace, "namespace")
    except (KeyError, TypeError, ValueError, NotBase64, InvalidInput):
        raise InvalidInput("import", "is not a sealed export") from None
    if len(wrapped) != WRAPPED:
        raise InvalidInput("import", "is not a sealed export")
    if keyring is None:
        raise missing("this export", key_id, None)
    place = place_of(namespace, b"export")
    cipher = Cipher(keyring.unwrap(key_id, wrapped, namespace, place, "this export"), place)
    texts = [cipher.unseal(part, _part(n, last=n == len(sealed) - 1)) for n, part in enumerate(sealed)]
    if None in texts or not texts:
        raise InvalidInput("import", "was changed or cut short after it was sealed")
    return b"".join(text for text in texts if text is not None).decode()


def _part(number: int, *, last: bool) -> bytes:
    return (b"last" if last else b"part") + number.to_bytes(8, "big")

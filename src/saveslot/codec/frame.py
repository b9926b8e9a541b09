"""Frames: bytes as they are stored. FORMAT.md shows them byte by byte.

    01 | flags | raw length (varint) | body     flags: 1 patch, 2 zstd, 4 holds tagged values, 32 zstd by our dictionary
    01 | 08 | nonce | AES-256-GCM of a frame    sealed (`cipher.py`)

A frame is verified by its digest, chained over the frames it stands on: sha256(previous digest + frame). What stands
alone (a note, a session's context) is sealed instead: the first 16 bytes of its own sha256, then the frame.
"""

from __future__ import annotations

from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from threading import local
from typing import NamedTuple

from zstandard import (
    ZstdCompressionDict,
    ZstdCompressor,
    ZstdDecompressor,
    ZstdError,
    frame_content_size,
    frame_header_size,
)

from saveslot.errors import Corrupt, TooLarge

VERSION = 1
PATCH, ZSTD, TAGGED, DICTIONARY = 1, 2, 4, 32
# Its body is sealed; in front of that stands the session's key, wrapped.
SEALED, KEYED = 8, 16
SEAL = 16
# Level 1: 5 ms for 1.5 MB of messages, and 5 us for a kilobyte. Level 3 stores 1% less of a kilobyte and 6% less of a
# megabyte; it takes 7 ms and 6 us, and reading is no faster.
LEVEL = 1
# Below this the dictionary saves less than 90 bytes, and by itself zstd saves as little up to 256.
WORTH_COMPRESSING, WORTH_ALONE = 192, 256
# Up to here the dictionary makes English, code and JSON shorter, and is quicker: no table of frequencies has to be made
# (docs/decisions/0039). A body of which it leaves more than this part is of other letters; zstd alone may do better.
SMALL, FITTING = 1280, 0.65
WORDS = Path(__file__).with_name("small.zdict")
WORDS_SHA256 = "2df519ef4a5bb824d431e721406ffbccaf79e88e0bafdfe70f5268e20f3b11d9"
# A longer keyframe is decompressed to where its texts will stand and grow: new memory costs more than reading does.
LARGE = 32 * 1024
# Of zstd's own frames: no block holds more; the flag of a checksum; the kind of block that is one byte, repeated.
BLOCK, CHECKSUM, REPEATED = 128 * 1024, 4, 2
# No frame holds more, whatever the limit for states: a forged length cannot fill the memory.
MAX_RAW = 256 * 1024 * 1024


@cache
def dictionary() -> ZstdCompressionDict:
    """What small frames have in common. It never changes: a better one would be another file, with another flag."""
    content = WORDS.read_bytes()
    if sha256(content).hexdigest() != WORDS_SHA256:  # another one would be read as other words, without a complaint
        raise Corrupt("a frame", f"needs {WORDS.name}, which is not as Saveslot brought it: install it anew")
    return ZstdCompressionDict(content)


class _Tools(local):
    """One of each per thread, kept: making one costs more than a kilobyte does."""

    @cached_property
    def writer(self) -> ZstdCompressor:
        return ZstdCompressor(level=LEVEL)

    @cached_property
    def small_writer(self) -> ZstdCompressor:
        # The flag in the frame's head says which dictionary, in place of the four bytes that zstd would write.
        return ZstdCompressor(level=LEVEL, dict_data=dictionary(), write_dict_id=False)

    @cached_property
    def reader(self) -> ZstdDecompressor:
        return ZstdDecompressor()

    @cached_property
    def small_reader(self) -> ZstdDecompressor:
        return ZstdDecompressor(dict_data=dictionary())


_tools = _Tools()
_BY_DICTIONARY = ZSTD | DICTIONARY
_FLAGS = frozenset(kind | how for kind in (0, PATCH, TAGGED, PATCH | TAGGED) for how in (0, ZSTD, _BY_DICTIONARY))


class Frame(NamedTuple):
    patch: bool
    tagged: bool
    body: bytes | bytearray


def pack(body: bytes, *, patch: bool, tagged: bool) -> bytes:
    size = len(body)
    if size > MAX_RAW:
        raise TooLarge("a frame", limit=MAX_RAW, size=size)
    flags = (PATCH if patch else 0) | (TAGGED if tagged else 0)
    if size >= WORTH_COMPRESSING:
        body, how = _compressed(body, size)
        flags |= how
    return bytes((VERSION, flags)) + varint(size) + body


def _compressed(body: bytes, size: int) -> tuple[bytes, int]:
    """The shortest form of a body, and the flags for it."""
    forms = [(body, 0)]
    if size <= SMALL:
        small = _tools.small_writer.compress(body)
        if len(small) < FITTING * size:
            return small, _BY_DICTIONARY
        forms.append((small, _BY_DICTIONARY))
    if size >= WORTH_ALONE:
        forms.append((_tools.writer.compress(body), ZSTD))
    return min(forms, key=lambda form: len(form[0]))


def unpack(frame: bytes) -> Frame:
    """What a frame holds, or `Corrupt`; never more than `MAX_RAW` bytes, whatever it claims."""
    if len(frame) < 3 or frame[0] != VERSION or frame[1] not in _FLAGS:  # noqa: PLR2004
        if len(frame) > 1 and frame[0] == VERSION and frame[1] & SEALED:
            raise Corrupt("a frame", "is sealed and cannot be opened here (changed, or moved from another place)")
        raise Corrupt("a frame", "has an unknown format (a newer Saveslot may have written it)")
    flags = frame[1]
    size, start = read_varint(frame, 2)
    if size > MAX_RAW:
        raise Corrupt("a frame", f"claims {size:,} bytes")
    body = _decompressed(frame, start, size) if flags & ZSTD else frame[start:]
    if len(body) != size:
        raise Corrupt("a frame", f"holds {len(body):,} bytes instead of {size:,}")
    return Frame(bool(flags & PATCH), bool(flags & TAGGED), body)


def _decompressed(frame: bytes, start: int, size: int) -> bytes | bytearray:
    """What stands behind `start`: `size` bytes, or `Corrupt`. No room is made for what a frame cannot hold."""
    reader = _tools.small_reader if frame[1] & DICTIONARY else _tools.reader
    body = memoryview(frame)[start:]
    try:
        if not size or frame_content_size(body) != size:
            raise Corrupt("a frame", f"does not hold {size:,} bytes as it says")
        if size < LARGE:
            return reader.decompress(body, allow_extra_data=False)
        if size > BLOCK * _blocks(body):
            raise Corrupt("a frame", "is cut short, or longer than it says")
        if frame[1] & PATCH:
            return reader.decompress(body)
        out = bytearray(size)
        came = reader.stream_reader(body).readinto(out)
    except ZstdError as exc:
        raise Corrupt("a frame", "cannot be decompressed, is cut short or longer than it says") from exc
    del out[came:]
    return out


def _blocks(body: memoryview) -> int:
    """How many blocks a zstd frame has; 0 unless it ends where `body` does.

    zstd itself does not say: its stream ends without a word where its input does, and keeps the window that a cut frame
    asked for, whatever its size.
    """
    at, end = frame_header_size(body), len(body) - (4 if body[4] & CHECKSUM else 0)
    last = count = 0
    while not last and at < end:
        head = int.from_bytes(body[at : at + 3], "little")
        last, count = head & 1, count + 1
        at += 3 + (1 if head & 6 == REPEATED else head >> 3)
    return count if last and at == end else 0


def chained(before: bytes, frame: bytes) -> bytes:
    if len(frame) <= LARGE:
        return sha256(before + frame).digest()
    chain = sha256(before)
    chain.update(frame)
    return chain.digest()


def seal(frame: bytes) -> bytes:
    return sha256(frame).digest()[:SEAL] + frame


def unseal(sealed: bytes) -> bytes:
    frame = sealed[SEAL:]
    if sha256(frame).digest()[:SEAL] != sealed[:SEAL]:
        raise Corrupt("a note", "does not match its digest")
    return frame


def varint(number: int) -> bytes:
    """Seven bits a byte, low ones first, the high bit says that more follow: 300 is ac 02."""
    if number < 0x80:  # noqa: PLR2004
        return bytes((number,))
    if number < 0x4000:  # noqa: PLR2004
        return bytes((number & 0x7F | 0x80, number >> 7))
    return bytes((number & 0x7F | 0x80,)) + varint(number >> 7)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at that place, and the place behind it."""
    number = 0
    for n, byte in enumerate(data[at : at + 9]):
        number |= (byte & 0x7F) << 7 * n
        if byte < 0x80:  # noqa: PLR2004
            return number, at + n + 1
    raise Corrupt("a frame", "ends inside a number")

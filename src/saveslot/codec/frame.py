"""Frames: bytes as they are stored. FORMAT.md shows them byte by byte.

    02 | flags | raw length | body                             lengths are varint
    02 | flags + 64 | raw length | stored length | head | blocks    (`blocks.py`)
    01 | 08 | nonce | AES-256-GCM of a frame                   sealed (`cipher.py`)
    flags: 1 patch, 2 zstd, 4 holds tagged values, 32 zstd by our dictionary, 64 followed by blocks

The first byte is the version of the body; notes, and frames written until 2026-11, have 01.

A frame is verified by its digest, chained over the frames it builds on: sha256(previous digest + frame), without the
blocks, which the head vouches for. A standalone one (a note, a session's context) starts with a checksum instead: the
first 16 bytes of its own sha256, then the frame.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from saveslot.values.recipe import read_varint, varint

# Of notes, sealed bytes and bodies, and of frames written until 2026-11; and of frames.
VERSION, VERSION_2 = 1, 2
PATCH, ZSTD, TAGGED, DICTIONARY, LONG = 1, 2, 4, 32, 64
# The body is encrypted; before it comes the session's key, wrapped.
SEALED, KEYED = 8, 16
# Bytes of a checksum.
CHECKSUM = 16
# zstd's level 1 takes 5 ms for 1.5 MB of messages and 5 us for a kilobyte. Level 3 takes 7 ms and 6 us, stores 6% less
# of a megabyte and 1% less of a kilobyte, and reading is no faster.
LEVEL = 1
# Bytes of a body. Below 192 the dictionary saves less than 90 bytes; without it, zstd saves as little up to 256.
WORTH_COMPRESSING, WORTH_ALONE = 192, 256
# Up to 1,280 bytes the dictionary makes English, code and JSON shorter, and is quicker: zstd needs no frequency table
# (docs/decisions/codec.md). If it leaves more than 0.65 of a body, the text is of another kind: try zstd alone.
SMALL, FITTING = 1280, 0.65
WORDS = Path(__file__).with_name("small.zdict")
WORDS_SHA256 = "2df519ef4a5bb824d431e721406ffbccaf79e88e0bafdfe70f5268e20f3b11d9"
# Bytes. From here on, the blocks of a zstd frame are counted before memory is taken for what it claims to hold.
LARGE = 32 * 1024
# zstd's own format: the most bytes in a block, the flag for a checksum, the block type of one repeated byte.
BLOCK, ZSTD_CHECKSUM, REPEATED = 128 * 1024, 4, 2
# Bytes. No frame holds more, whatever the limit for states: a forged length cannot exhaust memory.
MAX_RAW = 256 * 1024 * 1024


@cache
def dictionary() -> ZstdCompressionDict:
    """Return the dictionary for small frames. It never changes: a better one would be another file and flag."""
    content = WORDS.read_bytes()
    if sha256(content).hexdigest() != WORDS_SHA256:  # another one would silently decode frames to other text
        raise Corrupt("a frame", f"needs {WORDS.name}, which is not the one that Saveslot ships; reinstall saveslot")
    return ZstdCompressionDict(content)


class _Tools(local):
    """One of each per thread, reused: creating one costs more than coding a kilobyte."""

    @cached_property
    def writer(self) -> ZstdCompressor:
        return ZstdCompressor(level=LEVEL)

    @cached_property
    def small_writer(self) -> ZstdCompressor:
        # A flag in the frame's head names the dictionary, instead of the four bytes that zstd would write.
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
    version: int
    patch: bool
    tagged: bool
    body: bytes
    long: bool  # blocks follow
    end: int  # of the head


def pack(body: bytes, *, patch: bool, tagged: bool, version: int = VERSION_2, blocks: Sequence[bytes] = ()) -> bytes:
    size = len(body)
    if size > MAX_RAW:
        raise TooLarge("a frame", limit=MAX_RAW, size=size)
    flags = (PATCH if patch else 0) | (TAGGED if tagged else 0)
    if size >= WORTH_COMPRESSING:
        body, how = _compressed(body, size)
        flags |= how
    if not blocks:
        return bytes((version, flags)) + varint(size) + body
    return b"".join((bytes((version, flags | LONG)), varint(size), varint(len(body)), body, *blocks))


def _compressed(body: bytes, size: int) -> tuple[bytes, int]:
    """Return the shortest form of a body, and its flags."""
    shortest, flags = body, 0
    if size <= SMALL:
        small = _tools.small_writer.compress(body)
        if len(small) < FITTING * size:
            return small, _BY_DICTIONARY
        if len(small) < size:
            shortest, flags = small, _BY_DICTIONARY
    if size >= WORTH_ALONE:
        small = _tools.writer.compress(body)
        if len(small) < len(shortest):
            return small, ZSTD
    return shortest, flags


def unpack(frame: bytes) -> Frame:
    """Return what a frame holds, or raise `Corrupt`. Never allocates more than `MAX_RAW` bytes, whatever it claims."""
    version, flags = (frame[0], frame[1]) if len(frame) > 2 else (0, 0)  # noqa: PLR2004
    if flags & ~LONG not in _FLAGS or not (version == VERSION_2 or (version == VERSION and not flags & LONG)):
        if len(frame) > 1 and frame[0] == VERSION and frame[1] & SEALED:
            raise Corrupt("a frame", "is sealed and cannot be opened here (changed, or moved from another place)")
        raise Corrupt("a frame", "has an unknown format (a newer Saveslot may have written it)")
    size, start = read_varint(frame, 2)
    if size > MAX_RAW:
        raise Corrupt("a frame", f"claims {size:,} bytes")
    end = len(frame)
    if flags & LONG:
        stored, start = read_varint(frame, start)
        if stored > end - start:
            raise Corrupt("a frame", "is cut short")
        end = start + stored
    body = memoryview(frame)[start:end]
    raw = decompressed(body, size, by_dictionary=bool(flags & DICTIONARY)) if flags & ZSTD else bytes(body)
    if len(raw) != size:
        raise Corrupt("a frame", f"holds {len(raw):,} bytes instead of {size:,}")
    return Frame(version, bool(flags & PATCH), bool(flags & TAGGED), raw, bool(flags & LONG), end)


def head_end(frame: bytes) -> int:
    """Return where the blocks of a frame start; its length if it has none, or is damaged."""
    if len(frame) < 3 or frame[0] != VERSION_2 or not frame[1] & LONG:  # noqa: PLR2004
        return len(frame)
    try:
        _, at = read_varint(frame, 2)
        stored, at = read_varint(frame, at)
    except Corrupt:
        return len(frame)
    return min(at + stored, len(frame))


def compressed(block: bytes | memoryview) -> bytes:
    """Return a block as it is stored: shorter if it is compressed."""
    small = _tools.writer.compress(block)
    return small if len(small) < len(block) else bytes(block)


def decompressed(body: memoryview, size: int, *, by_dictionary: bool = False) -> bytes:
    """Return the `size` bytes compressed in it, or raise `Corrupt`. Allocates no more than can be in it."""
    reader = _tools.small_reader if by_dictionary else _tools.reader
    try:
        if not size or frame_content_size(body) != size:
            raise Corrupt("a frame", f"does not hold {size:,} bytes as it says")
        if size < LARGE:
            return reader.decompress(body, allow_extra_data=False)
        if size > BLOCK * _blocks(body):
            raise Corrupt("a frame", "is cut short, or longer than it says")
        return reader.decompress(body)
    except ZstdError as exc:
        raise Corrupt("a frame", "cannot be decompressed, is cut short or longer than it says") from exc


def _blocks(body: memoryview) -> int:
    """Return how many blocks a zstd frame has; 0 unless it ends where `body` does.

    zstd does not report this: its stream ends silently where its input ends, and keeps the window that a truncated
    frame asked for, whatever its size.
    """
    at, end = frame_header_size(body), len(body) - (4 if body[4] & ZSTD_CHECKSUM else 0)
    last = count = 0
    while not last and at < end:
        head = int.from_bytes(body[at : at + 3], "little")
        last, count = head & 1, count + 1
        at += 3 + (1 if head & 6 == REPEATED else head >> 3)
    return count if last and at == end else 0


def chained(before: bytes, frame: bytes) -> bytes:
    """Return the next digest of a chain."""
    end = head_end(frame)
    if end <= LARGE:
        return sha256(before + (frame if end == len(frame) else frame[:end])).digest()
    chain = sha256(before)
    chain.update(memoryview(frame)[:end])
    return chain.digest()


def packed_after(before: bytes, body: bytes, *, tagged: bool, blocks: Sequence[bytes] = ()) -> tuple[bytes, bytes]:
    """Return a patch after the frames with that digest, or a keyframe if there is none; and the digest after it."""
    frame = pack(body, patch=bool(before), tagged=tagged, blocks=blocks)
    return frame, chained(before, frame)


def standalone(body: bytes, *, tagged: bool, version: int = VERSION_2) -> bytes:
    """Return a frame that builds on no other, after its checksum."""
    return add_checksum(pack(body, patch=False, tagged=tagged, version=version))


def add_checksum(frame: bytes) -> bytes:
    return sha256(frame).digest()[:CHECKSUM] + frame


def strip_checksum(stored: bytes) -> bytes:
    """Return the frame after a checksum, or raise `Corrupt` if they do not match."""
    frame = stored[CHECKSUM:]
    if sha256(frame).digest()[:CHECKSUM] != stored[:CHECKSUM]:
        raise Corrupt("a note", "does not match its checksum")
    return frame

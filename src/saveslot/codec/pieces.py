"""What a long patch will say: where the bytes of each changed text come from.

A *table* lists the pieces of one text: bytes of a text of the base, or new bytes, of which only the length is kept,
because the text itself holds them. Composing a change with the tables rewrites a copy of new bytes as new bytes; so the
copies of a long patch only name texts of its base.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from saveslot.codec.patch import Change, Copy

# Bytes. A shorter piece of an old text between new ones is stored again: naming it would take as many.
WORTH_NAMING = 32
# Pieces that one copy may bring into a table; a text that was changed in more places is copied as new bytes.
MAX_COPIED = 16
# Pieces of all tables: beyond this, a long patch follows.
MAX_PIECES = 4096
# Copies of a patch that is composed later: 32 such patches bring at most about as many pieces.
FEW_COPIES = 8


# Its length, the key of a text of the base or None for new bytes, and the offset in that text.
Piece = tuple[int, str | None, int]
Table = Sequence[Piece]
Tables = dict[str, Table]


def composed(tables: Mapping[str, Table], base: Mapping[str, int], changes: Sequence[Change]) -> Tables:
    """Return the tables after the changes of one patch. `base`: lengths of the texts of the base."""
    after = dict(tables)
    for change in changes:
        key, front, back, parts = change.key, change.front, change.back, change.parts
        if front < WORTH_NAMING and back < WORTH_NAMING and Copy not in map(type, parts):
            after[key] = [(change.length, None, 0)]
            continue
        pieces, ending = _ends(_of(key, tables, base), front, back)
        for part in parts:
            if isinstance(part, Copy):
                pieces += _copied(part, tables, base)
            else:
                pieces.append((part if isinstance(part, int) else len(part), None, 0))
        pieces += ending
        after[key] = _joined(pieces)
    return after


def _of(key: str, tables: Mapping[str, Table], base: Mapping[str, int]) -> Table:
    table = tables.get(key)
    return ((base.get(key, 0), key, 0),) if table is None else table


def _copied(copy: Copy, tables: Mapping[str, Table], base: Mapping[str, int]) -> list[Piece]:
    pieces = _slice(_of(copy.key, tables, base), copy.offset, copy.length)
    return pieces if len(pieces) <= MAX_COPIED else [(copy.length, None, 0)]


def _slice(table: Table, start: int, length: int) -> list[Piece]:
    slices: list[Piece] = []
    for piece in table:
        size, key, offset = piece
        if start >= size:
            start -= size
            continue
        if start or length < size:
            size = min(size - start, length)
            piece = (size, key, offset + start)  # noqa: PLW2901
        slices.append(piece)
        start, length = 0, length - size
        if not length:
            break
    return slices


def _ends(table: Table, front: int, back: int) -> tuple[list[Piece], list[Piece]]:
    """Return the pieces of the first `front` bytes, and those of the last `back` ones."""
    beginning: list[Piece] = []
    for piece in table if front else ():
        size, key, offset = piece
        if size >= front:
            beginning.append((front, key, offset))
            break
        beginning.append(piece)
        front -= size
    ending: list[Piece] = []
    for piece in reversed(table) if back else ():
        size, key, offset = piece
        if size >= back:
            ending.append((back, key, offset + size - back))
            break
        ending.append(piece)
        back -= size
    return beginning, ending[::-1]


def _joined(pieces: Sequence[Piece]) -> list[Piece]:
    """Join neighbours that continue one another."""
    joined: list[Piece] = []
    known, end = "", -1  # of the last one
    for size, name, at in pieces:
        key = None if size < WORTH_NAMING else name
        if joined and key == known and (key is None or at == end):
            before, _, first = joined[-1]
            joined[-1] = (before + size, key, first)
        elif size:
            joined.append((size, key, at))
        known, end = key, at + size
    return joined


def change_of(key: str, table: Table, base: int) -> Change | None:
    """Return the change that a table says; None if the text is that of the base, `base` bytes long.

    Literals are given by their lengths.
    """
    pieces = list(table)
    front = back = 0
    if pieces and pieces[0][1:] == (key, 0):
        front = pieces.pop(0)[0]
        if front == base and not pieces:
            return None
    if pieces and pieces[-1][1] == key and pieces[-1][2] + pieces[-1][0] == base:
        back = pieces[-1][0]
        if front + back <= base:
            pieces.pop()
        else:
            back = 0
    return Change(key, front, back, [size if name is None else Copy(name, at, size) for size, name, at in pieces])

"""The difference between two states as an RFC 6902 patch, and how to apply a patch to a state.

Texts are compared, not values: an unchanged part costs a memcmp, and 1, 1.0 and true differ as they do when stored.
If two texts differ, both are split one level down and only the parts that differ are compared further.

    {"messages":[A,B,C],"n":1}  ->  {"messages":[A,X,B,D,E],"n":1.0}
    add /messages/1 X      replace /messages/3 D      add /messages/- E      replace /n 1.0

A patch gives the values of the new state, not the order of its keys: objects that differ only there are equal.
"""

from __future__ import annotations

import re
import reprlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec

from saveslot.codec import MAX_STATE, decode, encode
from saveslot.codec.text import TAG, items_of, members_of
from saveslot.errors import InvalidInput
from saveslot.values.checks import copied

Patch = Sequence[Mapping[str, Any]]
Text = bytes | bytearray
Run = list[bytes]

# The items of a list that stay are found with a table of one bit per cell: at most 8,192 rows and columns (8 MB, filled
# in 25 ms), and at most 512 cells per byte of text, or a megabyte of digits would take seconds. Beyond that, items are
# compared in order.
MAX_ALIGNED = 8192
MAX_CELLS = 512
# Objects and lists that the `copy` operations of one patch may add, and items of lists that move up or down in it.
MAX_COPIED, MAX_SHIFTED = 1_000_000, 200_000_000
# If a list needs more than 100 operations (a vector, a truncated conversation), it is replaced as a whole where that is
# shorter: an operation takes some 40 bytes besides its value.
MANY = 100
AROUND = 40

# The member that an operation needs besides op and path.
_NEEDS = {"add": "value", "remove": "", "replace": "value", "move": "from", "copy": "from", "test": "value"}
_INDEX = re.compile("0|[1-9][0-9]*")
_BAD_ESCAPE = re.compile("~(?![01])")
_TAGGED = f'{{"{TAG}":'.encode()

_sort = msgspec.json.Encoder(order="deterministic").encode


def diff(a: Any, b: Any) -> list[dict[str, Any]]:
    """Return the operations that turn `a` into `b`; none if both would be stored as the same bytes."""
    old, special = encode(a, "a")
    new, also = encode(b, "b")
    comparison = _Comparison(tagged=special or also)
    comparison.value("", old, new)
    return comparison.ops


def diff_texts(
    a: Mapping[str, Text],
    b: Mapping[str, Text],
    tagged: bool,  # noqa: FBT001
    *,
    old: bool = False,
) -> list[dict[str, Any]]:
    """Do the same for two states kept as the JSON text of each key. With `old`, what goes has its old value, too."""
    comparison = _Comparison(tagged=tagged, old=old)
    comparison.members("", a, b)
    return comparison.ops


def patched(document: Any, patch: Patch) -> Any:
    """Return the patched document, or raise `InvalidInput` with the operation that does not fit and why.

    Neither argument is changed. Values of the patch are copied; parts that no operation touches are shared with
    `document`.
    """
    draft = _Draft(document)
    for step in _steps(patch):
        try:
            draft.take(step)
        except _Misfit as exc:
            raise InvalidInput(step.at, f"{step.op} {_shown(step.path)}: {exc}") from None
        except RecursionError:
            raise InvalidInput(step.at, f"{step.op} {_shown(step.path)}: is nested too deep") from None
    return draft.top[""]


def appended_items(patch: Patch) -> dict[str, list[Any]] | None:
    """Return what a patch appends to top-level lists, by key, or None if it does anything else.

    (In an object, "-" is a key.)
    """
    added: dict[str, list[Any]] = {}
    for step in _steps(patch):
        match step:
            case _Step(op="add", path=["", key, "-"]):
                added.setdefault(key, []).append(step.value)
            case _:
                return None
    return added


def touched_keys(patch: Patch) -> set[str] | None:
    """Return the keys of an object that a patch reads or changes; None if an operation names the object itself."""
    paths = [path for step in _steps(patch) for path in (step.path, step.source) if path]
    return None if any(path == [""] for path in paths) else {path[1] for path in paths}


# --- two texts -> operations ------------------------------------------------------------------------------------------


class _Comparison:
    def __init__(self, *, tagged: bool, old: bool = False) -> None:
        self.tagged = tagged
        self.old = old  # `remove` and `replace` have the old value beside them
        self.ops: list[dict[str, Any]] = []

    def value(self, path: str, old: bytes, new: bytes) -> None:
        if old == new:
            return
        kinds = old[:1] + new[:1]
        if kinds == b"[[":
            self.items(path, old, new)
        elif kinds == b"{{" and not (self.tagged and (old.startswith(_TAGGED) or new.startswith(_TAGGED))):
            self.members(path, members_of(old), members_of(new))
        else:
            self._write("replace", path, new, old)

    def members(self, path: str, old: Mapping[str, Text], new: Mapping[str, Text]) -> None:
        for key, text in old.items():
            if key not in new:
                self._remove(f"{path}/{_escaped(key)}", text)
        for key, text in new.items():
            before = old.get(key)
            if before is None:
                self._write("add", f"{path}/{_escaped(key)}", text)
            elif before != text:
                self.value(f"{path}/{_escaped(key)}", bytes(before), bytes(text))

    def items(self, path: str, old: bytes, new: bytes) -> None:
        """Go left to right, so that each index counts in the list that the operations before it leave."""
        before, after = cast("Run", items_of(old)), cast("Run", items_of(new))
        at = _shared(before, after)
        before, after = before[at:], after[at:]
        back = _shared(before[::-1], after[::-1])
        gone, come = ([bytes(text) for text in run[: len(run) - back]] for run in (before, after))
        kept = _kept(gone, come)
        if gone and _outweighs(gone, come, kept, len(new)):
            self._write("replace", path, new, old)
            return
        left = len(before)
        for was, now in _runs(gone, come, kept):
            left -= len(was)
            if not now:
                # From the end: removing a long tail then moves nothing.
                for n in range(len(was) - 1, -1, -1):
                    self._remove(f"{path}/{at + n}", was[n])
            elif not was:
                for n, text in enumerate(now, at):
                    self._write("add", f"{path}/{n if left else '-'}", text)
            else:
                for n, (one, other) in enumerate(zip(was, now, strict=True), at):
                    self.value(f"{path}/{n}", one, other)
            at += len(now)

    def _write(self, op: str, path: str, text: Text, old: Text | None = None) -> None:
        self.ops.append({"op": op, "path": path, "value": self._decoded(text)})
        if self.old and old is not None:
            self.ops[-1]["old"] = self._decoded(old)

    def _remove(self, path: str, old: Text) -> None:
        self.ops.append({"op": "remove", "path": path})
        if self.old:
            self.ops[-1]["old"] = self._decoded(old)

    def _decoded(self, text: Text) -> Any:
        return decode(bytes(text), tagged=self.tagged)


def _shared(old: Run, new: Run) -> int:
    """Return how many items two lists share at the front."""
    return next((n for n, (x, y) in enumerate(zip(old, new, strict=False)) if x != y), min(len(old), len(new)))


def _kept(old: Run, new: Run) -> list[tuple[int, int]]:
    """Return which items stay, as pairs of indexes."""
    if not old or not new or len(old) == len(new) == 1:
        return []
    # Only texts of the same length can differ in key order alone.
    sizes = set(map(len, old)) & set(map(len, new))
    a, b = ([_by_key(text) if text[0] in b"{[" and len(text) in sizes else text for text in run] for run in (old, new))
    both = set(a) & set(b)
    i, j = ([n for n, text in enumerate(run) if text in both] for run in (a, b))
    if max(len(i), len(j)) > MAX_ALIGNED or len(i) * len(j) > MAX_CELLS * sum(len(a[n]) for n in i):
        return [(n, n) for n, (x, y) in enumerate(zip(a, b, strict=False)) if x == y]
    return [(i[x], j[y]) for x, y in _longest([a[n] for n in i], [b[n] for n in j])]


def _by_key(text: bytes) -> bytes:
    return _sort(decode(text, tagged=False))


def _outweighs(old: Run, new: Run, kept: list[tuple[int, int]], whole: int) -> bool:
    """Return whether one operation per changed item would take more bytes than the whole list."""
    ops = max(len(old), len(new)) - len(kept)
    if ops <= MANY:
        return False
    stay = {j for _, j in kept}
    return ops * AROUND + sum(len(text) for j, text in enumerate(new) if j not in stay and text[0] not in b"{[") > whole


def _runs(old: Run, new: Run, kept: list[tuple[int, int]]) -> Iterator[tuple[Run, Run]]:
    """Cut both lists into runs: old items and as many new ones in their place, or only removed, or only added items."""
    i = j = 0
    for x, y in kept:
        if i < x or j < y:
            yield from _gap(old[i:x], new[j:y])
        i, j = x + 1, y + 1
        yield old[x:i], new[y:j]
    yield from _gap(old[i:], new[j:])


def _gap(old: Run, new: Run) -> Iterator[tuple[Run, Run]]:
    """Pair the items between two kept ones, to be edited in place; from the end if the pairs there are more alike."""
    pairs = min(len(old), len(new))
    if pairs and len(old) != len(new) and _alike(old[-1], new[-1]) > _alike(old[0], new[0]):
        yield old[:-pairs], new[:-pairs]
        yield old[-pairs:], new[-pairs:]
    else:
        yield old[:pairs], new[:pairs]
        yield old[pairs:], new[pairs:]


def _alike(old: bytes, new: bytes) -> int:
    """Return how many bytes two objects share, member by member."""
    if old[:1] + new[:1] != b"{{":
        return 0
    members = members_of(old)
    return sum(len(text) for key, text in members_of(new).items() if members.get(key) == text)


def _longest(a: Run, b: Run) -> list[tuple[int, int]]:
    """Return their longest common subsequence, computed one row of the table at a time (Hyyrö's bit-parallel form).

    Bit i of row j is 0 where a[i] makes the subsequence of a[: i + 1] and b[:j] one longer than that of a[:i].
    """
    where: defaultdict[bytes, int] = defaultdict(int)
    for i, text in enumerate(a):
        where[text] |= 1 << i
    row = mask = (1 << len(a)) - 1
    rows = [row]
    for text in b:
        hit = row & where[text]
        row = ((row + hit) | (row - hit)) & mask
        rows.append(row)
    pairs: list[tuple[int, int]] = []
    i, j = len(a), len(b)
    while i and j:
        if rows[j] >> (i - 1) & 1:
            i -= 1
        elif not rows[j - 1] >> (i - 1) & 1:
            j -= 1
        else:
            i, j = i - 1, j - 1
            pairs.append((i, j))
    return pairs[::-1]


# --- operations -> a new document -------------------------------------------------------------------------------------


class _Misfit(Exception):
    """Why an operation does not fit this document."""


class _Step(NamedTuple):
    at: str
    op: str
    path: list[str]  # "/a/b" is ["", "a", "b"], "" is [""]: the document itself is the member "" of a draft
    source: list[str]
    value: Any


class _Draft:
    """A document being patched. A container is copied when an operation first writes to it."""

    def __init__(self, document: Any) -> None:
        self.top: dict[str, Any] = {"": document}
        self.copies: dict[int, Any] = {}  # by id; kept alive here, so that no id is reused
        # `copy` could double the document with each operation, in bytes and in objects and lists.
        self.room, self.containers = MAX_STATE, MAX_COPIED
        self.shifts = MAX_SHIFTED

    def take(self, step: _Step) -> None:
        match step.op:
            case "add":
                self.add(step.path, copied(step.value, f"{step.at}.value"))
            case "replace":
                holder, place = self.place(step.path)
                holder[place] = copied(step.value, f"{step.at}.value")
            case "remove":
                if step.path == [""]:
                    raise _Misfit("the document itself can only be replaced")
                self.remove(step.path)
            case "move":
                if step.path != step.source and step.path[: len(step.source)] == step.source:
                    raise _Misfit(f"{_shown(step.source)} cannot move into itself")
                self.add(step.path, self.remove(step.source))
            case "copy":
                text, tagged = encode(self.find(step.source), step.at, self.room)
                self.room -= len(text)
                self.containers -= text.count(b"{") + text.count(b"[")
                if self.containers < 0:
                    raise _Misfit(f"the patch copies more than {MAX_COPIED:,} objects and lists")
                self.add(step.path, decode(text, tagged=tagged))
            case _:
                value = self.find(step.path)
                if not _same(value, step.value):
                    raise _Misfit(f"found {reprlib.repr(value)}, which is not the value")

    def find(self, path: list[str]) -> Any:
        value: Any = self.top
        for depth in range(len(path)):
            value = value[_place(value, path, depth)]
        return value

    def place(self, path: list[str], *, adding: bool = False) -> tuple[Any, Any]:
        """Return a container that may be written to, and the key or index in it."""
        holder: Any = self.top
        for depth in range(len(path) - 1):
            place = _place(holder, path, depth)
            child = holder[place]
            if id(child) not in self.copies and isinstance(child, dict | list | tuple):
                child = cast("Any", {**child} if isinstance(child, dict) else [*child])
                self.copies[id(child)] = holder[place] = child
            holder = child
        return holder, _place(holder, path, len(path) - 1, adding=adding)

    def add(self, path: list[str], value: Any) -> None:
        holder, place = self.place(path, adding=True)
        if isinstance(holder, dict):
            holder[place] = value
        else:
            self._shift(len(holder) - place)
            holder.insert(place, value)

    def remove(self, path: list[str]) -> Any:
        holder, place = self.place(path)
        if isinstance(place, int):
            self._shift(len(holder) - place)
        return holder.pop(place)

    def _shift(self, items: int) -> None:
        self.shifts -= items
        if self.shifts < 0:
            raise _Misfit(f"the patch moves more than {MAX_SHIFTED:,} items of lists; replace the list")


def _place(holder: Any, path: list[str], depth: int, *, adding: bool = False) -> str | int:
    """Return the key or index that path[depth] names in its container."""
    name = path[depth]
    if isinstance(holder, dict):
        if adding or name in holder:
            return name
        raise _Misfit(f"there is no key {_quoted(name)} in {_shown(path[:depth])}")
    if not isinstance(holder, list | tuple):
        kind = type(holder).__name__
        raise _Misfit(f"there is no {_quoted(name)} in {_shown(path[:depth])}, which holds a {kind}")
    size = len(cast("list[Any]", holder))
    if name == "-":
        if adding:
            return size
        raise _Misfit(f'"-" is the place after the last item of {_shown(path[:depth])}, and nothing is there')
    if not _INDEX.fullmatch(name):
        raise _Misfit(f"{_quoted(name)} is not an index (digits, no leading zero) of the list {_shown(path[:depth])}")
    if len(name) > len(str(size)) or int(name) >= size + adding:
        raise _Misfit(f"index {name:.20} is out of range for the list {_shown(path[:depth])} of {size:,}")
    return int(name)


def _steps(patch: Any) -> list[_Step]:
    """Return the operations of a patch, each complete; whether they fit a document is checked later."""
    if not isinstance(patch, Sequence) or isinstance(patch, str | bytes | bytearray):
        raise InvalidInput("patch", f"must be a list of operations, not {type(patch).__name__}")
    return [_step(f"patch[{n}]", item) for n, item in enumerate(cast("Sequence[Any]", patch))]


def _step(at: str, item: Any) -> _Step:
    if not isinstance(item, Mapping):
        raise InvalidInput(at, f"must be an object with op and path, not {type(item).__name__}")
    fields = cast("Mapping[str, Any]", item)
    op = fields.get("op")
    if not isinstance(op, str) or op not in _NEEDS:
        raise InvalidInput(at, f"the op is {reprlib.repr(op)}, not one of {', '.join(_NEEDS)}")
    for name in ("path", _NEEDS[op]):
        if name and name not in fields:
            raise InvalidInput(at, f"{op} needs a {_quoted(name)}, which is missing")
    path = _pointer(fields["path"], at, f"{op}: the path")
    source = _pointer(fields["from"], at, f"{op} {_shown(path)}: from") if _NEEDS[op] == "from" else []
    return _Step(at, op, path, source, fields.get("value"))


def _pointer(text: Any, at: str, what: str) -> list[str]:
    if not isinstance(text, str):
        raise InvalidInput(at, f"{what} must be text, not {type(text).__name__}")
    if text and text[0] != "/":
        raise InvalidInput(at, f'{what} {_quoted(text)} does not start with "/"')
    if _BAD_ESCAPE.search(text):
        raise InvalidInput(at, f'{what} {_quoted(text)} has a "~" that is neither ~0 (for "~") nor ~1 (for "/")')
    return [name.replace("~1", "/").replace("~0", "~") for name in text.split("/")]


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _shown(path: list[str]) -> str:
    return _quoted("/".join(map(_escaped, path)))


def _quoted(text: str) -> str:
    return f'"{text}"' if len(text) <= 200 else f'"{text[:200]}…"'  # noqa: PLR2004


def _same(a: Any, b: Any) -> bool:
    """Compare as RFC 6902 does: numbers by value (1 is 1.0), but true is not 1."""
    if isinstance(a, dict) and isinstance(b, dict):
        one, other = cast("dict[str, Any]", a), cast("dict[str, Any]", b)
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        x, y = cast("list[Any]", a), cast("list[Any]", b)
        return len(x) == len(y) and all(map(_same, x, y))
    return isinstance(a, bool) is isinstance(b, bool) and bool(a == b)

"""Groups that no store has to expect: each is well formed but for one thing, with the path that `checked` names."""

from __future__ import annotations

from collections.abc import Callable

from saveslot.testing.pen import Pen
from saveslot.values.kinds import Kind
from saveslot.values.log import Group


def _begun() -> Pen:
    pen = Pen("ns", "s")
    pen.saw(pen.begin())
    return pen


def _of(change: Callable[[Group], object], group: Group | None = None) -> Group:
    group = group or _begun().group(2)
    change(group)
    return group


def malformed() -> dict[str, Group]:
    """A malformed group for each path."""
    begin = Pen("ns", "s").begin
    return {
        "key": _of(lambda group: setattr(group, "key", b"short")),
        "entries": _of(lambda group: group.entries.clear()),
        "prev": _of(lambda group: setattr(group, "prev", None)),
        "entries[0].seq": _of(lambda group: setattr(group.entries[0], "seq", 1)),
        "entries[1].seq": _of(lambda group: setattr(group.entries[1], "seq", 7)),
        "entries[0].append_id": _of(lambda group: setattr(group.entries[0], "append_id", b"")),
        "entries[1].append_id": _of(lambda group: setattr(group.entries[1], "append_id", group.entries[0].append_id)),
        "entries[0].kind": _of(lambda group: setattr(group.entries[0], "kind", Kind.CREATED)),
        "entries[1].kind": _of(lambda group: setattr(group.entries[1], "kind", 99)),
        "entries[0].name": _of(lambda group: setattr(group.entries[0], "name", "a\0b")),
        "entries[0].lease": _of(lambda group: setattr(group.entries[0], "lease", b"short")),
        "entries[0].fence": _of(lambda group: setattr(group.entries[0], "lease", bytes(16))),
        "entries[1].fence": _of(lambda group: setattr(group.entries[0], "fence", 2)),
        "entries[0].data_seq": _of(lambda group: setattr(group.entries[0], "data_seq", 99)),
        "entries[0].about_seq": _of(lambda group: setattr(group.entries[0], "about_seq", -1)),
        "entries[0].base": _of(lambda group: setattr(group.entries[0], "base", group.entries[0].seq)),
        "entries[0].request": _of(lambda group: setattr(group.entries[0], "request", bytes(16))),
        "entries[1].labels.run": _of(lambda group: setattr(group.entries[1], "labels", {"run": "\0"})),
        "create.request": begin(request=b"short"),
        "entries[0].digest": _of(lambda group: setattr(group.entries[0], "digest", b"d" * 31)),
        "entries[0].recipe": _of(lambda group: setattr(group.entries[0], "recipe", bytes(1 << 20))),
        "delete": _of(lambda group: setattr(group, "delete", True)),
        "state": _of(lambda group: setattr(group, "state", "asleep")),
        "owner": _of(lambda group: setattr(group, "owner", bytes(16))),
        "only_stale": _of(lambda group: setattr(group, "only_stale", -1)),
        "only_orphan": _of(lambda group: setattr(group, "only_orphan", -1)),
        "labels.env": _of(lambda group: setattr(group, "labels", {"env": "\0"})),
        "create.key": _of(lambda group: setattr(group.create, "key", bytes(16)), begin()),
        "create.namespace": _of(lambda group: setattr(group.create, "namespace", ""), begin()),
        "create.session_id": _of(lambda group: setattr(group.create, "session_id", "a\0b"), begin()),
        "create.state": begin(state="asleep"),
        "create.labels.a": begin(labels={"a": "\ud800"}),
    }

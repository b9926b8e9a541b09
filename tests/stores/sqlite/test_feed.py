"""Cursors of a file that was replaced, restored or purged; and a watch of one session reads by its key."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from saveslot import HistoryLost
from saveslot.stores.sqlite import SqliteStore, feed
from saveslot.stores.sqlite.file import connect
from saveslot.testing.pen import Pen


async def filled(path: Path, count: int) -> tuple[SqliteStore, list[Pen]]:
    store = await SqliteStore.open(str(path))
    pens = [Pen("ns", name) for name in "ab"]
    for pen in pens:
        await store.append([group := pen.begin()])
        pen.saw(group)
    await go_on(store, pens[0], count)
    return store, pens


async def go_on(store: SqliteStore, pen: Pen, count: int) -> None:
    for _ in range(count):
        await store.append([group := pen.group()])
        pen.saw(group)


@pytest.mark.parametrize("further", [0, 2, 9])
async def test_cursor_after_a_backup_was_restored(tmp_path, further):
    """Its entry is not in the restored file: HistoryLost, also once that file has as many entries again."""
    path, backup = tmp_path / "s.db", tmp_path / "backup.db"
    store, pens = await filled(path, 3)
    _, kept = await store.events("ns", None)
    await store.close()
    shutil.copy(path, backup)
    store = await SqliteStore.open(str(path))
    await go_on(store, pens[0].copy(), 4)
    events, lost = await store.events("ns", kept)
    assert len(events) == 4
    await store.close()
    shutil.copy(backup, path)
    store = await SqliteStore.open(str(path))
    await go_on(store, pens[1], further)
    for key in (None, pens[0].key):
        with pytest.raises(HistoryLost, match="is gone"):
            await store.events("ns", lost, key)
    assert [event.seq for event in (await store.events("ns", kept))[0]] == [*range(2, 2 + further)]
    await store.close()


async def test_cursor_of_another_file(tmp_path):
    """HistoryLost, even where the other file has purged the entry of that number."""
    one, _ = await filled(tmp_path / "one.db", 3)
    _, cursor = await one.events("ns", None)
    two, [pen, other] = await filled(tmp_path / "two.db", 3)
    await go_on(two, other, 9)
    with pytest.raises(HistoryLost):
        await two.events("ns", cursor)
    _, own = await two.events("ns", None, pen.key)
    await two.append([pen.delete()])
    await two.purge([pen.key])
    with pytest.raises(HistoryLost):
        await two.events("ns", cursor)
    assert [event.seq for event in (await two.events("ns", own))[0]] == [*range(2, 11)]
    await one.close()
    await two.close()


async def test_newest_entry_of_a_cursor_is_purged(tmp_path):
    """The cursor goes on, and one that was made after the purge too."""
    store, [pen, other] = await filled(tmp_path / "s.db", 2)
    _, before = await store.events("ns", None)
    await store.append([pen.delete()])
    _, at = await store.events("ns", None)
    await store.purge([pen.key])
    _, after = await store.events("ns", None)
    await go_on(store, other, 2)
    for cursor in (before, at, after):
        assert [(event.session_id, event.seq) for event in (await store.events("ns", cursor))[0]] == [
            ("b", 2),
            ("b", 3),
        ]
    await store.close()


async def test_watch_of_one_session_reads_by_its_key(tmp_path):
    """Each statement of it is a search by (key, seq) or by number; none reads the feed."""
    path = tmp_path / "s.db"
    store, [pen, _] = await filled(path, 5)
    _, cursor = await store.events("ns", None, pen.key)
    await store.close()
    for analysed in (False, True):
        with closing(connect(str(path), None)) as connection:
            if analysed:
                connection.execute("analyze")
            asked: list[str] = []
            connection.exec_trace = lambda _, sql, __, asked=asked: asked.append(sql) is None
            for after in (cursor, "@2", "0", None):
                feed.page_of(connection, "ns", pen.key, after, 500)
            connection.exec_trace = None
            for sql in {sql for sql in asked if "checkpoints" in sql}:
                plan = " | ".join(
                    row[3] for row in connection.execute(f"explain query plan {sql}", (None,) * sql.count("?"))
                )
                assert "SCAN" not in plan, plan
                assert "rowid>" not in plan, plan

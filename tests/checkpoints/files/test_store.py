"""CheckpointStore: one readable file per session; every write is atomic."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from hypothesis import given, strategies as st

import saveslot
from saveslot import CheckpointStore, InvalidInput, TooLarge, Unavailable
from saveslot.checkpoints.files import folder
from saveslot.checkpoints.files.folder import file_name, session_of

WRITER = Path(__file__).with_name("writer.py")


@pytest.fixture
def store(tmp_path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints")


def test_write_and_read(store):
    """The dict comes back with `updated`, an aware time; the caller's own dict stays as it was."""
    data = {"task": "parse", "status": "in_progress", "progress": [{"step": 1}], "größe": "ä\nb"}
    store.write("s-1", data)
    assert "updated" not in data
    document = store.read("s-1")
    assert {**data, "updated": document["updated"]} == document
    assert list(document) == [*data, "updated"]
    assert datetime.fromisoformat(document["updated"]).utcoffset() == timedelta(0)
    assert yaml.safe_load((store.checkpoints_dir / "s-1.yaml").read_text()) == document
    store.write("s-1", {"updated": "long ago", "task": "other"})
    assert store.read("s-1")["task"] == "other"
    assert datetime.fromisoformat(store.read("s-1")["updated"])
    store.delete("s-1")
    store.delete("s-1")
    assert store.read("s-1") is None
    assert store.list_sessions() == []


def test_only_the_user_can_read_the_files(store):
    """The folder is 0700, its files 0600, whatever the umask."""
    before = os.umask(0)
    try:
        store = CheckpointStore(store.checkpoints_dir.parent / "a" / "b")
        store.write("s", {})
    finally:
        os.umask(before)
    assert stat.S_IMODE(store.checkpoints_dir.stat().st_mode) == 0o700
    for path in store.checkpoints_dir.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


HOSTILE = [
    *("../../etc/passwd", "/etc/passwd", "..", ".", ".hidden", "a/b", "a\\b", "%2e%2e", "-rf", "con", "NUL.txt", "a~b"),
    *(
        "лекция 1",
        "é",
        "e\u0301",
        "mail:anna@example.org",
        "a" * 200,
        "漢" * 200,
        "'; rm -rf ~",
        "*",
        "x.yaml",
        " x ",
        "🎓",
    ),
]


def test_hostile_ids_stay_in_the_folder(store):
    """Each id gets its own file inside the folder and is listed unchanged."""
    for session_id in HOSTILE:
        store.write(session_id, {"mine": session_id})
    assert store.list_sessions() == sorted(HOSTILE)
    for session_id in HOSTILE:
        assert store.read(session_id)["mine"] == session_id
    files = [path for path in store.checkpoints_dir.parent.rglob("*") if path.is_file()]
    assert {path.parent for path in files} == {store.checkpoints_dir}
    for session_id in HOSTILE:
        store.delete(session_id)
    assert store.list_sessions() == []


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=200))
def test_file_names_are_safe_and_map_back_to_ids(session_id):
    name = file_name(session_id)
    assert "/" not in name
    assert name[0] not in ".-"
    assert len(name.encode()) < 255
    assert session_of(name) in {session_id, None}
    assert session_of(name) == session_id or "~" in name


@pytest.mark.parametrize("session_id", ["", "a\0b", "a\nb", "\ud800", "a" * 201, None, 7])
def test_invalid_ids_are_refused(store, session_id):
    for verb in (lambda: store.write(session_id, {}), lambda: store.read(session_id), lambda: store.delete(session_id)):
        with pytest.raises(InvalidInput):
            verb()


def test_a_refused_write_keeps_the_previous_version(store):
    """An invalid or too large value raises and changes nothing."""
    store.write("s", {"n": 1})
    for bad in ({"a": {1, 2}}, {"a": object()}, ["no", "dict"]):
        with pytest.raises(InvalidInput):
            store.write("s", bad)
    with pytest.raises(TooLarge):
        store.write("s", {"a": "x" * (11 << 20)})
    assert store.read("s")["n"] == 1


# Damage


@pytest.mark.parametrize(
    "text", [b"a: [1", b"\xff\xfe\x00binary\x00", b"", b"a: &x 1\nb: *x\n", b"- list\n", b"a:\n\tb: 1\n"]
)
def test_an_unreadable_file_is_quarantined_and_reported(store, text, caplog):
    """`read` returns None, the file is in quarantine/ unchanged, and a second one of that name gets another name."""
    for n in range(2):
        (store.checkpoints_dir / "s.yaml").write_bytes(text)
        assert store.read("s") is None
        assert len(store.quarantined) == n + 1
        assert store.quarantined[n].path.read_bytes() == text
    assert store.quarantined[0].path != store.quarantined[1].path
    assert "session s" in caplog.text
    assert store.list_sessions() == []
    store.write("s", {"n": 2})
    assert store.read("s")["n"] == 2


def test_a_file_that_is_too_large_is_not_read(store):
    with (store.checkpoints_dir / "s.yaml").open("wb") as file:
        file.truncate(1 << 40)
    assert store.read("s") is None
    assert store.quarantined[0].path.stat().st_size == 1 << 40


def test_symbolic_links_are_refused(store, tmp_path):
    """No call reads, writes or deletes through a link, and links are not listed."""
    target = tmp_path / "target.yaml"
    target.write_text("secret: 1\n")
    link = store.checkpoints_dir / "s.yaml"
    link.symlink_to(target)
    for verb in (lambda: store.read("s"), lambda: store.write("s", {}), lambda: store.delete("s")):
        with pytest.raises(InvalidInput, match="symbolic link"):
            verb()
    assert store.list_sessions() == []
    assert store.garbage_collect(0) == []
    assert link.is_symlink()
    assert target.read_text() == "secret: 1\n"
    (store.checkpoints_dir / ".new").symlink_to(target)
    store.write("other", {"n": 1})
    assert target.read_text() == "secret: 1\n"


def test_an_error_names_the_file_at_fault(tmp_path, monkeypatch):
    """The error names the file to remove, never its folder."""
    monkeypatch.chdir(tmp_path)
    store = CheckpointStore("folder")
    (tmp_path / "folder" / "link.yaml").symlink_to(tmp_path)
    with pytest.raises(InvalidInput) as error:
        store.delete("link")
    assert error.value.path == str(Path("folder", "link.yaml"))
    (tmp_path / "folder" / "quarantine").symlink_to(tmp_path)
    (tmp_path / "folder" / "t.yaml").write_text("{")
    with pytest.raises(InvalidInput, match="symbolic link") as error:
        store.read("t")
    assert error.value.path == str(Path("folder", "quarantine"))
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput) as error:
        CheckpointStore("file")
    assert error.value.path == "file"


def test_a_failed_write_leaves_no_draft(store, monkeypatch):
    """On a full disk, the space of the partial file is freed."""
    store.write("s", {"version": "old"})

    def full(file):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(folder.os, "fsync", full)
        with pytest.raises(Unavailable, match="disk is full"):
            store.write("s", {"version": "new"})
    assert sorted(path.name for path in store.checkpoints_dir.iterdir()) == [".lock", "s.yaml"]
    assert store.read("s")["version"] == "old"


class WithoutCase:
    """`os` as `folder` sees it on a Mac: a name leads to the entry that differs by case alone."""

    def __getattr__(self, name):
        real = getattr(os, name)
        if name in {"open", "stat", "unlink"}:
            return lambda path, *args, **options: real(self.found(path, options.get("dir_fd")), *args, **options)
        if name == "rename":
            return lambda a, b, **at: real(a, self.found(b, at["dst_dir_fd"]), **at)
        return real

    def found(self, path, at):
        there = [] if at is None else os.listdir(at)  # noqa: PTH208  (by descriptor)
        return next((name for name in there if name.lower() == str(path).lower()), path)


def test_two_ids_never_share_a_file(store, monkeypatch):
    """On a case-insensitive file system the second id is refused, and the first one's checkpoint stays."""
    for session_id in ("Case", "case"):
        store.write(session_id, {"mine": session_id})
    assert [store.read(session_id)["mine"] for session_id in ("Case", "case")] == ["Case", "case"]

    monkeypatch.setattr(folder, "os", WithoutCase())
    store = CheckpointStore(store.checkpoints_dir.with_name("mac"))
    store.write("a", {"n": 1})
    with pytest.raises(InvalidInput, match=r"A\.yaml and the existing a\.yaml"):
        store.write("A", {"n": 2})
    assert store.read("A") is None
    store.delete("A")
    assert store.read("a")["n"] == 1
    assert store.list_sessions() == ["a"]
    store.write("a", {"n": 3})
    store.delete("a")
    store.write("A", {"n": 4})
    assert store.list_sessions() == ["A"]


def test_names_that_differ_only_in_case():
    assert folder.twin("A.yaml", ["b.yaml", "a.yaml"]) == "a.yaml"
    assert folder.twin("straße.yaml", ["STRASSE.yaml"]) == "STRASSE.yaml"
    assert folder.twin("É.yaml", ["e\u0301.yaml"]) == "e\u0301.yaml"
    assert folder.twin("a.yaml", ["a.yaml", "A.yaml"]) is None
    assert folder.twin("a.yaml", ["b.yaml"]) is None


@pytest.mark.parametrize("wrong", ["", 5, b"x", True, "a\0b", "~nobody-of-that-name/x"])
def test_a_folder_is_named_by_a_path(wrong, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput) as error:
        CheckpointStore(wrong)
    assert error.value.path == "checkpoints_dir"
    assert list(tmp_path.iterdir()) == []


def test_a_tilde_is_the_users_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert CheckpointStore("~/mine").checkpoints_dir == tmp_path / "mine"


def test_pipes_and_folders_do_not_block_a_reader(store):
    os.mkfifo(store.checkpoints_dir / "pipe.yaml")
    (store.checkpoints_dir / "folder.yaml").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(InvalidInput):
            store.read(name)
        with pytest.raises(InvalidInput):
            store.write(name, {})
    assert store.list_sessions() == []


def test_an_unreadable_folder_is_an_error_not_an_empty_store(store, monkeypatch):
    """Missing permission raises; only a missing file reads as None."""
    store.write("s", {"n": 1})

    def refused(*args, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(folder.os, "open", refused)
    for verb in (lambda: store.read("s"), lambda: store.write("s", {}), store.list_sessions, store.garbage_collect):
        with pytest.raises(Unavailable, match="Permission denied"):
            verb()


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises((InvalidInput, Unavailable), match="file"):
        CheckpointStore(tmp_path / "file" / "under")
    with pytest.raises(InvalidInput, match="not a folder"):
        CheckpointStore(tmp_path / "file")


def test_a_deleted_folder_is_created_again(store):
    store.write("s", {})
    for path in store.checkpoints_dir.iterdir():
        path.unlink()
    store.checkpoints_dir.rmdir()
    assert store.read("s") is None
    assert store.list_sessions() == store.garbage_collect() == []
    store.delete("s")
    store.write("s", {"n": 1})
    assert store.read("s")["n"] == 1


# Garbage


def ago(**span: float) -> str:
    return (datetime.now(UTC) - timedelta(**span)).isoformat()


def test_garbage_collection_by_age_and_status(store):
    """Removes what is older than 7 days, or completed and older than 1; an unfinished one without a time stays."""
    naive = (datetime.now().astimezone() - timedelta(days=8)).replace(tzinfo=None)
    documents = {
        "old": {"updated": ago(days=8)},
        "old-naive": {"updated": naive.isoformat()},
        "old-zoned": {"updated": (datetime.now(UTC) - timedelta(days=8)).isoformat().replace("+00:00", "Z")},
        "young": {"updated": ago(days=6)},
        "young-done": {"updated": ago(hours=23), "status": "completed"},
        "old-done": {"updated": ago(hours=25), "status": "completed"},
        "old-inside": {"updated": ago(hours=1), "inner": {"updated": ago(days=30), "status": "completed"}},
        "timeless": {"status": "in_progress"},
        "nonsense": {"updated": "yesterday"},
        "number": {"updated": 5},
        "timeless-done": {"status": "completed"},
        "timeless-done-young": {"status": "completed"},
    }
    for session_id, document in documents.items():
        (store.checkpoints_dir / f"{session_id}.yaml").write_text(yaml.safe_dump(document))
    os.utime(store.checkpoints_dir / "timeless-done.yaml", (0, 0))
    broken = store.checkpoints_dir / "broken.yaml"
    broken.write_text("updated: 2001-01-01\na: [")
    gone = ["old", "old-done", "old-naive", "old-zoned", "timeless-done"]
    assert store.garbage_collect() == gone
    assert store.list_sessions() == sorted(documents.keys() - set(gone))
    assert [item.session_id for item in store.quarantined] == ["broken"]
    assert store.garbage_collect() == store.garbage_collect(timedelta(days=7)) == []
    assert store.garbage_collect(timedelta(0)) == ["old-inside", "timeless-done-young", "young", "young-done"]


@pytest.mark.parametrize("wrong", ["x", None, True, -1, timedelta(days=-1), float("nan"), float("inf"), 1e10])
def test_an_age_is_a_number_of_days(store, wrong):
    """Or a timedelta. Anything else is refused and removes nothing; so does the longest possible age."""
    (store.checkpoints_dir / "s.yaml").write_text("updated: '2001-01-01T00:00:00+00:00'\n")
    with pytest.raises(InvalidInput, match="max_age_days"):
        store.garbage_collect(wrong)
    assert store.garbage_collect(timedelta.max.days) == store.garbage_collect(timedelta(timedelta.max.days)) == []
    assert store.list_sessions() == ["s"]


def test_a_session_saved_during_garbage_collection_stays(store, monkeypatch):
    """A session that is saved after it was found old, before it is removed, stays."""
    (store.checkpoints_dir / "s.yaml").write_text(f"updated: '{ago(days=9)}'\n")
    locked = folder.Folder.locked

    def late(self, **options):
        monkeypatch.undo()
        store.write("s", {"n": 2})
        return locked(self, **options)

    monkeypatch.setattr(folder.Folder, "locked", late)
    assert store.garbage_collect() == []
    assert store.read("s")["n"] == 2


# Resuming


def test_the_nearest_unfinished_ancestor(store):
    """The session's own checkpoint, else that of an ancestor up to five parents away; never of another session."""
    store.write("stranger", {"status": "in_progress"})
    store.write("s0", {"status": "in_progress", "task": "root"})
    for n in range(1, 7):
        store.write(f"s{n}", {"status": "completed", "parent_session_id": f"s{n - 1}"})
    assert store.find_unfinished("s5")[0] == "s0"
    assert store.find_unfinished("s6") is None
    store.write("s3", {"status": "in_progress", "parent_session_id": "s2"})
    assert store.find_unfinished("s6")[0] == "s3"
    assert store.find_unfinished("unknown") is None
    for parent in ("loop", "gone", "../stranger", 7, None, ""):
        store.write("loop", {"status": "completed", "parent_session_id": parent})
        assert store.find_unfinished("loop") is None


def test_a_summary_fits_a_prompt(store):
    """Task, status, blockers and the newest steps take at most 4,000 characters, whatever the document holds."""
    steps = [{"step": f"step {n}", "status": "done", "result": "fine " * 40} for n in range(500)]
    store.write("s", {
        "task": "Write the parser", "status": "in_progress", "progress": steps, "blocked": ["no key"],
        "decisions": ["use a state machine"], "state": {"branch": "main", "todo": ["test", "ship"]},
    })  # fmt: skip
    summary = store.summary("s")
    assert len(summary) <= 4000
    for part in (
        "Write the parser",
        "in_progress",
        "no key",
        "state machine",
        "branch: main",
        "step 499",
        "earlier steps",
    ):
        assert part in summary
    assert "step 3;" not in summary
    store.write(
        "s", {"task": "x" * 9000, "blocked": ["y" * 900] * 90, "decisions": {"a": [1] * 5000}, "progress": "odd"}
    )
    assert len(store.summary("s")) <= 4000
    assert len(store.summary("s", 100)) == 100
    assert store.summary("unknown") == ""


# Several writers and crashes


def test_writers_do_not_mix(store):
    """With several threads and stores, each file is one writer's whole document."""
    others = [CheckpointStore(store.checkpoints_dir) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: others[n % 4].write("s", {"n": n, "text": f"{n} " * 5000}), range(40)))
    document = store.read("s")
    assert document["text"] == f"{document['n']} " * 5000
    assert sorted(path.name for path in store.checkpoints_dir.iterdir()) == [".lock", "s.yaml"]


def run_writer(*argv: object) -> tuple[int, str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(saveslot.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, str(WRITER), *map(str, argv)], capture_output=True, text=True, env=environment, check=False
    )
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout


def calls(store) -> list[str]:
    """What a write asks of the system, in its order."""
    code, out = run_writer(store.checkpoints_dir, "kill", 0)
    assert code == 0
    return out.split()[1:]


def test_a_new_version_is_durable_before_it_takes_the_name(store):
    """Write, sync, rename, sync the folder: in this order."""
    order = [call for call in calls(store) if call in {"write", "fsync", "rename"}]
    assert order == ["write", "fsync", "rename", "fsync"]


@pytest.mark.faults
def test_a_kill_at_any_point_leaves_the_old_document_or_the_new(store):
    """Never neither, never a part of one; and the next writer succeeds."""
    points = calls(store)
    seen: set[str] = set()
    for place in range(1, len(points) + 1):
        store.write("s", {"version": "old", "place": place})
        code, _ = run_writer(store.checkpoints_dir, "kill", place)
        assert code == -signal.SIGKILL
        document = store.read("s")
        assert (document["version"], document.get("place")) == ("old", place) or document["text"] == "word " * 2000
        assert (document["version"] == "new") == ("rename" in points[: place - 1])
        assert store.quarantined == []
        assert store.list_sessions() == ["s"]
        seen.add(document["version"])
    assert seen == {"old", "new"}


@pytest.mark.faults
def test_a_full_disk_at_any_point_keeps_the_previous_version(store):
    """The writer gets an error, and the previous version stays."""
    points = calls(store)
    for place, call in enumerate(points, 1):
        store.write("s", {"version": "old"})
        code, out = run_writer(store.checkpoints_dir, "full", place)
        assert code == 0
        if call in {"write", "fsync", "open", "rename"}:
            assert "disk is full" in out
            if "rename" not in points[: place - 1]:
                assert store.read("s")["version"] == "old"
    store.write("s", {"version": "newest"})
    assert store.read("s")["version"] == "newest"


def test_it_works_in_an_event_loop(store):
    """The store needs no event loop and works inside one."""

    async def agent() -> None:
        await asyncio.to_thread(store.write, "s", {"n": 1})

    asyncio.run(agent())
    assert store.read("s")["n"] == 1


def test_the_default_folder_is_in_the_users_data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    CheckpointStore().write("s", {})
    assert [path.name for path in tmp_path.rglob("*.yaml")] == ["s.yaml"]

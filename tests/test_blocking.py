"""The blocking API: the async one, lifted; from threads, inside event loops, through Ctrl-C, fork and exit."""

from __future__ import annotations

import asyncio
import gc
import inspect
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

import saveslot
from saveslot import Conflict, InvalidInput, NotFound, Unavailable, blocking
from saveslot.keeper import Keeper

ROOT = Path(__file__).parent.parent


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 's.db'}"


# On a busy machine everything is slow, and that alone is no failure.
PATIENT = "import logging; logging.getLogger('asyncio').addFilter(lambda told: not told.msg.startswith('Executing'))\n"


def run(script, url, *, flags=(), **how):
    """A script in an interpreter of its own, where every warning is an error and a hang is a failure."""
    lines = f"{PATIENT}import saveslot.blocking as blocking\nURL = {url!r}\n" + textwrap.dedent(script)
    command = [sys.executable, "-X", "dev", "-W", "error", *flags, "-c", lines]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **how)


def public(kind):
    return {name: member for name, member in inspect.getmembers(kind) if not name.startswith("_") and callable(member)}


# Equal surfaces


def test_every_method_of_the_async_manager_is_there_with_the_same_signature():
    """Managers, held sessions and keepers have the same public methods, and each takes the same arguments."""
    inside = {
        "drafted",
        "taken",
        "untaken",
        "doubt",
        "trust",
        "lose",
        "keep",
    }  # of a held session: for its manager alone
    for kind, twin in (
        (saveslot.SessionManager, blocking.SessionManager),
        (saveslot.Held, blocking.Held),
        (Keeper, blocking.Keeper),
    ):
        theirs, mine = public(kind), public(twin)
        assert set(mine) == set(theirs) - inside
        for name in mine:
            told = [[*inspect.signature(method).parameters] for method in (mine[name], theirs[name])]
            assert told[0] == told[1], name
    assert inspect.signature(blocking.SessionManager) == inspect.signature(saveslot.SessionManager)
    assert inspect.signature(blocking.open).parameters == inspect.signature(saveslot.open).parameters


GOOD = """
from collections.abc import Iterator
from typing import assert_type
import saveslot
from saveslot import AgentSession, Checkpoint, CheckpointManager, Event, Page, blocking

with blocking.open("memory:", namespace="n") as sessions:
    assert_type(sessions, blocking.SessionManager)
    session = assert_type(sessions.create_session("tutor", user_id="anna", context={"a": 1}), AgentSession)
    assert_type(sessions.get_session("x", history="all"), AgentSession | None)
    assert_type(sessions.checkpoint(session, "name", {"a": 1}), Checkpoint)
    assert_type(sessions.checkpoint("x", "name", append={"messages": [1]}), Checkpoint)
    assert_type(sessions.find(limit=3), Page)
    assert_type(sessions.delete_session("x"), bool)
    assert_type(sessions.export_parts("x"), Iterator[str])
    for event in sessions.watch("x", after=3):
        assert_type(event, Event)
    assert_type(sessions.namespace, str)
assert_type(saveslot.blocking.SessionManager(namespace="x").count(), int)
assert_type(saveslot.CheckpointManager("s").get_latest(), Checkpoint | None)
assert_type(CheckpointManager("s", 3, 2, "memory:").get_all(), list[Checkpoint])
"""
BAD = """
from saveslot import blocking
blocking.open(urll="memory:")
sessions = blocking.SessionManager(namspace="x")
sessions.create_session(agent="x")
sessions.find(5)
sessions.watch(5)
sessions.rollback("a")
sessions.get_session("a", history="some")
sessions.nothing()
"""


def test_a_type_checker_infers_results_and_rejects_wrong_arguments(tmp_path):
    """The type checker knows every result, and finds a fault in each line that has one and in no other."""
    folder = tmp_path / "types"
    folder.mkdir()
    (folder / "good.py").write_text(GOOD)
    (folder / "bad.py").write_text(BAD)
    settings = f'{{"typeCheckingMode": "strict", "extraPaths": ["{ROOT / "src"}"], "reportUnusedCallResult": false}}'
    (folder / "pyrightconfig.json").write_text(settings)
    tool = [Path(sys.executable).with_name("basedpyright"), "--project", folder, "--pythonpath", sys.executable]
    told = subprocess.run(tool, capture_output=True, text=True, check=False).stdout
    assert "good.py" not in told, told
    faulty = {int(line.split("bad.py:")[1].split(":")[0]) for line in told.splitlines() if "bad.py:" in line}
    assert faulty == set(range(3, 11)), told


# Using it


def test_a_session_lives_through_it(url):
    """Sessions are created, saved, found, rolled back, exported and closed as in async code, and last."""
    with blocking.open(url, namespace="n") as sessions:
        session = sessions.create_session("tutor", "anna", session_id="s")
        session.checkpoint("planned", {"n": 1})
        sessions.update_session(session)
        sessions.checkpoint(session, "answered", append={"messages": ["hello"]})
        assert sessions.get_data("s") == {"n": 1, "messages": ["hello"]}
        sessions.rollback("s", "planned")
        assert "".join(sessions.export_parts("s")) == sessions.export("s")
        assert (sessions.namespace, sessions.session_ttl_hours) == ("n", 24)
    sessions.close()
    with pytest.raises(Unavailable, match="closed"):
        sessions.get_session("s")
    again = blocking.open(url, namespace="n")
    assert again.get_session("s").checkpoints[-1].data == {"n": 1}
    again.close()


def test_errors_are_the_same():
    """What the async call raises, the blocking call raises, wrong arguments included."""
    sessions = blocking.SessionManager()
    with pytest.raises(NotFound):
        sessions.get_checkpoint("x")
    with pytest.raises(InvalidInput):
        sessions.create_session("t", session_id="")
    with pytest.raises(TypeError):
        sessions.rollback("x")
    with pytest.raises(InvalidInput):
        blocking.open("nonsense")
    with pytest.raises(NotFound):
        next(sessions.watch("x"))
    with sessions.hold(sessions.create_session("t").session_id) as held, pytest.raises(InvalidInput, match="fn"):
        held.step("s", 5)
    sessions.close()


def test_watching_is_a_plain_iterator(url):
    """It waits for what others write, from a thread as from another manager, and ends when it is left."""
    with blocking.open(url) as sessions, blocking.open(url) as others:
        session = others.create_session("t", session_id="s")
        writer = threading.Timer(0.2, lambda: others.checkpoint(session, "late", {}))
        writer.start()
        for event in sessions.watch("s", after=0):
            if event.name == "late":
                break
        writer.join()
        events = sessions.watch("s", after=0)
        assert [next(events).seq, next(events).seq] == [1, 2]
        events.close()
        assert list(events) == []


def test_threads_share_a_manager(url):
    """Eight threads write to sessions of their own and read each other's at once; every value is the right one."""
    with blocking.open(url) as sessions:
        wrong = []

        def work(thread):
            session = sessions.create_session("t", session_id=f"s{thread}")
            for n in range(30):
                made = sessions.checkpoint(session, "x", {"thread": thread, "n": n})
                other = sessions.get_session(f"s{(thread + n) % 8}")
                seen = [] if other is None else [c.data["n"] for c in other.checkpoints if c.name == "x"]
                if made.data != {"thread": thread, "n": n} or seen != list(range(len(seen))):
                    wrong.append((thread, n, seen))

        threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        assert [len(sessions.history(f"s{thread}")) for thread in range(8)] == [31] * 8


def test_one_history_may_be_looked_at_from_many_threads(url):
    """Checkpoints of one list decode to their own data, whoever looks at which of them at the same time."""
    with blocking.open(url) as sessions:
        session = sessions.create_session("t", session_id="s")
        for n in range(60):
            sessions.checkpoint(session, "x", {"n": n, "messages": ["m" * 50] * n})
        history = [made for made in sessions.history("s") if made.name == "x"]
    wrong = []

    def look(step):
        for n in range(300):
            place = n * step % 60
            if history[place].data["n"] != place:
                wrong.append(place)

    threads = [threading.Thread(target=look, args=(step,)) for step in (1, 7, 59, 13)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


async def test_it_works_inside_an_event_loop(url):
    """Called where an event loop runs, it blocks that loop and answers all the same."""
    with blocking.open(url) as sessions:
        sessions.create_session("t", session_id="s")
        async with saveslot.open(url) as theirs:
            await theirs.checkpoint("s", "async", {"n": 1})
        assert sessions.get_data("s") == {"n": 1}
        many = [asyncio.to_thread(sessions.get_data, "s") for _ in range(5)]
        assert await asyncio.gather(*many) == [{"n": 1}] * 5


def test_a_forgotten_manager_is_closed(url, tmp_path):
    """One that nobody can reach any more lets its file go: the write-ahead log is put away."""
    sessions = blocking.open(url)
    sessions.create_session("t")
    assert (tmp_path / "s.db-wal").exists()
    del sessions
    gc.collect()
    deadline = time.monotonic() + 20
    while (tmp_path / "s.db-wal").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# The end


def test_the_interpreter_exits_cleanly(url, tmp_path):
    """With a manager, an iterator and a watching thread left open: no hang, no warning, all stored, the file closed."""
    script = """
        import threading, saveslot
        sessions = blocking.open(URL)
        session = sessions.create_session("t", session_id="s")
        events = sessions.watch("s", after=0)
        next(events)
        threading.Thread(target=lambda: list(sessions.watch()), daemon=True).start()
        history = saveslot.CheckpointManager("h", url=URL)
        history.create("a", {"n": 1})
        for n in range(20):
            sessions.checkpoint(session, "x", {"n": n})
        print("done")
    """
    told = run(script, url)
    assert (told.stdout, told.stderr, told.returncode) == ("done\n", "", 0)
    assert not (tmp_path / "s.db-wal").exists()
    with blocking.open(url) as sessions:
        assert sessions.get_data("s") == {"n": 19}
        assert sessions.get_data("h") == {"n": 1}


def test_threads_may_outlive_the_main_thread(url):
    """A worker thread that goes on after the main thread ended still reads, writes, opens and closes."""
    script = """
        import threading, time
        sessions = blocking.open(URL)
        session = sessions.create_session("t", session_id="s")

        def work():
            threading.main_thread().join()
            time.sleep(0.1)
            for n in range(5):
                sessions.checkpoint(session, "x", {"n": n})
            with blocking.open(URL) as others:
                print(len(others.history("s")), others.get_data("s"))
            sessions.close()

        threading.Thread(target=work).start()
    """
    told = run(script, url)
    assert (told.stdout, told.stderr, told.returncode) == ("6 {'n': 4}\n", "", 0)


def test_without_threads_to_start_it_still_reads_and_writes(url, monkeypatch):
    """At exit some Pythons start none any more (3.12), while threads of the caller's go on."""
    start = threading.Thread.start

    def refused(thread):
        if thread.name in {"saveslot-reader", "saveslot-writer", "saveslot-worker"}:
            raise RuntimeError("can't create new thread at interpreter shutdown")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    with blocking.open(url) as sessions:
        session = sessions.create_session("t", session_id="s")
        for n in range(300):
            sessions.checkpoint(session, "x", {"n": n})
            assert sessions.get_data("s", "latest") == {"n": n}
        assert len(sessions.history("s")) == len(list(sessions.walk("s"))) == 301
        with pytest.raises(Unavailable, match="no thread"), sessions.hold("s"):
            pass


def test_an_async_function_is_no_step_here(url):
    """Nobody would await it: the step has failed, not finished; and a step inside itself is refused here, too."""

    async def ask():
        return 1

    with blocking.open(url) as sessions:
        sessions.create_session("t", session_id="s")
        with sessions.hold("s") as held:
            with pytest.raises(InvalidInput, match="async"):
                held.step("ask", ask)
            assert held.step("ask", lambda: 1, retry=True) == 1
            with pytest.raises(InvalidInput, match="by itself"):
                held.step("outer", lambda: held.step("outer", lambda: 1))


def test_an_exception_ends_the_program_as_usual(url):
    """An error outside leaves with its own traceback and code, and what was acknowledged is there."""
    script = """
        with blocking.open(URL) as sessions:
            sessions.create_session("t", session_id="s")
            raise SystemExit(5)
    """
    told = run(script, url)
    assert (told.stderr, told.returncode) == ("", 5)
    with blocking.open(url) as sessions:
        assert sessions.get_session("s") is not None


def test_ctrl_c_frees_the_caller_at_once(url):
    """Waiting for an event that never comes, Ctrl-C raises KeyboardInterrupt; the manager can be used afterwards."""
    script = """
        import asyncio, os, signal, threading, time
        sessions = blocking.open(URL)
        session = sessions.create_session("t", session_id="s")

        async def tasks(_):
            return len(asyncio.all_tasks())

        for _ in range(2):
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                for event in sessions.watch():
                    pass
            except KeyboardInterrupt:
                print("interrupted")
            while sessions.resident.run(tasks) > 1:
                time.sleep(0.01)  # it is cancelled, not left behind
        sessions.checkpoint(session, "x", {"n": 1})
        print(sessions.get_data("s"))
    """
    told = run(script, url)
    assert (told.stdout, told.stderr) == ("interrupted\ninterrupted\n{'n': 1}\n", "")


def test_ctrl_c_abandons_the_answer_and_not_the_write(url):
    """A checkpoint that waits for another program's lock when Ctrl-C comes is stored, though the program ends then."""
    script = """
        import os, signal, threading, apsw
        sessions = blocking.open(URL)
        session = sessions.create_session("t", session_id="s")
        other = apsw.Connection(URL.removeprefix("sqlite:///"))
        other.execute("begin immediate")
        threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
        threading.Timer(2.0, other.execute, ("rollback",)).start()
        try:
            sessions.checkpoint(session, "x", {"n": 1})
        except KeyboardInterrupt:
            print("interrupted")
    """
    told = run(script, url)
    assert (told.stdout, told.stderr) == ("interrupted\n", "")
    with blocking.open(url) as sessions:
        assert sessions.get_data("s") == {"n": 1}


def test_a_forked_child_opens_its_own(url):
    """In the child what was opened before says that it must be opened again, and closing it does nothing; a new one
    works; the parent goes on as if nothing had happened.
    """
    script = """
        import os, sys, warnings
        import saveslot
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of any fork beside threads
        sessions = blocking.open(URL)
        history = saveslot.CheckpointManager("h", url=URL)
        history.create("a", {"n": 1})
        local = saveslot.CheckpointManager("local")
        sessions.create_session("t", session_id="s")
        events = sessions.watch("s", after=0)
        next(events)
        child = os.fork()
        if child == 0:
            for call in (lambda: sessions.get_session("s"), lambda: history.create("b"), lambda: next(events)):
                try:
                    call()
                except saveslot.Unavailable as exc:
                    assert "fork" in str(exc)
                else:
                    sys.exit(3)
            sessions.close()
            history.close()
            assert local.create("in memory").id == "local:1"
            with blocking.open(URL) as mine:
                mine.checkpoint("s", "child", {"n": 1})
            del sessions, history, events
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print([made.name for made in sessions.history("s")], history.create("c").id)
        sessions.checkpoint(sessions.get_session("s"), "parent", {"n": 2})
        sessions.close()
        with blocking.open(URL) as again:
            print(again.get_data("s"))
    """
    told = run(script, url)
    assert (told.stderr, told.returncode) == ("", 0)
    assert told.stdout == "['session_created', 'child'] h:2\n{'n': 2}\n"


def test_a_killed_process_loses_nothing_acknowledged(url):
    """After kill -9 in the middle of writing, every checkpoint that a blocking call returned is there."""
    script = """
        sessions = blocking.open(URL)
        session = sessions.create_session("t", session_id="s")
        n = 0
        while True:
            sessions.checkpoint(session, "x", {"n": n})
            print(n, flush=True)
            n += 1
    """
    lines = f"import saveslot.blocking as blocking\nURL = {url!r}\n" + textwrap.dedent(script)
    writer = subprocess.Popen([sys.executable, "-c", lines], stdout=subprocess.PIPE, text=True)
    told = [int(writer.stdout.readline()) for _ in range(30)]
    writer.send_signal(signal.SIGKILL)
    told += [int(line) for line in writer.stdout.read().split()]
    writer.wait()
    writer.stdout.close()
    with blocking.open(url) as sessions:
        found = [made.data["n"] for made in sessions.history("s") if made.name == "x"]
    assert found[: len(told)] == told
    assert len(found) - len(told) in {0, 1}


def test_a_call_from_inside_its_own_loop_is_refused():
    """It would wait for itself for ever; it says so instead."""
    sessions = blocking.SessionManager()

    async def inside(_):
        return sessions.count()

    with pytest.raises(RuntimeError, match="wait for itself"):
        sessions.resident.run(inside)
    sessions.close()


def test_two_managers_collide_as_two_processes_do(url):
    """Lifting changes nothing about who may write: one that has not seen the newest entry is refused."""
    with blocking.open(url) as one, blocking.open(url) as two:
        mine = one.create_session("t", session_id="s")
        theirs = two.get_session("s")
        one.checkpoint(mine, "a", {})
        with pytest.raises(Conflict):
            two.checkpoint(theirs, "b", {})

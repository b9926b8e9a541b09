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
from saveslot.manager.keeper import Keeper
from saveslot.session.hearing import HEARD

ROOT = Path(__file__).parents[2]


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 's.db'}"


# asyncio's warnings about slow callbacks: on a busy machine they are not a failure.
PATIENT = (
    "import logging; logging.getLogger('asyncio').addFilter(lambda record: not record.msg.startswith('Executing'))\n"
)


def run(script, url, *, flags=(), **how):
    """Run a script in its own interpreter, where every warning is an error and a hang is a failure."""
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
        "by_us",
        "keep",
        "turn",
        "meet",
        "refused",
        "look",
        "heard",
        "regain",
        "end",
        "give_back",
        "release_soon",
        "write_record",
        "follow",
        "landed",
        "reload",
        "saving",
    }  # of a held session: for its manager alone
    for kind, twin in (
        (saveslot.SessionManager, blocking.SessionManager),
        (saveslot.Held, blocking.Held),
        (Keeper, blocking.Keeper),
    ):
        theirs, mine = public(kind), public(twin)
        assert set(mine) == set(theirs) - inside
        for name in mine:
            parameters = [[*inspect.signature(method).parameters][1:] for method in (mine[name], theirs[name])]
            assert parameters[0] == parameters[1], name
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
    output = subprocess.run(tool, capture_output=True, text=True, check=False).stdout
    assert "good.py" not in output, output
    faulty = {int(line.split("bad.py:")[1].split(":")[0]) for line in output.splitlines() if "bad.py:" in line}
    assert faulty == set(range(3, 11)), output


# Using it


def test_sessions_work_as_in_async_code(url):
    """Sessions are created, saved, found, rolled back and exported as in async code, and are there after reopening."""
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
    """A blocking call raises what the async call raises, also for wrong arguments."""
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


def test_watch_is_a_plain_iterator(url):
    """It waits for events of other threads and managers, and is closed when the `for` loop ends."""
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
    """Eight threads write to their own sessions and read each other's; every value is right."""
    with blocking.open(url) as sessions:
        wrong = []

        def work(thread):
            session = sessions.create_session("t", session_id=f"s{thread}")
            for n in range(30):
                checkpoint = sessions.checkpoint(session, "x", {"thread": thread, "n": n})
                other = sessions.get_session(f"s{(thread + n) % 8}")
                seen = [] if other is None else [c.data["n"] for c in other.checkpoints if c.name == "x"]
                if checkpoint.data != {"thread": thread, "n": n} or seen != list(range(len(seen))):
                    wrong.append((thread, n, seen))

        threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        assert [len(sessions.history(f"s{thread}")) for thread in range(8)] == [31] * 8


def test_many_threads_can_decode_one_history(url):
    """Each checkpoint of one list decodes to its own data while several threads decode them."""
    with blocking.open(url) as sessions:
        session = sessions.create_session("t", session_id="s")
        for n in range(60):
            sessions.checkpoint(session, "x", {"n": n, "messages": ["m" * 50] * n})
        history = [entry for entry in sessions.history("s") if entry.name == "x"]
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
    """Called inside a running event loop, it blocks that loop and returns its result."""
    with blocking.open(url) as sessions:
        sessions.create_session("t", session_id="s")
        async with saveslot.open(url) as theirs:
            await theirs.checkpoint("s", "async", {"n": 1})
        assert sessions.get_data("s") == {"n": 1}
        many = [asyncio.to_thread(sessions.get_data, "s") for _ in range(5)]
        assert await asyncio.gather(*many) == [{"n": 1}] * 5


def test_an_unreachable_manager_is_closed(url, tmp_path):
    """When a manager is garbage collected, its file is closed and the write-ahead log removed."""
    sessions = blocking.open(url)
    sessions.create_session("t")
    assert (tmp_path / "s.db-wal").exists()
    del sessions
    gc.collect()
    deadline = time.monotonic() + 60
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
    result = run(script, url)
    assert (result.stdout, result.stderr, result.returncode) == ("done\n", "", 0)
    assert not (tmp_path / "s.db-wal").exists()
    with blocking.open(url) as sessions:
        assert sessions.get_data("s") == {"n": 19}
        assert sessions.get_data("h") == {"n": 1}


def test_threads_may_outlive_the_main_thread(url):
    """A thread that continues after the main thread ended still reads, writes, opens and closes."""
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
    result = run(script, url)
    assert (result.stdout, result.stderr, result.returncode) == ("6 {'n': 4}\n", "", 0)


def test_reads_and_writes_when_no_thread_can_be_started(url, monkeypatch):
    """At exit, Python 3.12 starts no more threads, while the caller's threads continue."""
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
        with pytest.raises(Unavailable, match="heartbeat thread"), sessions.hold("s"):
            pass


def test_an_async_function_is_refused_as_a_step(url):
    """It would never be awaited: the step has failed, not finished. A step that calls itself is refused too."""

    async def ask():
        return 1

    with blocking.open(url) as sessions:
        sessions.create_session("t", session_id="s")
        with sessions.hold("s") as held:
            with pytest.raises(InvalidInput, match="async"):
                held.step("ask", ask)
            assert held.step("ask", lambda: 1, retry=True) == 1
            with pytest.raises(InvalidInput, match="calls itself"):
                held.step("outer", lambda: held.step("outer", lambda: 1))


def test_an_exception_ends_the_program_as_usual(url):
    """An exception in the block keeps its own exit code, and what was acknowledged is stored."""
    script = """
        with blocking.open(URL) as sessions:
            sessions.create_session("t", session_id="s")
            raise SystemExit(5)
    """
    result = run(script, url)
    assert (result.stderr, result.returncode) == ("", 5)
    with blocking.open(url) as sessions:
        assert sessions.get_session("s") is not None


def test_ctrl_c_frees_the_caller_at_once(url):
    """Ctrl-C while waiting for an event that never comes raises KeyboardInterrupt; the manager stays usable."""
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
                time.sleep(0.01)  # until it is cancelled
        sessions.checkpoint(session, "x", {"n": 1})
        print(sessions.get_data("s"))
    """
    result = run(script, url)
    assert (result.stdout, result.stderr) == ("interrupted\ninterrupted\n{'n': 1}\n", "")


def test_ctrl_c_abandons_the_answer_not_the_write(url):
    """A checkpoint that waits for another connection's lock at Ctrl-C is still stored before the program ends."""
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
    result = run(script, url)
    assert (result.stdout, result.stderr) == ("interrupted\n", "")
    with blocking.open(url) as sessions:
        assert sessions.get_data("s") == {"n": 1}


def test_interrupts_at_any_moment_break_nothing(url):
    """Thousands of interrupts inside checkpoint() raise nothing but themselves; afterwards every thread can write."""
    script = """
        import random, signal, sys, threading, time
        sessions = blocking.open(URL)
        sessions.create_session("t", session_id="s")

        def interrupt(*_):
            raise KeyboardInterrupt

        def ignored(what):  # Python drops an interrupt that hits a finalizer, which the garbage collector runs anywhere
            if what.exc_type is not KeyboardInterrupt:
                sys.__unraisablehook__(what)

        sys.unraisablehook = ignored
        signal.signal(signal.SIGALRM, interrupt)
        interrupts, n, end = 0, 0, time.monotonic() + 4
        while interrupts <= 100 or time.monotonic() < end:
            n += 1
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 1e-3))
                sessions.checkpoint("s", "x", {"n": n})
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupts += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        thread = threading.Thread(target=sessions.checkpoint, args=("s", "thread", {"n": -1}))
        thread.start()
        thread.join()
        sessions.checkpoint("s", "main", {"n": -2})
        sessions.close()
        print("done")
    """
    result = run(script, url)
    assert (result.stdout, result.stderr, result.returncode) == ("done\n", "", 0)
    with blocking.open(url) as sessions:
        assert [entry.name for entry in sessions.history("s")][-2:] == ["thread", "main"]


def test_a_verb_learns_that_its_caller_did_not_take_the_answer(url):
    """Interrupted after the coroutine has finished, a caller counts as gone: the verb's callback runs in the loop's
    thread before the next call. It does not run for an answer that was taken, result or error.
    """
    script = """
        import signal, threading
        from saveslot.session.hearing import HEARD
        sessions = blocking.open(URL)
        events = []

        def interrupt(*_):
            raise KeyboardInterrupt

        signal.signal(signal.SIGUSR1, interrupt)

        async def verb(_, name, *, interrupted=False, error=None):
            HEARD.get().append(lambda: events.append((name, threading.current_thread().name)))
            if interrupted:
                signal.raise_signal(signal.SIGUSR1)  # handled by the main thread once the answer wakes it up
            if error:
                raise error
            return list(events)

        for name, error in ("result", None), ("error", ValueError()):
            try:
                sessions.resident.run(lambda _: verb(_, name, interrupted=True, error=error))
            except KeyboardInterrupt:
                print("interrupted")
        print(sessions.resident.run(lambda _: verb(_, "taken")))
        try:
            sessions.resident.run(lambda _: verb(_, "raised", error=ValueError()))
        except ValueError:
            print("raised")
        print(len(sessions.resident.run(lambda _: verb(_, "again"))))
    """
    result = run(script, url)
    unheard = "[('result', 'saveslot-loop'), ('error', 'saveslot-loop')]"
    assert (result.stdout, result.stderr) == (f"interrupted\ninterrupted\n{unheard}\nraised\n2\n", "")


def test_every_answer_is_taken_or_reported_as_unheard(url):
    """Interrupted at any moment: of each call that ran, either the caller has the answer or the callback has run."""
    script = """
        import random, signal, sys, time
        from saveslot.session.hearing import HEARD
        sessions = blocking.open(URL)
        ran, unheard, taken = set(), [], set()

        def interrupt(*_):
            raise KeyboardInterrupt

        async def verb(n):
            HEARD.get().append(lambda: unheard.append(n))
            ran.add(n)
            return n

        def call(n):
            return sessions.resident.run(lambda _: verb(n))

        sys.unraisablehook = lambda what: what.exc_type is KeyboardInterrupt or sys.__unraisablehook__(what)
        signal.signal(signal.SIGALRM, interrupt)
        n, end = 0, time.monotonic() + 3
        while min(len(unheard), len(taken)) <= 100 or time.monotonic() < end:
            n += 1
            answer = 0
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 1e-3))
                answer = call(n)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                pass
            taken |= {answer} - {0}
        signal.setitimer(signal.ITIMER_REAL, 0)
        call(-1)
        print(len(unheard) - len(set(unheard)))
        print(ran - taken - set(unheard), taken & set(unheard))
    """
    result = run(script, url)
    assert (result.stdout, result.stderr) == ("0\n{-1} set()\n", "")


def test_an_interrupted_open_leaves_nothing_open(url, tmp_path):
    """What `open` opened for a caller that was interrupted is closed: the write-ahead log is removed."""
    script = """
        import pathlib, signal, time
        from saveslot import opening

        def interrupt(*_):
            raise KeyboardInterrupt

        signal.signal(signal.SIGUSR1, interrupt)
        enter = opening.open.__aenter__

        async def entered(self):
            sessions = await enter(self)
            await sessions.create_session("t", session_id="s")
            signal.raise_signal(signal.SIGUSR1)
            return sessions

        opening.open.__aenter__ = entered
        try:
            blocking.open(URL)
        except KeyboardInterrupt:
            print("interrupted")
        file, end = pathlib.Path(URL.removeprefix("sqlite:///") + "-wal"), time.monotonic() + 60
        while file.exists() and time.monotonic() < end:
            time.sleep(0.01)
        print(file.exists())
    """
    result = run(script, url)
    assert (result.stdout, result.stderr) == ("interrupted\nFalse\n", "")


def test_a_background_task_adds_no_callbacks_to_the_call_that_started_it(url):
    """A task that outlives its call inherits the call's context; callbacks that it adds later are not kept."""

    async def begin(_):
        return asyncio.create_task(later(HEARD.get()))

    async def later(inherited):
        await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        HEARD.get().append(lambda: None)
        return HEARD.get() is inherited, inherited.close()

    async def ended(task):
        return await task

    with blocking.open(url) as sessions:
        task = sessions.resident.run(begin)
        assert sessions.resident.run(lambda _: ended(task)) == (True, [])


def test_a_forked_child_opens_its_own(url):
    """In the child, the parent's managers raise `Unavailable` and closing them does nothing; a new one works, and the
    parent continues.
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
        print([entry.name for entry in sessions.history("s")], history.create("c").id)
        sessions.checkpoint(sessions.get_session("s"), "parent", {"n": 2})
        sessions.close()
        with blocking.open(URL) as again:
            print(again.get_data("s"))
    """
    result = run(script, url)
    assert (result.stderr, result.returncode) == ("", 0)
    assert result.stdout == "['session_created', 'child'] h:2\n{'n': 2}\n"


def test_a_killed_process_loses_nothing_acknowledged(url):
    """After kill -9 during writes, every checkpoint that a blocking call returned is stored."""
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
    returned = [int(writer.stdout.readline()) for _ in range(30)]
    writer.send_signal(signal.SIGKILL)
    returned += [int(line) for line in writer.stdout.read().split()]
    writer.wait()
    writer.stdout.close()
    with blocking.open(url) as sessions:
        stored = [checkpoint.data["n"] for checkpoint in sessions.history("s") if checkpoint.name == "x"]
    assert stored[: len(returned)] == returned
    assert len(stored) - len(returned) in {0, 1}


def test_a_call_from_inside_its_own_loop_is_refused():
    """It would wait for itself forever, so it raises instead."""
    sessions = blocking.SessionManager()

    async def inside(_):
        return sessions.count()

    with pytest.raises(RuntimeError, match="wait for itself"):
        sessions.resident.run(inside)
    sessions.close()


def test_two_managers_collide_as_two_processes_do(url):
    """A blocking manager that has not seen the newest entry is refused, as an async one is."""
    with blocking.open(url) as one, blocking.open(url) as two:
        mine = one.create_session("t", session_id="s")
        theirs = two.get_session("s")
        one.checkpoint(mine, "a", {})
        with pytest.raises(Conflict):
            two.checkpoint(theirs, "b", {})

"""Ctrl-C at any moment, and the same call again: it is stored once."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

CALLS = {
    "by id": ("", "answer = sessions.checkpoint('s', 'x', {'n': n})"),
    "session value": ("session = sessions.get_session('s')", "answer = sessions.checkpoint(session, 'x', {'n': n})"),
    "held": ("held = sessions.take('s')", "answer = held.checkpoint('x', {'n': n})"),
    "history": ("history = CheckpointManager('s', 10**9, 10**9, URL)", "answer = history.create('x', {'n': n})"),
    "history with a callback": (
        "history = CheckpointManager('s', 10**9, 10**9, URL); history.on_checkpoint(lambda _: time.sleep(0.0001))",
        "answer = history.create('x', {'n': n})",
    ),
    "append": ("", "answer = sessions.checkpoint('s', 'x', append={'numbers': [n]})"),
    "step": ("held = sessions.take('s')", "answer = held.step('x', int, n, key=str(n))"),
    "rollback": ("", "answer = sessions.rollback('s', 'x') if n % 2 else sessions.checkpoint('s', 'x', {'n': n})"),
}
SCRIPT = """
    import collections, random, signal, sys, time
    import saveslot.blocking as blocking
    from saveslot import CheckpointManager
    sessions = blocking.open(URL)
    sessions.create_session("t", session_id="s")
    sessions.checkpoint("s", "x", {"n": 0})
    PREPARE

    def interrupt(*_):
        raise KeyboardInterrupt

    sys.unraisablehook = lambda what: what.exc_type is KeyboardInterrupt or sys.__unraisablehook__(what)
    signal.signal(signal.SIGALRM, interrupt)
    interrupts, n, end = 0, 0, time.monotonic() + SECONDS
    while interrupts <= 100 or time.monotonic() < end:
        n += 1
        answer = None
        while answer is None:  # the same call until it is answered: an interrupt after the answer repeats nothing
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 1e-3))
                CALL
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupts += answer is None
    signal.setitimer(signal.ITIMER_REAL, 0)
    owned = {"session_created", "session_taken"}
    stored = sum(entry.name not in owned for entry in sessions.history("s", all=True))
    print(stored - 1 - n)
"""


HOLDING = """
    import random, signal, sys, time
    import saveslot.blocking as blocking
    sessions = blocking.open(URL)
    sessions.create_session("t", session_id="s")

    def interrupt(*_):
        raise KeyboardInterrupt

    sys.unraisablehook = lambda what: what.exc_type is KeyboardInterrupt or sys.__unraisablehook__(what)
    signal.signal(signal.SIGALRM, interrupt)
    interrupts, end = 0, time.monotonic() + SECONDS
    while interrupts <= 50 or time.monotonic() < end:
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 5e-3))
            with sessions.hold("s") as held:
                pass
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            interrupts += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    with sessions.hold("s"):
        print("held")
"""


def printed(script: str, file: Path) -> tuple[str, str]:
    lines = f"URL, SECONDS = {f'sqlite:///{file}'!r}, 1.5\n" + textwrap.dedent(script)
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, timeout=240, check=False)
    return done.stdout, done.stderr


def test_an_interrupted_hold_leaves_nothing_held(tmp_path):
    """The next `hold` never meets this process as the owner."""
    assert printed(HOLDING, tmp_path / "s.db") == ("held\n", "")


@pytest.mark.parametrize("call", CALLS)
def test_a_call_repeated_after_an_interrupt_is_stored_once(tmp_path, call):
    """Interrupted at any moment and repeated until it is answered, each call is stored exactly once."""
    prepare, code = CALLS[call]
    script = SCRIPT.replace("PREPARE", prepare).replace("CALL", code)
    assert printed(script, tmp_path / "s.db") == ("0\n", "")

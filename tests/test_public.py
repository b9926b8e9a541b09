"""The door: what `import saveslot` gives, and what opening says when it cannot."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import requires

import pytest

import saveslot
from saveslot import InvalidInput, Unavailable

NAMES = [
    *("AgentSession", "Audit", "AuditLine", "Checkpoint", "CheckpointManager", "CheckpointStore", "Event", "Garbage"),
    *("Held", "LogLine", "Owner", "Page", "Retention", "SessionCheckpoint", "SessionManager", "SessionState", "Step"),
    *("Thinned", "open"),
    *("AlreadyExists", "Conflict", "Corrupt", "HistoryLost", "InvalidInput", "InvalidTransition", "LeaseHeld"),
    *(
        "KeyMissing",
        "LeaseLost",
        "NotFound",
        "SaveslotError",
        "StepFailed",
        "StepUnknown",
        "TooLarge",
        "Unavailable",
        "WrongKey",
    ),
]


def test_the_public_names_are_these():
    """A name is added here on purpose, and never vanishes by accident."""
    assert sorted(saveslot.__all__) == sorted(NAMES)
    assert all(hasattr(saveslot, name) for name in NAMES)


def test_every_error_is_one_of_ours_with_a_code_of_its_own():
    """One except clause catches everything Saveslot raises, and each code means one thing."""
    errors = [getattr(saveslot, name) for name in NAMES]
    errors = [error for error in errors if isinstance(error, type) and issubclass(error, Exception)]
    assert all(issubclass(error, saveslot.SaveslotError) for error in errors)
    assert len({error.code for error in errors}) == len(errors) == 16


def test_the_core_needs_three_packages():
    """Whoever installs Saveslot alone gets msgspec, apsw and zstd."""
    core = [line for line in requires("saveslot") if "extra ==" not in line]
    assert sorted(line.split(">")[0] for line in core) == ["apsw", "msgspec", "zstandard"]


def test_importing_loads_nothing_heavy():
    """`import saveslot` brings no backend, no terminal library and no test tools with it."""
    script = "import sys, saveslot; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"apsw", "rich", "cyclopts", "hypothesis", "pytest", "sqlite3", "multiprocessing", "urllib.request"}
    assert not heavy & set(loaded)


async def test_opening_works_both_ways(tmp_path, monkeypatch):
    """As a context manager or awaited; without a URL the environment's, else the user's data folder."""
    async with saveslot.open(f"sqlite:///{tmp_path / 'a' / 'b.db'}") as sessions:
        await sessions.create_session("tutor", session_id="s")
    sessions = await saveslot.open(f"sqlite:///{tmp_path / 'a' / 'b.db'}")
    assert await sessions.get_session("s") is not None
    await sessions.close()
    monkeypatch.setenv("SAVESLOT_URL", f"sqlite:///{tmp_path / 'a' / 'b.db'}")
    async with saveslot.open() as sessions:
        assert await sessions.get_session("s") is not None
    monkeypatch.delenv("SAVESLOT_URL")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    async with saveslot.open() as sessions:
        assert await sessions.count() == 0
    if sys.platform == "linux":
        assert (tmp_path / "data" / "saveslot" / "saveslot.db").exists()


@pytest.mark.parametrize(
    "url",
    ["", "nonsense", "mysql://x", "sqlite://host/x.db", "sqlite:///", "sqlite:///x?mode=ro", "sqlite:///a%00b.db"],
)
async def test_a_url_that_names_no_store_is_refused(url, monkeypatch):
    """A wrong URL raises InvalidInput that says which forms there are; an empty one is not taken for none."""
    monkeypatch.setenv("SAVESLOT_URL", "memory:")
    with pytest.raises(InvalidInput, match="sqlite:///"):
        await saveslot.open(url)


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"url": 5}, "url"),
        ({"url": "sqlite:///a\0b.db"}, "url"),
        ({"url": "memory:", "hot": 5}, "hot"),
        ({"url": "memory:", "namespace": 5}, "namespace"),
        ({"url": "memory:", "max_state_bytes": "x"}, "max_state_bytes"),
        ({"url": "memory:", "max_state_bytes": -1}, "max_state_bytes"),
    ],
)
async def test_opening_refuses_what_makes_no_sense(given, path):
    """InvalidInput names the argument."""
    with pytest.raises(InvalidInput) as told:
        await saveslot.open(**given)
    assert told.value.path == path


async def test_a_closed_manager_says_so(tmp_path):
    """After close every verb raises Unavailable instead of hanging."""
    sessions = await saveslot.open(f"sqlite:///{tmp_path / 's.db'}")
    session = await sessions.create_session("tutor")
    await sessions.close()
    await sessions.close()
    for call in (
        sessions.get_session("x"),
        sessions.checkpoint(session.session_id, "x", {}),
        sessions.create_session("t"),
    ):
        with pytest.raises(Unavailable, match="closed"):
            await call

"""The public API of `import saveslot`, and errors on opening."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import requires

import pytest

import saveslot
from saveslot import InvalidInput, Unavailable
from saveslot.errors import BY_CODE
from saveslot.stores import Store

NAMES = [
    *("AgentSession", "Audit", "AuditLine", "Checkpoint", "CheckpointManager", "CheckpointStore", "EntryHeader"),
    *("Event", "Garbage", "Head"),
    *(
        "Held",
        "LogLine",
        "Owner",
        "Page",
        "Record",
        "Retention",
        "SessionCheckpoint",
        "SessionManager",
        "SessionState",
        "Step",
    ),
    *("Thinned", "open", "step"),
    *(
        "AlreadyExists",
        "Cancelled",
        "Conflict",
        "Corrupt",
        "Forbidden",
        "HistoryLost",
        "InvalidInput",
        "InvalidTransition",
        "LeaseHeld",
    ),
    *(
        "KeyMissing",
        "LeaseLost",
        "NotFound",
        "QuotaExceeded",
        "SaveslotError",
        "StepFailed",
        "StepUnknown",
        "TooLarge",
        "Unauthorized",
        "Unavailable",
        "WrongKey",
    ),
]


def test_public_names():
    """A name is added here on purpose, and never vanishes by accident."""
    assert sorted(saveslot.__all__) == sorted(NAMES)
    assert all(hasattr(saveslot, name) for name in NAMES)


def test_dir_shows_public_names_only():
    """`dir(saveslot)` lists the public names and modules, however much has been imported."""
    assert sorted(dir(saveslot)) == sorted([*NAMES, "__version__", "blocking", "otel", "types"])
    assert saveslot.types.Store is Store


def test_types_of_public_signatures_can_be_imported():
    """`saveslot.types` has what annotations of public signatures name beyond `saveslot` itself."""
    names = {"Data", "Keeper", "Keys", "Level", "Mode", "OnUnknown", "Rules", "StepCall", "Store", "Takeover"}
    assert names | {"Document", "Limit", "Order", "Progress", "Quarantined", "Span", "Change", "Together"} == set(
        saveslot.types.__all__
    )
    assert all(hasattr(saveslot.types, name) for name in saveslot.types.__all__)


def test_module_runs_the_command():
    """`python -m saveslot` is the command `saveslot`."""
    ran = subprocess.run([sys.executable, "-m", "saveslot", "--version"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"saveslot {saveslot.__version__}\n", "")


@pytest.mark.parametrize("missing", ["pytest", "hypothesis"])
def test_testing_names_the_extra_to_install(missing):
    """`import saveslot.testing` without its packages says what to install."""
    script = f"import sys; sys.modules[{missing!r}] = None; import saveslot.testing"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert f"saveslot.testing needs {missing}: pip install 'saveslot[testing]'" in ran.stderr.splitlines()[-1]


def test_every_error_is_a_saveslot_error_with_a_unique_code():
    """One except clause catches everything Saveslot raises, and each code means one thing."""
    errors = [getattr(saveslot, name) for name in NAMES]
    errors = [error for error in errors if isinstance(error, type) and issubclass(error, Exception)]
    assert all(issubclass(error, saveslot.SaveslotError) for error in errors)
    assert len({error.code for error in errors}) == len(errors) == 20


def test_core_needs_three_packages():
    """Installing Saveslot alone brings msgspec, apsw and zstd."""
    core = [line for line in requires("saveslot") if "extra ==" not in line]
    assert sorted(line.split(">")[0] for line in core) == ["apsw", "msgspec", "zstandard"]


def test_import_loads_nothing_heavy():
    """`import saveslot` loads no backend, terminal library or test tools."""
    script = "import sys, saveslot; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"apsw", "rich", "cyclopts", "hypothesis", "pytest", "sqlite3", "multiprocessing", "urllib.request"}
    assert not heavy & set(loaded)


async def test_open_works_with_await_and_async_with(tmp_path, monkeypatch):
    """Without a URL it uses the environment's, else the user's data folder."""
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
        await sessions.create_session("tutor")
    if sys.platform == "linux":
        assert (tmp_path / "data" / "saveslot" / "saveslot.db").exists()


@pytest.mark.parametrize(
    "url",
    ["", "nonsense", "mysql://x", "sqlite://host/x.db", "sqlite:///", "sqlite:///x?mode=ro", "sqlite:///a%00b.db"],
)
async def test_unknown_url_is_refused(url, monkeypatch):
    """A wrong URL raises InvalidInput that lists the valid forms; an empty one does not mean the default."""
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
async def test_open_refuses_bad_arguments(given, path):
    """InvalidInput names the argument."""
    with pytest.raises(InvalidInput) as error:
        await saveslot.open(**given)
    assert error.value.path == path


async def test_closed_manager_raises_unavailable(tmp_path):
    """After close every call raises Unavailable instead of hanging."""
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


DOORS = {"CheckpointManager", "CheckpointStore", "Held", "SessionManager", "open", "step"}


def test_every_public_value_and_error_has_to_dict():
    """Every value that is not a handle to a store converts to JSON; a `SessionState` is text already."""
    values = {name: getattr(saveslot, name) for name in set(saveslot.__all__) - DOORS - {"SessionState"}}
    values["Quarantined"] = saveslot.types.Quarantined
    assert not {name for name, value in values.items() if not callable(getattr(value, "to_dict", None))}


async def test_to_dict_is_json_safe():
    """Every value that a manager returns survives `json.dumps` and back."""
    async with saveslot.open("memory:") as sessions:
        await sessions.create_session("tutor", session_id="s")
        async with sessions.hold("s") as held:
            await held.step("add", lambda: 3)
            await held.checkpoint("asked", {"n": 1}, metadata={"m": 2})
            session = await sessions.get_session("s")
            steps = await held.steps()
            await held.record("thought", [1])
        page = await sessions.find()
        trail = await sessions.audit("s")
        event = await anext(sessions.watch("s", after=0))
        values = [
            *(session, session.owner, session.checkpoints[-1], await sessions.get_checkpoint("s"), *steps, page),
            *(*await sessions.log("s", all=True), trail, *trail.lines, event),
            *await sessions.records("s"),
            *(await sessions.head("s"), *await sessions.entries("s")),
            *(await sessions.thin("s"), await sessions.gc(dry_run=True), saveslot.Retention(keep_last=3)),
        ]
    for value in values:
        assert json.loads(json.dumps(value.to_dict())) == value.to_dict()
    covered = {type(value).__name__ for value in values} | {kind.__name__ for kind in BY_CODE.values()}
    assert set(saveslot.__all__) - DOORS - {"SessionState"} == covered
    assert page.to_dict() == {"items": [one.to_dict() for one in page], "next": None}
    assert trail.to_dict()["head"] == trail.head

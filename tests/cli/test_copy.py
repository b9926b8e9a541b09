"""copy, export --all and imports from other tools, as typed on the command line."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from saveslot import CheckpointManager, CheckpointStore

FOREIGN = Path(__file__).parents[1] / "moving" / "foreign"


@pytest.fixture
def elsewhere(tmp_path) -> str:
    return f"sqlite:///{tmp_path / 'elsewhere.db'}"


def exports(run, *store: str) -> dict[str, str]:
    ids = [session["session_id"] for session in json.loads(run("ls", "--json", *store).out)]
    return {session_id: run("export", session_id, *store).out for session_id in ids}


def test_copy(run, samples, elsewhere):
    """All sessions are copied and equal; a second run has nothing to do."""
    answer = run("copy", samples.url, elsewhere)
    assert (answer.code, answer.out) == (0, "")
    assert "4 sessions" in answer.err
    assert exports(run) == exports(run, "--store", elsewhere)
    document = json.loads(run("copy", samples.url, elsewhere, "--json").out)
    assert document == {"sessions": [], "already": 4, "replaced": [], "entries": 0, "problems": []}


def test_copy_says_what_it_replaced(run, samples, elsewhere):
    """A session that was deleted and created again is copied again; the output says that its old copy was deleted."""
    run("export", "lesson-1", "-o", str(samples.path.with_name("lesson.json")))
    run("copy", samples.url, elsewhere)
    assert run("rm", "lesson-1", "--yes").code == 0
    assert run("import", str(samples.path.with_name("lesson.json"))).code == 0
    answer = run("copy", samples.url, elsewhere)
    assert (answer.code, "1 old copy deleted" in answer.err) == (0, True), answer.err
    assert exports(run) == exports(run, "--store", elsewhere)


def test_copy_names_skipped_sessions(run, samples, elsewhere):
    """An id that exists in the target makes exit 1, and the others are copied."""
    run("copy", samples.url, elsewhere)
    run("rm", "lesson-10", "--yes", "--store", elsewhere)
    answer = run("copy", samples.url, elsewhere)
    assert answer.code == 1
    assert "saveslot: session lesson-10: it was deleted here" in answer.err


def test_copy_refuses_a_missing_source(run, samples, elsewhere, tmp_path):
    """A missing file is not created; two names for one store are refused."""
    answer = run("copy", f"sqlite:///{tmp_path}/none.db", elsewhere)
    assert (answer.code, (tmp_path / "none.db").exists()) == (5, False)
    assert run("copy", samples.url, samples.url).code == 2
    assert run("copy", samples.url).code == 2


@pytest.mark.parametrize("options", [(), ("--zstd",)])
def test_export_all_and_import_round_trip(run, samples, elsewhere, tmp_path, options):
    """All sessions are exported to a folder and imported; a second import adds nothing."""
    folder = str(tmp_path / "all")
    answer = run("export", "--all", folder, *options)
    assert (answer.code, answer.out) == (0, "")
    assert "4 sessions in 1 file" in answer.err
    assert run("import", folder, "--store", elsewhere).code == 0
    assert exports(run) == exports(run, "--store", elsewhere)
    document = json.loads(run("import", folder, "--store", elsewhere, "--json").out)
    assert (document["sessions"], document["already"], document["problems"]) == ([], 4, [])
    assert run("export", "--all", folder).code == 2


def test_export_requires_one_session_or_all(run, samples, tmp_path):
    assert run("export").code == 2
    assert run("export", "lesson-1", "--all", str(tmp_path / "x")).code == 2
    assert run("export", "--all", str(tmp_path / "x"), "-o", "y").code == 2
    (tmp_path / "file").write_text("")
    assert run("export", "--all", str(tmp_path / "file")).code == 2
    assert run("export", "--all", str(tmp_path / "x"), "--store", f"sqlite:///{tmp_path}/none.db").code == 5


def test_import_from_other_tools(run, elsewhere, tmp_path):
    """Each source works alone; stdout has only data, and skipped items are named and make exit 1."""
    manager = CheckpointManager("listed")
    manager.create("a", {"n": 1})
    (tmp_path / "list.json").write_text(manager.export())
    files = CheckpointStore(tmp_path / "files")
    files.write("written", {"task": "parse"})
    sources = [
        FOREIGN / "langgraph.sqlite",
        FOREIGN / "openai_agents.sqlite",
        tmp_path / "list.json",
        tmp_path / "files",
    ]
    for source in sources:
        answer = run("import", str(source), "--store", elsewhere)
        assert (answer.code, answer.out) == (0, ""), answer.err
    by_key = {session["session_id"] for session in json.loads(run("ls", "--json", "--store", elsewhere).out)}
    assert by_key == {"ended", "waiting", "chat-1", "chat-2", "listed", "written"}
    (tmp_path / "files" / "bad.yaml").write_text("a: [")
    answer = run("import", str(tmp_path / "files"), "--store", elsewhere)
    assert answer.code == 1
    assert f"saveslot: {tmp_path / 'files' / 'bad.yaml'}: is not YAML" in answer.err
    assert (tmp_path / "files" / "bad.yaml").exists()


def test_problems_beyond_fifty_are_counted(run, elsewhere, tmp_path):
    """Fifty are shown; --json has them all."""
    path = tmp_path / "bad.sqlite"
    shutil.copy(FOREIGN / "openai_agents.sqlite", path)
    connection = sqlite3.connect(path)
    for n in range(60):
        connection.execute("insert into agent_messages values (?, 'chat-9', '{', '2026-01-01')", (100 + n,))
    connection.commit()
    connection.close()
    answer = run("import", str(path), "--store", elsewhere)
    assert answer.code == 1
    assert "and 10 more" in answer.err
    assert len(json.loads(run("import", str(path), "--store", elsewhere, "--json").out)["problems"]) == 60


def test_bad_import_options_are_refused(run, elsewhere, tmp_path):
    """One source at a time; --as needs a single session, --valkey a table."""
    (tmp_path / "a.json").write_text("{}")
    path = str(FOREIGN / "langgraph.sqlite")
    assert run("import", path, str(tmp_path / "a.json"), "--store", elsewhere).code == 2
    assert run("import", path, "--as", "x", "--store", elsewhere).code == 2
    assert run("import", str(tmp_path / "a.json"), "--valkey", "valkey://x", "--store", elsewhere).code == 2
    assert run("import", "postgresql://nobody@127.0.0.1:1/none", "--store", elsewhere).code == 6


def test_progress_bar_on_a_terminal(terminal, samples, elsewhere):
    seen = terminal("copy", samples.url, elsewhere).until("read back and compared")
    assert "copy" in seen

"""copy, export --all and imports from elsewhere, as a person types them."""

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
    """All sessions go over, the same; a second time there is nothing to do."""
    answer = run("copy", samples.url, elsewhere)
    assert (answer.code, answer.out) == (0, "")
    assert "4 sessions" in answer.err
    assert exports(run) == exports(run, "--store", elsewhere)
    told = json.loads(run("copy", samples.url, elsewhere, "--json").out)
    assert told == {"sessions": [], "already": 4, "entries": 0, "problems": []}


def test_copy_names_what_it_left_alone(run, samples, elsewhere):
    """An id that is taken over there: exit 1, and the others are copied."""
    run("copy", samples.url, elsewhere)
    run("rm", "lesson-10", "--yes", "--store", elsewhere)
    answer = run("copy", samples.url, elsewhere)
    assert answer.code == 1
    assert "saveslot: session lesson-10: it was here and was deleted" in answer.err


def test_copy_of_nothing(run, samples, elsewhere, tmp_path):
    """A file that is not there is not made; two names for one store make no sense."""
    answer = run("copy", f"sqlite:///{tmp_path}/none.db", elsewhere)
    assert (answer.code, (tmp_path / "none.db").exists()) == (5, False)
    assert run("copy", samples.url, samples.url).code == 2
    assert run("copy", samples.url).code == 2


@pytest.mark.parametrize("options", [(), ("--zstd",)])
def test_all_out_and_back(run, samples, elsewhere, tmp_path, options):
    """A folder for all sessions, and back; a second import adds nothing."""
    folder = str(tmp_path / "all")
    answer = run("export", "--all", folder, *options)
    assert (answer.code, answer.out) == (0, "")
    assert "4 sessions in 1 file" in answer.err
    assert run("import", folder, "--store", elsewhere).code == 0
    assert exports(run) == exports(run, "--store", elsewhere)
    told = json.loads(run("import", folder, "--store", elsewhere, "--json").out)
    assert (told["sessions"], told["already"], told["problems"]) == ([], 4, [])
    assert run("export", "--all", folder).code == 2


def test_export_wants_one_session_or_all(run, samples, tmp_path):
    assert run("export").code == 2
    assert run("export", "lesson-1", "--all", str(tmp_path / "x")).code == 2
    assert run("export", "--all", str(tmp_path / "x"), "-o", "y").code == 2
    (tmp_path / "file").write_text("")
    assert run("export", "--all", str(tmp_path / "file")).code == 2
    assert run("export", "--all", str(tmp_path / "x"), "--store", f"sqlite:///{tmp_path}/none.db").code == 5


def test_imports_from_elsewhere(run, elsewhere, tmp_path):
    """Each source by itself; stdout stays for data, what was left out is named and makes exit 1."""
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
    found = {session["session_id"] for session in json.loads(run("ls", "--json", "--store", elsewhere).out)}
    assert found == {"ended", "ended/inner", "waiting", "chat-1", "chat-2", "listed", "written"}
    (tmp_path / "files" / "bad.yaml").write_text("a: [")
    answer = run("import", str(tmp_path / "files"), "--store", elsewhere)
    assert answer.code == 1
    assert f"saveslot: {tmp_path / 'files' / 'bad.yaml'}: is not YAML" in answer.err
    assert (tmp_path / "files" / "bad.yaml").exists()


def test_many_problems_are_counted(run, elsewhere, tmp_path):
    """Fifty are shown, --json has them all."""
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


def test_imports_that_make_no_sense(run, elsewhere, tmp_path):
    """One source at a time, --as for one session, --valkey for a table."""
    (tmp_path / "a.json").write_text("{}")
    path = str(FOREIGN / "langgraph.sqlite")
    assert run("import", path, str(tmp_path / "a.json"), "--store", elsewhere).code == 2
    assert run("import", path, "--as", "x", "--store", elsewhere).code == 2
    assert run("import", str(tmp_path / "a.json"), "--valkey", "valkey://x", "--store", elsewhere).code == 2
    assert run("import", "postgresql://nobody@127.0.0.1:1/none", "--store", elsewhere).code == 6


def test_a_bar_is_shown_on_a_terminal(terminal, samples, elsewhere):
    seen = terminal("copy", samples.url, elsewhere).until("read back and compared")
    assert "copy" in seen

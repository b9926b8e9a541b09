"""Where the store's URL comes from: argument, environment, the folder's file, the user's file, default."""

from __future__ import annotations

from pathlib import Path

import pytest

import saveslot
from saveslot import InvalidInput
from saveslot.cli import main
from saveslot.opening import default_url, located


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    """A home, a project in it, and a subfolder as working directory."""
    for name in ("SAVESLOT_URL", "SAVESLOT_HOT", "SAVESLOT_NAMESPACE", "SAVESLOT_ENCRYPTION_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home" / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home" / "data"))
    here = tmp_path / "home" / "project" / "src"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    return here


def user_file(places: Path, text: str) -> Path:
    path = places.parents[1] / "config" / "saveslot" / "saveslot.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def test_default_is_a_file_in_the_user_data_folder(places):
    """It is in the platform's data folder, in the namespace "default"."""
    answer = located()
    assert answer["url"] == (default_url(), "default")
    assert answer["url"].value == f"sqlite:///{places.parents[1]}/data/saveslot/saveslot.db"
    assert answer["namespace"] == ("default", "default")
    assert "hot" not in answer


def test_settings_precedence(places, monkeypatch):
    """Argument, environment, the folder's file, the user's file, default: the first that is set wins."""
    mine = user_file(places, 'url = "sqlite:////mine.db"')
    assert located()["url"] == ("sqlite:////mine.db", str(mine))
    ours = places / "saveslot.toml"
    ours.write_text('url = "sqlite:////ours.db"')
    assert located()["url"] == ("sqlite:////ours.db", str(ours))
    monkeypatch.setenv("SAVESLOT_URL", "memory:")
    assert located()["url"] == ("memory:", "SAVESLOT_URL")
    assert located(url="sqlite:////said.db")["url"] == ("sqlite:////said.db", "argument url")
    monkeypatch.setenv("SAVESLOT_URL", "")
    assert located()["url"].source == str(ours)


def test_each_setting_is_resolved_separately(places, monkeypatch):
    """The URL may come from one place, the namespace from another."""
    user_file(places, 'namespace = "mine"\nurl = "memory:"')
    (places / "saveslot.toml").write_text('url = "sqlite:////ours.db"')
    answer = located()
    assert (answer["url"].value, answer["namespace"].value) == ("sqlite:////ours.db", "mine")
    monkeypatch.setenv("SAVESLOT_NAMESPACE", "here")
    assert located()["namespace"] == ("here", "SAVESLOT_NAMESPACE")


def test_nearest_parent_file_wins(places):
    """A project's file applies in all its folders, and relative paths in it start at the file."""
    (places.parent / "saveslot.toml").write_text('url = "sqlite:///data/agents.db"')
    assert located()["url"].value == f"sqlite:///{places.parent}/data/agents.db"
    (places / "saveslot.toml").write_text('url = "memory:"')
    assert located()["url"].value == "memory:"


def test_files_above_the_home_folder_are_ignored(places, tmp_path):
    """A file in /tmp or / must not redirect a user's sessions."""
    (tmp_path / "saveslot.toml").write_text('url = "memory:"')
    assert located()["url"].source == "default"


def test_deleted_working_directory_is_not_an_error(places):
    """A service whose folder was removed still opens its store."""
    places.rmdir()
    assert located()["url"].source == "default"


def test_folders_may_have_special_characters(tmp_path, monkeypatch):
    """A percent sign, a question mark or a space in a path is part of the path."""
    folder = tmp_path / "100% sure? #1"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder))
    (folder / "saveslot.toml").write_text('url = "sqlite:///a.db"')
    assert main(["migrate", "--apply"]) == 0
    assert (folder / "a.db").exists()


@pytest.mark.parametrize("name", ["a\tb.db", "a\nb.db", "a%0Ab.db"])
def test_control_characters_stay_in_a_path(places, name):
    """Quoted or not, a tab or a line break is part of the file's name."""
    assert main(["migrate", "--apply", "--store", f"sqlite:///{name}"]) == 0
    assert [path.name for path in places.glob("*.db")] == [name.replace("%0A", "\n")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('ulr = "memory:"', "has the unknown key 'ulr'; did you mean 'url'?"),
        ('name_space = "x"', "did you mean 'namespace'?"),
        ('xyzzy = "x"', "the keys are url, hot, namespace"),
        ("[store]\nurl = 'memory:'", "has the unknown key 'store'"),
        ("url = 5", "url must be text, not a number"),
        ("namespace = true", "namespace must be text, not a boolean"),
        ("[url]\nx = 1", "url must be text, not a table"),
        ("url = ['memory:']", "url must be text, not a list"),
        ('url = ""', "url must not be empty"),
        ('url = "sqlite:x"', "is not of the form sqlite:///file.db"),
        ("url = ", "cannot be read as TOML"),
        ("url = '\xff'", "cannot be read as TOML"),
    ],
)
def test_invalid_settings_file_is_named(places, text, said):
    """InvalidInput has the file, the problem and the nearest valid key; no other store is used silently."""
    path = places / "saveslot.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(saveslot.InvalidInput) as caught:
        saveslot.open()
    assert str(path) in str(caught.value)
    assert said in str(caught.value)


def test_command_reports_it_in_one_line(places, capsys):
    """Exit 2."""
    (places / "saveslot.toml").write_text('ulr = "memory:"')
    assert main(["ls"]) == 2
    assert "did you mean 'url'?" in capsys.readouterr().err


def test_empty_store_is_not_the_default(capsys):
    """A variable that a script left empty must not send sessions to the user's own file. Exit 2."""
    assert main(["--store", "", "ls"]) == 2
    assert "url: must not be empty; omit it" in capsys.readouterr().err


async def test_open_uses_the_settings(places):
    """Python and the command use the same store and namespace; an argument wins."""
    (places / "saveslot.toml").write_text('url = "sqlite:///agents.db"\nnamespace = "staging"')
    async with saveslot.open() as sessions:
        assert sessions.namespace == "staging"
        await sessions.create_session("tutor", session_id="x")
    assert (places / "agents.db").exists()
    async with saveslot.open(namespace="other") as sessions:
        assert await sessions.get_session("x") is None
    sessions = await saveslot.open("memory:")
    assert sessions.namespace == "staging"
    await sessions.close()


def test_invalid_hot_tier_names_its_source(monkeypatch):
    """The error names the setting's place, whichever it is."""
    monkeypatch.setenv("SAVESLOT_HOT", "postgresql://x")
    with pytest.raises(saveslot.InvalidInput, match="SAVESLOT_HOT"):
        saveslot.open()


async def test_empty_key_is_refused(monkeypatch, capsys):
    """A script that failed to read its key gets an error; a key passed as an argument needs no variable."""
    monkeypatch.setenv("SAVESLOT_ENCRYPTION_KEY", "")
    with pytest.raises(saveslot.InvalidInput, match="SAVESLOT_ENCRYPTION_KEY is empty; set it"):
        saveslot.open("memory:")
    async with saveslot.open("memory:", encryption_key=bytes(32)) as sessions:
        assert await sessions.count() == 0
    monkeypatch.delenv("SAVESLOT_ENCRYPTION_KEY")
    async with saveslot.open("memory:") as sessions:
        assert await sessions.count() == 0


def test_command_stops_on_an_empty_key(places, monkeypatch, capsys):
    """Exit 2, and nothing was created."""
    monkeypatch.setenv("SAVESLOT_ENCRYPTION_KEY", "")
    (places / "in.json").write_text("{}")
    assert main(["--store", "sqlite:///new.db", "import", "in.json"]) == 2
    assert "SAVESLOT_ENCRYPTION_KEY is empty" in capsys.readouterr().err
    assert not (places / "new.db").exists()


@pytest.mark.parametrize("keys", [{5: bytes(32)}, {b"a": bytes(32)}, {"a b": bytes(32)}])
def test_key_id_must_be_text(keys):
    """Anything else is InvalidInput."""
    with pytest.raises(saveslot.InvalidInput, match="is not a valid key id"):
        saveslot.SessionManager(encryption_key=keys)


@pytest.mark.parametrize("whose", ["folder", "user"])
@pytest.mark.parametrize("content", ["link", "folder"])
def test_unreadable_settings_file_is_not_skipped(places, whose, content):
    """A broken link or a folder must not silently send sessions to the default file."""
    path = (places if whose == "folder" else places.parents[1] / "config" / "saveslot") / "saveslot.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    if content == "link":
        path.symlink_to(places / "nowhere.toml")
    else:
        path.mkdir()
    with pytest.raises(saveslot.InvalidInput) as caught:
        saveslot.open()
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("place", ["127.0.0.1:7788", "localhost:7788", "agents.example:80"])
async def test_a_host_and_a_port_are_no_file(place):
    """The address of a server without http:// would be a file of that name; the error gives both spellings."""
    with pytest.raises(InvalidInput, match=f"http://{place}.*./{place}"):
        await saveslot.open(place)

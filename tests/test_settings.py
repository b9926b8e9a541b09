"""Where the store is looked for: argument, environment, the folder's file, the user's file, default."""

from __future__ import annotations

from pathlib import Path

import pytest

import saveslot
from saveslot.cli import main
from saveslot.opening import default_url, located


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    """A home, a project in it, and a folder in that, where we stand."""
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


def test_nothing_set_is_one_file_among_the_users_data(places):
    """In the folder that the platform has for it, in the namespace "default"."""
    told = located()
    assert told["url"] == (default_url(), "default")
    assert told["url"].value == f"sqlite:///{places.parents[1]}/data/saveslot/saveslot.db"
    assert told["namespace"] == ("default", "default")
    assert "hot" not in told


def test_each_place_gives_way_to_the_one_before(places, monkeypatch):
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


def test_each_setting_is_looked_for_on_its_own(places, monkeypatch):
    """The url from one place, the namespace from another."""
    user_file(places, 'namespace = "mine"\nurl = "memory:"')
    (places / "saveslot.toml").write_text('url = "sqlite:////ours.db"')
    told = located()
    assert (told["url"].value, told["namespace"].value) == ("sqlite:////ours.db", "mine")
    monkeypatch.setenv("SAVESLOT_NAMESPACE", "here")
    assert located()["namespace"] == ("here", "SAVESLOT_NAMESPACE")


def test_the_nearest_folder_above_counts(places):
    """A project's file works in all its folders, and names a file beside itself, wherever one stands."""
    (places.parent / "saveslot.toml").write_text('url = "sqlite:///data/agents.db"')
    assert located()["url"].value == f"sqlite:///{places.parent}/data/agents.db"
    (places / "saveslot.toml").write_text('url = "memory:"')
    assert located()["url"].value == "memory:"


def test_what_lies_above_the_home_folder_is_not_ours(places, tmp_path):
    """A file in /tmp or / must not redirect somebody's sessions."""
    (tmp_path / "saveslot.toml").write_text('url = "memory:"')
    assert located()["url"].source == "default"


def test_a_working_folder_that_is_gone_is_no_error(places):
    """A service whose folder was removed still opens its store."""
    places.rmdir()
    assert located()["url"].source == "default"


def test_folders_may_have_any_name(tmp_path, monkeypatch):
    """A percent sign, a question mark or a blank in a path is part of the path."""
    folder = tmp_path / "100% sure? #1"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder))
    (folder / "saveslot.toml").write_text('url = "sqlite:///a.db"')
    assert main(["migrate", "--apply"]) == 0
    assert (folder / "a.db").exists()


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
def test_a_wrong_file_is_named(places, text, said):
    """An InvalidInput with the file, what is wrong in it, and the nearest right key: never another store in silence."""
    path = places / "saveslot.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(saveslot.InvalidInput) as caught:
        saveslot.open()
    assert str(path) in str(caught.value)
    assert said in str(caught.value)


def test_the_command_says_the_same_in_one_line(places, capsys):
    """Exit 2."""
    (places / "saveslot.toml").write_text('ulr = "memory:"')
    assert main(["ls"]) == 2
    assert "did you mean 'url'?" in capsys.readouterr().err


def test_an_empty_store_is_not_taken_for_the_default(capsys):
    """A variable that a script forgot to set must not send sessions to the user's own file. Exit 2."""
    assert main(["--store", "", "ls"]) == 2
    assert "url: must not be empty; leave it out" in capsys.readouterr().err


async def test_open_uses_the_settings(places):
    """The same store and namespace for Python as for the command; an argument wins."""
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


def test_a_hot_tier_that_is_none_is_told_with_its_source(monkeypatch):
    """Wherever it was set."""
    monkeypatch.setenv("SAVESLOT_HOT", "postgresql://x")
    with pytest.raises(saveslot.InvalidInput, match="SAVESLOT_HOT"):
        saveslot.open()


async def test_an_empty_key_stores_nothing_unsealed(monkeypatch, capsys):
    """A script that failed to read its key is told; who gives one as an argument needs no variable."""
    monkeypatch.setenv("SAVESLOT_ENCRYPTION_KEY", "")
    with pytest.raises(saveslot.InvalidInput, match="SAVESLOT_ENCRYPTION_KEY is empty; unset it"):
        saveslot.open("memory:")
    async with saveslot.open("memory:", encryption_key=bytes(32)) as sessions:
        assert await sessions.count() == 0
    monkeypatch.delenv("SAVESLOT_ENCRYPTION_KEY")
    async with saveslot.open("memory:") as sessions:
        assert await sessions.count() == 0


def test_the_command_does_not_go_on_without_its_key(places, monkeypatch, capsys):
    """Exit 2, and nothing was made."""
    monkeypatch.setenv("SAVESLOT_ENCRYPTION_KEY", "")
    (places / "in.json").write_text("{}")
    assert main(["--store", "sqlite:///new.db", "import", "in.json"]) == 2
    assert "SAVESLOT_ENCRYPTION_KEY is empty" in capsys.readouterr().err
    assert not (places / "new.db").exists()


@pytest.mark.parametrize("keys", [{5: bytes(32)}, {b"a": bytes(32)}, {"a b": bytes(32)}])
def test_an_id_of_a_key_is_text(keys):
    """Anything else is refused as input."""
    with pytest.raises(saveslot.InvalidInput, match="is no id of a key"):
        saveslot.SessionManager(encryption_key=keys)


@pytest.mark.parametrize("whose", ["folder", "user"])
@pytest.mark.parametrize("made", ["link", "folder"])
def test_a_file_that_cannot_be_read_is_not_passed_over(places, whose, made):
    """A link that leads nowhere, or a folder: sessions must not go to the default file in silence."""
    path = (places if whose == "folder" else places.parents[1] / "config" / "saveslot") / "saveslot.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    if made == "link":
        path.symlink_to(places / "nowhere.toml")
    else:
        path.mkdir()
    with pytest.raises(saveslot.InvalidInput) as caught:
        saveslot.open()
    assert str(path) in str(caught.value)

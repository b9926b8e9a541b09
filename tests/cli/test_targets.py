"""How the command line names sessions, and errors for bad arguments."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

import saveslot
from saveslot import errors
from saveslot.cli.commands import COMMANDS
from saveslot.values.codes import CODES


def test_unique_prefix_is_enough(run, samples):
    """A unique prefix names its session; so does the whole id, even if it is a prefix of another."""
    assert json.loads(run("show", "night", "--json").out)["session_id"] == "nightly"
    assert json.loads(run("show", "lesson-1", "--json").out)["session_id"] == "lesson-1"
    assert json.loads(run("show", "lesson-10@read", "--json").out)["id"] == "lesson-10:2"


def test_ambiguous_prefix_lists_candidates(run, samples):
    """Exit 2, nothing on stdout, and every candidate named."""
    answer = run("show", "less")
    assert (answer.code, answer.out) == (2, "")
    assert "2 sessions" in answer.err
    assert "lesson-1  tutor" in answer.err
    assert "lesson-10  grader" in answer.err


@pytest.mark.parametrize(
    "argv",
    [
        ["rollback", "ID", "--to", "1"],
        ["fork", "ID"],
        ["pause", "ID"],
        ["resume", "ID"],
        ["pin", "ID@1"],
        ["unpin", "ID@1"],
        ["export", "ID"],
        ["rm", "ID", "--yes"],
    ],
)
def test_changes_in_a_script_need_the_full_id(run, samples, argv):
    """Without a terminal, what changes or exports a session accepts neither a beginning nor an end of its id."""
    before = run("ls", "--json").out
    for part, hint in (("night", "did you mean nightly?"), ("ightly", "did you mean nightly?")):
        answer = run(*(word.replace("ID", part) for word in argv))
        assert (answer.code, answer.out) == (5, "")
        assert f"no session {part} " in answer.err
        assert hint in answer.err
    assert run("ls", "--json").out == before


def test_mistyped_id_gets_the_likely_one(run, samples):
    """A command that finds no such session names the id most like it, or the command that lists ids."""
    answer = run("show", "nigthly")
    assert (answer.code, answer.out) == (5, "")
    assert "did you mean nightly?" in answer.err
    answer = run("show", "zzzzzz")
    assert answer.err.endswith("no session zzzzzz in namespace default; `saveslot ls` lists the sessions\n")


def test_unique_end_names_a_session(run, samples):
    """The end of an id is enough, if no id begins so and only one ends so."""
    assert json.loads(run("show", "ightly", "--json").out)["session_id"] == "nightly"
    assert json.loads(run("show", "on-10@read", "--json").out)["id"] == "lesson-10:2"
    assert run("log", "ghtly").code == 0
    assert run("show", "ly").code == 5  # too short
    assert json.loads(run("show", "lesson-1", "--json").out)["session_id"] == "lesson-1"  # also the end of none

    async def save() -> None:
        async with saveslot.open(samples.url) as sessions:
            await sessions.create_session("x", session_id="weekly-nightly")
            await sessions.create_session("x", session_id="ends in tutor")

    asyncio.run(save())
    answer = run("show", "ightly")
    assert (answer.code, answer.out) == (2, "")
    assert "'ightly' matches 2 sessions" in answer.err
    assert json.loads(run("show", "tutor", "--json").out)["session_id"] == "ends in tutor"  # agent types do not count


def test_a_beginning_or_an_end_is_enough_on_a_terminal(run, terminal, samples):
    """On a terminal, changes accept a unique beginning or end of an id."""
    screen = terminal("pause", "lesson-1")
    assert screen.end() == 0
    screen = terminal("resume", "lesson-1")
    assert screen.end() == 0
    screen = terminal("pin", "lesson-1@4")
    assert screen.end() == 0
    screen = terminal("fork", "nigh", "--as", "nightly-2")
    assert screen.end() == 0
    screen = terminal("pause", "ghtly-2")
    assert screen.end() == 0
    assert json.loads(run("show", "nightly-2", "--json").out)["state"] == "paused"


def test_ambiguous_prefix_lists_at_most_ten(run, samples):
    """Ten are listed, with how many more there are."""

    async def save() -> None:
        async with saveslot.open(samples.url) as sessions:
            for n in range(13):
                await sessions.create_session("x", session_id=f"many-{n}")

    asyncio.run(save())
    err = run("show", "many").err
    assert err.count("\n  many-") == 10
    assert "and 3 more" in err


def test_id_may_contain_an_at_sign(run, samples):
    """The longest reading that names a session wins; the rest is the ref."""
    assert json.loads(run("show", "mail:cleo@example.org", "--json").out)["user_id"] == "cleo"
    assert json.loads(run("show", "mail:cleo@example.org@1", "--json").out)["id"] == "mail:cleo@example.org:1"
    assert json.loads(run("show", "mail:cleo@ex", "--json").out)["user_id"] == "cleo"


@pytest.mark.parametrize(
    "argv",
    [
        ["show", "nobody"],
        ["show", "lesson-1@nothing"],
        ["show", "lesson-1@~99"],
        ["log", "nobody"],
        ["rm", "nobody", "--yes"],
        ["export", "nobody"],
        ["rollback", "lesson-1", "--to", "99"],
        ["diff", "nightly"],
        ["tail", "nobody"],
    ],
)
def test_missing_target_exits_5(run, samples, argv):
    """One line on stderr names it, nothing on stdout."""
    answer = run(*argv)
    assert (answer.code, answer.out) == (5, "")
    assert answer.err.startswith("saveslot: ")
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["lss"], 'Did you mean "ls"?'),
        (["shwo", "x"], 'Did you mean "show"?'),
        (["ls", "--stat", "active"], "Did you mean --state?"),
        (["ls", "--stor", "x"], "Did you mean --store?"),
        (["--stor", "x", "ls"], "--stor"),
        (["ls", "--state", "asleep"], '"active", "paused"'),
        (["ls", "--limit", "many"], "--limit"),
        (["ls", "--limit", "-1"], "0 (no limit) or more"),
        (["ls", "--newer-than", "yesterday"], "such as 30d or 12h"),
        (["ls", "--newer-than", "1h30m"], "such as 30d or 12h"),
        (["ls", "--label", "env"], "name=value"),
        (["ls", "extra"], "unexpected argument: extra"),
        (["show"], "ID"),
        (["show", ""], "name a session"),
        (["log", "lesson-1@2"], "name only the session"),
        (["fork", "lesson-1@2", "--at", "3"], "only once"),
        (["rollback", "lesson-1"], "--to"),
        (["rm"], "name the sessions"),
        (["import"], "name the files"),
        (["completion", "tcsh"], '"bash", "zsh", "fish"'),
        (["--json"], "name a command"),
        (["ls", "--store"], "--store"),
        (["ls", "--store", "nonsense"], "names no store"),
        (["ls", "--store", "mongodb://x"], "names no store"),
        (["ls", "--namespace", "\n"], "namespace"),
        (["doctor", "--store", "memory:"], "SQLite"),
        (["demo", "--store", "memory:"], "SQLite"),
        (["keeper", "--stale-after", "0"], "such as 30d or 12h"),
        (["keeper", "--stale-after", "0d"], "greater than 0"),
        (["keeper", "--limit", "0"], "greater than 0"),
        (["keeper", "--every", "0"], "greater than 0"),
        (["serve", "--port", "99999"], "from 0 to 65535"),
        (["mcp", "--http", "--port", "-1"], "from 0 to 65535"),
        (["serve", "--store", "http://127.0.0.1:1"], "is a server itself"),
        (["keeper", "--run", "echo"], "{id}"),
        (["keeper", "--run", "echo '{id}"], "No closing quotation"),
        (["keeper", "--run", "no-such-program {id}"], "program no-such-program not found"),
    ],
)
def test_bad_arguments_exit_2(run, samples, argv, said):
    """One clear line on stderr, with the nearest valid word if any; nothing on stdout, nothing done."""
    answer = run(*argv)
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err
    assert answer.err.startswith("saveslot: ")
    assert answer.err.count("\n") == 1


def test_unreachable_store_exits_6(run, tmp_path):
    """For example, a file that cannot be opened; a folder in its place is a wrong URL."""
    with socket.socket(socket.AF_UNIX) as closed:
        closed.bind(str(tmp_path / "s.db"))
        answer = run("ls", "--store", f"sqlite:///{tmp_path}/s.db")
    assert (answer.code, answer.out) == (6, "")
    answer = run("ls", "--store", f"sqlite:///{tmp_path}")
    assert (answer.code, answer.out) == (2, "")
    assert "is a folder, not a file" in answer.err


def test_every_error_has_its_exit_code():
    """Every error code is in the one table of statuses and exit codes; scripts rely on these exit codes."""
    assert CODES.keys() == errors.BY_CODE.keys()
    assert {code: meaning.exit for code, meaning in CODES.items()} == {
        "error": 1,
        "not_found": 5,
        "conflict": 3,
        "already_exists": 3,
        "lease_held": 3,
        "lease_lost": 3,
        "invalid_transition": 3,
        "cancelled": 3,
        "invalid_input": 2,
        "too_large": 1,
        "corrupt": 1,
        "history_lost": 1,
        "step_unknown": 1,
        "step_failed": 1,
        "quota_exceeded": 1,
        "unavailable": 6,
        "unauthorized": 4,
        "forbidden": 4,
        "key_missing": 4,
        "wrong_key": 4,
    }


def test_help_names_every_command(run):
    """`saveslot` alone and --help show the same page, with every command on it."""
    answer = (
        "audit bench cancel complete completion copy create demo diff doctor erase export fail fork gc import keeper"
    )
    answer += (
        " key label log ls mcp migrate namespace pause pin quota record records release resume rm rollback serve show"
    )
    answer += " stats steps tail thin token top unpin wait workers"
    assert sorted(name for commands in COMMANDS.values() for name in commands) == answer.split()
    page = run().out
    assert run("--help").out == page
    for name in answer.split():
        assert f"│ {name}" in page
    assert "Exit codes" in page
    assert "--store" in run("show", "--help").out


def test_version_is_printed(run):
    """The fast path and the usual one print the same."""
    assert run("--version").out == f"saveslot {saveslot.__version__}\n"


@pytest.mark.parametrize("command", ["ls", "bench"])
@pytest.mark.parametrize("url", ["postgresql://anna:hush@127.0.0.1:1/db", "valkey://:hush@127.0.0.1:1"])
def test_a_refused_connection_fails_fast(run, url, command):
    """Where no server listens, a command gives up long before a program would, and says what it tried."""
    answer = run(command, "--store", url)
    assert (answer.code, answer.out) == (6, "")
    assert "127.0.0.1:1" in answer.err
    assert "tried for 0.3 s" in answer.err
    assert "hush" not in answer.err

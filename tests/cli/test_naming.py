"""How a session is named on the command line, and what happens when the words make no sense."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

import saveslot
from saveslot import errors
from saveslot.cli import exits
from saveslot.cli.app import COMMANDS


def test_a_unique_beginning_is_enough(run, samples):
    """The beginning of an id names its session; so does the whole id, also where another one begins with it."""
    assert json.loads(run("show", "night", "--json").out)["session_id"] == "nightly"
    assert json.loads(run("show", "lesson-1", "--json").out)["session_id"] == "lesson-1"
    assert json.loads(run("show", "lesson-10@read", "--json").out)["id"] == "lesson-10:2"


def test_an_ambiguous_beginning_lists_what_it_may_mean(run, samples):
    """Exit 2, nothing on stdout, and every candidate named."""
    answer = run("pause", "less")
    assert (answer.code, answer.out) == (2, "")
    assert "2 sessions" in answer.err
    assert "lesson-1  tutor" in answer.err
    assert "lesson-10  grader" in answer.err


def test_an_ambiguous_beginning_of_many_lists_some(run, samples):
    """Not a thousand lines: ten, and how many more."""

    async def save() -> None:
        async with saveslot.open(samples.url) as sessions:
            for n in range(13):
                await sessions.create_session("x", session_id=f"many-{n}")

    asyncio.run(save())
    err = run("show", "many").err
    assert err.count("\n  many-") == 10
    assert "and 3 more" in err


def test_an_id_may_contain_an_at(run, samples):
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
def test_what_is_not_there_ends_with_5(run, samples, argv):
    """One line on stderr that names it, nothing on stdout."""
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
        (["ls", "--limit", "-1"], "0 (all) or more"),
        (["ls", "--newer-than", "yesterday"], "such as 30d or 12h"),
        (["ls", "--newer-than", "1h30m"], "such as 30d or 12h"),
        (["ls", "--label", "env"], "name=value"),
        (["ls", "extra"], "unexpected argument: extra"),
        (["show"], "ID"),
        (["show", ""], "name a session"),
        (["log", "lesson-1@2"], "name the session alone"),
        (["fork", "lesson-1@2", "--at", "3"], "say once"),
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
        (["keeper", "--stale-after", "0d"], "more than 0"),
        (["keeper", "--limit", "0"], "more than 0"),
        (["keeper", "--every", "0"], "more than 0"),
        (["keeper", "--run", "echo"], "{id}"),
        (["keeper", "--run", "echo '{id}"], "No closing quotation"),
        (["keeper", "--run", "no-such-program {id}"], "there is no program no-such-program"),
    ],
)
def test_words_that_make_no_sense_end_with_2(run, samples, argv, said):
    """One clear line on stderr, with the nearest right word where there is one; nothing on stdout, nothing done."""
    answer = run(*argv)
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err
    assert answer.err.startswith("saveslot: ")
    assert answer.err.count("\n") == 1


def test_a_store_that_cannot_be_reached_ends_with_6(run, tmp_path):
    """What is there cannot be opened, for instance; a folder in place of the file is a wrong url."""
    with socket.socket(socket.AF_UNIX) as closed:
        closed.bind(str(tmp_path / "s.db"))
        answer = run("ls", "--store", f"sqlite:///{tmp_path}/s.db")
    assert (answer.code, answer.out) == (6, "")
    answer = run("ls", "--store", f"sqlite:///{tmp_path}")
    assert (answer.code, answer.out) == (2, "")
    assert "is a folder, not a file" in answer.err


def test_every_error_has_its_exit_code():
    """The one table: a new error code must be given its place here."""
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.SaveslotError)
    ]
    codes = {kind.code: exits.BY_CODE.get(kind.code, exits.FAILURE) for kind in kinds}
    assert codes == {
        "error": 1,
        "not_found": 5,
        "conflict": 3,
        "already_exists": 3,
        "lease_held": 3,
        "lease_lost": 3,
        "invalid_transition": 3,
        "invalid_input": 2,
        "too_large": 1,
        "corrupt": 1,
        "history_lost": 1,
        "step_unknown": 1,
        "step_failed": 1,
        "unavailable": 6,
        "key_missing": 4,
        "wrong_key": 4,
    }


def test_help_names_every_command(run):
    """`saveslot` alone and --help show the same page, with every command on it."""
    told = "audit bench completion copy demo diff doctor erase export fork gc import keeper key log ls migrate pause"
    told += " pin resume rm rollback show stats tail thin top unpin"
    assert sorted(name for _, commands in COMMANDS.values() for name in commands) == told.split()
    page = run().out
    assert run("--help").out == page
    for name in told.split():
        assert f"│ {name}" in page
    assert "Exit codes" in page
    assert "--store" in run("show", "--help").out


def test_the_version_is_told(run):
    """With the fast way and the usual one."""
    assert run("--version").out == f"saveslot {saveslot.__version__}\n"

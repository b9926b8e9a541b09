"""Help pages: what a person reads before typing."""

from __future__ import annotations

import re
import shlex

import pytest

import saveslot
from saveslot.cli.app import after_command, app
from saveslot.cli.commands import ALIASES, COMMANDS

NAMES = [name for commands in COMMANDS.values() for name in commands]


@pytest.mark.parametrize("name", NAMES)
def test_every_example_parses(name, run):
    """Each command's help has examples, and each is a command line that the parser accepts."""
    page = run(name, "--help").out
    examples = re.findall(r"^  saveslot (.*)$", page.partition("Examples:")[2], re.MULTILINE)
    assert examples
    assert max(map(len, examples)) < 70  # a line of 80 columns
    for example in examples:
        words = shlex.split(example)
        assert words[0] == name
        assert app.parse_args(after_command(words))[0] is not None


@pytest.mark.parametrize("name", NAMES)
def test_values_are_named_by_what_they_are(name, run, monkeypatch):
    """URL, NAME, AGE and ID instead of Python's types; optional arguments are in brackets with their names."""
    monkeypatch.setenv("COLUMNS", "200")
    page = run(name, "--help").out
    assert not re.search(r"\b(STR|INT|FLOAT|TIMEDELTA|CHOICE|PATH|ARGS)\b", page), page
    assert "Exit codes" not in page
    assert "--store URL" in page or name == "completion"


def test_usage_names_the_arguments(run):
    """Required ones, optional ones, and those that may be repeated."""
    for name, usage in {
        "diff": "diff FROM [TO] [OPTIONS]",
        "rm": "rm [ID…] [OPTIONS]",
        "rollback": "rollback ID --to REF [OPTIONS]",
        "fail": "fail ID ERROR [OPTIONS]",
        "label": "label ID [NAME=VALUE…] [OPTIONS]",
    }.items():
        assert run(name, "--help").out.startswith(f"Usage: saveslot {usage}\n")


def test_first_page_has_groups_and_global_options(run):
    """Five groups, the options of every command, and the exit codes once."""
    page = run("--help").out
    assert re.findall(r"─ (\w+) ─", page) == ["Inspect", "Change", "Retention", "Move", "Operate", "Help"]
    assert all(f"  {option}" in page for option in ("--store URL", "--namespace NAME", "--json", "--no-pager"))
    assert page.count("Exit codes") == 1


def test_wrapped_options_stay_in_their_column(run, monkeypatch):
    """A description longer than its line is wrapped below its beginning."""
    monkeypatch.setenv("COLUMNS", "60")
    lines = run("--help").out.partition("Options of every command:\n")[2].partition("\n\n")[0].splitlines()
    assert max(map(len, lines)) <= 60
    left = lines[0].index("Store:")
    assert all(line.startswith("  --") or line[:left].isspace() for line in lines)


@pytest.mark.parametrize("alias", ALIASES)
def test_aliases_are_the_same_command(alias, run, samples):
    """The library's words, and those that people try first, work as well."""
    assert run(alias, "--help").out == run(ALIASES[alias], "--help").out
    assert run("list", "-q").out == run("ls", "-q").out
    assert run("get", "lesson-1@2", "--json").out == run("show", "lesson-1@2", "--json").out


def test_help_and_version_are_commands(run):
    """`help`, `help ls`, `help list`, `version` and `-V` do what they say."""
    assert run("help").out == run("--help").out
    assert run("help", "ls").out == run("help", "list").out == run("ls", "--help").out
    version = f"saveslot {saveslot.__version__}\n"
    assert run("version").out == run("-V").out == run("--version").out == version
    assert run("help", "nothing").code == 2

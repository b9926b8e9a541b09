"""What a person at a terminal sees."""

from __future__ import annotations

import asyncio
import json

import pytest

import saveslot
from saveslot.cli.sessions import short_ids
from saveslot.cli.words import age, bar, duration, flat, sparkline
from saveslot.values.words import many, size, span


def test_a_list_on_a_terminal(terminal, samples):
    """Ages instead of times, marks beside the states, colours."""
    shown = terminal("ls")
    assert shown.end() == 0
    header, *rows = shown.seen.splitlines()
    assert header.split() == ["ID", "STATE", "AGENT", "USER", "ENTRIES", "AGE", "HEARTBEAT", "CONTEXT"]
    assert "● active" in rows[3]
    assert "✗ failed" in rows[1]
    assert "\x1b[32m" in shown.raw
    assert all(len(row) <= 100 for row in rows)


def test_no_color_means_no_color(terminal, samples):
    """NO_COLOR leaves the table and takes every escape."""
    shown = terminal("ls", NO_COLOR="1")
    assert shown.end() == 0
    assert "● active" in shown.seen
    assert "\x1b[" not in shown.raw


def test_a_narrow_terminal_keeps_one_line_a_session(terminal, samples):
    """Columns are left out, those that matter least first; no id is cut."""
    shown = terminal("ls", columns=60)
    assert shown.end() == 0
    assert shown.seen.splitlines()[0].split() == ["ID", "STATE", "AGENT", "ENTRIES", "AGE"]
    assert len(shown.seen.splitlines()) == 5
    assert all(len(line) <= 60 for line in shown.seen.splitlines())
    narrow = terminal("ls", columns=36)
    assert narrow.end() == 0
    assert narrow.seen.splitlines()[0].split() == ["ID", "STATE"]
    assert "mail:cleo@example.org  ‖ paused" in narrow.seen


def test_generated_ids_are_whole_on_a_narrow_terminal(terminal, samples, run):
    """Columns are left out for them. With no room for a state beside it, an id is shown as far as it is unique."""
    created = [run("create", "tutor").out.strip() for _ in range(3)]
    for columns in (100, 80, 60, 52):
        shown = terminal("ls", columns=columns)
        assert shown.end() == 0
        printed = {line.split()[0] for line in shown.seen.splitlines()[1:]}
        assert printed >= set(created), columns
        assert "✓ completed" in shown.seen
        assert all(len(line) <= columns for line in shown.seen.splitlines())
    for columns in (50, 40):
        shown = terminal("ls", columns=columns)
        assert shown.end() == 0
        printed = {line.split()[0] for line in shown.seen.splitlines()[1:]}
        assert all(len([text for text in printed if name.startswith(text)]) == 1 for name in created), columns


def test_long_output_goes_through_the_pager(terminal, samples):
    """Only what does not fit, only on a terminal, and not with --no-pager; the notes come after it."""
    pager = {"PAGER": "sed 's/^/> /'"}
    paged = terminal("show", "lesson-1@answered", "--full", rows=20, **pager)
    assert paged.end() == 0
    assert all(line.startswith("> ") for line in paged.seen.splitlines())
    assert "\x1b[" in paged.raw
    for argv, rows in ((["--full", "--no-pager"], 20), (["--full"], 100), (["--json"], 20)):
        plain = terminal("show", "lesson-1@answered", *argv, rows=rows, **pager)
        assert plain.end() == 0
        assert "> " not in plain.seen, argv


def test_leaving_the_pager_early_is_not_an_error(terminal, samples):
    """Its reader has seen enough: nothing is reported, and the exit code is 0."""
    left = terminal("log", "lesson-1", "--all", rows=3, PAGER="true")
    assert left.end() == 0
    assert left.seen == ""


def test_output_is_printed_without_a_pager(terminal, samples):
    """If the program is not there, or TERM is dumb, it is printed as it is."""
    for env in ({"PAGER": "no-such-pager"}, {"PAGER": ""}, {"PAGER": "sed s/^/>/", "TERM": "dumb"}):
        printed = terminal("log", "lesson-1", rows=3, **env)
        assert printed.end() == 0
        assert "session_created" in printed.seen
        assert ">" not in printed.seen


def test_json_on_a_terminal_is_json(terminal, samples):
    """No colours, no folds: what a program would get."""
    shown = terminal("ls", "--json")
    assert shown.end() == 0
    assert len(json.loads(shown.raw)) == 4


def test_json_on_a_terminal_hides_and_moves_nothing(terminal, samples, run):
    """What a terminal would act upon is escaped there, and is the same JSON; a pipe gets it as it is."""
    odd = "a\x9b31mb\u202ec\u200bd\u2066e\ufefff\x7fg\u200dh"

    async def save() -> None:
        async with saveslot.open(samples.url) as sessions:
            await sessions.create_session("t", context={"odd": odd}, session_id="odd")
            await sessions.checkpoint("odd", "said", {"odd": odd}, {"odd": odd})

    asyncio.run(save())
    for argv in (["show", "odd", "--json"], ["log", "odd", "--json"], ["export", "odd"]):
        shown, piped = terminal(*argv, columns=1000), run(*argv)
        assert shown.end() == 0
        sent = shown.raw[shown.raw.index("{" if argv[0] != "log" else "[") :]
        assert "\\u202e" in sent
        assert not set(odd) - set("abcdefgh31m\u200d") & set(sent)
        assert odd in piped.out
        if argv[0] != "export":  # with a bar in between
            assert json.loads(sent) == json.loads(piped.out)
    shown = terminal("show", "odd")
    assert shown.end() == 0
    assert "a\\x9b31mb\\u202ec\\u200bd" in shown.seen


def test_long_ids_are_folded(terminal, samples):
    """An id of 200 characters takes several lines; state, numbers and ages beside it are whole."""

    async def save() -> None:
        async with saveslot.open(samples.url) as sessions:
            await sessions.create_session("researcher", "dora", session_id="x" * 200)

    asyncio.run(save())
    shown = terminal("ls", columns=90)
    assert shown.end() == 0
    header, row, *_ = shown.seen.splitlines()
    assert header.split()[:6] == ["ID", "STATE", "AGENT", "USER", "ENTRIES", "AGE"]
    assert row.split()[1:6] == ["●", "active", "researcher", "dora", "1"]
    assert shown.seen.count("x") == 200 + 1  # cleo@example.org
    assert "✓ completed" in shown.seen
    assert all(len(line) <= 90 for line in shown.seen.splitlines())


def test_a_long_state_is_folded_and_unfolded(terminal, samples):
    """The fold says how much it hides; --full hides nothing."""
    folded = terminal("show", "lesson-1@answered")
    assert folded.end() == 0
    assert "more characters" in folded.seen
    assert folded.seen.count("Think of a") < 20
    assert all(len(line) <= 100 for line in folded.seen.splitlines())
    full = terminal("show", "lesson-1@answered", "--full", rows=200)
    assert full.end() == 0
    assert "more characters" not in full.seen
    assert " ".join(full.seen.split()).count("pizza") >= 40


def test_a_difference_is_coloured(terminal, samples):
    """Removed text is red and struck, added text green and underlined, without brackets."""
    shown = terminal("diff", "lesson-1@2", "@4")
    assert shown.end() == 0
    assert "\x1b[9;31mfood" in shown.raw
    assert "\x1b[4;32mpizza" in shown.raw
    assert "[-food-]" not in shown.seen
    plain = terminal("diff", "lesson-1@2", "@4", NO_COLOR="1")
    assert plain.end() == 0
    assert "[-food-]{+pizza+}" in plain.seen


def test_rm_asks_first(terminal, samples, run):
    """Anything but yes keeps the session."""
    query = terminal("rm", "nightly")
    query.until("delete it? [y/N]")
    query.type("n\n")
    assert query.end() == 1
    assert "nothing was deleted" in query.seen
    assert run("show", "nightly").code == 0
    query = terminal("rm", "nightly")
    query.until("delete it? [y/N]")
    query.type("y\n")
    assert query.end() == 0
    assert run("show", "nightly").code == 5


def test_rm_shows_the_whole_id_it_asks_about(terminal, samples, run):
    """A beginning is enough where a person sees what is meant."""
    run("rm", "lesson-1", "--yes")
    query = terminal("rm", "lesson-1")
    seen = query.until("delete it? [y/N]")
    assert "  lesson-10  grader" in seen
    query.type("n\n")
    assert query.end() == 1
    assert run("show", "lesson-10").code == 0


def test_top_is_live_until_ctrl_c(terminal, samples):
    """It shows what others write meanwhile, and leaves the terminal as it was."""
    view = terminal("top", "--every", "0.2")
    view.until("lesson-10")

    async def save() -> None:
        async with saveslot.open(samples.url) as sessions:
            session = await sessions.create_session("newcomer", session_id="late")
            for n in range(5):
                await sessions.checkpoint(session, "tick", {"n": n})

    asyncio.run(save())
    view.until("newcomer")
    view.until("█")
    view.type("\x03")
    assert view.end() == 130
    assert view.raw.endswith("\x1b[?25h\x1b[?1049l")  # the cursor is back, and so is what was on the screen
    assert "Traceback" not in view.seen


def test_progress_is_for_terminals_only(terminal, samples, run):
    """A bar on stderr while the work lasts; nothing of it in a pipe."""
    shown = terminal("doctor")
    assert shown.end() == 0
    assert "✓ recipes" in shown.seen
    assert run("doctor").err == ""


def test_generated_ids_are_as_long_as_needed():
    """Thirteen characters, more where that is not enough to tell them apart; chosen ids stay whole."""
    a, b = "0198c5a2-7f3e-7abc-8def-0123456789ab", "0198c5a2-7f3e-7abd-8def-0123456789ab"
    assert short_ids([a]) == {a: "0198c5a2-7f3e"}
    assert short_ids([a, b]) == {a: a[:18], b: b[:18]}
    chosen = "nightly-build-of-the-whole-repository-7"
    assert short_ids([chosen]) == {chosen: chosen}
    assert short_ids([]) == {}


def test_words():
    """Ages, sizes, counts and bars as people write them."""
    assert [span(s) for s in (-1, 0, 59, 60, 3600, 86_400 * 400)] == ["0s", "0s", "59s", "1m", "1h", "400d"]
    assert [size(n) for n in (0, 999, 1000, 1490, 999_999)] == ["0 B", "999 B", "1 KB", "1.49 KB", "1 MB"]
    assert [size(n) for n in (1_490_000, 5e12)] == ["1.49 MB", "5 TB"]
    assert (many(1, "entry"), many(2000, "entry")) == ("1 entry", "2,000 entries")
    assert duration("12h").total_seconds() == 12 * 3600
    assert duration("0d").total_seconds() == 0
    assert flat("a\n b\x1b" + "c" * 100, 8) == "a b\\x1bc"[:7] + "…"
    assert bar(0.5, 4) == "██"
    assert bar(0.001, 4) == "▏"
    assert bar(0, 4) == ""
    assert sparkline([0, 1, 2]) == "▁▄█"
    assert sparkline([]) == ""
    assert age(saveslot.AgentSession("x").created_at) == "0s"


@pytest.mark.parametrize("columns", ["0", "1", "5"])
def test_help_ends_on_a_terminal_without_columns(spawn, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    out, _ = spawn("ls", "--help").communicate(timeout=60)
    assert "--json" in out

"""ls, show, log, diff and stats, as a program in a pipe sees them."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime

import pytest

import saveslot
from saveslot.cli import changes, screen, state
from saveslot.cli.state import FULL, Fold
from saveslot.codec import difference
from saveslot.stores.sqlite.file import connect

ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def plain(lines) -> str:
    return "\n".join("".join(text for text, _ in (*line.lead, *line.body)).rstrip() for line in lines)


def test_a_list_in_a_pipe_is_aligned_text(run, samples):
    """One header, one line a session, newest first, whole ids, exact times, no escapes."""
    answer = run("ls")
    header, *rows = answer.out.splitlines()
    assert (answer.code, answer.err) == (0, "")
    assert header.split() == ["ID", "STATE", "AGENT", "USER", "ENTRIES", "CREATED", "HEARTBEAT", "CONTEXT"]
    assert [row.split()[0] for row in rows] == ["mail:cleo@example.org", "nightly", "lesson-10", "lesson-1"]
    assert len({row.index(row.split()[1]) for row in rows}) == 1
    assert "topic=fractions" in rows[-1]
    assert "\x1b" not in answer.out


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--state", "active"], ["lesson-1"]),
        (["--state", "paused", "--agent", "tutor"], ["mail:cleo@example.org"]),
        (["--user", "bo"], ["lesson-10"]),
        (["--label", "env=prod"], ["lesson-1"]),
        (["--label", "env=test"], []),
        (["--text", "GRADE"], ["lesson-10"]),
        (["--newer-than", "1d", "--limit", "2"], ["mail:cleo@example.org", "nightly"]),
        (["--older-than", "1d"], []),
        (["--namespace", "other"], []),
    ],
)
def test_a_list_shows_what_was_asked_for(run, samples, options, names):
    """Each filter, alone or with others, leaves exactly the sessions that it names."""
    answer = json.loads(run("ls", "--json", *options).out)
    assert [session["session_id"] for session in answer] == names


def test_json_has_the_field_names_of_to_dict(run, samples):
    """A session in JSON is its `to_dict` and its owner, in a list also its number of entries; so is a checkpoint."""
    fields = saveslot.AgentSession("x").to_dict().keys() | {"owner", "version"}
    assert json.loads(run("ls", "--json").out)[0].keys() == fields - {"checkpoints"} | {"entries"}
    assert json.loads(run("show", "lesson-1", "--json").out).keys() == fields
    checkpoint = json.loads(run("show", "lesson-1@answered", "--json").out)
    assert checkpoint.keys() == saveslot.Checkpoint("x:1", "x").to_dict().keys() | {"version"}
    assert (checkpoint["id"], checkpoint["metadata"]) == ("lesson-1:4", {"model": "small"})


def test_options_are_accepted_before_and_after_the_command(run, samples, monkeypatch):
    """--store, --namespace and --json mean the same in both places, with a space or an equals sign."""
    monkeypatch.delenv("SAVESLOT_URL")
    behind = run("ls", "--json", "--store", samples.url, "--namespace", "default")
    assert len(json.loads(behind.out)) == 4
    assert run("--json", "--store", samples.url, "--namespace", "default", "ls") == behind
    assert run("--store=" + samples.url, "ls", "--json") == behind


def test_looking_makes_no_file(run, tmp_path):
    """A command that only looks leaves no store behind where none was."""
    path = tmp_path / "nowhere" / "x.db"
    answer = run("ls", "--json", "--store", f"sqlite:///{path}")
    assert (answer.code, json.loads(answer.out)) == (0, [])
    assert str(path) in answer.err
    assert run("show", "x", "--store", f"sqlite:///{path}").code == 5
    assert not path.parent.exists()


def test_a_state_is_shown_as_a_person_reads_it(run, samples):
    """Messages are messages with their tool calls, dicts a small tree, and a pipe gets all of it."""
    out = run("show", "lesson-1@answered").out
    assert "lesson-1@4  answered" in out
    assert "│ 1 user       What is 1/2 + 1/4?" in out
    assert '→ add(a="1/2", b="1/4")' in out
    assert "tool_call_id=call_1" in out
    assert "├ step  2\n└ todo  [" in out
    assert out.count("Think of a pizza") == 40
    assert "folded" not in out


def test_a_session_is_shown_with_what_it_is_about(run, samples):
    """Without a ref: who, since when, context, metadata, labels, and the newest state, here a rollback's."""
    out = run("show", "lesson-1").out
    assert "lesson-1  tutor · anna  active" in out
    assert "7 entries" in out
    assert "context   topic=fractions" in out
    assert "labels    env=prod" in out
    assert "lesson-1@7  ↩ to 2 task_received" in out
    assert "no checkpoint yet" in run("show", "nightly").out


def test_a_lifecycle_entry_is_shown_with_what_the_agent_knew(run, samples):
    """A pause has little data of its own; the view shows the agent's state at that moment."""
    out = run("show", "lesson-1@session_paused").out
    assert "previous_state  active" in out
    assert "the agent's state then" in out
    assert "Let me see." in out


@pytest.mark.parametrize("ref", ["answered", "4", "~1", "lesson-1:4"])
def test_every_form_of_a_ref_leads_to_the_same_checkpoint(run, samples, ref):
    """By name, number, distance from the latest, or its own id."""
    what = ref if ":" in ref else f"lesson-1@{ref}"
    assert json.loads(run("show", what, "--json").out)["id"] == "lesson-1:4"


def test_a_log_has_one_line_for_each_entry(run, samples):
    """Number, time, kind, name, bytes, what changed in a few words; a rollback says where to."""
    lines = run("log", "lesson-1").out.splitlines()[1:]
    kinds = ["created", "checkpoint", "checkpoint", "checkpoint", "paused", "resumed", "rollback"]
    assert [line.split()[2] for line in lines] == kinds
    assert lines[1].endswith("+messages, +plan, +notes")
    assert lines[2].endswith("messages +2")
    assert lines[3].endswith("messages +1, plan.step 1→2, ~notes")
    assert "task_received" in lines[6]
    assert "↩ to 2 messages -3, plan.step 2→1, ~notes" in lines[6]
    assert "result=" in run("log", "lesson-10").out
    assert "error=timeout" in run("log", "nightly").out


def test_a_log_in_json_can_be_cut(run, samples):
    """--limit keeps the newest, and still shows what they changed."""
    answer = json.loads(run("log", "lesson-1", "--json", "-n", "2").out)
    assert [line["seq"] for line in answer] == [6, 7]
    assert answer[1]["changed"] == ["messages -3", "plan.step 2→1", "~notes"]
    assert answer[1]["metadata"] == {"to": "lesson-1:2", "name": "task_received"}
    assert datetime.fromisoformat(answer[0]["timestamp"]) < datetime.now(UTC)


def test_a_difference_in_json_is_a_patch(run, samples):
    """What `diff --json` prints turns the one state into the other."""
    before, after = (json.loads(run("show", f"lesson-1@{n}", "--json").out)["data"] for n in (2, 4))
    patch = json.loads(run("diff", "lesson-1@2", "@4", "--json").out)
    assert difference.patched(before, patch) == after
    assert json.loads(run("diff", "lesson-1@2", "lesson-1", "--json").out) == []
    other = json.loads(run("diff", "lesson-1@4", "lesson-10@read", "--json").out)
    assert difference.patched(after, other) == {"essay": "The moon"}


def test_a_difference_is_shown_as_a_person_reads_it(run, samples):
    """New messages as messages, short values old → new, long texts word by word."""
    out = run("diff", "lesson-1@task_received", "@answered").out
    assert "from  lesson-1@2 task_received" in out
    assert "3 added, 2 changed" in out
    assert "+ messages[2]  assistant  Let me see." in out
    assert "~ plan.step    1 → 2" in out
    assert "[-food-]{+pizza+}" in out
    assert "[-Thursday-]{+Friday+}" in out
    assert "no difference" in run("diff", "lesson-1@2", "@7").out


def test_a_session_alone_is_compared_with_its_last_step(run, samples):
    """`diff ID` shows what the newest checkpoint changed."""
    assert json.loads(run("diff", "lesson-1", "--json").out) == json.loads(
        run("diff", "lesson-1@~1", "lesson-1@latest", "--json").out
    )


def test_statistics_count_sessions(run, samples):
    """By state and by agent type, with bars; the same in JSON."""
    answer = json.loads(run("stats", "--json").out)
    assert (answer["sessions"], answer["by_state"]["active"], answer["by_agent_type"]["tutor"]) == (4, 1, 2)
    out = run("stats").out
    assert str(samples.path) in out
    assert "tutor         2  ██" in out


def test_statistics_show_how_sessions_do(run, samples):
    """Checkpoints by name, reasons of failures, times between two names, filtered as asked; the same in JSON."""
    out = run("stats", "--between", "task_received", "answered").out
    assert "task_received  1  ██" in out
    assert "timeout  1  ██" in out
    assert "task_received → answered" in out
    assert "checkpoints per 1m, at most " in out
    answer = json.loads(run("stats", "--between", "task_received", "answered", "--agent", "tutor", "--json").out)
    assert (answer["sessions"], answer["checkpoints"], answer["between"]["count"]) == (2, 3, 1)
    assert answer["failures"] == {"read": 0, "reasons": {}}
    assert "the newest 1 session, since" in run("stats", "--sample", "1").out
    assert run("stats", "--sample", "0").code == 2


def test_a_damaged_session_is_listed_with_the_others(run, samples):
    """Its line says that it is damaged; JSON has what can be read, and why the rest is missing."""
    connection = connect(str(samples.path), None)
    connection.execute("update sessions set body = x'00' where id = 'lesson-1'")
    connection.close()
    lines = run("ls").out.splitlines()
    assert len(lines) == 5
    assert "damaged: " in lines[-1]
    answer = json.loads(run("ls", "--json").out)[-1]
    assert (answer["session_id"], answer["agent_type"], answer["context"]) == ("lesson-1", "tutor", None)
    assert answer["damage"]
    assert "context and metadata are damaged" in run("show", "lesson-1").out


def test_what_an_agent_wrote_cannot_drive_the_terminal(run, samples):
    """Escape sequences in a state, a name or a context are shown, never sent; JSON escapes them."""

    async def save() -> None:
        async with saveslot.open(samples.url) as sessions:
            evil = await sessions.create_session("a", context={"x": "\x1b[2J"}, session_id="evil")
            await sessions.checkpoint(
                evil, "c", {"text": "\x1b]0;owned\x07 \u202e", "\x1bkey": [{"role": "\x1b", "content": "\x9b"}]}
            )
            await sessions.checkpoint(evil, "d", {"text": "\x1b[31m"})

    asyncio.run(save())
    for argv in (
        ["ls"],
        ["show", "evil"],
        ["show", "evil@c"],
        ["log", "evil"],
        ["diff", "evil"],
        ["show", "evil", "--json"],
    ):
        out = run(*argv).out
        assert not {"\x1b", "\x07", "\x9b"} & set(out), argv
    assert "\\x1b[31m" in run("show", "evil").out


def test_long_parts_are_folded_and_say_how_much():
    """Text, list and conversation each tell what is hidden; everything is shown when asked."""
    data = {
        "text": "word " * 400,
        "items": [{"n": n, "deep": {"x": ["long " * 20]}} for n in range(50)],
        "messages": [{"role": "user", "content": f"message {n}"} for n in range(30)],
        "vector": [0.5] * 1536,
    }
    folded = plain(state.tree(data, Fold()))
    assert "… 1,519 more characters" in folded
    assert "… 40 items folded" in folded
    assert "… 24 earlier messages folded" in folded
    assert "… 1,530 more numbers" in folded
    assert "message 29" in folded
    assert "message 5" not in folded
    full = plain(state.tree(data, FULL))
    assert "folded" not in full
    assert all(f"message {n}" in full for n in range(30))


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ({"role": "user", "content": "hi"}, "user       hi"),
        (
            {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "image", "data": "x" * 9}]},
            "[image,",
        ),
        ({"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": {"x": 1}}]}, "→ f(x=1)"),
        ({"role": "user", "content": [{"type": "tool_result", "content": "ok"}]}, "← result"),
        ({"type": "function_call", "name": "f", "arguments": '{"x": 1}', "call_id": "c"}, "assistant  → f(x=1)"),
        ({"type": "function_call_output", "output": "ok"}, "tool       ok"),
        ({"type": "human", "content": "hi"}, "user       hi"),
        ({"role": "model", "parts": [{"text": "hi"}]}, "assistant  hi"),
        ({"role": "assistant", "content": None, "tool_calls": [{"name": "f", "args": {"x": 1}}]}, "→ f(x=1)"),
        ({"role": "assistant", "content": ""}, "(nothing)"),
        ({"role": "assistant", "content": {"odd": 1}, "tool_calls": ["odd"]}, '{"odd":1}'),
    ],
)
def test_messages_of_every_framework_are_messages(message, shown):
    """Who spoke, what was said and which tools were called, however it is written down."""
    assert state.is_conversation([message])
    assert shown in plain(state.tree({"messages": [message]}, FULL))


def test_any_state_can_be_shown():
    """Values that JSON does not know, empty ones, and deep ones have a form as well."""
    deep: dict = {}
    for _ in range(90):
        deep = {"d": deep}
    odd = {
        "none": None,
        "yes": True,
        "bytes": b"\0" * 2000,
        "at": datetime.now(UTC),
        "e": {},
        "l": [],
        "s": "",
        "deep": deep,
    }
    text = plain(state.tree(odd, Fold()))
    assert "2 KB of bytes" in text
    assert 's      ""' in text


def test_a_difference_without_common_words_shows_both_texts():
    """Two texts that share little are easier to read one after the other."""
    before, after = {"t": "alpha beta gamma " * 10}, {"t": "one two three four " * 10}
    text = plain(changes.changes(before, difference.diff(before, after), FULL, colour=False))
    assert text.startswith("- t  alpha")
    assert "\n+ t  one" in text


def test_a_fold_inside_a_changed_text_says_how_much():
    """Only the words around a change are shown, and how many characters are not."""
    before = {"t": "word " * 500 + "old" + " word" * 500}
    after = {"t": before["t"].replace("old", "new")}
    text = plain(changes.changes(before, difference.diff(before, after), Fold(), colour=False))
    assert "[-old-]{+new+}" in text
    assert "characters unchanged" in text
    assert len(text) < 300


def test_a_table_is_wide_enough_for_its_widest_cell(capsys):
    """Columns line up whatever they contain."""
    columns = [screen.Column("A"), screen.Column("B", right=True)]
    screen.Screen().table(screen.Table(columns, [["long cell", "1"], ["数x", "1000"]]))
    assert capsys.readouterr().out == "A             B\nlong cell     1\n数x        1000\n"


def test_ls_json_has_entries_and_no_empty_checkpoints(run, samples):
    """A listed session has the number of its entries, as the table does, and no list of checkpoints: none is loaded."""
    rows = {row["session_id"]: row for row in json.loads(run("ls", "--json").out)}
    assert (rows["lesson-1"]["entries"], rows["nightly"]["entries"]) == (7, 2)
    assert not any("checkpoints" in row for row in rows.values())
    assert json.loads(run("top", "--json").out)[0].keys() == rows["lesson-1"].keys()


def ageless(shown: str) -> str:
    """The text without its ages, which a slow machine lets grow between two commands."""
    return re.sub(r"\b *\d+[smh]\b", " 0s", shown)


@pytest.mark.parametrize("name", ["FORCE_COLOR", "CLICOLOR_FORCE"])
def test_colours_can_be_forced_in_a_pipe(run, samples, monkeypatch, name):
    """FORCE_COLOR and CLICOLOR_FORCE add colours in a pipe and change no character; 0 and NO_COLOR switch them off."""
    monkeypatch.setenv("TERM", "xterm-256color")
    for argv in (("ls",), ("log", "lesson-1"), ("show", "lesson-1@answered"), ("diff", "lesson-1@2", "@4")):
        monkeypatch.delenv(name, raising=False)
        plain = ageless(run(*argv).out)
        assert "\x1b" not in plain
        monkeypatch.setenv(name, "1")
        coloured = run(*argv).out
        assert "\x1b[" in coloured
        assert [line.rstrip() for line in ageless(ESCAPES.sub("", coloured)).splitlines()] == plain.splitlines()
        assert "\x1b" not in run(*argv, "--json").out
        monkeypatch.setenv(name, "0")
        assert ageless(run(*argv).out) == plain
    monkeypatch.setenv(name, "1")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in run("ls").out

"""The command on a Valkey that keeps the sessions itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
import valkey

import saveslot
from saveslot.stack import Valkey

HUSH = "hush-7"


@pytest.fixture
def server() -> Iterator[Valkey]:
    with Valkey(options={"maxmemory": "100mb", "maxmemory-policy": "noeviction"}) as server:
        asyncio.run(_fill(server.url))
        yield server


async def _fill(url: str) -> None:
    async with saveslot.open(url) as sessions:
        for number in range(3):
            session = await sessions.create_session("tutor", session_id=f"lesson-{number}")
            await sessions.checkpoint(session, "asked", {"messages": ["1/2 + 1/3?"]})
            await sessions.checkpoint(session, "answered", append={"messages": ["5/6"]})


def findings(answer) -> dict[str, dict]:
    return {finding["what"]: finding for finding in json.loads(answer.out)["findings"]}


def configured(server: Valkey, **settings: str) -> None:
    with valkey.Valkey(port=server.port) as client:
        for name, value in settings.items():
            client.config_set(name.replace("_", "-"), value)


def test_the_commands_work_on_it(run, server):
    """What is saved there is listed, shown, compared, changed and deleted as anywhere."""
    store = ("--store", server.url)
    assert [row["session_id"] for row in json.loads(run("ls", "--json", *store).out)] == [
        "lesson-2",
        "lesson-1",
        "lesson-0",
    ]
    assert "5/6" in run("show", "lesson-1", *store).out
    assert "answered" in run("log", "lesson-1", *store).out
    assert run("diff", "lesson-1@~1", "lesson-1@latest", *store).code == 0
    assert run("rollback", "lesson-1", "--to", "asked", *store).code == 0
    assert "5/6" not in run("show", "lesson-1@latest", *store).out
    assert run("pause", "lesson-2", *store).code == 0
    assert run("rm", "lesson-0", "--yes", *store).code == 0
    assert json.loads(run("stats", "--json", *store).out)["by_state"]["paused"] == 1


def test_doctor_says_what_its_persistence_means(run, server):
    """From nothing to all of it, each with what to do; only what is always synced is fine."""
    query = ("doctor", "--json", "--store", server.url)
    findings_by_name = findings(run(*query))
    assert {what: finding["state"] for what, finding in findings_by_name.items()} == {
        "server": "ok", "persistence": "warning", "memory": "ok", "format": "ok", "content": "ok", "recipes": "ok",
    }  # fmt: skip
    assert findings_by_name["content"]["text"] == "3 sessions, 9 entries"
    for settings, state, words in [
        ({}, "warning", "loses everything"),
        ({"save": "3600 1"}, "warning", "since the last one"),
        ({"appendonly": "yes", "appendfsync": "everysec"}, "warning", "last second"),
        ({"appendfsync": "always"}, "ok", "acknowledged is durable"),
    ]:
        configured(server, **settings)
        findings_by_name = findings(run(*query))["persistence"]
        assert (findings_by_name["state"], words in findings_by_name["text"]) == (state, True), findings_by_name
        assert bool(findings_by_name["advice"]) == (state == "warning")


def test_doctor_names_what_endangers_sessions(run, server):
    """A policy that drops them, no limit, a newer format, damage, no server; and never a password."""
    query = ("doctor", "--json", "--store", server.url)
    configured(server, maxmemory_policy="allkeys-lru")
    assert findings(run(*query))["memory"]["state"] == "problem"
    configured(server, maxmemory="0", maxmemory_policy="noeviction")
    assert findings(run(*query))["memory"]["state"] == "warning"
    with valkey.Valkey(port=server.port) as client:
        client.hset("saveslot:{store}:counters", "format", "4")
        assert findings(run(*query))["format"]["state"] == "problem"
        client.hset("saveslot:{store}:counters", "format", "3")
        [name, *_] = client.keys("saveslot:{store}:session:*")
        client.hset(name, "f2", "scribbled over")
        answer = run(*query)
        assert (answer.code, findings(answer)["recipes"]["state"]) == (1, "problem")
        client.config_set("requirepass", HUSH)
    secret = server.url.replace("//", f"//:{HUSH}-wrong@")
    answer = run("doctor", "--json", "--store", secret)
    assert (answer.code, findings(answer)["server"]["state"]) == (1, "problem")
    assert HUSH not in answer.out + answer.err
    assert findings(run("doctor", "--json", "--store", "valkey://127.0.0.1:1"))["server"]["state"] == "problem"


def test_namespaces_and_ids_are_completed(run, server):
    """A shell is offered what the Valkey holds."""
    assert run("create", "tutor", "--store", server.url, "--namespace", "school-7").code == 0
    offered = run("__complete", "ls", "--store", server.url, "--namespace", "").out.split()
    assert offered == ["begin", "default", "school-7"]
    assert "\nlesson-2\ttutor, active\n" in run("__complete", "show", "--store", server.url, "less").out

"""Entries name the token that wrote them, at either door."""

from __future__ import annotations

import asyncio
import json
import os
from datetime import timedelta

import pytest

import saveslot
from saveslot import Forbidden
from saveslot.cli import main
from saveslot.server import tokens
from saveslot.stores.http import HttpStore
from saveslot.testing.pen import Pen
from saveslot.values.ids import stamped
from tests.server.conftest import serving

SPACE = "school-7"


@pytest.fixture(scope="module")
def stamped_store(tmp_path_factory):
    """A server, its store, and tokens by name."""
    path = str(tmp_path_factory.mktemp("stamps") / "agents.db")

    async def prepared() -> dict[str, str]:
        async with saveslot.open(path, namespace=SPACE) as sessions:
            await sessions.create_session("tutor", session_id="older", data={"n": 1})
            registry = tokens.registry(sessions)
            scopes = {"ada": "write", "bo": "write", "root": "admin"}
            return {name: await tokens.create(registry, name, scope) for name, scope in scopes.items()}

    texts = asyncio.run(prepared())
    with serving(path) as served:
        yield served, path, texts


async def names(path: str, session_id: str) -> list[str]:
    async with saveslot.open(path, namespace=SPACE) as sessions:
        return [line.token for line in (await sessions.audit(session_id)).lines]


async def test_every_verb_of_the_store_door_is_stamped(stamped_store):
    """What a worker writes through a server, held or not, staged or not, names its token: each verb there is."""
    served, path, texts = stamped_store
    async with (
        saveslot.open(served.url, token=texts["ada"], namespace=SPACE) as ada,
        saveslot.open(served.url, token=texts["bo"], namespace=SPACE) as bo,
    ):
        session = await ada.create_session("tutor", session_id="a", data={"n": 1})
        session.checkpoint("staged", {"n": 2})
        session.pause()
        session.context["topic"] = "fractions"
        await ada.update_session(session)
        session.resume()
        await ada.update_session(session)
        await bo.get_session("a")
        await bo.checkpoint("a", "by bo", {"n": 3})
        async with ada.hold("a") as held:
            await held.checkpoint("held", {"n": 4})
            await held.step("step", lambda: 1)
            await held.update_context(topic="sums")
        with pytest.raises(ZeroDivisionError):
            async with ada.hold("a"):
                _ = 1 // 0
        for claimed in await ada.claim():
            async with claimed:
                await claimed.checkpoint("claimed", {"n": 5})
        await ada.record("a", "note", "x")
        await ada.pin("a", "held")
        await ada.rollback("a", "staged")
        await ada.fork("a", session_id="fork")
        await ada.copy_session("a", "copy")
        await ada.import_session(await ada.export("a"), session_id="import")
        async with ada.together() as t:
            t.checkpoint("a", "both", {"n": 6})
            t.create_session("tutor", session_id="b")
        await ada.thin("a", saveslot.Retention(keep_first=0, keep_last=1))
        await ada.cancel("b", "no longer wanted")
        await ada.cleanup_stale_sessions(timedelta(0))
        await ada.delete_session("copy")
        lines = (await bo.audit("a")).lines  # names come through the server, too
        for name in ("a", "b", "fork", "copy", "import"):
            told = await names(path, name)
            assert set(told) <= {"ada", "bo"}, (name, told)
        assert [line.token for line in lines] == await names(path, "a")
        assert [line.name for line in lines if line.token == "bo"] == ["by bo"]  # noqa: S105
    assert await names(path, "older") == ["", ""] or "ada" in await names(path, "older")


def test_every_verb_of_the_json_door_is_stamped(stamped_store):
    """The same for requests under /v1, of several tokens at one server process, jobs included."""
    served, path, texts = stamped_store
    headers = {name: {"authorization": f"Bearer {text}", "saveslot_namespace": SPACE} for name, text in texts.items()}

    def ask(who: str, verb: str, body=None, **more) -> None:
        method, _, where = verb.partition(" ")
        answer = served.request(method, f"/v1/{where}", body, **headers[who], **more)
        assert answer.status < 300, (verb, answer.body)

    ask("ada", "POST sessions", {"agent_type": "tutor", "session_id": "j", "data": {"n": 1}})
    ask("bo", "POST sessions/j/checkpoints", {"name": "x", "data": {"n": 2}})
    ask("ada", "PATCH sessions/j", {"context": {"topic": "sums"}}, if_match="*")
    ask("bo", "POST sessions/j/records", {"name": "note", "value": 1})
    ask("ada", "POST sessions/j/pause", {})
    ask("bo", "POST sessions/j/resume", {})
    ask("root", "POST bulk", {"verb": "label", "ids": ["j"], "labels": {"term": "1"}})
    trail = served.request("GET", "/v1/sessions/j/audit", **headers["bo"]).json["lines"]
    written = ["ada", "ada", "bo", "ada", "bo", "ada", "bo", "root"]
    assert [line["token"] for line in trail][:7] == written[:7]
    for _ in range(300):  # the job
        if (told := asyncio.run(names(path, "j")))[7:]:
            break
    assert told == written


async def test_stamps_cannot_be_left_out_or_borrowed(stamped_store):
    """A token with scope write is refused with entries that name none or another one; an admin may bring both."""
    served, path, texts = stamped_store
    ada, bo, root = [await HttpStore.open(served.url, texts[name]) for name in ("ada", "bo", "root")]
    assert ada.traits.stamp != bo.traits.stamp
    for new_id in (lambda: os.urandom(16), lambda: stamped(os.urandom(16), bo.traits.stamp)):
        with pytest.raises(Forbidden, match="stamp"):
            await ada.append([Pen(SPACE, "forged", new_id=new_id).begin()])
        name = os.urandom(4).hex()
        await root.append([Pen(SPACE, name, new_id=new_id).begin()])
    await ada.append([Pen(SPACE, "fine", new_id=lambda: stamped(os.urandom(16), ada.traits.stamp)).begin()])
    assert await names(path, "fine") == ["ada"]
    for store in (ada, bo, root):
        await store.close()


def test_a_name_stays_with_what_its_token_wrote(tmp_path, capsys):
    """Also once the token was rotated or revoked."""
    url = str(tmp_path / "agents.db")

    def cli(*argv: str) -> str:
        capsys.readouterr()
        assert main([*argv, "--store", url]) == 0
        return capsys.readouterr().out.strip()

    def write(served, text: str, name: str) -> None:
        with saveslot.blocking.open(served.url, token=text) as sessions:
            if name == "first":
                sessions.create_session("tutor", session_id="s")
            sessions.checkpoint("s", name, {"name": name})

    cli("token", "create", "root", "--scope", "admin")
    text = cli("token", "create", "ada", "--scope", "write")
    with serving(url) as served:
        write(served, text, "first")
    text = cli("token", "rotate", "ada")
    with serving(url) as served:
        write(served, text, "rotated")
    cli("token", "revoke", "ada")
    lines = json.loads(cli("audit", "s", "--json"))["lines"]
    assert [line["token"] for line in lines] == ["ada"] * len(lines)
    with saveslot.blocking.open(url) as sessions:
        sessions.checkpoint("s", "direct", {"n": 1})
    assert json.loads(cli("audit", "s", "--json"))["lines"][-1]["token"] == ""
    assert "TOKEN" in cli("audit", "s")
    assert cli("audit", "s", "--verify")

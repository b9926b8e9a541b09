"""A value changed by hand to another plausible one: the answer is right, or `Corrupt`, or what only `audit` finds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

import saveslot
from saveslot import Corrupt, KeyMissing, NotFound, SaveslotError, SessionManager
from saveslot.cli import main
from saveslot.codec import new_key
from saveslot.stores import open_store
from saveslot.values.log import Entry, Row
from tests.harness.damage import Plant, SqlitePlant, planted

OLDER, NEWEST = 4, 8
# On a server a case costs more: every n-th of all.
EVERY = {"sqlite": 2, "postgres": 4, "valkey": 2}


async def filled(url: str) -> None:
    """Three sessions that differ in everything; the log of the second one has eight entries."""
    async with saveslot.open(url) as sessions:
        await sessions.of("other").create_session("tester", session_id="elsewhere")
        for name, user in (("first", "anna"), ("second", "ben"), ("third", "cleo")):
            session = await sessions.create_session(
                f"{name} agent", user, {"of": name}, labels={"team": user}, session_id=name, idempotency_key=name
            )
            await sessions.checkpoint(session, "asked", {"messages": ["hello", name]}, {"m": name})
            await sessions.checkpoint(session, "answered", put={"n": len(name)}, metadata={"m": 2}, idempotency_key="a")
            session.context["more"] = name
            await sessions.update_session(session)
            await sessions.checkpoint(session, "looked", append={"messages": ["there"]}, idempotency_key="b")
            if name == "third":
                await sessions.complete(name)
                continue
            await sessions.pause(name)
            await sessions.resume(name)
            await sessions.checkpoint(name, "more", append={"messages": [name]}, metadata={"m": 3})
        await sessions.take("first")


@pytest.fixture(params=["sqlite", "sealed", "postgres", "valkey"], scope="module")
def plant(request, tmp_path_factory) -> Iterator[Plant]:
    if request.param != "sealed":
        yield planted(request, tmp_path_factory, filled)
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SAVESLOT_ENCRYPTION_KEY", new_key())
        yield SqlitePlant(tmp_path_factory.mktemp("sealed"), filled)


def doors(sessions: SessionManager) -> Iterator[tuple[str, Callable[[], Awaitable[Any]]]]:
    yield "get_session", lambda: sessions.get_session("second", history="all")
    yield "session without history", lambda: sessions.get_session("second", history=0)
    yield "head", lambda: sessions.head("second")
    yield "get_data", lambda: sessions.get_data("second")
    yield "older data", lambda: sessions.get_data("second", 3)
    yield "part of the data", lambda: sessions.get_data("second", keys=["n"])
    yield "get_checkpoint", lambda: sessions.get_checkpoint("second", "answered")
    yield "history", lambda: sessions.history("second")
    yield "find", lambda: sessions.find(labels={"team": "ben"})
    yield "find by state", lambda: sessions.find(state="active", user_id="ben")


def plain(answer: Any) -> Any:
    if isinstance(answer, list):
        return [plain(item) for item in answer]  # pyright: ignore[reportUnknownVariableType]
    if getattr(answer, "locked", False):  # in a list, what cannot be opened
        raise KeyMissing("locked")
    return answer.to_dict() if hasattr(answer, "to_dict") else answer


async def answers(url: str) -> dict[str, str]:
    """What each door says, as text; `Corrupt` for a typed error that names damage."""
    said: dict[str, str] = {}
    async with saveslot.open(url) as sessions:
        for door, ask in doors(sessions):
            try:
                said[door] = json.dumps(plain(await ask()))
            except (Corrupt, KeyMissing):  # the key does not open what another session has
                said[door] = "Corrupt"
            except NotFound as exc:
                said[door] = str(exc)
    return said


async def kept(url: str) -> tuple[dict[str, Row], list[Entry], list[Entry]]:
    """The rows by id, and the entries of the second and of the first session, as stored."""
    store = await open_store(url)
    try:
        heads = await store.heads([("default", name) for name in ("first", "second", "third")])
        rows = {head.row.session_id: head.row for head in heads if head is not None}
        return rows, await store.entries(rows["second"].key), await store.entries(rows["first"].key)
    finally:
        await store.close()


# The field of a session's hash in Valkey, and the columns that an entry's header has outside its array.
FIELDS = {
    "agent_type": "type",
    "user_id": "user",
    "created_at": "made",
    "heartbeat": "beat",
    "session_id": "id",
    "namespace": "ns",
}
HEADER = {"append_id", "at", "alive", "frame"}
ENTRY = (
    *(
        "append_id",
        "kind",
        "name",
        "at",
        "alive",
        "fence",
        "lease",
        "data_seq",
        "about_seq",
        "recipe",
        "digest",
        "note",
    ),
    *("request", "base", "frame"),
)
ROW = (
    *("agent_type", "user_id", "state", "created_at", "heartbeat", "fence", "lease", "owner", "labels", "body"),
    *("request", "session_id", "namespace"),
)
# What no link covers and nothing repeats: a changed value is believed.
UNKNOWABLE = {
    *(("entries", "alive"), ("entries", "at"), ("sessions", "heartbeat"), ("sessions", "created_at")),
    *(("sessions", "session_id"), ("sessions", "namespace"), ("entries", "lease"), ("sessions", "request")),
}
FOREIGN = {"lease": b"l" * 16, "owner": b"o" * 16, "request": b"r" * 32, "namespace": "other", "session_id": "fourth"}


def others(mine: Any, there: list[Any], column: str) -> list[Any]:
    """Other values of a column: those of other entries or rows, and one that a store could hold."""
    values = [getattr(one, column) for one in there]
    if isinstance(getattr(mine, column), int):
        values.append(max(getattr(mine, column), 0) + 1)
    values.append(FOREIGN.get(column, ""))
    own = getattr(mine, column)
    return [value for n, value in enumerate(values) if value not in [own, "", *values[:n]] and type(value) is not bool]


def cases(plant: Plant) -> Iterator[tuple[str, str, int, Any]]:
    """Table, column, seq and value of each change; seq 0 is the session's row."""
    rows, log, elsewhere = asyncio.run(kept(plant.url))
    for column in ROW:
        for value in others(rows["second"], [rows["first"], rows["third"]], column):
            yield "sessions", column, 0, value
    for seq in (NEWEST, OLDER):
        for column in ENTRY:
            for value in others(log[seq - 1], [*log[:NEWEST], elsewhere[seq - 1]], column):
                yield "entries", column, seq, value


def change(plant: Plant, table: str, column: str, seq: int, value: Any) -> bool:
    name = {"session_id": "id"}.get(column, column)
    if plant.kind == "valkey":
        name = FIELDS.get(column, column) if table == "sessions" else name if name in HEADER else f"rest.{name}"
        if isinstance(value, bytes) and name in {"append_id", "owner", "request", "lease"}:
            value = value.hex()
    elif table == "entries":
        table = "checkpoints"
    if column == "labels":
        value = json.dumps(value)
    return plant.damage(table, name, value, seq)


async def appended(url: str) -> str:
    """What a checkpoint says, and whether it was appended after the changed entry."""
    async with saveslot.open(url) as sessions:
        try:
            checkpoint = await sessions.checkpoint("second", "late", put={"late": 1})
        except (Corrupt, KeyMissing):
            return "Corrupt"
        except SaveslotError as exc:
            return exc.code
        return f"appended {checkpoint.seq}"


def problems(url: str, capsys: Any) -> set[str]:
    """What `audit` and `doctor` find wrong."""
    wrong = {"audit"} if main(["audit", "second", "--verify", "--store", url]) else set[str]()
    capsys.readouterr()
    main(["doctor", "--json", "--store", url])
    findings = json.loads(capsys.readouterr().out)["findings"]
    return wrong | {finding["what"] for finding in findings if finding["state"] == "problem"}


def test_changed_column_is_noticed(plant, capsys):
    """Every column of a row, of the newest entry and of an older one, with the values of others."""
    plant.restore()
    sound = asyncio.run(answers(plant.url))
    assert "Corrupt" not in sound.values()
    known_problems = problems(plant.url, capsys)  # of a server that is made for tests
    wrong: list[str] = []
    lists = {"find", "find by state"}  # by stored columns: a session may be missing from them
    for n, (table, column, seq, value) in enumerate(cases(plant)):
        plant.restore()
        if n % EVERY[plant.kind] or not change(plant, table, column, seq, value):
            continue
        what = f"{table}.{column} of {f'entry {seq}' if seq else 'the row'} = {value!r:.60}"
        said, known = asyncio.run(answers(plant.url)), (table, column) in UNKNOWABLE
        lies = [door for door, answer in said.items() if answer not in {sound[door], "Corrupt"}]
        lies = [door for door in lies if door not in lists or said[door] != "[]"]
        if lies and not known and not problems(plant.url, capsys) - known_problems:
            wrong.append(f"{what}: {', '.join(lies)}")
        if seq == NEWEST and not known and (answer := asyncio.run(appended(plant.url))) != "Corrupt":
            wrong.append(f"{what}: {answer}")
    assert not wrong, "\n".join(wrong)

"""`/v1/namespaces`: who sees which, and one erased as a whole."""

from __future__ import annotations

import asyncio

import pytest

import saveslot
from saveslot.server import tokens
from tests.server.conftest import serving


@pytest.fixture(scope="module")
def schools(tmp_path_factory):
    """A server with sessions in three namespaces, and headers with a token for all and one for some."""
    path = tmp_path_factory.mktemp("schools") / "agents.db"

    async def prepared() -> dict[str, dict[str, str]]:
        async with saveslot.open(str(path)) as sessions:
            for n in range(3):
                for number in range(n + 1):
                    await sessions.of(f"school-{n}").create_session("tutor", session_id=f"s{number}", data={"n": n})
            registry = tokens.registry(sessions)
            texts = {
                "all": await tokens.create(registry, "all", "admin"),
                "some": await tokens.create(registry, "some", "admin", ["school-0", "school-2", "school-9"]),
            }
            return {name: {"authorization": f"Bearer {text}"} for name, text in texts.items()}

    headers = asyncio.run(prepared())
    with serving(str(path)) as served:
        yield served, headers


def names(served, headers, query="") -> list[tuple[str, int]]:
    answer = served.request("GET", f"/v1/namespaces{query}", **headers).json
    return [(item["name"], item["sessions"]) for item in answer["items"]]


def test_a_token_sees_its_namespaces(schools):
    """One for all namespaces sees all but the server's own, one for some those of them that have sessions."""
    served, headers = schools
    assert names(served, headers["all"]) == [("school-0", 1), ("school-1", 2), ("school-2", 3)]
    assert names(served, headers["some"]) == [("school-0", 1), ("school-2", 3)]
    for who in ("all", "some"):
        page = served.request("GET", "/v1/namespaces?limit=1", **headers[who]).json
        assert (page["items"][0]["name"], page["next"]) == ("school-0", "school-0")
        rest = served.request("GET", f"/v1/namespaces?after={page['next']}", **headers[who]).json
        assert rest["next"] is None
        assert len(rest["items"]) == (2 if who == "all" else 1)


def test_a_namespace_is_erased_after_a_dry_run(schools):
    """It takes the number of sessions that the dry run showed, and a token for all namespaces."""
    served, headers = schools
    root = headers["all"]
    made = {"agent_type": "tutor", "session_id": "s", "data": {"secret": "x" * 1000}}
    assert served.request("POST", "/v1/sessions?ns=school-4", made, **root).status == 201
    dry = served.request("DELETE", "/v1/namespaces/school-4", **root).json
    assert (dry["sessions"], dry["deleted"], dry["dry_run"]) == (1, 0, True)
    assert dry["bytes"] > 0
    path = "/v1/namespaces/school-4?dry_run=false"
    assert served.request("DELETE", path, **root).status == 422
    assert served.request("DELETE", f"{path}&sessions=2", **root).status == 409
    assert served.request("DELETE", f"{path}&sessions=1", **headers["some"]).status == 403
    assert served.request("GET", "/v1/sessions/s?ns=school-4", **root).status == 200
    assert served.request("DELETE", f"{path}&sessions=1", **root).json["dry_run"] is False
    assert served.request("GET", "/v1/sessions/s?ns=school-4", **root).status == 404
    assert served.request("GET", "/v1/sessions/s/audit?ns=school-4", **root).json["state"] == "erased"
    assert "school-4" not in dict(names(served, root))
    assert served.request("DELETE", "/v1/namespaces/$saveslot", **root).status == 403


async def test_a_manager_lists_and_erases_through_the_server(schools):
    """`namespaces` and `erase_all` work as on a database, within what the token may."""
    served, headers = schools
    some, root = (headers[who]["authorization"].removeprefix("Bearer ") for who in ("some", "all"))
    async with (
        saveslot.open(served.url, token=some, namespace="school-9") as sessions,
        saveslot.open(served.url, token=root, namespace="school-9") as operator,
    ):
        assert await sessions.namespaces() == ["school-0", "school-2"]
        assert await sessions.namespaces(after="school-0", limit=1) == ["school-2"]
        await sessions.create_session("tutor", session_id="s", data={"n": 1})
        before = await sessions.erase_all(dry_run=True)
        assert (before.sessions, before.deleted) == (1, 0)
        assert await sessions.namespaces() == ["school-0", "school-2", "school-9"]
        assert await operator.erase_all() == before
        assert await sessions.get_session("s") is None
        assert await sessions.namespaces() == ["school-0", "school-2"]

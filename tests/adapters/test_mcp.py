"""`saveslot mcp` by the official client, over stdio and HTTP: on SQLite, PostgreSQL, and a folder of YAML files."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tomllib
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from mcp import Client, MCPError, StdioServerParameters

import saveslot
from saveslot.adapters.mcp import server
from saveslot.adapters.mcp.briefing import briefing
from saveslot.adapters.mcp.tasks import StoredTasks

ROOT = Path(__file__).parents[2]
NOTHING_YET = "there is no session parser yet; call save to begin one, or list to see the sessions."
SAVESLOT = str(Path(sys.executable).with_name("saveslot"))


class Tools:
    """Tools as an agent uses them: JSON in, JSON or a sentence out."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def __getattr__(self, tool):
        async def call(**arguments):
            result = await self.client.call_tool(tool, arguments)
            text = result.content[0].text
            if result.is_error:
                raise Refused(text)
            return result.structured_content

        return call

    async def resource(self, uri):
        [content] = (await self.client.read_resource(uri)).contents
        return json.loads(content.text)


class Refused(Exception):
    """What the model reads instead of an answer."""


@asynccontextmanager
async def started(door, store, project):
    """The command as a coding agent starts it, in its project's folder."""
    if door == "stdio":
        command = StdioServerParameters(command=SAVESLOT, args=["mcp", "--store", str(store)], cwd=project)
        command.env = {"SAVESLOT_TOKEN": os.environ.get("SAVESLOT_TOKEN", "")}
        async with Client(command, read_timeout_seconds=60) as client:
            yield Tools(client)
        return
    command = [SAVESLOT, "mcp", "--store", str(store), "--http", "--port", "0"]
    with subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE, text=True) as process:  # noqa: ASYNC220
        try:
            line = await asyncio.to_thread(process.stdout.readline)
            async with Client(line.split()[-1], read_timeout_seconds=60) as client:
                yield Tools(client)
        finally:
            process.terminate()


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "parser"
    folder.mkdir()
    return folder


@pytest.fixture(params=["sqlite", "postgres", "folder"])
def store(request, servers, tmp_path):
    if request.param == "postgres":
        return servers.schema()
    if request.param == "folder":
        (tmp_path / "notes").mkdir()
        return tmp_path / "notes"
    return tmp_path / "s.db"


@pytest.fixture
async def tools(tmp_path):
    """The same tools in this process, on SQLite. A client must be left by the task that entered it."""
    ready, over = asyncio.get_running_loop().create_future(), asyncio.Event()

    async def live():
        async with (
            saveslot.open(tmp_path / "s.db") as sessions,
            Client(server(StoredTasks(sessions, "parser"))) as client,
        ):
            tools = Tools(client)
            tools.sessions = sessions
            ready.set_result(tools)
            await over.wait()

    task = asyncio.create_task(live())
    yield await ready
    over.set()
    await task


@pytest.mark.parametrize("door", ["stdio", "http"])
async def test_an_agent_that_loses_its_context_goes_on(door, store, project):
    """What an agent saved is what the next one reads, without knowing any id; each of its steps is done once."""
    steps = ["read the format", "write the parser", "write its tests", "run them"]
    done = []
    for _ in range(2):  # the second agent knows nothing of the first one
        async with started(door, store, project) as tools:
            try:
                text = (await tools.resume())["text"]
            except Refused as refused:
                assert str(refused) == NOTHING_YET  # noqa: PT017  (that is how an agent learns it)
                await tools.save(data={"task": "Add a parser", "progress": []}, key="begin")
                text = ""
            for step in steps:
                if f"- {step}" in text:
                    continue
                done.append(step)
                await tools.update(append={"progress": [step]}, key=f"did {step}")
                if len(done) == 2 and not text:
                    await tools.note(text="the format has two versions")
                    break  # its context is compacted
    assert done == steps
    async with started(door, store, project) as tools:
        resumed = await tools.resume()
        assert (resumed["session_id"], len(resumed["text"]) <= 4000) == ("parser", True)
        assert resumed["text"].splitlines()[1:] == [
            "task: Add a parser",
            *("progress:", *(f"- {step}" for step in steps)),
            *("notes:", "- the format has two versions"),
        ]
        assert (await tools.complete(result="merged"))["state"] == "completed"
        with pytest.raises(Refused, match=r"session parser is completed, and so is all that it continued; call save"):
            await tools.resume()


async def test_same_key_same_call(store, project):
    """The same call with the same key is carried out once, also by another process; another call with it is refused."""
    versions = []
    for _ in range(2):
        async with started("stdio", store, project) as tools:
            saved = await tools.save(data={"progress": ["a"]}, key="k1")
            await tools.update(append={"progress": ["b"]}, key="k2")
            await tools.update(append={"progress": ["b"]}, key="k2")
            versions.append(saved["session_id"])
            with pytest.raises(Refused, match="key"):
                await tools.update(append={"progress": ["c"]}, key="k2")
            await tools.note(text="once", key="n")
            await tools.note(text="once", key="n")
            text = (await tools.resume())["text"]
    assert versions == ["parser", "parser"]
    assert text.count("- b") == text.count("- a") == text.count("- once") == 1


async def test_expect_is_honoured(store, project):
    """A write that expects a version is refused once another agent has written, and says what to do."""
    async with started("stdio", store, project) as tools:
        first = await tools.save(data={"n": 1})
        second = await tools.update(put={"n": 2}, expect=first["version"])
        for call in (
            lambda: tools.update(put={"n": 3}, expect=first["version"]),
            lambda: tools.save(data={"n": 3}, expect=first["version"]),
            lambda: tools.complete(expect=first["version"]),
        ):
            with pytest.raises(
                Refused, match="Call resume to read it, then repeat this call with its version as expect"
            ):
                await call()
        assert (await tools.resume())["version"] == second["version"]
        with pytest.raises(Refused, match=r"no session other"):
            await tools.save(data={}, session_id="other", expect=second["version"])


async def test_complete_is_idempotent_by_key(store, project):
    """The same complete with the same key is carried out once, in any process; with another result it is refused."""
    async with started("stdio", store, project) as tools:
        await tools.save(data={"n": 1})
        first = await tools.complete(result={"merged": True}, key="end")
    async with started("stdio", store, project) as tools:
        again = await tools.complete(result={"merged": True}, key="end")
        with pytest.raises(Refused, match=r"key.* Correct that argument and call again"):
            await tools.complete(result={"merged": False}, key="end")
        for key in (None, "another"):  # to complete twice is to complete once
            assert (await tools.complete(key=key))["state"] == "completed"
        assert again == first


async def test_resume_goes_up_to_the_parent(store, project):
    """Of a completed task, resume reads the nearest unfinished one that it continues."""
    async with started("stdio", store, project) as tools:
        await tools.save(session_id="epic", data={"task": "Release 2.0"})
        await tools.save(session_id="epic/a", parent_session_id="epic", data={"task": "part a"})
        await tools.save(session_id="epic/a/1", parent_session_id="epic/a", data={"task": "part 1"})
        assert (await tools.resume(session_id="epic/a/1"))["session_id"] == "epic/a/1"
        await tools.complete(session_id="epic/a/1")
        assert (await tools.complete(session_id="epic/a/1"))["state"] == "completed"
        assert (await tools.resume(session_id="epic/a/1"))["session_id"] == "epic/a"
        await tools.complete(session_id="epic/a")
        resumed = await tools.resume(session_id="epic/a/1")
        assert (resumed["session_id"], "task: Release 2.0" in resumed["text"]) == ("epic", True)


async def test_history(tools):
    """diff, rollback and resume of an older checkpoint read what was saved then; nothing is lost."""
    await tools.save(data={"plan": ["a"], "n": 1}, name="planned")
    await tools.update(append={"plan": ["b"]}, put={"n": 2}, name="grown")
    patch = await tools.diff()
    assert patch["left_out"] == 0
    assert {"op": "replace", "path": "/n", "value": 2} in patch["patch"]
    assert "n: 1" in (await tools.resume(ref="planned"))["text"]
    back = await tools.rollback(to="planned", key="r")
    assert (await tools.rollback(to="planned", key="r"))["version"] == back["version"]
    assert await tools.resource("saveslot://session/parser/latest") == {"plan": ["a"], "n": 1}
    assert await tools.resource("saveslot://session/parser/grown") == {"plan": ["a", "b"], "n": 2}
    whole = await tools.resource("saveslot://session/parser")
    assert (whole["data"], whole["version"]) == ({"plan": ["a"], "n": 1}, back["version"])
    assert [entry["name"] for entry in whole["history"]][2:] == ["planned", "grown", "session_rolled_back"]


async def test_ids_with_slashes_are_resources(tools):
    """A resource of any session can be read, its id written as in a URL."""
    await tools.save(session_id="a/b c", data={"n": 1})
    assert await tools.resource("saveslot://session/a%2Fb%20c/latest") == {"n": 1}
    with pytest.raises(MCPError, match="no session x"):
        await tools.resource("saveslot://session/x")


async def test_a_project_has_one_task_after_another(tools):
    """After complete, the next save begins the project's next task; the tools then use that one."""
    for n in (1, 2, 3):
        expected = "parser" if n == 1 else f"parser-{n}"
        assert (await tools.save(data={"task": f"t{n}"}))["session_id"] == expected
        assert (await tools.update(put={"n": n}))["session_id"] == expected
        assert (await tools.complete())["session_id"] == expected
    page = await tools.list()
    assert [(item["session_id"], item["state"]) for item in page["sessions"]] == [
        *(("parser-3", "completed"), ("parser-2", "completed"), ("parser", "completed"))
    ]


async def test_list_pages(store, project):
    """A list has every session once, page by page."""
    async with started("stdio", store, project) as tools:
        for n in range(5):
            await tools.save(session_id=f"s{n}", data={})
        listed, after = [], None
        while True:
            page = await tools.list(limit=2, after=after)
            listed += [item["session_id"] for item in page["sessions"]]
            if (after := page["next"]) is None:
                break
        assert sorted(listed) == [f"s{n}" for n in range(5)]
        assert [item["session_id"] for item in (await tools.list(text="s3"))["sessions"]] == ["s3"]


async def test_agents_on_one_session(tools, tmp_path):
    """Agents of several processes that expect nothing add to one list, and nothing is lost."""
    await tools.save(data={"progress": []})
    async with saveslot.open(tmp_path / "s.db") as others, Client(server(StoredTasks(others, "parser"))) as client:
        pair = [tools, Tools(client)]
        await asyncio.gather(*(pair[n % 2].update(append={"progress": [str(n)]}) for n in range(20)))
    data = await tools.resource("saveslot://session/parser/latest")
    assert sorted(data["progress"], key=int) == [str(n) for n in range(20)]


async def test_tasks_rest_paused(tools):
    """A task is never failed for its silence."""
    await tools.save(data={"n": 1})
    assert await tools.sessions.cleanup_stale_sessions(0) == 0
    assert (await tools.resume())["state"] == "paused"


@pytest.fixture
def served(tmp_path):
    """A server that asks for a token, and a function that draws one."""
    place = ["--store", str(tmp_path / "served.db")]
    command = [SAVESLOT, "serve", *place, "--port", "0", "--token-required"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield (
                process.stdout.readline().split()[-1],
                lambda *options: subprocess.check_output(
                    [SAVESLOT, *place, "token", "create", *options], text=True, timeout=60
                ).strip(),
            )
        finally:
            process.terminate()


@pytest.mark.parametrize("door", ["stdio", "http"])
async def test_a_server_with_a_token(door, served, project, monkeypatch):
    """On a server, the tools work with a token of its own, and do no more than it allows."""
    url, token = served
    monkeypatch.setenv("SAVESLOT_TOKEN", token("agent", "--scope", "write"))
    async with started(door, url, project) as tools:
        await tools.save(data={"task": "Add a parser"}, key="k")
        await tools.update(put={"next": "write tests"})
        assert "next: write tests" in (await tools.resume())["text"]
    monkeypatch.setenv("SAVESLOT_TOKEN", token("reader", "--scope", "read"))
    async with started(door, url, project) as tools:
        assert "next: write tests" in (await tools.resume())["text"]
        with pytest.raises(Refused, match="Tell the user that the token for this store does not allow it"):
            await tools.update(put={"next": "nothing"})


@pytest.mark.parametrize("door", ["stdio", "http"])
@pytest.mark.parametrize("bad", ["", "no-token"])
async def test_a_wrong_token_is_told(door, bad, served, project, monkeypatch):
    """With a wrong token or none, each tool and resource tells the model so; the server goes on."""
    monkeypatch.setenv("SAVESLOT_TOKEN", bad)
    async with started(door, served[0], project) as tools:
        for call in (tools.resume, lambda: tools.save(data={}), tools.list):
            with pytest.raises(
                Refused, match=r"token.* Tell the user that the token for this store is missing or wrong"
            ):
                await call()
        with pytest.raises(MCPError, match="token"):
            await tools.resource("saveslot://session/parser")


async def test_a_store_that_comes_up_later(tmp_path, project):
    """While a store cannot be reached, each tool says so and what to do; once it can be, they work."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with started("stdio", f"http://127.0.0.1:{port}", project) as tools:
        with pytest.raises(Refused, match="Call again in a moment"):
            await tools.resume()
        command = [SAVESLOT, "serve", "--store", str(tmp_path / "s.db"), "--port", str(port)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: ASYNC220
            try:
                await asyncio.to_thread(process.stdout.readline)
                assert (await tools.save(data={"task": "Add a parser"}))["session_id"] == "parser"
            finally:
                process.terminate()


@pytest.mark.parametrize(
    ("tool", "arguments", "sentence"),
    [
        (
            "update",
            {"put": {"n": 1}},
            "^no session parser in namespace default; list shows the sessions, and save begins one\\.$",
        ),
        ("update", {"session_id": "s", "append": {"n": [1]}}, r"append\.n.* Correct that argument and call again"),
        ("update", {"session_id": "s", "put": {"n": 1}, "expect": "x"}, "'x' is not a version.* Correct that argument"),
        (
            "resume",
            {"session_id": "s", "ref": "never"},
            r"session s has no checkpoint 'never'; pass latest, ~1, a number, or a name that you saved under\.$",
        ),
        (
            "save",
            {"session_id": "ended", "data": {}},
            r"cannot checkpoint a completed session.*; save under another session_id to go on\.$",
        ),
        ("save", {"session_id": "", "data": {}, "name": ""}, "name: .*Correct that argument"),
        (
            "rollback",
            {"session_id": "ended", "to": "~1"},
            r"cannot rollback a completed .* another session_id to go on\.$",
        ),
        (
            "complete",
            {"session_id": "broken"},
            r"cannot complete a failed session .*: rollback to latest reopens it\.$",
        ),
        ("save", {"progress": []}, "^save has no argument progress; it has data, name, session_id, .*Nothing was done"),
        ("save", {}, "^data is missing: The whole state of the task.* Correct that argument and call again"),
        ("update", {"drop": "x"}, "^drop must be a valid list. Correct that argument"),
        ("remember", {}, "^there is no tool remember; there are save, update, resume, list,"),
        ("save", {"session_id": "held", "data": {}}, "session held is held by .* Another agent is working on it"),
        ("list", {"limit": 1000}, "^limit must be less than or equal to 100. Correct that argument and call again"),
    ],
)
async def test_errors_tell_the_model_what_to_do(tools, tool, arguments, sentence):
    """Each error reaches the model as a sentence: what is wrong, and what to do by the tools that it has."""
    await tools.save(session_id="s", data={"n": 1})
    await tools.save(session_id="ended", data={})
    await tools.complete(session_id="ended")
    await tools.save(session_id="broken", data={})
    await tools.sessions.fail("broken", "gone")
    async with tools.sessions.hold("held", create="tutor"):
        with pytest.raises(Refused, match=f"(?s){sentence}"):
            await getattr(tools, tool)(**arguments)


async def test_a_folder_has_no_history(tmp_path, project):
    """On a folder, diff and rollback say what to use instead, and the file stays readable for people."""
    (tmp_path / "notes").mkdir()
    async with started("stdio", tmp_path / "notes", project) as tools:
        await tools.save(data={"task": "Add a parser"}, key="k")
        for call in (tools.diff, lambda: tools.rollback(to="~1"), lambda: tools.resume(ref="~1")):
            with pytest.raises(Refused, match="keeps only the newest version of each task"):
                await call()
    text = (tmp_path / "notes" / "parser.yaml").read_text()
    assert text.startswith("status: in_progress\ntask: Add a parser\n")


def test_briefings():
    """A briefing has at most 4,000 characters; the newest items are whole, and it says how many it leaves out."""
    data = {
        "task": "t",
        "progress": [f"step {n} " + "x" * 300 for n in range(100)],
        "log": ["y" * 2500],
        "big": "z" * 9000,
    }
    text = briefing("Session s", data, ["note"])
    assert 3000 < len(text) <= 4000
    lines = text.splitlines()
    assert lines[:2] == ["Session s", "task: t"]
    assert f"- {data['progress'][-1]}" in lines
    assert "- note" in lines
    kept = sum(line.startswith("- step") for line in lines)
    assert f"progress ({100 - kept} earlier ones left out):" in lines
    assert all(line in {f"- {item}" for item in data["progress"]} for line in lines if line.startswith("- step"))
    for limit in (300, 1000, 4000):
        assert len(briefing("Session s", data | {f"k{n}": "v" * 500 for n in range(50)}, ["n" * 9000], limit)) <= limit
    assert briefing("Session s", {}, []) == "Session s"


def test_versions():
    """The extra allows the versions that the server is tested with."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["mcp"] == ["saveslot[cli]", "mcp>=2.3,<3"]
    program = """
import sys
from importlib import metadata
real = metadata.version
metadata.version = lambda name: "3.0" if name == "mcp" else real(name)
from saveslot.cli import main
sys.exit(main(["mcp"]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert (
        "works with mcp 2.3 up to, but not including, 3; 3.0 is installed: pip install 'saveslot[mcp]'" in done.stderr
    )

"""The command on PostgreSQL: what doctor and migrate report about it and the Valkey in front, never a password."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

import saveslot
from saveslot.cli import benchmark
from saveslot.stack import Postgres, Valkey
from saveslot.stores import shown
from saveslot.stores.postgres import checkup as checkup_postgres

HUSH = "hush-7"


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.fixture
def store(server: Postgres, request: pytest.FixtureRequest) -> str:
    """Tables of its own for each test, with five sessions."""
    schema = "".join(letter if letter.isalnum() else "_" for letter in request.node.name.lower())[:60]
    url = f"{server.url}&schema={schema}"
    asyncio.run(_fill(url))
    return url


async def _fill(url: str) -> None:
    async with saveslot.open(url) as sessions:
        for number in range(5):
            session = await sessions.create_session("tutor", session_id=f"lesson-{number}")
            await sessions.checkpoint(session, "asked", {"messages": ["1/2 + 1/3?"]})
            await sessions.checkpoint(session, "answered", append={"messages": ["5/6"]})


def sql(url: str, *statements: str) -> None:
    """As the owner, in the schema, outside of the command."""
    dsn, _, schema = url.partition("&schema=")

    async def work() -> None:
        connection = await asyncpg.connect(dsn, server_settings={"search_path": schema})
        for statement in statements:
            await connection.execute(statement)
        await connection.close()

    asyncio.run(work())


def findings(answer) -> dict[str, dict]:
    return {finding["what"]: finding for finding in json.loads(answer.out)["findings"]}


def secret(url: str) -> str:
    """The same server does not ask for it, and takes it."""
    return url.replace("//postgres@", f"//postgres:{HUSH}@")


# Passwords


@pytest.mark.parametrize(
    ("url", "printed"),
    [
        ("postgresql://anna:hush-7@host:5432/db?schema=a", "postgresql://anna@host:5432/db?schema=a"),
        ("postgresql://anna:hush-7@one:5432,two/db", "postgresql://anna@one:5432,two/db"),
        ("postgresql://anna:a/hush-7?#@b@host/db", "postgresql://anna@host/db"),
        ("postgresql://anna@corp:hush-7@host/db", "postgresql://anna@corp@host/db"),
        ("postgresql://host/db?user=anna&password=hush-7&sslpassword=hush-7", None),
        ("valkey://:hush-7@host:6379/0", "valkey://host:6379/0"),
        ("cannot reach postgresql://anna:hush-7@host/db; retry", "cannot reach postgresql://anna@host/db; retry"),
        ("postgresql://anna@host:5432/db", "postgresql://anna@host:5432/db"),
        ("postgresql://anna@/db?host=/tmp/a@b", "postgresql://anna@/db?host=/tmp/a@b"),
        ("sqlite:////home/a:b@c/agents.db", "sqlite:////home/a:b@c/agents.db"),
    ],
)
def test_url_is_shown_without_its_password(url, printed):
    """The password is hidden in every form of URL; the rest stays."""
    assert HUSH not in shown(url)
    assert printed is None or shown(url) == printed


@pytest.mark.parametrize("command", ["ls", "stats", "doctor", "doctor --json", "migrate", "migrate --json", "demo"])
def test_no_command_shows_a_password(run, store, command):
    """Neither stdout nor stderr contains it."""
    answer = run(*command.split(), "--store", secret(store))
    assert HUSH not in answer.out + answer.err
    assert answer.code == (2 if command == "demo" else 0)


def test_no_password_from_settings_is_shown(run, store, monkeypatch, tmp_path):
    """A password from the environment or a file is hidden like one from the command line."""
    (tmp_path / "work" / "saveslot.toml").write_text(f'url = "{secret(store)}"\nhot = "nonsense://:{HUSH}@host"\n')
    answer = run("stats")
    assert answer.code == 2
    monkeypatch.setenv("SAVESLOT_URL", secret(store))
    again = run("stats", "--namespace", "x" * 2000)
    assert HUSH not in answer.out + answer.err + again.out + again.err


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://anna:{HUSH}@127.0.0.1:1/db",
        f"postgresql://anna:{HUSH}/more@127.0.0.1:1/db",
        f"postgresql://anna:{HUSH}[@127.0.0.1:1/db",
        f"postgresql://127.0.0.1:1/db?user=anna&password={HUSH}",
        f"postgresql://anna:{HUSH}@127.0.0.1:1/db?schema=Wrong",
        f"postgresql://anna:{HUSH}@127.0.0.1:1/db?statement_cache_size=many",
        f"postgresq://anna:{HUSH}@127.0.0.1:1/db",
        f"sqlite://anna:{HUSH}@127.0.0.1/db",
    ],
)
@pytest.mark.parametrize("command", ["ls", "doctor", "migrate", "bench"])
def test_no_error_shows_a_password(run, monkeypatch, url, command):
    """Errors for an unreachable or unreadable URL do not contain it."""
    monkeypatch.setattr("saveslot.stores.postgres.connection.PATIENCE", 0.3)
    answer = run(command, "--store", url)
    assert answer.code in {1, 2, 6}
    assert HUSH not in answer.out + answer.err


def test_bench_hides_the_password(run, store, monkeypatch):
    """Benchmarks work on PostgreSQL."""
    monkeypatch.setattr(benchmark, "QUICK", benchmark.Sizes(turns=6, small=6, sessions=4, each=2, resumes=2))
    answer = run("bench", "--quick", "--store", secret(store))
    assert answer.code == 0
    assert "measuring postgresql://postgres@" in answer.err
    assert HUSH not in answer.out + answer.err


def test_keeper_hides_the_password(spawn, store):
    """Its first line names the store, and it ends on request."""
    keeper = spawn("keeper", "--store", secret(store))
    line = keeper.stderr.readline()
    keeper.terminate()
    out, err = keeper.communicate(timeout=60)
    assert "keeping postgresql://postgres@" in line
    assert HUSH not in line + out + err
    assert keeper.returncode == 0


# doctor


def test_doctor_reports_a_sound_server(run, store):
    """Every check has its line, every state is rebuilt, exit 0."""
    answer = run("doctor", "--json", "--store", store)
    findings_by_name = findings(answer)
    assert answer.code == 0
    assert {finding["state"] for finding in findings_by_name.values()} == {"ok"}
    assert list(findings_by_name) == [
        *(
            "server",
            "round trip",
            "settings",
            "checksums",
            "replicas",
            "rights",
            "format",
            "content",
            "partitions",
            "owners",
            "recipes",
        ),
    ]
    assert findings_by_name["server"]["text"].startswith("PostgreSQL 18")
    assert findings_by_name["content"]["text"].startswith("5 sessions in 1 namespace, 15 entries, ")
    assert findings_by_name["recipes"]["text"] == "15 entries verified and rebuilt"


def test_doctor_samples_a_large_store(run, store, monkeypatch):
    """The output says how many sessions were checked."""
    monkeypatch.setattr(checkup_postgres, "MOST", 4)
    findings_by_name = findings(run("doctor", "--json", "--store", store))
    assert findings_by_name["recipes"]["text"].startswith("6 entries of 2 sessions, chosen at random, verified")


def test_old_and_distant_servers_are_reported(run, store, monkeypatch):
    """Too old is a problem, high latency a warning."""
    monkeypatch.setattr(checkup_postgres, "OLDEST", 99)
    monkeypatch.setattr(checkup_postgres, "FAR", 0.0)
    answer = run("doctor", "--json", "--store", store)
    findings_by_name = findings(answer)
    assert answer.code == 1
    assert [findings_by_name[what]["state"] for what in ("server", "round trip")] == ["problem", "warning"]


@pytest.mark.parametrize(
    ("setting", "undone", "state", "cure"),
    [
        (
            ["alter system set fsync = off", "select pg_reload_conf()"],
            ["alter system reset fsync", "select pg_reload_conf()"],
            "problem",
            "alter system set fsync = on; select pg_reload_conf()",
        ),
        (
            ["alter system set full_page_writes = off", "select pg_reload_conf()"],
            ["alter system reset full_page_writes", "select pg_reload_conf()"],
            "problem",
            "alter system set full_page_writes = on; select pg_reload_conf()",
        ),
        (
            ["alter database postgres set synchronous_commit = off"],
            ["alter database postgres reset synchronous_commit"],
            "problem",
            "alter database postgres reset synchronous_commit",
        ),
        (
            ["alter role postgres set synchronous_commit = off"],
            ["alter role postgres reset synchronous_commit"],
            "problem",
            "alter role postgres reset synchronous_commit",
        ),
        (
            ["alter role postgres in database postgres set synchronous_commit = off"],
            ["alter role postgres in database postgres reset synchronous_commit"],
            "problem",
            "alter role postgres in database postgres reset synchronous_commit",
        ),
        (
            ["create role careless", "alter role careless set synchronous_commit = false"],
            ["drop role careless"],
            "warning",
            "alter role careless reset synchronous_commit",
        ),
    ],
)
def test_dangerous_setting_is_found(run, store, setting, undone, state, cure):
    """It is found wherever it was set, and the advised statement undoes it."""
    sql(store, *setting)
    try:
        answer = run("doctor", "--json", "--store", store)
    finally:
        sql(store, *undone)
    findings_by_name = findings(answer)["settings"]
    assert (answer.code, findings_by_name["state"], findings_by_name["advice"]) == (
        int(state == "problem"),
        state,
        [cure],
    )
    assert findings(run("doctor", "--json", "--store", store))["settings"]["state"] == "ok"


def test_dangerous_setting_in_the_url_is_found(run, store):
    """The driver passes on options it does not know."""
    answer = run("doctor", "--json", "--store", f"{store}&synchronous_commit=off")
    assert answer.code == 1
    assert "out of the URL" in findings(answer)["settings"]["advice"][0]


def test_missing_synchronous_replica_is_a_problem(run, store):
    """Every save would wait for it; doctor itself does not wait."""
    sql(store, "alter system set synchronous_standby_names = 'ghost'", "select pg_reload_conf()")
    try:
        findings_by_name = findings(run("doctor", "--json", "--store", store))["synchronous"]
    finally:
        sql(store, "alter system reset synchronous_standby_names", "select pg_reload_conf()")
    assert findings_by_name["state"] == "problem"
    assert "ghost" in findings_by_name["text"]


def test_replica_is_a_problem_and_can_be_checked(run):
    """It is read-only, and agents need the primary. Its contents are checked all the same."""
    with Postgres() as server:
        asyncio.run(_fill(server.url))
        server.stop()
        (server.folder / "data" / "standby.signal").touch()
        server.start()
        answer = run("doctor", "--json", "--store", server.url)
    findings_by_name = findings(answer)
    assert answer.code == 1
    assert {what for what, finding in findings_by_name.items() if finding["state"] == "problem"} == {"replica"}
    assert "target_session_attrs=read-write" in findings_by_name["replica"]["advice"][0]
    assert findings_by_name["recipes"]["text"].startswith("15 entries verified")


@pytest.mark.parametrize(
    ("rows", "state"),
    [
        ([], "ok"),
        ([("east", "async", 0.2, 1000)], "ok"),
        ([("east", "async", None, None)], "ok"),
        ([("east", "sync", 0.1, 0), ("west", "async", 900.0, 0)], "warning"),
        ([("west", "async", None, 1_000_000_000)], "warning"),
    ],
)
def test_replica_lag_is_reported(rows, state):
    """Lag by time and lag by bytes are each named."""
    result = checkup_postgres._lag(rows)  # noqa: SLF001  (a real one would have to be slow)
    assert result.state == state
    assert len(result.details) == len(rows)


def test_old_orphans_are_a_warning(run, store):
    """Orphans that no worker claimed for a minute are a warning that names their dead worker."""

    async def leave() -> None:
        async with saveslot.open(store, worker_beat=0.1, worker_ttl=0.5) as sessions:
            await sessions.take("lesson-1")

    asyncio.run(leave())
    assert findings(run("doctor", "--json", "--store", store))["owners"]["state"] == "ok"
    sql(store, "update workers set expires = expires - 3600000000")
    findings_by_name = findings(run("doctor", "--json", "--store", store))["owners"]
    assert findings_by_name["state"] == "warning"
    assert "1 orphan" in findings_by_name["text"]
    assert "dead for 1h, left 1" in findings_by_name["details"][0]
    assert "keeper --run" in findings_by_name["advice"][0]


def test_doctor_finds_a_damaged_frame_and_its_fix_works(run, store):
    """The same holds as in a SQLite file."""
    spoilt = "update checkpoints c set frame = frame || '\\x00'::bytea from sessions s"
    sql(store, f"{spoilt} where s.key = c.key and s.id = 'lesson-3' and c.seq = 3")
    answer = run("doctor", "--json", "--store", store)
    recipes = findings(answer)["recipes"]
    assert answer.code == 1
    assert recipes["details"][0].startswith("lesson-3:3: ")
    cure, _ = recipes["advice"]
    assert run(*cure.split()[1:5], "--store", store).code == 0
    assert run("show", "lesson-3", "--store", store).code == 0


def test_erased_session_is_not_damage(run, store):
    """The same holds as in a SQLite file."""
    for name in ("lesson-1", "lesson-2"):
        assert run("erase", name, "--apply", "--store", store).code == 0
    answer = run("doctor", "--json", "--store", store)
    assert (answer.code, findings(answer)["recipes"]["state"]) == (0, "ok")
    sql(store, "update checkpoints c set frame = null from sessions s where s.key = c.key and s.id = 'lesson-3'")
    assert findings(run("doctor", "--json", "--store", store))["recipes"]["details"][0].startswith("lesson-3:")


def test_forgotten_transaction_is_reported(run, store, monkeypatch):
    """Watchers see nothing newer than entries it may still commit."""
    monkeypatch.setattr(checkup_postgres, "OPEN", 0)

    async def forget() -> dict[str, dict]:
        connection = await asyncpg.connect(store.partition("&schema=")[0])
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("select pg_current_xact_id()")
        answer = await asyncio.to_thread(run, "doctor", "--json", "--store", store)
        await transaction.rollback()
        await connection.close()
        return findings(answer)

    answer = asyncio.run(forget())["watching"]
    assert answer["state"] == "warning"
    assert "idle in transaction" in answer["details"][0]


def test_doctor_and_migrate_create_nothing(run, server):
    """Without tables doctor warns and migrate exits 5; --apply creates them."""
    url = f"{server.url}&schema=untouched"
    for _ in range(2):
        assert findings(run("doctor", "--json", "--store", url))["format"]["state"] == "warning"
        answer = run("migrate", "--store", url)
        assert (answer.code, answer.out) == (5, "")
    assert re.search(r"format (\d+) of \1, up to date", run("migrate", "--apply", "--store", url).out)
    assert findings(run("doctor", "--json", "--store", url))["format"]["state"] == "ok"
    document = json.loads(run("migrate", "--json", "--store", url).out)
    assert (document["format"], document["pending"]) == (document["known"], 0)


def test_newer_tables_are_not_touched(run, store):
    """It makes doctor exit 1 and migrate 2."""
    sql(store, "update format set version = 99")
    answer = run("doctor", "--json", "--store", store)
    assert answer.code == 1
    assert findings(answer)["format"]["advice"] == ["pip install --upgrade saveslot"]
    for options in ((), ("--apply",)):
        refused = run("migrate", *options, "--store", store)
        assert refused.code == 2
        assert "upgrade" in refused.err


def test_missing_partitions_are_reported(run, store):
    """They are named, with the role that may create them; migrate does it."""
    month = datetime.now(UTC).replace(day=1)
    later = (month + timedelta(days=32)).replace(day=1)
    rights = "in role pg_read_all_data, pg_write_all_data"
    sql(store, f"drop table checkpoints_{later:%Y_%m}", f"create role clerk login {rights}")
    clerk = store.replace("//postgres@", "//clerk@")
    for url, who in ((store, ""), (clerk, " as postgres, who owns the tables")):
        findings_by_name = findings(run("doctor", "--json", "--store", url))["partitions"]
        assert (findings_by_name["state"], findings_by_name["text"]) == ("warning", f"2 months, none for {later:%B %Y}")
        assert findings_by_name["advice"] == [f"saveslot migrate --apply{who}; or let a keeper run{who}"]
    run("migrate", "--apply", "--store", store)
    assert findings(run("doctor", "--json", "--store", store))["partitions"]["text"].startswith(
        "3 months, created up to"
    )


def test_missing_grants_are_named(run, store):
    """After the advised grants doctor is green."""
    schema = store.partition("&schema=")[2]
    sql(store, "create role guest login")
    guest = store.replace("//postgres@", "//guest@")
    assert "saveslot doctor" in run("ls", "--store", guest).err
    rights = findings(run("doctor", "--json", "--store", guest))["rights"]
    assert rights["state"] == "problem"
    assert rights["advice"][0] == f"grant usage on schema {schema} to guest"
    sql(store, *rights["advice"])
    answer = run("doctor", "--json", "--store", guest)
    assert answer.code == 0
    assert findings(answer)["rights"]["state"] == "ok"
    elsewhere = f"{guest.partition('&schema=')[0]}&schema=nowhere"
    assert "migrate --apply" in findings(run("doctor", "--json", "--store", elsewhere))["rights"]["advice"][0]


def test_existing_schema_is_enough(run, server):
    """Rights on the schema count, with or without those on the database; doctor advises exactly the missing ones."""
    url = f"{server.url.replace('//postgres@', '//settler@')}&schema=ahead"
    sql(f"{server.url}&schema=ahead", "create role settler login", "create schema ahead")
    sql(f"{server.url}&schema=ahead", "grant create on database postgres to settler")
    rights = findings(run("doctor", "--json", "--store", url))["rights"]
    cure = "grant usage, create on schema ahead to settler"
    assert (rights["state"], rights["advice"][0].partition("or: ")[2]) == ("problem", cure)
    sql(f"{server.url}&schema=ahead", "revoke create on database postgres from settler", cure)
    assert findings(run("doctor", "--json", "--store", url))["rights"]["text"] == "settler may create the tables"
    assert run("migrate", "--apply", "--store", url).code == 0
    assert run("doctor", "--store", url).code == 0


def test_read_only_role_is_a_warning(run, store):
    """The warning has the statement that undoes it, and does not call it a replica."""
    sql(store, "create role looker login superuser", "alter role looker set default_transaction_read_only = on")
    looker = store.replace("//postgres@", "//looker@")
    findings_by_name = findings(run("doctor", "--json", "--store", looker))
    assert (findings_by_name["writes"]["state"], "replica" in findings_by_name) == ("warning", False)
    sql(store, *findings_by_name["writes"]["advice"])
    assert "writes" not in findings(run("doctor", "--json", "--store", looker))


def test_sessions_without_their_log_are_reported(run, store):
    """After a partition was dropped they are named; the advised command removes them, so the id is free."""
    sql(store, "delete from checkpoints where key = (select key from sessions where id = 'lesson-3')")
    answer = run("doctor", "--json", "--store", store)
    findings_by_name = findings(answer)["log"]
    assert (answer.code, findings_by_name["state"], findings_by_name["details"]) == (
        1,
        "problem",
        ["lesson-3 in namespace default"],
    )
    sql(store, *(advice for advice in findings_by_name["advice"] if advice.startswith("delete")))
    answer = run("doctor", "--json", "--store", store)
    assert (answer.code, "log" in findings(answer)) == (0, False)

    async def create() -> int:
        async with saveslot.open(store) as sessions:
            await sessions.create_session("tutor", session_id="lesson-3")
            return await sessions.count()

    assert asyncio.run(create()) == 5


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://127.0.0.1:1/db?sslnegotiation=x", "cannot be used: `sslnegotiation`"),
        ("postgresql://127.0.0.1:1/db", "start the server, or correct host and port"),
        ("{server}&bogus=1", 'unrecognized configuration parameter "bogus"'),
        ("{stranger}", "check user, password and pg_hba.conf"),
        ("{elsewhere}", "createdb"),
    ],
)
def test_unreachable_server_is_one_finding(run, server, url, said):
    """One finding says what to do; exit 1."""
    url = url.format(
        server=server.url,
        stranger=server.url.replace("//postgres@", "//stranger@"),
        elsewhere=server.url.replace("/postgres?", "/elsewhere?"),
    )
    answer = run("doctor", "--store", url)
    assert answer.code == 1
    assert said in answer.out


# The Valkey in front


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    with Valkey() as valkey:
        yield valkey


def configured(valkey: Valkey, **settings: str) -> None:
    from valkey import Valkey as Client

    with Client(port=valkey.port) as client:
        for name, value in settings.items():
            client.config_set(name.replace("_", "-"), value)


def test_doctor_checks_the_hot_tier(run, samples, valkey, monkeypatch):
    """It reports version, latency, eviction and what its persistence means, and never its password."""
    configured(valkey, maxmemory="100mb", maxmemory_policy="allkeys-lru")
    findings_by_name = findings(run("doctor", "--json", "--hot", valkey.url))
    assert [findings_by_name[what]["state"] for what in ("hot tier", "hot trip", "eviction", "persistence")] == [
        "ok"
    ] * 4
    assert findings_by_name["hot tier"]["text"].startswith("Valkey 9.1")
    assert "none is needed" in findings_by_name["persistence"]["text"]

    configured(valkey, maxmemory_policy="noeviction", save="3600 1", requirepass=HUSH)
    monkeypatch.setenv("SAVESLOT_HOT", valkey.url.replace("//", f"//:{HUSH}@"))
    answer = run("doctor", "--json")
    findings_by_name = findings(answer)
    assert answer.code == 0
    assert findings_by_name["eviction"]["state"] == "warning"
    assert "erased" in findings_by_name["persistence"]["text"]
    wrong = run("doctor", "--hot", valkey.url.replace("//", f"//:{HUSH}-wrong@"))
    assert wrong.code == 1
    assert HUSH not in answer.out + answer.err + wrong.out + wrong.err


def test_hot_tier_without_a_limit_or_server(run, samples, valkey):
    """No memory limit is a warning, no server a problem."""
    assert findings(run("doctor", "--json", "--hot", valkey.url))["eviction"]["state"] == "warning"
    answer = run("doctor", "--json", "--hot", "valkey://127.0.0.1:1")
    assert answer.code == 1
    assert findings(answer)["hot tier"]["state"] == "problem"


def test_operators_commands_work_on_postgresql(run, store):
    """Workers, steps, labels, bulk rm and completion are the same there."""

    async def crash() -> None:
        sessions = await saveslot.open(store)
        held = await sessions.take("lesson-3")
        run_ = await held.runs.begin(held.call("charge", print, mode="at_most_once"))
        run_.end()
        await sessions.close()

    asyncio.run(crash())
    at = ("--store", store)
    assert [row["state"] for row in json.loads(run("steps", "lesson-3", "--json", *at).out)] == ["unknown"]
    assert run("steps", "lesson-3", "--resolve", "charge", "--result", "1", *at).code == 0
    assert json.loads(run("steps", "lesson-3", "--json", *at).out)[0]["result"] == 1
    assert [row["sessions"] for row in json.loads(run("workers", "--json", *at).out)] == [["lesson-3"]]
    assert run("ls", "--orphaned", "-q", *at).out == "lesson-3\n"
    assert run("label", "lesson-1", "env=prod", *at).code == 0
    assert json.loads(run("rm", "--label", "env=prod", "--apply", "--json", *at).out)["sessions"] == ["lesson-1"]
    assert "\nlesson-0\ttutor, active\n" in run("__complete", "show", *at, "lesson-").out
    assert run("__complete", "ls", *at, "--namespace", "").out.split() == ["begin", "default"]

"""The command on a PostgreSQL: what doctor and migrate say of it, of the Valkey in front, and never of a password."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

import saveslot
from saveslot import benchmark
from saveslot.cli import checkup_postgres
from saveslot.stack import Postgres, Valkey
from saveslot.stores import shown

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
    ("url", "told"),
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
def test_a_url_is_shown_without_its_password(url, told):
    """However it is written; what is no password stays."""
    assert HUSH not in shown(url)
    assert told is None or shown(url) == told


@pytest.mark.parametrize("command", ["ls", "stats", "doctor", "doctor --json", "migrate", "migrate --json", "demo"])
def test_no_command_shows_a_password(run, store, command):
    """Not in what it answers, and not in what it says beside."""
    answer = run(*command.split(), "--store", secret(store))
    assert HUSH not in answer.out + answer.err
    assert answer.code == (2 if command == "demo" else 0)


def test_no_password_from_the_settings(run, store, monkeypatch, tmp_path):
    """From the environment or a file it is shown no more than from the command line."""
    (tmp_path / "work" / "saveslot.toml").write_text(f'url = "{secret(store)}"\nhot = "nonsense://:{HUSH}@host"\n')
    told = run("stats")
    assert told.code == 2
    monkeypatch.setenv("SAVESLOT_URL", secret(store))
    again = run("stats", "--namespace", "x" * 2000)
    assert HUSH not in told.out + told.err + again.out + again.err


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
    """A URL that leads nowhere, or cannot be read, is an error without it."""
    monkeypatch.setattr("saveslot.stores.postgres_server.PATIENCE", 0.3)
    answer = run(command, "--store", url)
    assert answer.code in {1, 2, 6}
    assert HUSH not in answer.out + answer.err


def test_a_measured_store_is_named_without_its_password(run, store, monkeypatch):
    """And measuring works on PostgreSQL."""
    monkeypatch.setattr(benchmark, "QUICK", benchmark.Sizes(turns=6, small=6, sessions=4, each=2, resumes=2))
    answer = run("bench", "--quick", "--store", secret(store))
    assert answer.code == 0
    assert "measuring postgresql://postgres@" in answer.err
    assert HUSH not in answer.out + answer.err


def test_a_keeper_says_where_without_a_password(spawn, store):
    """Its first line names the store, and it ends when it is told to."""
    keeper = spawn("keeper", "--store", secret(store))
    line = keeper.stderr.readline()
    keeper.terminate()
    out, err = keeper.communicate(timeout=20)
    assert "keeping postgresql://postgres@" in line
    assert HUSH not in line + out + err
    assert keeper.returncode == 0


# doctor


def test_a_sound_server_is_told_to_be_sound(run, store):
    """Every check has its line, every state is rebuilt, exit 0."""
    answer = run("doctor", "--json", "--store", store)
    told = findings(answer)
    assert answer.code == 0
    assert {finding["state"] for finding in told.values()} == {"ok"}
    assert list(told) == [
        *(
            "server",
            "round trip",
            "settings",
            "replicas",
            "rights",
            "format",
            "content",
            "partitions",
            "owners",
            "recipes",
        ),
    ]
    assert told["server"]["told"].startswith("PostgreSQL 18")
    assert told["content"]["told"].startswith("5 sessions in 1 namespace, 15 entries, ")
    assert told["recipes"]["told"] == "15 entries rebuilt, each as it was saved"


def test_of_a_large_store_some_sessions_are_drawn(run, store, monkeypatch):
    """And it says how many."""
    monkeypatch.setattr(checkup_postgres, "MOST", 4)
    told = findings(run("doctor", "--json", "--store", store))
    assert told["recipes"]["told"].startswith("6 entries of 2 sessions, drawn by chance, rebuilt")


def test_an_old_server_and_a_far_one(run, store, monkeypatch):
    """Too old is a problem, far away a warning."""
    monkeypatch.setattr(checkup_postgres, "OLDEST", 99)
    monkeypatch.setattr(checkup_postgres, "FAR", 0.0)
    answer = run("doctor", "--json", "--store", store)
    told = findings(answer)
    assert answer.code == 1
    assert [told[what]["state"] for what in ("server", "round trip")] == ["problem", "warning"]


@pytest.mark.parametrize(
    ("made", "undone", "state", "cure"),
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
def test_a_setting_that_endangers_data_is_found(run, store, made, undone, state, cure):
    """Wherever it was made, and the statement that takes it back is the one to use."""
    sql(store, *made)
    try:
        answer = run("doctor", "--json", "--store", store)
    finally:
        sql(store, *undone)
    told = findings(answer)["settings"]
    assert (answer.code, told["state"], told["advice"]) == (int(state == "problem"), state, [cure])
    assert findings(run("doctor", "--json", "--store", store))["settings"]["state"] == "ok"


def test_a_setting_in_the_url_endangers_data_too(run, store):
    """The driver hands on what it does not know."""
    answer = run("doctor", "--json", "--store", f"{store}&synchronous_commit=off")
    assert answer.code == 1
    assert "out of the URL" in findings(answer)["settings"]["advice"][0]


def test_a_synchronous_replica_that_is_not_there(run, store):
    """Every save would wait for it: that is a problem, and a question does not wait."""
    sql(store, "alter system set synchronous_standby_names = 'ghost'", "select pg_reload_conf()")
    try:
        told = findings(run("doctor", "--json", "--store", store))["synchronous"]
    finally:
        sql(store, "alter system reset synchronous_standby_names", "select pg_reload_conf()")
    assert told["state"] == "problem"
    assert "ghost" in told["told"]


def test_a_replica_is_a_problem_and_can_be_examined(run):
    """It is read only: agents need the primary. What it holds is sound all the same."""
    with Postgres() as server:
        asyncio.run(_fill(server.url))
        server.stop()
        (server.folder / "data" / "standby.signal").touch()
        server.start()
        answer = run("doctor", "--json", "--store", server.url)
    told = findings(answer)
    assert answer.code == 1
    assert {what for what, finding in told.items() if finding["state"] == "problem"} == {"replica"}
    assert "target_session_attrs=read-write" in told["replica"]["advice"][0]
    assert told["recipes"]["told"].startswith("15 entries rebuilt")


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
def test_a_replica_that_is_far_behind(rows, state):
    """By time or by bytes; each is named."""
    found = checkup_postgres._lag(rows)  # noqa: SLF001  (a real one would have to be slow)
    assert found.state == state
    assert len(found.details) == len(rows)


def test_who_died_and_what_it_left(run, store):
    """Orphans that nobody claimed for a minute are a warning, with the worker that left them."""

    async def leave() -> None:
        async with saveslot.open(store, worker_beat=0.1, worker_ttl=0.5) as sessions:
            await sessions.take("lesson-1")

    asyncio.run(leave())
    assert findings(run("doctor", "--json", "--store", store))["owners"]["state"] == "ok"
    sql(store, "update workers set expires = expires - 3600000000")
    told = findings(run("doctor", "--json", "--store", store))["owners"]
    assert told["state"] == "warning"
    assert "1 orphan" in told["told"]
    assert "silent for 1h, left 1" in told["details"][0]
    assert "keeper --run" in told["advice"][0]


def test_a_damaged_frame_is_found_and_the_cure_works(run, store):
    """As in a SQLite file."""
    spoilt = "update checkpoints c set frame = frame || '\\x00'::bytea from sessions s"
    sql(store, f"{spoilt} where s.key = c.key and s.id = 'lesson-3' and c.seq = 3")
    answer = run("doctor", "--json", "--store", store)
    recipes = findings(answer)["recipes"]
    assert answer.code == 1
    assert recipes["details"][0].startswith("lesson-3:3: ")
    [cure] = recipes["advice"]
    assert run(*cure.split()[1:5], "--store", store).code == 0
    assert run("show", "lesson-3", "--store", store).code == 0


def test_a_transaction_that_somebody_forgot(run, store, monkeypatch):
    """Watchers see nothing newer than what it may still commit."""
    monkeypatch.setattr(checkup_postgres, "OPEN", 0)

    async def forget() -> dict[str, dict]:
        connection = await asyncpg.connect(store.partition("&schema=")[0])
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("select pg_current_xact_id()")
        told = await asyncio.to_thread(run, "doctor", "--json", "--store", store)
        await transaction.rollback()
        await connection.close()
        return findings(told)

    told = asyncio.run(forget())["watching"]
    assert told["state"] == "warning"
    assert "idle in transaction" in told["details"][0]


def test_nothing_is_made_by_looking(run, server):
    """No tables yet: a warning by doctor, exit 5 by migrate; --apply makes them."""
    url = f"{server.url}&schema=untouched"
    for _ in range(2):
        assert findings(run("doctor", "--json", "--store", url))["format"]["state"] == "warning"
        answer = run("migrate", "--store", url)
        assert (answer.code, answer.out) == (5, "")
    assert "format 1 of 1, up to date" in run("migrate", "--apply", "--store", url).out
    assert findings(run("doctor", "--json", "--store", url))["format"]["state"] == "ok"
    told = json.loads(run("migrate", "--json", "--store", url).out)
    assert (told["format"], told["pending"]) == (told["known"], 0)


def test_tables_of_a_newer_saveslot_are_left_alone(run, store):
    """Exit 1 by doctor, 2 by migrate."""
    sql(store, "update format set version = 99")
    answer = run("doctor", "--json", "--store", store)
    assert answer.code == 1
    assert findings(answer)["format"]["advice"] == ["pip install --upgrade saveslot"]
    for options in ((), ("--apply",)):
        refused = run("migrate", *options, "--store", store)
        assert refused.code == 2
        assert "upgrade saveslot" in refused.err


def test_partitions_that_nobody_made_ahead(run, store):
    """They are named, with who may make them; migrate does it."""
    month = datetime.now(UTC).replace(day=1)
    later = (month + timedelta(days=32)).replace(day=1)
    rights = "in role pg_read_all_data, pg_write_all_data"
    sql(store, f"drop table checkpoints_{later:%Y_%m}", f"create role clerk login {rights}")
    clerk = store.replace("//postgres@", "//clerk@")
    for url, who in ((store, ""), (clerk, " as postgres, who owns the tables")):
        found = findings(run("doctor", "--json", "--store", url))["partitions"]
        assert (found["state"], found["told"]) == ("warning", f"2 months, none for {later:%B %Y}")
        assert found["advice"] == [f"saveslot migrate --apply{who}; or let a keeper run{who}"]
    run("migrate", "--apply", "--store", store)
    assert findings(run("doctor", "--json", "--store", store))["partitions"]["told"].startswith("3 months, made ahead")


def test_a_role_without_rights_is_told_what_to_grant(run, store):
    """And with what was advised it is well."""
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


def test_a_schema_made_ahead_is_enough(run, server):
    """Its own rights count, with or without those of the database; what is missing is what was advised."""
    url = f"{server.url.replace('//postgres@', '//settler@')}&schema=ahead"
    sql(f"{server.url}&schema=ahead", "create role settler login", "create schema ahead")
    sql(f"{server.url}&schema=ahead", "grant create on database postgres to settler")
    rights = findings(run("doctor", "--json", "--store", url))["rights"]
    cure = "grant usage, create on schema ahead to settler"
    assert (rights["state"], rights["advice"][0].partition("or: ")[2]) == ("problem", cure)
    sql(f"{server.url}&schema=ahead", "revoke create on database postgres from settler", cure)
    assert findings(run("doctor", "--json", "--store", url))["rights"]["told"] == "settler may make the tables"
    assert run("migrate", "--apply", "--store", url).code == 0
    assert run("doctor", "--store", url).code == 0


def test_a_role_that_may_only_read(run, store):
    """A warning, with the statement that takes it back, and not a replica."""
    sql(store, "create role looker login superuser", "alter role looker set default_transaction_read_only = on")
    looker = store.replace("//postgres@", "//looker@")
    told = findings(run("doctor", "--json", "--store", looker))
    assert (told["writes"]["state"], "replica" in told) == ("warning", False)
    sql(store, *told["writes"]["advice"])
    assert "writes" not in findings(run("doctor", "--json", "--store", looker))


def test_sessions_without_their_log(run, store):
    """A partition was dropped: they are named, and what is advised removes them, so that the id is free."""
    sql(store, "delete from checkpoints where key = (select key from sessions where id = 'lesson-3')")
    answer = run("doctor", "--json", "--store", store)
    told = findings(answer)["log"]
    assert (answer.code, told["state"], told["details"]) == (1, "problem", ["lesson-3 in namespace default"])
    sql(store, *(advice for advice in told["advice"] if advice.startswith("delete")))
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
def test_a_server_that_cannot_be_reached(run, server, url, said):
    """One finding, which says what to do; exit 1."""
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


def test_the_hot_tier_is_examined_too(run, samples, valkey, monkeypatch):
    """Version, distance, eviction, what its persistence means; and never its password."""
    configured(valkey, maxmemory="100mb", maxmemory_policy="allkeys-lru")
    told = findings(run("doctor", "--json", "--hot", valkey.url))
    assert [told[what]["state"] for what in ("hot tier", "hot trip", "eviction", "persistence")] == ["ok"] * 4
    assert told["hot tier"]["told"].startswith("Valkey 9.1")
    assert "none is needed" in told["persistence"]["told"]

    configured(valkey, maxmemory_policy="noeviction", save="3600 1", requirepass=HUSH)
    monkeypatch.setenv("SAVESLOT_HOT", valkey.url.replace("//", f"//:{HUSH}@"))
    answer = run("doctor", "--json")
    told = findings(answer)
    assert answer.code == 0
    assert told["eviction"]["state"] == "warning"
    assert "erased" in told["persistence"]["told"]
    wrong = run("doctor", "--hot", valkey.url.replace("//", f"//:{HUSH}-wrong@"))
    assert wrong.code == 1
    assert HUSH not in answer.out + answer.err + wrong.out + wrong.err


def test_a_hot_tier_without_a_limit_or_without_a_server(run, samples, valkey):
    """A warning; a problem."""
    assert findings(run("doctor", "--json", "--hot", valkey.url))["eviction"]["state"] == "warning"
    answer = run("doctor", "--json", "--hot", "valkey://127.0.0.1:1")
    assert answer.code == 1
    assert findings(answer)["hot tier"]["state"] == "problem"

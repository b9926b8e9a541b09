"""The results as Markdown: the targets, then the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import median

from bench import servers
from bench.contenders import APPEND, BARE, FLOOR, HOLD, OPENAI, SAVESLOT, STANDARD
from bench.machine import core_packages
from bench.many import goal
from bench.run import Results, ratios
from saveslot.cli.benchmark import Series, Sizes

Row = Iterable[object]


def written(results: Results, sizes: Sizes, facts: list[tuple[str, str]], day: str, command: str, repeats: int) -> str:
    measured = f"Measured on {day}, {times(repeats)}, all contenders in turn in the same run. Repeat with `{command}`."
    end = sizes.turns * sizes.turn_bytes / 1e6
    grows = f"the state grows by {sizes.turn_bytes:,} bytes per turn, to {end:.2f} MB"
    small, crowd = results.servers.small, results.servers.crowd
    parts = [
        "# Speed and size",
        f"{measured}\n{READING}",
        table(("machine", ""), facts),
        "## Targets",
        table(("target", "goal", "measured", ""), targets(results, sizes)),
        "## A. Long session",
        f"{sizes.turns:,} checkpoints; {grows}. First and last are the first and last tenth of the session.",
        table(LONG_HEAD, long_rows(results)),
        "## B and C. Small checkpoints",
        f"{sizes.small_bytes:,} bytes each. B: one session, one by one. C: {sizes.sessions} sessions at once.",
        ALONE,
        table(("B", "per second", "p50 ms", "p99 ms", "of the raw loop"), small_rows(results.small, FLOOR)),
        table(("C", "per second", "p50 ms", "p99 ms", "of OpenAI's"), small_rows(results.crowd, OPENAI)),
        SEALED,
        table(("C, short turns", "encrypted, per second", "without", "share"), sealing_rows(results)),
        "## D. Resume",
        RESUME,
        table(("", "ms, fresh process", "ms, same process"), resume_rows(results)),
        "## E. Owning",
        OWNING,
        table(
            ("hold + release, ms", "held at once", "beats in 11 s", "growth", "claimed", "seconds"),
            owning_rows(results),
        ),
        "## F. PostgreSQL",
        SERVERS,
        table(LONG_SERVER_HEAD, long_server_rows(results.servers)),
        table(("B", "per second", "p50 ms", "p99 ms", "of the raw loop"), small_rows(small, servers.LOOP)),
        table(("C", "per second", "p50 ms", "p99 ms", "of LangGraph's"), small_rows(crowd, servers.GRAPH)),
        table(("D", "ms, fresh process", "ms, same process"), resume_rows(results.servers)),
        table((f"{servers.READERS} readers of heads", "per second"), head_rows(results.servers)),
        "## G. Many sessions",
        MANY,
        table(("ms", "goal", *results.many), many_rows(results)),
        "## H. Forgetting",
        FORGETTING,
        table(("", "goal", *results.forgetting), forgetting_rows(results)),
        "## Walking through a history",
        "A fresh process reads all checkpoints of a session and decodes their data.",
        table(("checkpoints", "more bytes each", "data decoded", "peak growth", "seconds"), walk_rows(results)),
        "## Notes",
        NOTES,
    ]
    return "\n\n".join(parts) + "\n"


READING = """\
Figures are medians, with the lowest and highest in brackets. Differences under 1.5x mean little; with a load above the
number of cores, larger ones mean little too."""
ALONE = "Each run has its own process, which imports no other peer and saves a few checkpoints before counting."
SEALED = """\
With `encryption_key`: two managers on one file take turns, one with a key and one without, each turn a tenth of a
second. The share is the median of the ratios of all pairs."""
RESUME = """\
The session of A: open, read, decode; `hold` also takes it. Imports and the release (see E) are not counted. The raw
loop reads its rows, one message each, with Python's json; a bare blob is the whole state in one row, which cannot be
appended to."""
OWNING = """\
One session taken and released; many held in one process for 11 seconds; then another worker claims them. Each has 20
entries."""
MANY = """\
Sessions of five entries each: a page of 50; analytics of a tenth of them; finding and failing 1,000 stale ones while
the others send heartbeats, or only save checkpoints."""
FORGETTING = """\
A long session is thinned to the parity rule, marked and emptied. Then one process removes ended sessions of five
entries each while another saves small checkpoints: two seconds with the removal, two alone, and so on; median."""
LONG_HEAD = ("", "handed over", "total s", "p50 ms first → last", "p99 ms last", "KB per checkpoint", "checkpoints/s")
SERVERS = """\
PostgreSQL 18 and Valkey 9.1 on the same machine and cores, with their default settings: fsync and synchronous_commit
on. The shapes are those of A to D; again, each run of B and C has its own process."""
LONG_SERVER_HEAD = ("A", "total s", "p50 ms first → last", "p99 ms last", "KB per checkpoint", "KB of WAL")
NOTES = """\
- All contenders write to the same disk, each to its own file. Saveslot and the raw loop: WAL, synchronous=FULL.
- The raw apsw loop is the floor: one row and one commit per new message, no sessions, versions or checks.
- OpenAI's SQLiteSession keeps a list of messages, not states. LangGraph's saver stores the whole state each time; it is
  called directly, without a graph around it.
- KB per checkpoint: from the size of the file afterwards. The text compresses about 2x, message by message."""


def targets(results: Results, sizes: Sizes) -> list[Row]:
    long, crowd = results.long[SAVESLOT], results.crowd[SAVESLOT]
    appended = results.long[APPEND]
    early = median(one.part(50, 150).p50 for one in appended)
    late = median(one.last.p50 for one in appended)
    size = median(results.stored[SAVESLOT])
    raw, peer = ratios(results.small[SAVESLOT], results.small[FLOOR]), ratios(crowd, results.crowd[OPENAI])
    rate = median(one.per_second for one in crowd)
    last, slow = median(one.last.p50 for one in long), median(one.last.p99 for one in long)
    packages, kept = len(core_packages()), results.sealing["share"]

    def row(name: str, goal: str, value: float, shown: str, limit: float, *, least: bool = False) -> Row:
        met = value >= limit if least else value <= limit
        return name, goal, shown, "met" if met else "**missed**"

    took, used, loop = (median(results.imports[name]) for name in ("saveslot", "saveslot.opening", "asyncio"))
    shown = f"{took:.0f} ms (everything `saveslot.open` needs: {used:.0f}; asyncio alone: {loop:.0f})"
    return [
        row("`import saveslot`, fresh process", "under 60 ms", took, shown, 60),
        row("packages in the core", "3", packages, f"{packages}", 3),
        row("B: against the raw apsw loop", "at least 0.7", raw, f"{raw:.2f}", 0.7, least=True),
        row("C: 64 sessions, durable/s", "at least 15,000", rate, f"{rate:,.0f}", 15_000, least=True),
        row("C: against OpenAI's SQLiteSession", "at least 5x", peer, f"{peer:.1f}x", 5, least=True),
        row("C: encrypted, relative to plain", "at least 85%", kept, f"{kept:.0%}", 0.85, least=True),
        row("A: last p50", "at most 3 ms", last, f"{last:.2f} ms", 3),
        row("A: last p99", "at most 15 ms", slow, f"{slow:.1f} ms", 15),
        row("A: stored per checkpoint", "under 2.5 KB", size, f"{size / 1000:.2f} KB", 2500),
        row(
            f"A': `append=` p50, turn 100 → {sizes.turns:,}",
            "flat (1.5x)",
            late / early,
            f"{early:.2f} → {late:.2f} ms",
            1.5,
        ),
        *(
            row(f"D: {what} against {FLOOR}, fresh process", "at most 1.5x", ratio, f"{ratio:.2f}x", 1.5)
            for what, name in (("resume", SAVESLOT), ("`hold`", HOLD))
            for ratio in (median(results.resumed[name]) / median(results.resumed[FLOOR]),)
        ),
        *(
            (f"D: resume against {name}, {where}", "none", f"{ratio:.2f}x", "")
            for where, result in (("fresh process", results.resumed), ("same process", results.reopened))
            for name in (STANDARD, BARE)
            for ratio in (median(result[SAVESLOT]) / median(result[name]),)
        ),
        *owning_targets(results, row),
        *server_targets(results.servers, row),
        *forgetting_targets(results, row),
        *(
            row(
                f"walk {walk.checkpoints:,} checkpoints, {walk.turn_bytes:,} more bytes each",
                "under 100 MB",
                walk.peak_mb,
                f"{walk.peak_mb:.0f} MB",
                100,
            )
            for walk in results.walks
        ),
    ]


def long_rows(results: Results) -> Iterable[Row]:
    handed = {SAVESLOT: "whole state", APPEND: "new message", FLOOR: "new message", OPENAI: "new message"}
    for name, runs in results.long.items():
        first, last = (median(value) for value in zip(*((one.first.p50, one.last.p50) for one in runs), strict=True))
        yield (
            name,
            handed.get(name, "whole state"),
            f"{median(one.seconds for one in runs):.2f}",
            f"{first:.2f} → {last:.2f}",
            f"{median(one.last.p99 for one in runs):.1f}",
            f"{median(results.stored[name]) / 1000:,.1f}",
            spread(runs, lambda one: one.per_second),
        )


def small_rows(series: dict[str, list[Series]], beside: str) -> Iterable[Row]:
    for name, runs in series.items():
        yield (
            name,
            spread(runs, lambda one: one.per_second),
            f"{median(one.p50 for one in runs):.2f}",
            f"{median(one.p99 for one in runs):.2f}",
            f"{ratios(runs, series[beside]):.2f}x",
        )


def resume_rows(results: Results | servers.Results) -> Iterable[Row]:
    for name, runs in results.resumed.items():
        yield name, milliseconds(runs), milliseconds(results.reopened[name])


def sealing_rows(results: Results) -> Iterable[Row]:
    result = results.sealing
    pairs, share = f"{result['pairs']:,} pairs", f"{result['share']:.1%}"
    yield pairs, f"{result['sealed']:,.0f}", f"{result['plain']:,.0f}", share


def owning_targets(results: Results, row: Callable[..., Row]) -> Iterable[Row]:
    middle = {name: median(one[name] for one in results.owning) for name in results.owning[0]}
    many = f"{middle['held']:,.0f}"
    hold, grown, seconds, beats = (middle[name] for name in ("hold_ms", "grown_mb", "claim_seconds", "beats"))
    yield row("E: hold + release", "under 2 ms", hold, f"{hold:.2f} ms", 2)
    yield row(f"E: {many} held, renewals in 11 s", "one per 5 s", beats, f"{beats:.0f}", 2)
    yield row(f"E: {many} held, growth", "under 200 MB", grown, f"{grown:.0f} MB", 200)
    yield row(f"E: claiming {many} orphans", "under 5 s", seconds, f"{seconds:.1f} s", 5)


def server_targets(results: servers.Results, row: Callable[..., Row]) -> Iterable[Row]:
    slot, hot = servers.SLOT, servers.HOT
    crowd = results.crowd[slot]
    raw, peer = ratios(results.small[slot], results.small[servers.LOOP]), ratios(crowd, results.crowd[servers.GRAPH])
    rate, slow = median(one.per_second for one in crowd), median(one.p99 for one in crowd)
    last = median(one.last.p50 for one in results.long[slot])
    stored, logged = (median(result[slot]) / 1000 for result in (results.stored, results.logged))
    yield row("F, B: against the raw asyncpg loop", "at least 0.6", raw, f"{raw:.2f}", 0.6, least=True)
    yield row("F, C: 64 sessions, durable/s", "at least 20,000", rate, f"{rate:,.0f}", 20_000, least=True)
    yield row("F, C: against LangGraph's saver", "at least 15x", peer, f"{peer:.1f}x", 15, least=True)
    yield row("F, C: p99", "under 10 ms", slow, f"{slow:.1f} ms", 10)
    yield row("F, A: last p50", "under 3 ms", last, f"{last:.2f} ms", 3)
    yield row("F, A: stored per checkpoint", "under 2.2 KB", stored, f"{stored:.2f} KB", 2.2)
    yield row("F, A: WAL per checkpoint", "under 3 KB", logged, f"{logged:.2f} KB", 3)
    added = median(results.added)
    yield row("F, A': `append=` against the raw insert", "within 1.8x", added, f"{added:.2f}x", 1.8)
    for name in (slot, hot):
        ratio = median(results.resumed[name]) / median(results.resumed[servers.BLOB])
        yield row(f"F, D: resume, fresh process, {name}", "at most 1.5x", ratio, f"{ratio:.2f}x", 1.5)
    heads = median(results.heads[slot])
    yield row(
        f"F: strong heads, {servers.READERS} readers", "at least 15,000/s", heads, f"{heads:,.0f}/s", 15_000, least=True
    )


def long_server_rows(results: servers.Results) -> Iterable[Row]:
    for name, runs in results.long.items():
        first, last = (median(value) for value in zip(*((one.first.p50, one.last.p50) for one in runs), strict=True))
        yield (
            name,
            f"{median(one.seconds for one in runs):.2f}",
            f"{first:.2f} → {last:.2f}",
            f"{median(one.last.p99 for one in runs):.1f}",
            f"{median(results.stored[name]) / 1000:,.1f}",
            f"{median(results.logged[name]) / 1000:,.1f}",
        )


def head_rows(results: servers.Results) -> Iterable[Row]:
    for name, runs in results.heads.items():
        yield name, f"{median(runs):,.0f} ({min(runs):,.0f}–{max(runs):,.0f})"


def owning_rows(results: Results) -> Iterable[Row]:
    for one in results.owning:
        yield (
            f"{one['hold_ms']:.2f}",
            f"{one['held']:,}",
            one["beats"],
            f"{one['grown_mb']:.0f} MB",
            f"{one['claimed']:,}",
            f"{one['claim_seconds']:.1f}",
        )


def many_rows(results: Results) -> Iterable[Row]:
    for name in next(iter(results.many.values())):
        yield name, f"{goal(name):,.0f}", *(f"{result[name]:,.1f}" for result in results.many.values())


def forgetting_targets(results: Results, row: Callable[..., Row]) -> Iterable[Row]:
    for store, result in results.forgetting.items():
        checkpoints, sessions, writers = (f"{result[name]:,}" for name in ("checkpoints", "sessions", "writers"))
        thin = max(result["thin_grows_seconds"], result["thin_changes_seconds"])
        seconds, share = result["seconds"], result["share"]
        yield row(f"H: thinning {checkpoints} checkpoints, {store}", "under 1 s", thin, f"{thin:.2f} s", 1)
        yield row(f"H: gc of {sessions} sessions, {store}", "under 30 s", seconds, f"{seconds:.1f} s", 30)
        yield row(
            f"H: throughput that {writers} writers keep, {store}",
            "at least 80%",
            share,
            f"{share:.0%}",
            0.8,
            least=True,
        )


def forgetting_rows(results: Results) -> Iterable[Row]:
    stores = results.forgetting.values()
    first = next(iter(stores))
    long, many = f"{first['checkpoints']:,} checkpoints", f"{first['sessions']:,} sessions"
    yield f"thinning {long} of a state that grows, s", 1, *(f"{one['thin_grows_seconds']:.2f}" for one in stores)
    yield "of one that changes in many places, s", 1, *(f"{one['thin_changes_seconds']:.2f}" for one in stores)
    yield f"gc of {many}, s", 30, *(f"{one['seconds']:.1f}" for one in stores)
    yield "CPU of the removing process, s", "", *(f"{one['cpu_seconds']:.1f}" for one in stores)
    yield f"{first['writers']} writers alone, checkpoints/s", "", *(f"{one['rate_alone']:,.0f}" for one in stores)
    yield "meanwhile", "80%", *(f"{one['rate_beside']:,.0f} ({one['share']:.0%})" for one in stores)


def walk_rows(results: Results) -> Iterable[Row]:
    for walk in results.walks:
        looked = "all" if walk.looked_at == 1 else f"every {walk.looked_at}th"
        yield f"{walk.checkpoints:,}", f"{walk.turn_bytes:,}", looked, f"{walk.peak_mb:.0f} MB", f"{walk.seconds:.1f}"


def spread(runs: list[Series], value: Callable[[Series], float]) -> str:
    values = [value(one) for one in runs]
    return f"{median(values):,.0f} ({min(values):,.0f}–{max(values):,.0f})"


def milliseconds(values: list[float]) -> str:
    return f"{median(values):.1f} ({min(values):.1f}–{max(values):.1f})"


def times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def table(head: Row, rows: Iterable[Row]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)

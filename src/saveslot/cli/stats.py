"""`saveslot stats`: counts, durations and throughput."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Annotated

from cyclopts import Parameter

from saveslot.cli.common import COMMON, Common
from saveslot.cli.options import Agent, Labels, NewerThan, OlderThan, User, before_now, labelled, positive
from saveslot.cli.screen import WIDEST_CELL, Line, line
from saveslot.cli.sessions import STATES
from saveslot.cli.state import DIM, KEY
from saveslot.cli.words import bar, flat, local, sparkline
from saveslot.manager.analytics import SAMPLE
from saveslot.values.checks import Data
from saveslot.values.words import many, size, span

# Bars per chart; rarer values are only counted.
MOST_BARS = 12


async def stats(
    *,
    agent: Agent = None,
    user: User = None,
    label: Labels = None,
    newer_than: NewerThan = None,
    older_than: OlderThan = None,
    between: Annotated[
        tuple[str, str] | None,
        Parameter(negative="", metavar="NAME NAME", help="Time from one checkpoint name to another."),
    ] = None,
    sample: Annotated[
        int, Parameter(validator=positive, metavar="N", help="Sample size: read entries of the N newest sessions.")
    ] = SAMPLE,
    common: Common = COMMON,
) -> None:
    async with common.sessions() as sessions:
        counted = await sessions.analytics(
            agent_type=agent,
            user_id=user,
            labels=labelled(label or []),
            created_after=before_now(newer_than),
            created_before=before_now(older_than),
            between=between,
            sample=sample,
        )
    common.screen.answer(counted, _shown(counted, common))


def _shown(counted: Data, common: Common) -> Iterator[Line]:
    per_entry = counted["stored_bytes"] / counted["entries"] if counted["entries"] else 0
    held = f"{counted['held'] - counted['orphaned']:,} by live workers, {counted['orphaned']:,} orphaned"
    rows = [
        ("store", common.place),
        ("namespace", common.settings["namespace"].value),
        ("sessions", f"{counted['sessions']:,}"),
        *([("held", held)] if counted["held"] else []),
        ("entries", f"{counted['entries']:,} in the whole store"),
        ("stored", f"{size(counted['stored_bytes'])}, {size(per_entry)} per entry"),
    ]
    for name, value in rows:
        yield Line(((f"{name:<11}", KEY),), ((value, ""),))
    yield from _chart("by state", counted["by_state"])
    yield from _chart("by agent", counted["by_agent_type"])
    sample = counted["looked_at"]
    if sample["sessions"] < counted["sessions"]:
        since = local(datetime.fromisoformat(sample["since"]))
        yield Line()
        yield line(
            (f"the newest {many(sample['sessions'], 'session')}, since {since}; use --sample to read more", "yellow")
        )
    yield from _chart("by checkpoint name", counted["by_name"])
    yield from _chart("failure reasons", counted["failures"]["reasons"])
    yield from _times(counted)
    yield from _pace(counted["rate"])


def _chart(title: str, counts: dict[str, int]) -> Iterator[Line]:
    if not any(counts.values()):
        return
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    names = {flat(name, WIDEST_CELL) or "(none)": count for name, count in ordered[:MOST_BARS]}
    yield from (Line(), line((title, DIM)), *_bars(names))
    if len(ordered) > MOST_BARS:
        yield line((f"… {len(ordered) - MOST_BARS:,} more", DIM))


def _times(counted: Data) -> Iterator[Line]:
    """Percentiles of durations and sizes."""
    spreads: list[tuple[str, Data, Callable[[float], str]]] = [
        (f"until {state}", spread, _took) for state, spread in counted["durations"].items()
    ]
    if (between := counted["between"]) is not None:
        spreads.insert(0, (f"{between['from']} → {between['to']}", between, _took))
    spreads.append(("bytes per session", counted["bytes"]["per_session"], size))
    spreads = [(what, spread, form) for what, spread, form in spreads if spread["count"]]
    width = max((len(what) for what, _, _ in spreads), default=0)
    if spreads:
        yield Line()
        yield Line(body=((f"{'':<{width}}  {'P50':>8}  {'P90':>8}  {'P99':>8}  {'MAX':>8}  {'COUNT':>8}", DIM),))
    for what, spread, form in spreads:
        values = "".join(f"  {form(spread[part]):>8}" for part in ("p50", "p90", "p99", "max"))
        yield Line(((f"{what:<{width}}", ""),), ((values, "bold"), (f"  {spread['count']:>8,}", DIM)))


def _took(seconds: float) -> str:
    """41 ms, 2.5 s, 12 m."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.3g} s" if seconds < 120 else span(seconds)  # noqa: PLR2004


def _pace(rate: Data) -> Iterator[Line]:
    counts = [piece["checkpoints"] for piece in rate["buckets"]]
    if not any(counts):
        return
    first, last = (datetime.fromisoformat(rate["buckets"][n]["start"]) for n in (0, -1))
    yield Line()
    yield Line(body=((f"checkpoints per {span(rate['bucket_seconds'])}, at most {max(counts):,}", DIM),))
    yield Line(body=((sparkline(counts), "green"),))
    yield Line(body=((f"{local(first)}  to  {local(last)}", DIM),))


def _bars(counts: dict[str, int]) -> Iterator[Line]:
    most, width = max(counts.values()), max(map(len, counts))
    digits = len(f"{most:,}")
    for name, count in counts.items():
        style = STATES.get(name, ("", "cyan"))[1]
        yield Line(((f"{name:<{width}}  ", ""),), ((f"{count:>{digits},}  ", "bold"), (bar(count / most, 30), style)))

"""The command that counts: stats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Annotated

from cyclopts import Parameter

from saveslot.cli.common import COMMON, Common
from saveslot.cli.looking import STATES, before_now, labelled
from saveslot.cli.options import Duration, positive
from saveslot.cli.screen import WIDEST_CELL, Line, Screen
from saveslot.cli.state import DIM, KEY
from saveslot.cli.words import bar, flat, local, many, size, span, sparkline
from saveslot.model import Data
from saveslot.reading import SAMPLE

# Bars of one chart; what is rarer is only counted.
MOST_BARS = 12


async def stats(
    *,
    agent: Annotated[str | None, Parameter(help="Only of this agent type.")] = None,
    user: Annotated[str | None, Parameter(help="Only of this user.")] = None,
    label: Annotated[
        list[str] | None, Parameter(negative="", show_default=False, help="Only with this label, as name=value.")
    ] = None,
    newer_than: Annotated[Duration, Parameter(help="Made in the last 12h, 30d, …")] = None,
    older_than: Annotated[Duration, Parameter(help="Made before that.")] = None,
    between: Annotated[
        tuple[str, str] | None, Parameter(negative="", help="Two checkpoint names: how long from the one to the other.")
    ] = None,
    sample: Annotated[
        int, Parameter(validator=positive, help="Look at the entries of so many sessions, the newest.")
    ] = SAMPLE,
    common: Common = COMMON,
) -> None:
    screen = common.screen
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
    if screen.json:
        screen.data(counted)
        return
    per_entry = counted["stored_bytes"] / counted["entries"] if counted["entries"] else 0
    rows = [
        ("store", common.place),
        ("namespace", common.settings["namespace"].value),
        ("sessions", f"{counted['sessions']:,}"),
        *(
            [("held", f"{counted['held']:,}, {counted['orphaned']:,} of them by workers that died")]
            if counted["held"]
            else []
        ),
        ("entries", f"{counted['entries']:,} in the whole store"),
        ("stored", f"{size(counted['stored_bytes'])}, {size(per_entry)} an entry"),
    ]
    screen.lines(Line((((f"{name:<11}"), KEY),), ((value, ""),)) for name, value in rows)
    for title, counts in (("by state", counted["by_state"]), ("by agent", counted["by_agent_type"])):
        _chart(screen, title, counts)
    seen = counted["looked_at"]
    if seen["sessions"] < counted["sessions"]:
        told = f"the newest {many(seen['sessions'], 'session')}, since {local(datetime.fromisoformat(seen['since']))}"
        screen.lines([Line(), Line(body=((f"{told}; --sample looks at more", "yellow"),))])
    _chart(screen, "by checkpoint name", counted["by_name"])
    _chart(screen, "why they failed", counted["failures"]["reasons"])
    screen.lines(_times(counted))
    screen.lines(_pace(counted["rate"]))


def _chart(screen: Screen, title: str, counts: dict[str, int]) -> None:
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    if any(counts.values()):
        shown = {flat(name, WIDEST_CELL) or "(none)": count for name, count in ordered[:MOST_BARS]}
        screen.lines([Line(), Line(body=((title, DIM),)), *_bars(shown)])
        if len(ordered) > MOST_BARS:
            screen.say((f"… {len(ordered) - MOST_BARS:,} more", DIM))


def _times(counted: Data) -> Iterator[Line]:
    """How long things took: half of them at most p50, and so on."""
    found: list[tuple[str, Data, Callable[[float], str]]] = [
        (f"until {state}", spread, _took) for state, spread in counted["durations"].items()
    ]
    if (between := counted["between"]) is not None:
        found.insert(0, (f"{between['from']} → {between['to']}", between, _took))
    found.append(("bytes a session", counted["bytes"]["per_session"], size))
    found = [(what, spread, told) for what, spread, told in found if spread["count"]]
    width = max((len(what) for what, _, _ in found), default=0)
    if found:
        yield Line()
        yield Line(body=((f"{'':<{width}}  {'P50':>8}  {'P90':>8}  {'P99':>8}  {'MOST':>8}  {'OF':>8}", DIM),))
    for what, spread, told in found:
        values = "".join(f"  {told(spread[part]):>8}" for part in ("p50", "p90", "p99", "max"))
        yield Line(((f"{what:<{width}}", ""),), ((values, "bold"), (f"  {spread['count']:>8,}", DIM)))


def _took(seconds: float) -> str:
    """41 ms, 2.5 s, 12 m: two digits tell enough."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.3g} s" if seconds < 120 else span(seconds)  # noqa: PLR2004


def _pace(rate: Data) -> Iterator[Line]:
    counts = [piece["checkpoints"] for piece in rate["buckets"]]
    if not any(counts):
        return
    first, last = (datetime.fromisoformat(rate["buckets"][n]["start"]) for n in (0, -1))
    yield Line()
    yield Line(body=((f"checkpoints saved, each {span(rate['bucket_seconds'])}, most {max(counts):,}", DIM),))
    yield Line(body=((sparkline(counts), "green"),))
    yield Line(body=((f"{local(first)}  to  {local(last)}", DIM),))


def _bars(counts: dict[str, int]) -> Iterator[Line]:
    most, width = max(counts.values()), max(map(len, counts))
    digits = len(f"{most:,}")
    for name, count in counts.items():
        style = STATES.get(name, ("", "cyan"))[1]
        yield Line(((f"{name:<{width}}  ", ""),), ((f"{count:>{digits},}  ", "bold"), (bar(count / most, 30), style)))

"""Draw the diagrams of docs/concepts.md: python docs/make_diagrams.py"""  # noqa: INP001

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parent / "diagrams"
# Drawn in units that are pixels on a phone; wider screens show them half as large again.
WIDTH, ZOOM = 360, 1.5
GRID = 8

# Ground, edge, ink, muted ink, then worker A (and the log), worker B, a warning, a refusal; light, then dark.
COLOURS = {
    "ground": ("#ffffff", "#161b22"),
    "edge": ("#d5dbe3", "#313a46"),
    "ink": ("#1c2430", "#e3e8ef"),
    "muted": ("#5d6876", "#98a3b1"),
    "a": ("#2563c9", "#78aef7"),
    "b": ("#1b7f4b", "#63cf97"),
    "warn": ("#a86400", "#e3b25c"),
    "no": ("#c33434", "#f38484"),
}
STYLE = """
text {{ font: 12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: var(--ink) }}
.code {{ font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: 11.5px }}
.small {{ font-size: 11px; fill: var(--muted) }}
.bold {{ font-weight: 600 }}
path, line, circle, rect {{ stroke-width: 1.5; fill: none; stroke-linecap: round; stroke-linejoin: round }}
svg {{ {light} }}
@media (prefers-color-scheme: dark) {{ svg {{ {dark} }} }}
"""


def text(x: float, y: float, words: str, look: str = "", *, at: str = "start", colour: str = "") -> str:
    """Write one line; `y` is its middle."""
    fill = f' style="fill: var(--{colour})"' if colour else ""
    return f'<text x="{x:g}" y="{y + 4:g}" class="{look}" text-anchor="{at}"{fill}>{escape(words)}</text>'


def node(x: float, y: float, words: object, colour: str = "a", *, planned: bool = False) -> str:
    """Draw a numbered entry of a log."""
    dash = ' stroke-dasharray="3 3"' if planned else ""
    ring = f'<circle cx="{x:g}" cy="{y:g}" r="12" style="stroke: var(--{colour}); fill: var(--ground)"{dash}/>'
    return ring + text(x, y, str(words), "bold", at="middle", colour=colour)


def line(points: str, colour: str = "edge", *, dashed: bool = False, arrow: bool = False) -> str:
    """Draw a path, such as `M 0 0 H 8`."""
    dash = ' stroke-dasharray="3 4"' if dashed else ""
    head = f' marker-end="url(#{colour})"' if arrow else ""
    return f'<path d="{points}" style="stroke: var(--{colour})"{dash}{head}/>'


def box(x: float, y: float, width: float, height: float, colour: str = "edge", *, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="3 4"' if dashed else ""
    size = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8"'
    return f'<rect {size} style="stroke: var(--{colour}); fill: var(--ground)"{dash}/>'


def cross(x: float, y: float) -> str:
    return line(f"M {x - 5:g} {y - 5:g} l 10 10 M {x + 5:g} {y - 5:g} l -10 10", "no")


def log() -> Iterator[str]:
    """A session is a log of numbered entries; only a writer that has seen the newest one may add the next."""
    entries = [
        ("created", "", "agent type, user, context"),
        ("taken", "", "owner: worker A, fence 1"),
        ("checkpoint", "asked", "the state: 1 message"),
        ("step_finished", "ask-model", "the step’s result"),
        ("checkpoint", "answered", "the change: + 1 message"),
        ("rollback", "to asked", "points to the state of 3"),
    ]
    x, top, step = 40, 40, 40
    last = top + step * (len(entries) - 1)
    yield line(f"M {x} {top} V {last}", "a")
    yield line(f"M {x} {last + 12} V {last + step}", "a", dashed=True)
    for number, (kind, name, stored) in enumerate(entries, 1):
        y = top + step * (number - 1)
        yield node(x, y, number)
        yield text(64, y - 8, f"{kind} {name}".strip(), "code")
        yield text(64, y + 8, stored, "small")
    planned = last + step
    yield node(x, planned, len(entries) + 1, "b", planned=True)
    for y, seen, colour, verdict in ((last, 5, "no", "Conflict"), (planned, 6, "b", "appended")):
        yield box(232, y - 18, 112, 36, colour)
        yield text(288, y - 7, f"has seen {seen}", at="middle")
        yield text(288, y + 7, verdict, "small bold", at="middle", colour=colour)
    yield line(f"M 232 {last} H 222", "no")
    yield cross(214, last)
    yield line(f"M 232 {planned} H 62", "b", arrow=True)


def takeover() -> Iterator[str]:
    """Worker A falls silent, worker B claims its session after 20 seconds, and the late write of A is refused."""

    def at(second: float) -> float:
        return 96 + second * 248 / 44

    a, b, entries, axis = 56, 120, 192, 240
    yield text(16, a, "worker A", "bold", colour="a")
    yield text(16, b, "worker B", "bold", colour="b")
    yield text(16, entries, "the log", "bold")
    # The lease: from the last heartbeat on, 20 seconds.
    band = f'x="{at(10):g}" y="{a - 12}" width="{at(30) - at(10):g}" height="24"'
    yield f'<rect {band} style="stroke: none; fill: var(--warn); opacity: 0.14"/>'
    yield text(at(23.5), a + 23, "20 s without a heartbeat", "small", at="middle", colour="warn")
    yield line(f"M {at(10):g} {a - 12} v 24 M {at(30):g} {a - 12} v 24", "warn")
    yield line(f"M {at(0):g} {a} H {at(13):g}", "a")
    yield line(f"M {at(13) + 10:g} {a} H {at(41):g}", "a", dashed=True)
    for second in (0, 5, 10):
        yield f'<circle cx="{at(second):g}" cy="{a}" r="3.5" style="stroke: none; fill: var(--a)"/>'
    yield text(at(9), a - 24, "heartbeats", "small", at="end", colour="a")
    yield cross(at(13), a)
    yield text(at(11), a - 24, "killed or stopped", "small", colour="no")
    yield line(f"M {at(0):g} {b} H {at(31):g}", "b", dashed=True)
    yield line(f"M {at(31):g} {b} H {at(44):g}", "b")
    yield text(at(31) - 6, b - 12, "claim()", "code", at="end", colour="b")
    yield line(f"M {at(0):g} {entries} H {at(44):g}")
    for second, number, lane, colour in ((2, 3, a, "a"), (8, 4, a, "a"), (31, 5, b, "b")):
        yield line(f"M {at(second):g} {lane + 6} V {entries - 18}", colour, dashed=True, arrow=True)
        yield node(at(second), entries, number, colour)
    yield text(at(5), entries + 24, "fence 1", "small", at="middle")
    yield text(at(32), entries + 24, "fence 2", "small", at="end")
    # What A sends after it was taken over.
    yield line(f"M {at(41):g} {a} V {entries - 14}", "no", dashed=True)
    yield cross(at(41), entries)
    yield text(344, a - 24, "late write", "small", at="end", colour="no")
    yield text(344, entries + 24, "LeaseLost", "small bold", at="end", colour="no")
    yield line(f"M {at(0):g} {axis} H {at(44):g}")
    for second in range(0, 41, 10):
        yield line(f"M {at(second):g} {axis} v 4")
        yield text(at(second), axis + 14, f"{second} s", "small", at="middle")


def branches() -> Iterator[str]:
    """A rollback adds an entry with older data; a fork starts another session with a checkpoint of this one."""
    story, other = 88, 184
    places = [48, 112, 176, 240, 304]
    yield text(16, 24, "story", "code bold", colour="a")
    yield line(f"M {places[0]} {story} H {places[-1]}", "a")
    yield line(
        f"M {places[3]} {story - 14} C {places[3]} 32, {places[1]} 32, {places[1]} {story - 18}", "warn", arrow=True
    )
    yield text(places[2], 34, "the data of 2 again", "small", at="middle", colour="warn")
    names = ["created", "outline", "draft", "rolled back", "draft"]
    for number, (x, name) in enumerate(zip(places, names, strict=True), 1):
        yield node(x, story, number, "warn" if x == places[3] else "a")
        yield text(x, story + 24, name, "small", at="middle")
    yield text(places[2] - 12, other - 28, "story-2", "code bold", colour="b")
    start = f"M {places[1]} {story + 34} C {places[1]} {other}, {places[1] + 16} {other}, {places[2] - 18} {other}"
    yield line(start, "b", dashed=True, arrow=True)
    yield text(112, other - 8, "fork", "small", at="end", colour="b")
    yield text(112, other + 8, "at outline", "small", at="end", colour="b")
    yield line(f"M {places[2]} {other} H {places[4]}", "b")
    for number, (x, name) in enumerate(zip(places[2:], ["created", "outline", "ending"], strict=True), 1):
        yield node(x, other, number, "b")
        yield text(x, other + 24, name, "small", at="middle")


def tiers() -> Iterator[str]:
    """A checkpoint goes to the database, then to Valkey; a resume compares the copy in Valkey with the database."""
    for top, title in ((16, "checkpoint"), (208, "resume")):
        database, valkey = top + 40, top + 112
        yield text(16, top + 8, title, "code bold")
        yield box(16, database, 80, 120, "a")
        yield text(56, database + 60, "worker", "bold", at="middle", colour="a")
        yield box(248, database, 96, 48, "ink")
        yield text(296, database + 16, "database", "bold", at="middle")
        yield text(296, database + 34, "the truth", "small", at="middle")
        yield box(248, valkey, 96, 48, "muted", dashed=True)
        yield text(296, valkey + 16, "Valkey", "bold", at="middle")
        yield text(296, valkey + 34, "copies", "small", at="middle")
        middle = 172
        if title == "checkpoint":
            yield text(middle, database + 12, "1. entry, committed", "small", at="middle")
            yield line(f"M 96 {database + 28} H 240", "a", arrow=True)
            yield text(middle, valkey + 8, "2. its frame,", "small", at="middle")
            yield text(middle, valkey + 40, "if Valkey answers", "small", at="middle")
            yield line(f"M 96 {valkey + 24} H 240", "muted", dashed=True, arrow=True)
        else:
            yield text(middle, database + 12, "newest entry, < 1 KB", "small", at="middle")
            yield line(f"M 248 {database + 28} H 104", "a", arrow=True)
            yield text(middle, valkey + 8, "the state, if it", "small", at="middle")
            yield text(middle, valkey + 40, "ends with that entry", "small", at="middle")
            yield line(f"M 248 {valkey + 24} H 104", "muted", dashed=True, arrow=True)
    yield line("M 16 192 H 344")


def lifecycle() -> Iterator[str]:
    """An active session can be paused and resumed; it ends completed or failed; a failed one can be recovered."""
    yield box(16, 16, 328, 104, "edge", dashed=True)
    yield text(28, 32, "in progress: takes checkpoints, can be held", "small")
    for x, y, state, colour in (
        (32, 56, "active", "a"),
        (240, 56, "paused", "warn"),
        (32, 208, "failed", "no"),
        (240, 208, "completed", "b"),
    ):
        yield box(x, y, 88, 48, colour)
        yield text(x + 44, y + 24, state, "bold", at="middle", colour=colour)
    yield line("M 120 72 H 232", "ink", arrow=True)
    yield text(180, 64, "pause", "code", at="middle")
    yield line("M 240 88 H 128", "ink", arrow=True)
    yield text(180, 99, "resume", "code", at="middle")
    yield line("M 284 120 V 200", "ink", arrow=True)
    yield text(276, 160, "complete", "code", at="end")
    yield line("M 52 120 V 200", "ink", arrow=True)
    yield text(60, 160, "fail", "code")
    yield line("M 100 208 V 128", "ink", arrow=True)
    yield text(108, 160, "recover", "code")
    yield text(108, 176, "rollback", "code")


# Each with its height; its docstring is the title that a screen reader hears.
DIAGRAMS = {log: 320, takeover: 272, branches: 232, tiers: 384, lifecycle: 272}


def drawn(diagram: Callable[[], Iterator[str]]) -> str:
    height, title = DIAGRAMS[diagram], (diagram.__doc__ or "").rstrip(".")
    light, dark = (" ".join(f"--{key}: {pair[n]};" for key, pair in COLOURS.items()) for n in (0, 1))
    arrows = [
        f'<marker id="{colour}" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="8" markerHeight="8" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path d="M 1 1 L 7 4 L 1 7 Z" '
        f'style="stroke: none; fill: var(--{colour})"/></marker>'
        for colour in ("a", "b", "warn", "muted", "ink")
    ]
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH * ZOOM:g}" height="{height * ZOOM:g}"'
    frame = f'<rect x="0.75" y="0.75" width="{WIDTH - 1.5}" height="{height - 1.5}" rx="12"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE.format(light=light, dark=dark)}</style>",
        f"<defs>{''.join(arrows)}</defs>",
        f'{frame} style="stroke: var(--edge); fill: var(--ground)"/>',
        *diagram(),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each in DIAGRAMS:
        (FOLDER / f"{each.__name__}.svg").write_text(drawn(each))

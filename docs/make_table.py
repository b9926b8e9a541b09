"""Write the figures of bench/RESULTS.md into README.md: python docs/make_table.py (after `make bench`)"""  # noqa: INP001

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README, RESULTS = ROOT / "README.md", ROOT / "bench" / "RESULTS.md"
BEGIN, END = "<!-- figures: python docs/make_table.py -->\n", "<!-- end of figures -->"

US, OPENAI, LANGGRAPH, FLOOR = "Saveslot", "OpenAI Agents SQLiteSession", "LangGraph AsyncSqliteSaver", "raw apsw loop"
APPEND = "Saveslot append="
KEPT = {
    US: "every state",
    APPEND: "every state",
    OPENAI: "one list of messages",
    LANGGRAPH: "every state",
    FLOOR: "rows, nothing more",
}

SERVED = {
    "Saveslot on PostgreSQL": "every state",
    "Saveslot on PostgreSQL, append=": "every state",
    "LangGraph AsyncPostgresSaver": "every state",
    "raw asyncpg loop": "rows, nothing more",
}

Table = dict[str, dict[str, str]]
HEAD = ["keeps", "last turn, p50", "stored per turn", "one session", "64 at once", "resume"]
NO_ROW: dict[str, str] = {}


def tables(text: str) -> dict[str, Table]:
    """Return every table of a page by its section and first cell: `A. Long session`, `F. PostgreSQL, B`, `machine`."""
    by_key: dict[str, Table] = {}
    heading = ""
    rows: list[list[str]] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
            continue
        if rows:
            head, _, *body = rows
            name = f"{heading}, {head[0]}" if head[0] else heading
            by_key[name] = {row[0]: dict(zip(head, row, strict=True)) for row in body}
            rows = []
        if line.startswith("#"):
            heading = line.lstrip("# ")
    return by_key


def figures(results: str) -> str:
    """Return the part of README between the two marks."""
    result = tables(results)
    small = "B and C. Small checkpoints"
    embedded = [result[name] for name in ("A. Long session", f"{small}, B", f"{small}, C", "D. Resume")]
    served = [result[f"F. PostgreSQL, {name}"] for name in "ABCD"]
    machine = {name: row[""] for name, row in result["Speed and size, machine"].items()}
    day = re.search(r"Measured on ([0-9-]+)", results)
    cores, _, rest = machine["cores"].partition(" ")
    measured = (
        f"Measured on {day[1] if day else '?'}, Python {machine['Python']}, {cores} cores {rest}; "
        f"fdatasync of 4 KB {machine['fdatasync of 4 KB']}."
    )
    return f"{_table('SQLite', KEPT, embedded)}\n\n{_table('PostgreSQL', SERVED, served)}\n\n{measured}\n"


def _table(store: str, kept: dict[str, str], shapes: list[Table]) -> str:
    long, single, crowd, resumed = shapes
    lines = [[store, *HEAD], ["---"] * 2 + ["---:"] * 5]
    for name, what in kept.items():
        many = next((row for key, row in crowd.items() if key.startswith(name)), NO_ROW)
        cells = [
            long[name]["p50 ms first → last"].rpartition("→ ")[2] + " ms",
            long[name]["KB per checkpoint"] + " KB",
            _bare(single.get(name, NO_ROW).get("per second")) + "/s",
            _bare(many.get("per second")) + "/s",
            _bare(resumed.get(name, NO_ROW).get("ms, fresh process")) + " ms",
        ]
        lines.append([name, what, *("" if cell.startswith("–") else cell for cell in cells)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _bare(cell: str | None) -> str:
    """Return a median without its range; a dash if nothing was measured."""
    return "–" if cell is None else cell.partition(" (")[0]


def renewed(readme: str, results: str) -> str:
    front, _, rest = readme.partition(BEGIN)
    return f"{front}{BEGIN}{figures(results)}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    README.write_text(renewed(README.read_text(), RESULTS.read_text()))

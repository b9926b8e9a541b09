"""`python -m bench [--quick] [--repeats N]`: measure, print, and write RESULTS.md (not for a quick run)."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Compare Saveslot with a raw loop and its peers."
    )
    parser.add_argument("--quick", action="store_true", help="run once and smaller; do not write RESULTS.md")
    parser.add_argument("--repeats", type=int, metavar="N", help="number of runs (default: 3; quick: 1)")
    chosen = parser.parse_args()
    if find_spec("agents") is None or find_spec("langgraph") is None:
        sys.exit("the peers are not installed; run: make bench (or pip install -e '.[cli,stack]' --group bench)")

    from bench import machine, report, run
    from saveslot.cli.benchmark import QUICK, Sizes

    sizes = QUICK if chosen.quick else Sizes()
    repeats = max(1, chosen.repeats or (1 if chosen.quick else 3))
    # Beside this file: the system's temporary folder may be in memory.
    with TemporaryDirectory(suffix=".tmp", dir=HERE) as folder:
        before = machine.load()
        results = run.run(Path(folder), sizes, repeats, walk=1_000 if chosen.quick else 10_000, say=say)
        facts = machine.facts(Path(folder), before)
    command = "make bench" if len(sys.argv) == 1 else " ".join(["python -m bench", *sys.argv[1:]])
    text = report.written(results, sizes, facts, f"{datetime.now(UTC):%Y-%m-%d}", command, repeats)
    print(text)
    if not chosen.quick:
        (HERE / "RESULTS.md").write_text(text)
        say("written to bench/RESULTS.md")


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()

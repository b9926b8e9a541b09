"""Where things stand on each screen, for `test_layout.py`: `python -m tests.page.landmarks` writes landmarks.json anew.

Boxes, not pixels: fonts differ from machine to machine, and data is a few seconds older each time; the order of things,
their columns and their rows are the same everywhere.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from tests.page import trips
from tests.page.conftest import CHROMIUM, serving

FILE = Path(__file__).with_name("landmarks.json")
# A screen's URL, what is there once it is drawn, and what its place is compared of.
SCREENS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "now": (
        "/",
        ".health",
        (".counters", "[aria-label='Needs you']", "[aria-label='At work']", "[aria-label=Throughput]"),
    ),
    "sessions": ("/sessions", "tr.row .small-tape", (".saved", ".facets", ".search", ".list", ".histogram", "tr.row")),
    "session": (
        "/sessions/trip-lisbon?at=22",
        ".tree, .operations",
        (".headline h1", ".sentence", ".tape-panel", ".log", ".centre", ".outlook", "[aria-label=Facts]"),
    ),
    "orphan": ("/sessions/lesson-2207", ".card", (".tape-panel", ".log", ".card", ".outlook")),
    "compare": (
        "/compare?a=trip-lisbon@planned&b=trip-lisbon@summarised",
        ".compare, .operations",
        (".side-card", ".side-card:nth-child(2)", ".sum-line"),
    ),
    "storage": (
        "/storage",
        ".sort-bar",
        (".counters", ".sort-bar", "[aria-label=Written]", "[aria-label='What would go']"),
    ),
    "analytics": ("/analytics", ".heatmap", (".sentence", ".heatmap", ".funnel")),
    "events": ("/events", ".event-head", (".event-tools", ".event-head")),
    "settings": ("/settings", ".settings", (".settings > :nth-child(1)", ".settings > :nth-child(2)")),
}
SIZES = {"1440": (1440, 900), "1024": (1024, 800), "390": (390, 844)}
ALWAYS = ("header.bar", "main", "main h1", "nav.bottom")


def boxes(page: Page, url: str, screen: str) -> dict[str, list[int]]:
    """Return x, y and width of each landmark that can be seen."""
    path, there, landmarks = SCREENS[screen]
    page.goto(url + path)
    page.locator(there).first.wait_for()
    page.wait_for_timeout(1200)
    found: dict[str, list[int]] = {}
    for landmark in (*ALWAYS, *landmarks):
        mark = page.locator(landmark).first
        box = mark.bounding_box() if mark.count() else None
        if box is not None and box["width"] > 1:
            found[landmark] = [round(box["x"]), round(box["y"]), round(box["width"])]
    return found


def measured(url: str) -> dict[str, Any]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        all_: dict[str, Any] = {}
        for name, (width, height) in SIZES.items():
            page = browser.new_page(viewport={"width": width, "height": height})
            all_[name] = {screen: boxes(page, url, screen) for screen in SCREENS}
            page.close()
        browser.close()
    return all_


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = f"{folder}/trips.db"
        trips.make(store)
        with serving(store) as url:
            lines = json.dumps(measured(url), indent=1)
    FILE.write_text(lines + "\n")


if __name__ == "__main__":
    main()

"""Pictures of every screen, for the docs: `python -m tests.page.pictures FOLDER`.

Light and dark at 1280 pixels, light at 390; and the tape alone, for the README.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.page import trips
from tests.page.api import post
from tests.page.conftest import CHROMIUM, serving

# A screen's name, its URL, and what is there once it is drawn.
SCREENS = {
    "now": ("/", ".health"),
    "sessions": ("/sessions", ".small-tape"),
    "session": ("/sessions/trip-lisbon?at=22", ".tree, .operations"),
    "diff": ("/sessions/trip-lisbon?tab=diff&from=5&at=22", ".operations"),
    "orphan": ("/sessions/lesson-2207", ".card"),
    "compare": ("/compare?a=trip-lisbon@planned&b=trip-lisbon@summarised", ".operations, .compare"),
    "storage": ("/storage", ".sort-bar"),
    "analytics": ("/analytics?from=planned&to=booked", ".heatmap"),
    "events": ("/events", ".event-head"),
    "settings": ("/settings", ".settings"),
}
LOOKS = {"light": (1280, 800, "light"), "dark": (1280, 800, "dark"), "narrow": (390, 844, "light")}


def take(page: Page, url: str, folder: Path, look: str) -> None:
    for name, (path, there) in SCREENS.items():
        page.goto(url + path)
        page.locator(there).first.wait_for()
        if name == "events":
            for n in range(3):
                post(url, "/sessions/trip-rome/checkpoints", {"name": f"checked_{n}", "put": {"n": n}})
            page.locator(".event-rows li").nth(2).wait_for()
        page.wait_for_timeout(1200)
        page.screenshot(path=folder / f"{name}-{look}.png")
        if name == "session" and look != "narrow":
            page.locator(".tape-panel").screenshot(path=folder / f"tape-{look}.png")
    if look != "narrow":
        page.goto(f"{url}/sessions/trip-lisbon?at=5")
        page.get_by_role("slider").wait_for()
        page.keyboard.press("r")
        page.locator("dialog .operations").wait_for()
        page.wait_for_timeout(400)
        page.screenshot(path=folder / f"rollback-{look}.png")


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        store = f"{place}/trips.db"
        demo = [sys.executable, "-m", "saveslot", "demo", "--fast", "--store", store]
        subprocess.run(demo, check=True, capture_output=True, timeout=300)
        trips.make(store)
        with serving(store) as url, sync_playwright() as playwright:
            post(url, "/sessions", {"agent_type": "booker", "session_id": "trip-rome", "data": {}, "name": "asked"})
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            for look, (width, height, scheme) in LOOKS.items():
                page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
                take(page, url, folder, look)
                page.close()
            browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

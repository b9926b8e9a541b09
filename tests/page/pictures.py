"""Pictures of every screen, always of the same data at the same time: `python -m tests.page.pictures FOLDER`.

They are kept under docs/page, and `test_pictures.py` compares the screens with them.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from playwright.sync_api import Browser, BrowserType, Page, Route, sync_playwright

from tests.page import fleet
from tests.page.conftest import CHROMIUM
from tests.page.sight import fonts
from tests.page.still import Clock

KEPT = Path(__file__).parents[2] / "docs" / "page"
# Widths of texts in the fonts that the kept pictures were taken with.
FONTS = Path(__file__).with_name("fonts.json")
# A screen's URL, and what is there once it is drawn.
SCREENS = {
    "now": ("/?window=1h", ".health, .n-tape svg"),
    "sessions": ("/sessions", ".c-tape svg"),
    "session": ("/sessions/trip-lisbon?at=33", ".centre-body > :not(.grey-bars)"),
    "diff": ("/sessions/trip-lisbon?tab=diff&from=12&at=33", ".operations"),
    "long": ("/sessions/index-nightly?at=250", ".long-tape"),
    "orphan": ("/sessions/lesson-2207", ".card, .next-steps"),
    "compare": ("/compare?a=trip-lisbon@reviewed&b=trip-lisbon@summarised", ".sum-line"),
    "storage": ("/storage", ".sort-bar, .going-halves .tape"),
    "analytics": ("/analytics?agent=booker&from=planned&to=booked", ".heatmap"),
    "events": ("/events", ".event-rows"),
    "settings": ("/settings", ".settings"),
    "rollback": ("/sessions/trip-oslo-311?at=5", "dialog .operations"),
}
# Keys that are pressed there first.
KEYS = {"rollback": "r"}
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "dark"},
    "narrow": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light"},
    "narrow-dark": {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"},
}
KEPT_LOOKS = tuple(LOOKS)
LOOKS |= {
    "middle": {"viewport": {"width": 1024, "height": 800}},
    "zoomed": {"viewport": {"width": 720, "height": 450}},
    "sideways": {"viewport": {"width": 844, "height": 390}},
    "smallest": {"viewport": {"width": 320, "height": 568}},
}
# The address that the page is opened at, whatever port the server has: commands to copy name it.
ADDRESS = "localhost:7788"
# Milliseconds between two looks at a screen; it is drawn once they are the same.
LOOK = 400


class Studio(NamedTuple):
    browser: Browser
    url: str  # the server's; the browser knows it as `ADDRESS`

    def open(self, look: str, **options: Any) -> Page:
        page = self.browser.new_context(**LOOKS[look], **options).new_page()
        page.set_default_timeout(60_000)
        page.clock.set_fixed_time(fleet.NOW)
        page.route("**/v1/storage", partial(steadied, self.url))
        return page


@contextmanager
def studio(folder: Path, chromium: BrowserType) -> Iterator[Studio]:
    """A server of the fleet's store with the clock at `NOW`, and a browser."""
    clock = Clock(folder / "clock", fleet.NOW)
    fleet.make(folder / "fleet.db", clock)
    with fleet.serving(folder / "fleet.db", clock) as url:
        mapped = f"--host-resolver-rules=MAP {ADDRESS} {url.removeprefix('http://')}"
        browser = chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", mapped])
        yield Studio(browser, url)
        browser.close()


def steadied(url: str, route: Route) -> None:
    """What the server measures of itself, at values that do not change."""
    answer = route.fetch(url=f"{url}/v1/storage")
    body = answer.json()
    for tier in body["tiers"]:
        tier.update(calls=4120, p50_ms=0.4, p99_ms=6.1, status="healthy")
    route.fulfill(response=answer, json=body)


def show(page: Page, look: str, screen: str) -> bytes:
    """Open a screen, and return its picture once it does not change any more."""
    path, there = SCREENS[screen]
    page.set_viewport_size(LOOKS[look]["viewport"])
    page.goto(f"http://{ADDRESS}{path}")
    if screen in KEYS:
        page.get_by_role("slider").wait_for()
        page.keyboard.press(KEYS[screen])
    for mark in there.split(", "):
        page.locator(mark).first.wait_for(state="attached")
    settled(page)
    # As high as the screen is: bars at the end of the window are at its end, too.
    width, height = page.evaluate("[innerWidth, document.documentElement.scrollHeight]")
    page.set_viewport_size({"width": width, "height": height})
    return settled(page)


def settled(page: Page) -> bytes:
    """The picture of what is drawn, once it does not change any more."""
    before = b""
    for _ in range(90):
        page.wait_for_timeout(LOOK)
        now = page.screenshot(full_page=True, animations="disabled")
        if now == before:
            return now
        before = now
    raise AssertionError(f"{page.url} does not come to rest")


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as place,
        sync_playwright() as playwright,
        studio(Path(place), playwright.chromium) as here,
    ):
        for look in KEPT_LOOKS:
            page = here.open(look)
            for screen in SCREENS:
                (folder / f"{screen}-{look}.png").write_bytes(show(page, look, screen))
                if screen == "session" and "narrow" not in look:
                    page.locator(".tape-panel").screenshot(path=folder / f"tape-{look}.png", animations="disabled")
            if folder.resolve() == KEPT and look == "light":
                FONTS.write_text(json.dumps(fonts(page)) + "\n")
            page.context.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Many sessions, many entries, many events: how much of it is in the page, and what it costs (`-s` prints figures)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import quantiles

import pytest
from playwright.sync_api import Page, expect

import saveslot
from tests.page.api import get, post
from tests.page.conftest import Watched, serving

SESSIONS, TOGETHER = 100_000, 500
ENTRIES = 10_000
# Of the last block, whose label is its own: so many cannot be paused.
ENDED = 7
EVENTS, PER_SECOND = 3_000, 50

# How far the list is scrolled: so often, so many frames, by so many rows each.
SCROLLS, STEPS, ROWS = 10, 40, 10
FRAMES = """(steps) => new Promise((done) => {
    const box = document.querySelector(".table-scroll"), times = [];
    let last = performance.now();
    const step = () => {
        const now = performance.now();
        times.push(now - last);
        last = now;
        box.scrollTop += 340;
        if (times.length < steps) requestAnimationFrame(step); else done(times.slice(2));
    };
    requestAnimationFrame(step);
})"""


NEAR = """([seq, room]) =>
    Math.abs(Number(document.querySelector("[role=slider]").getAttribute("aria-valuenow")) - seq) < room"""


async def crowd(store: str) -> None:
    async with saveslot.open(store) as sessions:
        for block in range(SESSIONS // TOGETHER):
            async with sessions.together() as t:
                for n in range(TOGETHER):
                    labels = {"block": str(block), "env": "prod" if n % 3 else "test"}
                    t.create_session(
                        f"agent-{n % 5}", f"user-{n % 50}", labels=labels, session_id=f"s-{block:03}-{n:03}"
                    )
        for n in range(ENDED):
            await sessions.complete(f"s-{block:03}-{n:03}")
        async with sessions.hold("long", create="indexer") as held:
            for n in range(ENTRIES):
                await held.checkpoint("read", put={"n": n})


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Path:
    """A store of 100,000 sessions, and one more with 10,000 checkpoints."""
    store = tmp_path_factory.mktemp("crowd") / "crowd.db"
    with ThreadPoolExecutor(1) as pool:  # playwright has a loop in this thread
        pool.submit(asyncio.run, crowd(str(store))).result()
    return store


def slowest(times: list[float]) -> str:
    return f"p50 {quantiles(times, n=20)[9]:.1f} ms, p95 {quantiles(times, n=20)[18]:.1f} ms"


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_100_000_sessions(chromium, large):
    """The list holds a few rows however far it is scrolled; facets, search and a job count all that match."""
    with serving(str(large)) as url:
        watched = Watched(chromium, url)
        page = watched.open("/sessions")
        expect(page.locator(".list-head b")).to_have_text(f"{SESSIONS + 1:,} sessions")
        expect(page.locator(".facet", has_text="active").locator(".facet-count")).to_have_text(
            f"{SESSIONS + 1 - ENDED:,}"
        )
        lists: list[str] = []
        page.on("request", lambda request: "/v1/sessions?" in request.url and lists.append(request.url))
        for _ in range(SCROLLS):
            print("scrolling:", slowest(page.evaluate(FRAMES, STEPS)))  # noqa: T201
            expect(page.locator("tr.row .small-tape").first).to_be_attached()
            assert page.locator("tr.row").count() < 80
        assert len(lists) <= SCROLLS * STEPS * ROWS / 100 + 2
        began = time.perf_counter()
        page.get_by_role("button", name="agent-3").click()
        expect(page.locator(".list-head b")).to_have_text(f"{SESSIONS // 5:,} sessions")
        print(f"a facet: {time.perf_counter() - began:.3f} s")  # noqa: T201
        expect(page.locator(".facet", has_text="agent-4").locator(".facet-count")).to_have_text(f"{SESSIONS // 5:,}")
        page.goto(url + "/sessions")
        page.get_by_label("Search sessions").fill("s-123-45")
        expect(page.locator(".list-head b")).to_have_text("10 sessions")
        expect(page.locator("tr.row")).to_have_count(10)
        block = f"block={SESSIONS // TOGETHER - 1}"
        page.get_by_label("Search sessions").fill(f"label:{block}")
        expect(page.locator(".list-head b")).to_have_text(f"{TOGETHER} sessions")
        page.locator("tr.row input").first.click()
        bar = page.get_by_role("region", name="Selected sessions")
        bar.get_by_role("button", name=f"select all {TOGETHER} that match").click()
        bar.get_by_role("button", name="Pause").click()
        page.get_by_role("button", name=f"Pause {TOGETHER} sessions").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text(f"{TOGETHER - ENDED} done, {ENDED} refused of {TOGETHER}")
        expect(dialog.locator(".refusals li")).to_have_count(ENDED)
        page.context.close()
        watched.check()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_10_000_entries(chromium, large):
    """A long log opens on a page of it; scrubbing draws a window, wherever it stands."""
    with serving(str(large)) as url:
        watched = Watched(chromium, url)
        began = time.perf_counter()
        page = watched.open("/sessions/long")
        expect(page.locator(".long-tape")).to_be_visible()
        print(f"open: {time.perf_counter() - began:.2f} s")  # noqa: T201
        entries = get(url, "/sessions/long/log?limit=1")["entries"]
        assert entries > ENTRIES
        slider = page.get_by_role("slider")
        times = page.evaluate(
            """() => new Promise(async (done) => {
                const times = [];
                for (let n = 0; n < 100; n++) {
                    const began = performance.now();
                    document.body.dispatchEvent(new KeyboardEvent("keydown", {key: "[", bubbles: true}));
                    await new Promise((drawn) => queueMicrotask(() => setTimeout(drawn)));
                    times.push(performance.now() - began);
                }
                done(times);
            })"""
        )
        print("a step:", slowest(times))  # noqa: T201
        expect(slider).to_have_attribute("aria-valuenow", str(entries - 100))
        box = page.locator(".long-tape svg").bounding_box()
        for share in (0.1, 0.5, 0.9):
            page.mouse.click(box["x"] + box["width"] * share, box["y"] + 40)
            page.wait_for_function(NEAR, arg=[entries * share, entries / 20])
            expect(page.locator(".log-row.selected")).to_be_attached()
            assert page.locator(".tape .notch").count() <= 130
            assert page.locator(".log-row").count() < 80
        page.context.close()
        watched.check()


def write(url: str) -> None:
    began = time.perf_counter()
    for n in range(EVENTS):
        post(url, "/sessions/s-000-000/checkpoints", {"name": f"n-{n}", "put": {"n": n}})
        time.sleep(max(0.0, began + n / PER_SECOND - time.perf_counter()))


def heap(page: Page) -> float:
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    return session.send("Runtime.getHeapUsage")["usedSize"] / 1e6


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_50_events_a_second(chromium, large):
    """A minute of 50 events a second: Now, the tail and an open session show the last one, and ask far more seldom."""
    with serving(str(large)) as url:
        watched = Watched(chromium, url)
        pages = [watched.open(path) for path in ("/", "/events", "/sessions/s-000-000", "/sessions")]
        for page in pages:
            expect(page.locator("main h1").first).to_be_attached()
            page.evaluate(
                "window.long = []; new PerformanceObserver((l) => l.getEntries().forEach((e) => window.long.push("
                "Math.round(e.duration)))).observe({entryTypes: ['longtask']})"
            )
        before = [heap(page) for page in pages]
        requests = Counter[Page]()
        for page in pages:
            page.on("request", lambda request: requests.update([request.frame.page]))
        writer = threading.Thread(target=write, args=(url,))
        writer.start()
        while writer.is_alive():
            pages[0].wait_for_timeout(1000)
        writer.join()
        name = f"n-{EVENTS - 1}"
        expect(pages[0].locator("[aria-label='Just now']")).to_contain_text(name)
        expect(pages[1].locator(".event-rows li").first).to_contain_text(name)
        assert pages[1].locator(".event-rows li").count() <= 200
        count = get(url, "/sessions/s-000-000/log?limit=1")["entries"]
        expect(pages[2].get_by_role("slider")).to_have_attribute("aria-valuenow", str(count))
        assert pages[2].locator(".log-row").count() < 80
        for page, first in zip(pages, before, strict=True):
            tasks = sorted(page.evaluate("window.long"))
            print(  # noqa: T201
                f"{page.url}: heap {first:.0f} to {heap(page):.0f} MB, {requests[page]} requests, "
                f"{len(tasks)} long tasks of {sum(tasks)} ms in all, the longest {tasks[-3:]}"
            )
            assert requests[page] < EVENTS // 6  # a few a second
            page.context.close()
        watched.check()

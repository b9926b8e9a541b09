"""Figures: storage, analytics, and a log too long for one tape."""

from __future__ import annotations

import re
import subprocess
import sys

from playwright.sync_api import expect

from tests.page.api import call, get
from tests.page.test_session import selected

ENTRIES = 2500
LONG = """
import asyncio, sys, saveslot
async def main(store, entries):
    async with saveslot.open(store) as sessions, sessions.hold("long", create="indexer") as held:
        for n in range(entries):
            await held.checkpoint("read", put={"n": n})
asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def test_storage_is_that_of_the_api(watched, url):
    """Each agent type has a row with its sessions; the table of days sums up to what the bars draw."""
    storage = get(url, "/storage")
    page = watched.open("/storage")
    rows = page.locator(".plain-table").first.locator("tbody tr")
    expect(rows).to_have_count(len(storage["by_agent_type"]))
    expect(page.locator(".bars.tall rect")).to_have_count(30)
    page.get_by_role("button", name="as table").click()
    expect(page.locator(".chart-table tbody tr")).to_have_count(30)


def test_analytics_says_what_it_is_of(watched, url):
    """The sentence names the sample; the pair of names is in the URL, and changes the figures."""
    looked = get(url, "/analytics")["looked_at"]
    page = watched.open("/analytics?from=planned&to=booked")
    expect(page.locator(".sentence")).to_contain_text(f"{looked['entries']} entries")
    expect(page.get_by_role("region", name="Time between")).to_contain_text("1 pair")
    page.get_by_label("To", exact=True).select_option("summarised")
    expect(page).to_have_url(re.compile("to=summarised"))
    expect(page.get_by_role("region", name="Why they fail")).to_contain_text("BudgetExceeded: 912 of 900 euros")


def test_long_log_is_an_overview_and_a_window(watched, url, store):
    """Thousands of entries are columns, and a window that follows the playhead; both ends are one key away."""
    subprocess.run([sys.executable, "-c", LONG, str(store), str(ENTRIES)], check=True, timeout=300)
    entries = get(url, "/sessions/long/log?limit=1")["entries"]
    page = watched.open("/sessions/long")
    expect(page.locator(".long-tape")).to_be_visible()
    expect(page.locator(".sentence")).to_contain_text(f"{entries:,} entries by 1 owner")
    assert selected(page) == entries
    assert page.locator(".tape .notch").count() <= 130
    page.keyboard.press("Home")
    expect(page.get_by_role("slider")).to_have_attribute("aria-valuenow", "1")
    box = page.locator(".long-tape svg").bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 40)
    expect(page.locator(".tape-head .here b")).not_to_contain_text("1 created")
    assert abs(selected(page) - entries / 2) < entries / 20
    page.keyboard.press("]")
    page.keyboard.press("End")
    expect(page.get_by_role("slider")).to_have_attribute("aria-valuenow", str(entries))
    assert page.locator(".log-row").count() < 80


def test_gc_is_a_dry_run_until_its_number_is_typed(watched, url):
    """What gc would purge is named; the number must be typed, and another number purges nothing."""
    watched.expected = ["409"]
    call(url, "POST", "/sessions/trip-lisbon-cheap/recover", {})
    call(url, "POST", "/sessions/trip-lisbon-cheap/complete", {})
    page = watched.open("/storage")
    panel = page.get_by_role("region", name="What would go")
    going = panel.locator("tr", has_text="gc")
    expect(going.get_by_role("cell").nth(1)).to_have_text("0")
    page.route("**/v1/gc", aged)
    panel.get_by_role("button", name="Run again").click()
    expect(going.get_by_role("cell").nth(1)).to_have_text("2")
    panel.get_by_role("button", name="Purge…").click()
    dialog = page.get_by_role("dialog")
    verb = dialog.get_by_role("button", name="Purge 2 sessions")
    dialog.get_by_role("textbox").fill("3")
    expect(verb).to_be_disabled()
    dialog.get_by_role("textbox").fill("2")
    call(url, "POST", "/sessions/trip-lisbon/fail", {"error": "cancelled"})
    verb.click()
    expect(dialog.get_by_role("alert")).to_contain_text("3 sessions would be purged now, not 2")
    assert len(get(url, "/sessions")["items"]) == 5


def test_thinning_is_a_dry_run_until_its_number_is_typed(watched, url):
    """Rules, numbers and an example tape first; then exactly what was shown goes, and another number is refused."""
    watched.expected = ["409"]
    rule = {"keep_first": 0, "keep_last": 1, "keep_latest_per_name": False}
    for one in ("a", "b"):
        body = {"agent_type": "x", "session_id": f"thin-{one}", "metadata": {"saveslot.retention": rule}}
        call(url, "POST", "/sessions", body)
    for n in range(4):
        call(url, "POST", "/sessions/thin-a/checkpoints", {"name": f"c{n}", "data": {"n": n}})
    page = watched.open("/storage")
    panel = page.get_by_role("region", name="What would go")
    row = panel.locator("tr", has_text="thin")
    expect(row.get_by_role("cell").nth(1)).to_have_text("1")
    expect(row.get_by_role("cell").nth(2)).to_have_text("3")
    expect(panel).to_contain_text("For example thin-a: 3 of 4 checkpoints would go")
    expect(panel.locator(".notch.thinned")).to_have_count(3)
    expect(page.get_by_role("region", name="Rules")).to_contain_text("30 days after the end")
    row.get_by_role("button", name="Thin…").click()
    dialog = page.get_by_role("dialog")
    verb = dialog.get_by_role("button", name="Thin 1 session")
    expect(verb).to_be_disabled()
    for n in range(2):
        call(url, "POST", "/sessions/thin-b/checkpoints", {"name": f"c{n}", "data": {"n": n}})
    dialog.get_by_role("textbox").fill("1")
    verb.click()
    expect(dialog.get_by_role("alert")).to_contain_text("2 sessions would lose checkpoints now, not 1")
    assert get(url, "/thin")["checkpoints"] == 4
    dialog.get_by_role("button", name="Cancel").click()
    panel.get_by_role("button", name="Run again").click()
    expect(row.get_by_role("cell").nth(1)).to_have_text("2")
    row.get_by_role("button", name="Thin…").click()
    dialog.get_by_role("textbox").fill("2")
    dialog.get_by_role("button", name="Thin 2 sessions").click()
    expect(page.locator(".toast")).to_contain_text("Thinned 2 sessions.")
    assert get(url, "/thin")["checkpoints"] == 0


def aged(route):
    """Ask for sessions of any age: those of this store have just ended."""
    route.continue_(post_data={**route.request.post_data_json, "older_than": 0})


def test_deleted_session_shows_its_trail(watched, url):
    """A deleted session cannot be read, but what happened to it can, verified."""
    watched.expected = ["404"]
    page = watched.open("/sessions/trip-lisbon")
    page.get_by_role("button", name="Verify the log").click()
    expect(page.get_by_role("region", name="Audit")).to_contain_text("✓ whole")
    page.get_by_role("button", name="Delete…").click()
    page.get_by_role("dialog").get_by_role("textbox").fill("trip-lisbon")
    page.get_by_role("dialog").get_by_role("button", name="Delete the session").click()
    expect(page).to_have_url(f"{url}/sessions")
    page.goto(f"{url}/sessions/trip-lisbon")
    expect(page.get_by_role("heading", level=1)).to_have_text("trip-lisbon was deleted")
    expect(page.locator(".plain-table")).to_contain_text("booked")

"""What somebody does on the page, from beginning to end: by mouse, by keyboard, by what it copies."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.page.api import call, get, saveslot
from tests.page.test_figures import aged

COMMANDS = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "SAVESLOT_TOKEN": ""}


def failed(url: str) -> str:
    """Make a session fail that has checkpoints to go back to."""
    call(
        url, "POST", "/sessions", {"agent_type": "booker", "session_id": "trip-oslo", "data": {"n": 0}, "name": "asked"}
    )
    for n in (1, 2, 3):
        call(url, "POST", "/sessions/trip-oslo/checkpoints", {"name": f"step_{n}", "put": {"n": n, f"k{n}": n}})
    call(url, "POST", "/sessions/trip-oslo/fail", {"error": "RateLimited: refused 4 times"})
    return "trip-oslo"


def follow_both(first: Page, second: Page, state: str) -> None:
    for page in (first, second):
        expect(page.locator(".headline .chip")).to_have_text(state)


def test_from_now_to_a_failed_session_and_back_by_mouse(watched, url):
    """Now, its row, its diff, roll back, Undo: only clicks; a second window shows both as they happen."""
    name = failed(url)
    page, second = watched.open("/"), watched.open(f"/sessions/{name}")
    expect(second.locator(".headline .chip")).to_have_text("failed")
    row = page.locator("tr.need", has_text=name)
    expect(row).to_contain_text("RateLimited: refused 4 times")
    row.get_by_role("link", name=name).click()
    page.get_by_role("tab", name="Diff").click()
    page.locator(".log-row", has_text="step_2").click()
    expect(page.locator(".operations")).to_contain_text("k2")
    page.locator(".headline").get_by_role("button", name="Roll back here").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("The session becomes active again.")
    expect(dialog.locator(".operations li")).to_have_count(2)
    dialog.get_by_role("button", name="Roll back to").click()
    follow_both(page, second, "active")
    expect(second.locator(".log-row").last).to_contain_text("step_2")
    assert get(url, f"/sessions/{name}/data") == {"n": 2, "k1": 1, "k2": 2}
    page.locator(".toast").get_by_role("button", name="Undo").click()
    expect(page.locator(".toast")).to_contain_text("Undone.")
    expect(second.locator(".log-row").last).to_contain_text("step_3")
    assert get(url, f"/sessions/{name}/data") == {"n": 3, "k1": 1, "k2": 2, "k3": 3}


def test_the_same_by_keyboard_alone(watched, url):
    """G s, ! and j and Enter, {, 2, r, Enter, u: a failed session is found, rolled back, and brought back."""
    name = failed(url)
    page, second = watched.open("/"), watched.open(f"/sessions/{name}")
    expect(page.locator(".counters")).to_be_visible()
    for key in ("g", "s"):
        page.keyboard.press(key)
    expect(page.locator("tr.row").first).to_be_visible()
    page.keyboard.press("!")
    expect(page.locator("tr.row")).to_have_count(3)
    page.keyboard.press("j")
    expect(page.locator("tr.row.selected")).to_contain_text(name)
    page.keyboard.press("Enter")
    expect(page.locator(".actions button").first).to_be_visible()
    for key in ("{", "{", "2"):
        page.keyboard.press(key)
    expect(page.locator(".operations")).to_contain_text("k2")
    page.keyboard.press("r")
    expect(page.get_by_role("dialog").locator(".operations li")).to_have_count(2)
    page.keyboard.press("Enter")
    follow_both(page, second, "active")
    page.keyboard.press("u")
    expect(page.locator(".toast")).to_contain_text("Undone.")
    assert get(url, f"/sessions/{name}/data")["k3"] == 3


def test_every_tab_shows_the_entry_of_the_playhead(watched, url):
    """At each entry of a log with everything in it, Raw, State, Diff and Messages are those of its data."""
    entries = get(url, "/sessions/trip-lisbon/log?limit=500")["items"]
    page = watched.open("/sessions/trip-lisbon?at=1&tab=raw")
    expect(page.get_by_role("slider")).to_be_visible()
    before = 0
    for entry in entries:
        expect(page.get_by_role("slider")).to_have_attribute("aria-valuenow", str(entry["seq"]))
        seq = entry["data_seq"]
        if seq:
            data = get(url, f"/sessions/trip-lisbon/checkpoints/{seq}")["data"]
            page.keyboard.press("4")
            expect(page.locator(".raw-head")).to_contain_text(f"trip-lisbon:{seq}")
            assert json.loads(page.locator("pre.raw").inner_text()) == data
            page.keyboard.press("1")
            for key in data:
                expect(page.locator(".tree-row .key", has_text=key).first).to_be_visible()
            page.keyboard.press("3")
            expect(page.locator(".messages li:not(.gone)")).to_have_count(len(data["messages"]))
            page.keyboard.press("2")
            if seq == entry["seq"] and before:
                changes = get(url, f"/sessions/trip-lisbon/diff?a={before}&b={seq}&old=true")["items"]
                expect(page.locator(".operations li")).to_have_count(len(changes))
            before = seq
        page.keyboard.press("]")


def run(command: str) -> str:
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, timeout=120, env={**os.environ, **COMMANDS}, check=False
    )
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout


def copied(page: Page, button: str) -> str:
    page.locator("main").get_by_role("button", name=button).first.click()
    expect(page.locator(".toast")).to_contain_text("Copied")
    return page.evaluate("navigator.clipboard.readText()")


def test_what_is_copied_runs_and_gives_the_same(watched, url):
    """On every screen the copied command and the copied request run as they are, and answer what the page shows."""
    page = watched.open("/sessions/trip-lisbon?at=5")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    expect(page.locator(".actions button").first).to_be_visible()
    data = get(url, "/sessions/trip-lisbon/checkpoints/5")["data"]
    assert json.loads(run(copied(page, "copy as CLI") + " --json"))["data"] == data
    assert json.loads(run(copied(page, "copy as curl")))["data"] == data
    page.goto(url + "/sessions/trip-lisbon?at=22&from=5&tab=diff")
    expect(page.locator(".operations li").first).to_be_visible()
    operations = get(url, "/sessions/trip-lisbon/diff?a=5&b=22")["items"]
    assert json.loads(run(copied(page, "copy as CLI") + " --json")) == operations
    assert json.loads(run(copied(page, "copy as curl")))["items"] == operations
    for query, ids in {
        "state=failed&label=": {"trip-lisbon-cheap", "review-8812"},
        "state=orphaned": {"lesson-2207"},
        "text=lisbon&after=1h": {"trip-lisbon", "trip-lisbon-cheap"},
        "label=env=prod": {"trip-lisbon", "trip-lisbon-cheap"},
    }.items():
        page.goto(f"{url}/sessions?{query}")
        expect(page.locator("tr.row")).to_have_count(len(ids))
        rows = json.loads(run(copied(page, "copy as CLI") + " --json"))
        assert {row["session_id"] for row in rows} == ids
        assert {row["session_id"] for row in json.loads(run(copied(page, "copy as curl")))["items"]} == ids
    for path, there in {
        "/": "tr.need",
        "/storage": ".sort-bar",
        "/analytics": ".heatmap",
        "/compare?a=trip-lisbon@5&b=trip-lisbon-cheap@latest": ".compare",
    }.items():
        page.goto(url + path)
        expect(page.locator(there).first).to_be_visible()
        json.loads(run(copied(page, "copy as CLI") + " --json"))
        json.loads(run(copied(page, "copy as curl")))


def test_a_phone_copies_every_view(watched, url):
    """At 390 pixels each view offers its command and its request in a sheet, and both are those of a wide screen."""
    paths = ["/", "/sessions?state=failed", "/sessions/trip-lisbon?at=5&tab=raw", "/storage", "/analytics", "/events"]
    paths += ["/settings", "/compare?a=trip-lisbon@5&b=trip-lisbon@9"]
    wide = watched.open("/settings")
    phone = watched.open("/settings", viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    for page in (wide, phone):
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    for path in paths:
        for page in (wide, phone):
            page.goto(url + path)
            expect(
                page.locator("main button:visible", has_text=re.compile("^(copy as CLI|Copy…)$")).first
            ).to_be_visible()
        phone.locator("main .copy-here:visible").first.tap()
        sheet = phone.get_by_role("dialog")
        for button in ("copy as CLI", "copy as curl"):
            sheet.get_by_role("button", name=button).tap()
            expect(phone.locator(".toast")).to_contain_text("Copied")
            wide.locator("main").get_by_role("button", name=button).first.click()
            expect(wide.locator(".toast")).to_contain_text("Copied")
            text = wide.evaluate("navigator.clipboard.readText()")
            assert text in sheet.locator("code").all_inner_texts(), path


def test_thinning_of_many_as_copied_is_that_of_the_page(watched, url):
    """The command that the page copies for thinning drops what the dry run showed, by the rules of the sessions."""
    rule = {"keep_first": 0, "keep_last": 1, "keep_latest_per_name": False}
    for name in ("long-1", "long-2"):
        post = {"agent_type": "tutor", "session_id": name, "metadata": {"saveslot.retention": rule}}
        call(url, "POST", "/sessions", post)
        for n in range(4):
            call(url, "POST", f"/sessions/{name}/checkpoints", {"name": f"c{n}", "data": {"n": n}})
    page = watched.open("/storage")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    panel = page.get_by_role("region", name="What would go")
    cells = panel.locator("tr", has_text="thin").get_by_role("cell")
    expect(cells.nth(1)).to_have_text("2")
    expect(cells.nth(2)).to_have_text("6")
    panel.locator(".thin-all").get_by_role("button", name="copy as CLI").click()
    expect(page.locator(".toast")).to_contain_text("Copied: saveslot thin --all")
    dry = json.loads(run(page.evaluate("navigator.clipboard.readText()") + " --json"))
    assert (sorted(dry["sessions"]), dry["checkpoints"], dry["dry_run"]) == (["long-1", "long-2"], 6, True)
    panel.get_by_role("button", name="Thin…").click()
    page.get_by_role("dialog").get_by_role("button", name="copy as CLI").click()
    expect(page.locator(".toast")).to_contain_text("--apply")
    done = json.loads(run(page.evaluate("navigator.clipboard.readText()") + " --json"))
    assert (sorted(done["sessions"]), done["checkpoints"], done["dry_run"]) == (["long-1", "long-2"], 6, False)
    page.keyboard.press("Escape")
    panel.get_by_role("button", name="Run again").click()
    expect(cells.nth(1)).to_have_text("0")


def test_retention_is_that_of_the_command_line(watched, url, store):
    """The dry run counts the sessions that `saveslot gc` names; a thinned checkpoint is a dotted notch that says so."""
    call(url, "POST", "/sessions/trip-lisbon-cheap/recover", {})
    call(url, "POST", "/sessions/trip-lisbon-cheap/complete", {})
    page = watched.open("/storage")
    panel = page.get_by_role("region", name="What would go")
    going = panel.locator("tr", has_text="gc").get_by_role("cell").nth(1)
    expect(going).to_have_text("0")
    page.route("**/v1/gc", aged)
    panel.get_by_role("button", name="Run again").click()
    purge = json.loads(saveslot(store, "gc", "--older-than", "0d", "--json"))
    expect(going).to_have_text(str(len(purge["sessions"])))
    assert purge["sessions"]
    saveslot(store, "thin", "trip-lisbon", "--max", "3", "--apply")
    entries = get(url, "/sessions/trip-lisbon/log?limit=500")["items"]
    thinned = [entry["seq"] for entry in entries if entry["thinned"] and entry["kind"] == "checkpoint"]
    assert thinned
    page.goto(f"{url}/sessions/trip-lisbon?at={thinned[0]}")
    expect(page.locator(".tape .notch.thinned")).to_have_count(len(thinned))
    expect(page.locator(".centre-body")).to_contain_text("thinned")
    expect(page.locator(".actions").get_by_role("button", name="Roll back")).to_be_disabled()
    kept = next(it["seq"] for it in entries if it["seq"] > thinned[-1] and it["data_seq"] == it["seq"])
    page.goto(f"{url}/sessions/trip-lisbon?at={kept}&tab=diff")
    expect(page.locator(".operations li").first).to_be_visible()

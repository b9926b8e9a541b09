"""Two states side by side, and the settings of server and browser."""

from __future__ import annotations

import json
import subprocess

from playwright.sync_api import expect

from tests.page.api import call, get, saveslot


def test_compare_shows_what_went_and_what_came(watched, url):
    """Each operation of the API's diff is in the table; swapping turns additions into removals; the URL has it all."""
    page = watched.open("/sessions/trip-lisbon?from=5&at=22")
    expect(page.get_by_role("slider")).to_be_visible()
    page.keyboard.press("d")
    expect(page.get_by_role("heading", level=1)).to_have_text("Compare")
    expect(page).to_have_url(f"{url}/compare?a=trip-lisbon%405&b=trip-lisbon%4022")
    summary = get(url, "/sessions/trip-lisbon/diff?a=5&b=22&old=true")["summary"]
    expect(page.locator(".compare td.added")).to_have_count(summary["added"])
    expect(page.get_by_text(f"+ {summary['added']} added")).to_be_visible()
    expect(page.get_by_text("keys equal: trip, plan")).to_be_visible()
    page.keyboard.press("x")
    expect(page.locator(".compare td.removed")).to_have_count(summary["added"])
    page.get_by_role("button", name="inline").click()
    expect(page.locator(".operations li")).to_have_count(summary["operations"])


def test_compare_two_sessions(watched):
    """A session and its fork are compared at any two places, and the page says how they are related."""
    page = watched.open("/compare?a=trip-lisbon@booked&b=trip-lisbon-cheap@latest")
    expect(page.get_by_text("B is a fork of A, at 13")).to_be_visible()
    expect(page.locator(".compare")).to_contain_text("far from the centre")


def test_many_operations_are_grouped(watched, url):
    """More than 2,000 operations stand under their first keys, and are drawn when one is opened."""
    body = {"agent_type": "a", "session_id": "wide", "data": {"n": {}}, "name": "one"}
    call(url, "POST", "/sessions", body)
    many = {f"k{n}": n for n in range(2500)}
    call(url, "POST", "/sessions/wide/checkpoints", {"name": "two", "put": {"n": many, "other": 1}})
    page = watched.open("/compare?a=wide@one&b=wide@two")
    group = page.get_by_role("button", name="n 2,500 changes")
    expect(group).to_be_visible()
    expect(page.get_by_role("table")).to_have_count(0)
    group.click()
    expect(page.get_by_role("table")).to_have_count(1)


def test_tokens_are_made_shown_once_and_revoked(watched, url):
    """The first token says that everybody needs one from then on; then this page signs in with it."""
    watched.expected = ["401", "403"]
    page = watched.open("/settings")
    page.get_by_role("button", name="New token…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("from then on this server asks everybody for a token")
    dialog.get_by_label("Name").fill("boss")
    dialog.get_by_label("admin").check()
    dialog.get_by_role("button", name="Create the token").click()
    secret = page.locator(".secret").inner_text()
    page.keyboard.press("Escape")
    page.get_by_label("Token", exact=True).fill(secret)
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator(".tokens")).to_contain_text("boss this page")
    page.get_by_role("button", name="Revoke…").click()
    page.get_by_role("button", name="Revoke the token").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("admin")


def test_token_as_copied_is_made_by_this_server(watched, url):
    """The request makes it where the page would; a command would make it in whatever store the shell has by default."""
    page = watched.open("/settings")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="New token…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("it's ci")
    expect(dialog.get_by_role("button", name="copy as CLI")).to_have_count(0)
    dialog.get_by_role("button", name="copy as curl").click()
    expect(page.locator(".toast")).to_contain_text("Copied")
    words = page.evaluate("navigator.clipboard.readText()")
    answer = subprocess.run(["bash", "-c", words], capture_output=True, check=True, text=True, timeout=60).stdout
    assert json.loads(answer)["name"] == "it's ci"
    assert json.loads(answer)["token"].startswith("saveslot_")


def test_quotas_show_what_is_used_of_them(watched, store):
    """A namespace's sessions, bytes and entries a minute, each of its limit."""
    saveslot(store, "quota", "set", "default", "--sessions", "1000", "--bytes", "10MB")
    page = watched.open("/settings")
    row = page.get_by_role("row", name="default")
    expect(row.locator("[data-of=sessions]")).to_contain_text("of 1,000")
    expect(row.locator("[data-of=bytes]")).to_contain_text("of 10.0 MB")


def test_what_this_browser_keeps(watched):
    """Theme and single keys are kept over a reload."""
    page = watched.open("/settings")
    page.get_by_role("button", name="dark").click()
    page.get_by_role("button", name="off").click()
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(14, 17, 18)"
    expect(page.get_by_role("button", name="off")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("t")
    page.keyboard.press("?")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    expect(page.get_by_role("dialog")).to_have_count(0)

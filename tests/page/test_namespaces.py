"""Namespaces on the page: links stay in one, a switch leads to another."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.page.api import saveslot
from tests.page.conftest import Watched, serving


def test_links_stay_in_their_namespace_and_a_switch_leaves_it(watched, url, store):
    """What is opened from a session of a namespace is of that namespace; the switch names those with sessions."""
    saveslot(store, "create", "tutor", "--id", "lesson-9", "--namespace", "school-7")
    page = watched.open("/sessions?ns=school-7")
    expect(page.locator("tr.row")).to_have_count(1)
    page.locator("tr.row a").click()
    expect(page).to_have_url(f"{url}/sessions/lesson-9?ns=school-7")
    expect(page.get_by_role("slider")).to_be_visible()
    page.get_by_label("Places", exact=True).get_by_role("link", name="Sessions").click()
    expect(page).to_have_url(f"{url}/sessions?ns=school-7")
    switch = page.get_by_label("Namespace")
    expect(switch.locator("option")).to_have_text(["default, 5", "school-7, 1"])
    switch.select_option("default")
    expect(page).to_have_url(f"{url}/sessions")
    expect(page.locator("tr.row")).to_have_count(5)


def test_a_token_of_one_namespace_begins_there(chromium, store):
    """Who signs in with a token of one namespace sees that one at once, and no other can be chosen."""
    saveslot(store, "create", "tutor", "--id", "lesson-9", "--namespace", "school-7")
    text = saveslot(store, "token", "create", "school", "--scope", "read", "--namespace", "school-7").strip()
    saveslot(store, "token", "create", "boss", "--scope", "admin")
    with serving(str(store)) as url:
        watched = Watched(chromium, url)
        watched.expected = ["401"]
        page = watched.open("/sessions")
        page.get_by_label("Token").fill(text)
        page.get_by_role("button", name="Sign in").click()
        expect(page).to_have_url(f"{url}/sessions?ns=school-7")
        expect(page.locator("tr.row")).to_have_count(1)
        expect(page.get_by_label("Namespace")).to_have_count(0)
        page.context.close()
        watched.check()

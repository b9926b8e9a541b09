"""Changing a session from the page: shown before it happens, done once, refused if somebody else wrote."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.page.api import get, post, saveslot


def kinds(url: str, id: str) -> list[str]:
    return [entry["kind"] for entry in get(url, f"/sessions/{id}/log?limit=500")["items"]]


def test_rollback_says_what_it_does_and_can_be_undone(watched, url):
    """The dialog shows the diff and the steps that stay; undo is a rollback to where the session was."""
    before = get(url, "/sessions/trip-lisbon/data")
    page = watched.open("/sessions/trip-lisbon")
    page.locator(".log-row", has_text="planned").first.click()
    page.keyboard.press("r")
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("heading")).to_have_text("Roll trip-lisbon back to 5 planned?")
    expect(dialog.locator(".operations li").first).to_be_visible()
    expect(dialog).to_contain_text("are not undone")
    dialog.get_by_role("button", name="Roll back to 5").click()
    expect(page.locator(".toast")).to_contain_text("Rolled back to 5 planned.")
    assert "summary" not in get(url, "/sessions/trip-lisbon/data")
    page.keyboard.press("u")
    expect(page.locator(".toast")).to_contain_text("Undone.")
    assert get(url, "/sessions/trip-lisbon/data") == before
    assert kinds(url, "trip-lisbon")[-2:] == ["rollback", "rollback"]


def test_rollback_from_now_by_keyboard_alone(watched, url):
    """Keys g s, j, Enter, {, r, Enter, u: from a list to a rollback and back, without a mouse."""
    page = watched.open("/")
    expect(page.locator(".counters")).to_be_visible()
    for key in ("g", "s"):
        page.keyboard.press(key)
    expect(page.locator("tr.row").first).to_be_visible()
    page.locator("tr.row", has_text="trip-lisbon").first.wait_for()
    ids = page.locator("tr.row .c-id a").all_inner_texts()
    for _ in range(ids.index("trip-lisbon") + 1):
        page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_role("slider")).to_be_visible()
    page.keyboard.press("{")
    page.keyboard.press("{")
    page.keyboard.press("r")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.locator(".toast")).to_contain_text("Rolled back to")
    page.keyboard.press("u")
    expect(page.locator(".toast")).to_contain_text("Undone.")


def test_conflict_names_what_came_and_works_on_top_of_it(watched, url):
    """A rollback whose session moved on changes nothing, names the new entries, and can be made from the new head."""
    watched.expected = ["412"]
    page = watched.open("/sessions/trip-lisbon")
    page.locator(".log-row", has_text="planned").first.click()
    page.keyboard.press("r")
    dialog = page.get_by_role("dialog")
    expect(dialog.locator(".operations li").first).to_be_visible()
    post(url, "/sessions/trip-lisbon/checkpoints", {"name": "followed_up", "put": {"late": True}})
    count = len(kinds(url, "trip-lisbon"))
    dialog.get_by_role("button", name="Roll back to 5").click()
    expect(dialog.get_by_role("heading")).to_have_text("Not done: 1 entry came meanwhile")
    expect(dialog.locator(".came")).to_contain_text("followed_up")
    assert len(kinds(url, "trip-lisbon")) == count
    dialog.get_by_role("button", name=f"Roll back from {count}").dblclick()
    expect(page.locator(".toast")).to_contain_text("Rolled back to 5 planned.")
    assert kinds(url, "trip-lisbon").count("rollback") == 2


def test_lost_answer_is_asked_for_with_the_same_key(watched, url):
    """A write whose answer was lost is unknown to the page; trying again does not do it twice."""
    watched.expected = ["Failed to load resource", "ERR_FAILED"]
    page = watched.open("/sessions/trip-lisbon")
    page.locator(".log-row", has_text="planned").first.click()
    page.keyboard.press("r")
    dialog = page.get_by_role("dialog")
    expect(dialog.locator(".operations li").first).to_be_visible()
    lost = []

    def lose(route):
        if lost:
            route.continue_()
        else:
            lost.append(route.fetch().status)
            route.abort()

    page.route("**/rollback", lose)
    dialog.get_by_role("button", name="Roll back to 5").click()
    expect(dialog.get_by_role("alert")).to_contain_text("Unknown whether it was done")
    dialog.get_by_role("button", name="Roll back to 5").click()
    expect(page.locator(".toast")).to_contain_text("Rolled back to 5 planned.")
    assert lost == [200]
    assert kinds(url, "trip-lisbon").count("rollback") == 2


def test_pause_pin_and_fork(watched, url):
    """Pause and pin act at once and offer the opposite; fork opens the new session."""
    page = watched.open("/sessions/trip-lisbon?at=5")
    expect(page.get_by_role("slider")).to_be_visible()
    expect(page.locator(".actions button").first).to_be_visible()
    page.keyboard.press("p")
    expect(page.locator(".headline .chip")).to_have_text("paused")
    page.keyboard.press("p")
    expect(page.locator(".headline .chip")).to_have_text("active")
    page.keyboard.press(".")
    expect(page.locator(".toast")).to_contain_text("Pinned.")
    assert get(url, "/sessions/trip-lisbon/pins")["items"] == [5, 7]
    page.keyboard.press("f")
    page.get_by_label("Id of the fork").fill("trip-porto")
    page.get_by_role("button", name="Fork at 5").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("trip-porto")


def test_copying_a_command_in_a_dialog_changes_nothing(watched, url):
    """The copy buttons of a dialog copy a command for this server, and neither fork nor close the dialog."""
    page = watched.open("/sessions/trip-lisbon?at=5")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    expect(page.locator(".actions button").first).to_be_visible()
    page.keyboard.press("f")
    page.get_by_label("Id of the fork").fill("trip-porto")
    page.get_by_role("dialog").get_by_role("button", name="copy as CLI").click()
    expect(page.locator(".toast")).to_contain_text("Copied: saveslot fork")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == f"saveslot fork trip-lisbon --at 5 --as trip-porto --store {url}"
    page.get_by_role("dialog").get_by_role("button", name="copy as curl").click()
    expect(page.get_by_label("Id of the fork")).to_be_visible()
    assert "trip-porto" not in {row["session_id"] for row in get(url, "/sessions")["items"]}


def test_recover_and_delete(watched, url):
    """A failed session is recovered after its outlook was shown; deleting asks for the id."""
    page = watched.open("/sessions/review-8812")
    page.locator(".headline").get_by_role("button", name="Recover").click()
    page.get_by_role("dialog").get_by_role("button", name="Recover it").click()
    expect(page.locator(".headline .chip")).to_have_text("active")
    page.get_by_role("button", name="Delete…").click()
    verb = page.get_by_role("dialog").get_by_role("button", name="Delete the session")
    expect(verb).to_be_disabled()
    page.get_by_role("dialog").get_by_role("textbox").fill("review-8812")
    verb.click()
    expect(page).to_have_url(f"{url}/sessions")
    expect(page.locator("tr.row", has_text="review-8812")).to_have_count(0)


def test_a_person_decides_what_became_of_a_step(watched, url):
    """A step of unknown outcome is settled by what a person found; its result counts from then on."""
    page = watched.open("/sessions/lesson-2207")
    page.locator(".headline").get_by_role("button", name="Decide on send-mail…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("heading")).to_have_text("Did send-mail:reminder happen?")
    dialog.get_by_text("It did", exact=True).click()
    dialog.get_by_label("Result as JSON").fill('{"mail": 7}')
    dialog.get_by_role("button", name="Write it to the log").click()
    expect(page.locator(".toast")).to_contain_text("send-mail:reminder counts as done.")
    expect(page.locator(".outlook")).to_contain_text("1 finished step is not repeated")
    [step] = get(url, "/sessions/lesson-2207/steps")["items"]
    assert (step["state"], step["result"]) == ("finished", {"mail": 7})


def test_erasing_names_forks_and_is_for_good(watched, url):
    """Erasing asks for the id, names the forks that keep their part, and leaves an empty trail; other data stays."""
    watched.expected = ["404", "410"]
    page = watched.open("/sessions/trip-lisbon")
    page.get_by_role("button", name="Erase…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("1 fork keeps what it took over: trip-lisbon-cheap")
    expect(dialog).to_contain_text("Neither an undo nor gc brings anything back")
    verb = dialog.get_by_role("button", name="Erase the session")
    expect(verb).to_be_disabled()
    dialog.get_by_role("textbox").fill("trip-lisbon")
    verb.click()
    expect(page.locator(".toast")).to_contain_text("Erased trip-lisbon: ")
    expect(page.get_by_role("link", name="trip-lisbon", exact=True)).to_have_count(0)
    page.goto(f"{url}/sessions/trip-lisbon")
    expect(page.locator(".missing")).to_contain_text("checkpoint")
    assert get(url, "/sessions/trip-lisbon-cheap/data")["notes"] == "far from the centre"


def test_every_write_of_a_dialog_has_one_key(watched, url):
    """A verb that is tried again after its answer was lost is the same request, with the same key, whichever it is."""
    watched.expected = ["Failed to load resource", "ERR_FAILED", "404"]
    page = watched.open("/sessions/trip-lisbon")
    keys: list[str | None] = []

    def lose(route):
        if route.request.method == "GET":
            route.continue_()
            return
        keys.append(route.request.headers.get("idempotency-key"))
        if len(keys) % 2:
            route.fetch()
            route.abort()
        else:
            route.continue_()

    page.route("**/v1/sessions/trip-lisbon**", lose)
    dialog = page.get_by_role("dialog")
    for button, verb in {"Cancel…": "Cancel the session", "Delete…": "Delete the session"}.items():
        page.locator(".actions").get_by_role("button", name=button).click()
        if button == "Delete…":
            dialog.get_by_role("textbox").fill("trip-lisbon")
        dialog.get_by_role("button", name=verb).click()
        expect(dialog.get_by_role("alert")).to_contain_text("Unknown whether it was done")
        dialog.get_by_role("button", name=verb).click()
        expect(dialog).to_have_count(0)
    assert len(keys) == 4
    assert keys[0] == keys[1] != keys[2] == keys[3]
    assert None not in keys


def test_labels_of_many_sessions(watched, url):
    """One label is set on all selected sessions by a job, and the list shows them under it."""
    page = watched.open("/sessions")
    expect(page.locator("tr.row")).to_have_count(5)
    page.get_by_label("Select all that are loaded").click()
    page.get_by_role("region", name="Selected sessions").get_by_role("button", name="Label…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("team")
    dialog.get_by_label("Value").fill("blue")
    dialog.get_by_role("button", name="Label 5 sessions").click()
    expect(dialog).to_contain_text("Finished: 5 done, 0 refused of 5.")
    assert all(row["labels"]["team"] == "blue" for row in get(url, "/sessions")["items"])


def test_a_session_that_is_deleted_while_it_is_open_says_so(watched, store):
    """Somebody else deletes the session on the screen: what is left is the trail of what happened to it."""
    watched.expected = ["404", "410"]
    page = watched.open("/sessions/review-8812")
    expect(page.locator(".actions button").first).to_be_visible()
    page.wait_for_timeout(1000)
    saveslot(store, "rm", "review-8812", "--yes")
    expect(page.get_by_role("heading", level=1)).to_have_text("review-8812 was deleted")
    expect(page.locator(".missing")).to_contain_text("opened")

"""The page's files: what is sent, how long it may be kept, and how much it weighs."""

from __future__ import annotations

import re

import pytest

from saveslot.server.page import FOR_GOOD, PLACES, page

# Bytes, compressed: of what the first screen needs, and of everything.
FIRST, ALL = 120_000, 200_000
# What every screen needs beside its modules.
SHARED = {"style.css", "icon.svg", "theme.js"}


def hints(document: str) -> set[str]:
    return set(re.findall(r'modulepreload" href="/page/\w+/([^"]+)"', document))


def imports(name: str) -> set[str]:
    return set(re.findall(r'from "\./([^"]+)"', page().files[name].text.decode()))


@pytest.mark.parametrize("place", ["/", "/sessions", "/sessions/a%2Fb%20%3F"])
def test_every_place_is_the_document(served, place):
    """Each place of the page is the same document, under a policy that allows this server's files only."""
    answer = served.request("GET", place)
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    text = answer.body.decode()
    assert not re.search(r"<script>|<style|style=|\son\w+=|https?://", text)


def test_document_is_asked_for_again_and_files_never(served):
    """A browser asks whether the document changed, and keeps its files for good."""
    document = served.request("GET", "/")
    assert document.headers["cache-control"] == "no-cache"
    again = served.request("GET", "/", if_none_match=document.headers["etag"])
    assert (again.status, again.body) == (304, b"")
    files = re.findall(r'(?:href|src)="(/page/[^"]+)"', document.body.decode())
    assert len(files) > 20
    for file in files:
        answer = served.request("GET", file)
        assert (answer.status, answer.headers["cache-control"]) == (200, FOR_GOOD)
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert served.request("GET", files[0].replace("/page/", "/page/0")).status == 404


@pytest.mark.parametrize("place", ["/", "/sessions/a", "/settings"])
def test_what_a_screen_needs_is_hinted(served, place):
    """The document names all modules that its screen imports, so none waits for another to be read."""
    hinted = hints(served.request("GET", place).body.decode())
    screens = {"/": "now.js", "/sessions/a": "session.js", "/settings": "settings.js"}
    assert {"app.js", screens[place]} <= hinted
    assert "compare.js" not in hinted
    for name in hinted:
        assert imports(name) <= hinted, name


def test_every_module_is_part_of_a_screen():
    """The page imports the screens of all places when they are opened; no module belongs to none of them."""
    later = re.findall(r'\["([^"]+\.js)", "\w+Screen"\]', page().files["app.js"].text.decode())
    assert sorted(later) == sorted(PLACES.values())
    used = set().union(*(hints(document.text.decode()) for document in page().documents.values()))
    assert used == {name for name in page().files if name.endswith(".js")} - {"theme.js"}


def test_page_is_small(served):
    """Each first screen is under 120 KB compressed, all of the page under 200 KB, and it is sent compressed."""
    files = page().files
    for place, document in page().documents.items():
        needed = hints(document.text.decode()) | SHARED
        assert len(document.packed) + sum(len(files[name].packed) for name in needed) < FIRST, place
    assert sum(len(file.packed) for file in files.values()) < ALL
    answer = served.request("GET", f"/page/{page().digest}/style.css", accept_encoding="gzip, br")
    assert answer.headers["content-encoding"] == "gzip"
    assert len(answer.body) == len(files["style.css"].packed)


def test_page_sets_no_markup(served):
    """No module turns a value into markup: what agents saved is text wherever it is shown."""
    for name, file in page().files.items():
        text = file.text.decode()
        assert not re.search(r"outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), name
        assert "innerHTML" not in text or name == "view.js", name

"""The page's files: what is sent, how long it may be kept, and how much it weighs."""

from __future__ import annotations

import re

import pytest

from saveslot.server.page import FOR_GOOD, page

# Bytes of everything, compressed.
MOST = 120_000


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


def test_every_module_is_hinted_and_every_import_is_there(served):
    """The document names all modules, so none waits for another to be read; each import names one of them."""
    hinted = set(re.findall(r'modulepreload" href="/page/\w+/([^"]+)"', served.request("GET", "/").body.decode()))
    files = page().files
    assert hinted == {name for name in files if name.endswith(".js")} - {"theme.js"}
    for name, file in files.items():
        if name.endswith(".js"):
            imports = re.findall(r'from "([^"]+)"', file.text.decode())
            assert {one.removeprefix("./") for one in imports} <= files.keys(), name


def test_page_is_small(served):
    """Everything that the page loads is under 120 KB compressed, and is sent compressed."""
    document, files = page().document, page().files
    assert len(document.packed) + sum(len(file.packed) for file in files.values()) < MOST
    answer = served.request("GET", f"/page/{page().digest}/style.css", accept_encoding="gzip, br")
    assert answer.headers["content-encoding"] == "gzip"
    assert len(answer.body) == len(files["style.css"].packed)


def test_page_sets_no_markup(served):
    """No module turns a value into markup: what agents saved is text wherever it is shown."""
    for name, file in page().files.items():
        text = file.text.decode()
        assert not re.search(r"outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), name
        assert "innerHTML" not in text or name == "view.js", name

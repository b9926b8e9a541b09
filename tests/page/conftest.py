"""A real server over sessions with a history, and Chromium; no test ends with a console error or an outside request."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.page import trips

expect.set_options(timeout=60_000)

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or "chromium"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def serving(store: str, port: int = 0, *options: str) -> Iterator[str]:
    argv = [sys.executable, "-m", "saveslot", "serve", "--store", store, "--port", str(port), *options]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        assert line.startswith("listening on http://"), line
        yield line.split()[-1]
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Path:
    """A store with the sessions of trips.py, made once; tests that write work on copies."""
    store = tmp_path_factory.mktemp("trips") / "trips.db"
    trips.make(str(store))
    return store


@pytest.fixture
def store(made, tmp_path) -> Path:
    for file in made.parent.glob("trips.db*"):
        shutil.copy(file, tmp_path)
    return tmp_path / "trips.db"


@pytest.fixture
def url(store) -> Iterator[str]:
    with serving(str(store)) as url:
        yield url


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Watched:
    """Opens pages that belong to one server, and collects what none of them may do."""

    def __init__(self, browser: Browser, url: str) -> None:
        self.browser, self.url = browser, url
        self.troubles: list[str] = []
        self.expected: list[str] = []  # parts of messages that a test provokes

    def open(self, path: str, **options: Any) -> Page:
        options = {"viewport": {"width": 1440, "height": 900}, **options}
        page = self.browser.new_context(**options).new_page()
        page.set_default_timeout(60_000)
        page.on("console", lambda message: message.type == "error" and self.troubles.append(message.text))
        page.on("pageerror", lambda error: self.troubles.append(str(error.stack)))
        page.on("request", lambda request: request.url.startswith(self.url) or self.troubles.append(request.url))
        page.goto(self.url + path)
        return page

    def check(self) -> None:
        left = [text for text in self.troubles if not any(part in text for part in self.expected)]
        assert left == []


@pytest.fixture
def watched(chromium, url) -> Iterator[Watched]:
    watched = Watched(chromium, url)
    yield watched
    for context in chromium.contexts:
        context.close()
    watched.check()

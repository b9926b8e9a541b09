"""A server as a process of its own, and a bare HTTP client: what it sends and gets is what is on the wire."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Served:
    process: subprocess.Popen[str]
    url: str
    store: str  # its URL

    @property
    def address(self) -> str:
        return self.url.removeprefix("http://")

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        return request(self.url, method, path, body, **headers)


def request(url: str, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    """Send a request; `body` as JSON unless it is bytes; in header names "_" stands for "-"."""
    address, slash, prefix = url.removeprefix("http://").partition("/")
    connection = HTTPConnection(address, timeout=60)
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
        names.setdefault("content-type", "application/json")
    try:
        connection.request(method, slash + prefix + path, body, names)
        answer = connection.getresponse()
        lowered = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, lowered, answer.read())
    finally:
        connection.close()


@contextmanager
def serving(store: str, *options: str, port: str = "0", stderr: Any = None, **env: str) -> Iterator[Served]:
    argv = [sys.executable, "-m", "saveslot", "serve", "--store", store, "--port", port, *options]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=stderr, text=True, env={**os.environ, **env})
    try:
        line = process.stdout.readline()
        assert line.startswith("listening on http://"), line
        yield Served(process, line.split()[-1], store)
    finally:
        process.terminate()
        try:
            process.wait(60)
        finally:
            process.kill()
            process.stdout.close()
            process.wait()


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Served]:
    path: Path = tmp_path_factory.mktemp("served") / "agents.db"
    with serving(str(path)) as served:
        yield served

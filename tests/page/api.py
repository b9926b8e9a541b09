"""The API and the command line, to compare the page with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from http.client import HTTPConnection
from typing import Any


def call(url: str, method: str, path: str, body: Any = None) -> Any:
    connection = HTTPConnection(url.removeprefix("http://"), timeout=60)
    try:
        text = None if body is None else json.dumps(body)
        connection.request(method, f"/v1{path}", text, {"content-type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        assert answer.status < 400, content
        return json.loads(content)
    finally:
        connection.close()


def get(url: str, path: str) -> Any:
    return call(url, "GET", path)


def post(url: str, path: str, body: Any) -> Any:
    return call(url, "POST", path, body)


def saveslot(store: object, *words: str, token: str = "") -> str:
    """Return what a command prints."""
    argv = [sys.executable, "-m", "saveslot", *words, "--store", str(store)]
    env = {**os.environ, "SAVESLOT_TOKEN": token} if token else None
    return subprocess.run(argv, capture_output=True, check=True, text=True, timeout=120, env=env).stdout

"""Managers with keys on every backend, and what lies in their files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import saveslot
from saveslot import SessionManager
from saveslot.stack import Postgres, Valkey
from saveslot.stores.memory import MemoryStore


@pytest.fixture(scope="session")
def database() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[Valkey]:
    with Valkey() as server:
        yield server


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request, tmp_path) -> str:
    if request.param == "memory":
        return "memory:"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 's.db'}"
    return f"{request.getfixturevalue('database').url}&schema=s{os.urandom(4).hex()}"


@pytest.fixture
def file(tmp_path) -> Path:
    return tmp_path / "s.db"


class Opener:
    """`async with opener(encryption_key=…) as sessions`: each time a manager that knows nothing yet, on one store."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._memory = _Kept()

    def __call__(self, **options):
        if self.url == "memory:":
            return SessionManager(store=self._memory, **options)
        return saveslot.open(self.url, **options)


class _Kept(MemoryStore):
    """Stays open for the next manager."""

    async def close(self) -> None: ...


@pytest.fixture
def opened(url) -> Opener:
    return Opener(url)

"""Parses the URL of a server, or of several that serve one store: http://one:7788,two:7788/prefix."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from saveslot.errors import InvalidInput
from saveslot.stores import shown

PORTS = {"http": 80, "https": 443}
LAST_PORT = 65535


class Host(NamedTuple):
    name: str
    port: int

    def __str__(self) -> str:
        return f"[{self.name}]:{self.port}" if ":" in self.name else f"{self.name}:{self.port}"


class Address(NamedTuple):
    """Servers of one store, in the order in which they are tried."""

    hosts: list[Host]
    secure: bool
    prefix: str  # of every path: "" or "/prefix"
    shown: str


def parse_url(url: str) -> Address:
    try:
        parts = urlsplit(url)
        names = parts.netloc.split(",")
        hosts = [_host(name, PORTS[parts.scheme]) for name in names]
    except (ValueError, KeyError):
        raise _unreadable(url) from None
    if "@" in parts.netloc:
        raise InvalidInput("url", f"{shown(url)}: a server takes no password; pass token=, or set SAVESLOT_TOKEN")
    if parts.query or parts.fragment or not all(host.name for host in hosts):
        raise _unreadable(url)
    return Address(hosts, parts.scheme == "https", parts.path.rstrip("/"), url)


def _host(text: str, port: int) -> Host:
    parts = urlsplit(f"//{text}")
    number = parts.port if parts.port is not None else port
    if not 0 < number <= LAST_PORT:
        raise ValueError(text)
    return Host(parts.hostname or "", number)


def _unreadable(url: str) -> InvalidInput:
    return InvalidInput("url", f"{shown(url)} is not the URL of a server; write http://host:7788, or https://host")

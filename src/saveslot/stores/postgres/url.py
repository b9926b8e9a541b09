"""Parses a PostgreSQL URL into a schema, options for the driver, and one DSN per host."""

from __future__ import annotations

import os
import re
from typing import cast
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg

from saveslot.errors import InvalidInput
from saveslot.stores import shown

SCHEMA = "saveslot"
# Prepared statements that the driver keeps per connection. None behind a pooler, unless the URL sets
# `statement_cache_size=100`: a pooler that switches connections per transaction may not support them.
CACHE = "100"
LAST_PORT = 65535
# Read from the primary unless the URL says otherwise: a replica may lag, and a primary may become one.
ATTRIBUTES, PRIMARY = "target_session_attrs", "read-write"
# Values that the driver accepts; checked here because its own errors are unclear.
CHOICES = {
    "sslmode": ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    ATTRIBUTES: ("any", "primary", "standby", PRIMARY, "read-only", "prefer-standby"),
}
ESCAPED = "in user and password write @ as %40, / as %2F, : as %3A, ? as %3F, # as %23, [ as %5B"


def parse_url(url: str) -> tuple[str, str, int]:
    """Return the schema, the DSN for the driver, and the size of its statement cache."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise InvalidInput("url", f"{shown(url)} cannot be read; {ESCAPED}") from None
    if parts.netloc.count("@") > 1:  # the driver would end the password at the first one
        raise InvalidInput("url", f"{shown(url)} has an extra @ before its host; {ESCAPED}")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    schema = checked_schema(options.pop("schema", SCHEMA))
    cache = options.pop("statement_cache_size", CACHE)
    if not cache.isdecimal():
        raise InvalidInput("url", f"statement_cache_size {cache!r} must be a number, 0 for a transaction pooler")
    for name, choices in CHOICES.items():
        if options.get(name) and options[name] not in choices:
            raise InvalidInput("url", f"{name} {options[name]!r} must be one of {', '.join(choices)}")
    if "," in parts.netloc or "," in options.get("host", ""):
        options.setdefault(ATTRIBUTES, PRIMARY)
    for port in _ports(parts.netloc, options):
        if not 0 < int(port) <= LAST_PORT:  # the driver would wrap it around
            raise InvalidInput("url", f"{shown(url)} names port {port}; ports end at {LAST_PORT}")
    return schema, urlunsplit(parts._replace(query=urlencode(options))), int(cache)


def checked_schema(name: str) -> str:
    """Return the name if it can be used, quoted, as a schema's; else raise `InvalidInput`."""
    if name == "":
        raise InvalidInput("schema", f"must not be empty; leave it out for {SCHEMA!r}")
    if not isinstance(cast("object", name), str) or not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", name):
        raise InvalidInput("schema", f"{name!r} must be lower-case letters, digits and underscores, 63 at most")
    if name.startswith("pg_"):
        raise InvalidInput("schema", f"{name!r} begins with pg_, which PostgreSQL reserves; choose another")
    return name


def unreadable(place: str, exc: ValueError) -> InvalidInput:
    """The error for a URL that the driver refuses. Quotes it only about options: other messages may hold a password."""
    text = str(exc)
    if isinstance(exc, asyncpg.ClientConfigurationError) and re.search(r"ssl|TLS|certificate|gsslib|attrs", text):
        return InvalidInput("url", f"{place} cannot be used: {text}")
    return InvalidInput("url", f"{place} cannot be read; {ESCAPED}")


def _ports(netloc: str, options: dict[str, str]) -> list[str]:
    """The numeric ports of a URL; the driver refuses anything else."""
    names = netloc.rpartition("@")[2].split(",")
    ports = [name.rpartition("]")[2].rpartition(":")[2] for name in names if ":" in name.rpartition("]")[2]]
    return [port for port in [*ports, *options.get("port", "").split(",")] if port.isdecimal()]


def hosts(dsn: str) -> list[str]:
    """One DSN per host: given all of them, the driver gives up when one is silent or broken."""
    parts = urlsplit(dsn)
    options = dict(parse_qsl(parts.query))
    options.setdefault(ATTRIBUTES, os.environ.get("PGTARGETSESSIONATTRS", PRIMARY))
    user, at, names = parts.netloc.rpartition("@")
    if names or "host" not in options:
        dsns = [parts._replace(netloc=f"{user}{at}{name}", query=urlencode(options)) for name in names.split(",")]
    else:
        ports = options.get("port", "").split(",")
        folders = options["host"].split(",")
        each = zip(folders, ports * len(folders) if len(ports) == 1 else ports, strict=False)
        each_options = [options | {"host": folder} | ({"port": port} if port else {}) for folder, port in each]
        dsns = [parts._replace(query=urlencode(one)) for one in each_options]
    return [urlunsplit(one) for one in dsns]

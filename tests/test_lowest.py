"""The lowest versions of the dependencies, which `make test-lowest` installs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_lowest_versions_are_the_declared_ones():
    """lowest.txt pins each minimum that pyproject.toml declares, and nothing else."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = [
        *project["dependencies"],
        *(line for extra in project["optional-dependencies"].values() for line in extra),
    ]
    minimums = {
        name.partition("[")[0]: re.split("[,;]", version)[0]
        for name, _, version in (line.partition(">=") for line in declared)
        if version
    }
    pinned = dict(re.findall(r"^(\S+)==(\S+)$", (ROOT / "lowest.txt").read_text(encoding="utf-8"), re.MULTILINE))
    assert pinned.keys() == minimums.keys()
    assert all(f"{pinned[name]}.0.0".startswith(f"{version}.") for name, version in minimums.items())


def test_development_tools_are_not_published():
    """The extras are for users: test and benchmark tools are dependency groups, and `all` brings no test tools."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    services = {"cli", "crypto", "http", "otel", "postgres", "server", "stack", "valkey", "yaml"}
    frameworks = {"adk", "agent-framework", "claude", "langgraph", "mcp", "openai", "pydantic-ai", "strands"}
    assert set(extras) == services | frameworks | {"all", "testing"}
    assert extras["all"] == ["saveslot[cli,postgres,valkey,yaml,crypto]"]

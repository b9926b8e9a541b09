"""What is generated from the code and the measurements is what is committed."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

import saveslot

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script():
    """A script of docs/ as a module."""

    def load(name: str):
        spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def test_the_reference_is_what_the_code_says(script):
    """docs/reference.md is what the generator gives."""
    made = script("make_reference").page()
    assert (ROOT / "docs" / "reference.md").read_text() == made, "run: python docs/make_reference.py"


def test_the_reference_has_every_public_name(script):
    """A name that is exported can be looked up."""
    page = (ROOT / "docs" / "reference.md").read_text()
    assert [name for name in saveslot.__all__ if not re.search(rf"\b{name}\b", page)] == []


def test_the_figures_in_the_readme_are_those_of_the_last_measurement(script):
    """README's table says what bench/RESULTS.md says."""
    made = script("make_table")
    readme = made.README.read_text()
    assert made.BEGIN in readme
    assert readme == made.renewed(readme, made.RESULTS.read_text()), "run: python docs/make_table.py"


def test_the_picture_is_whole_and_asks_nobody():
    """The picture shows the demo's last line, and loads nothing from elsewhere."""
    picture = (ROOT / "docs" / "demo.svg").read_text()
    assert "nothing lost, nothing done twice" in picture
    assert re.findall(r"(?:href|src|url)\s*[=(]", picture) == []
    assert len(picture) < 30_000

"""Generated pages match the code and the measurements."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

import saveslot
from saveslot import blocking
from saveslot.errors import BY_CODE

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script():
    """A script, by default of docs/, as a module."""

    def load(name: str, folder: str = "docs"):
        spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / folder / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def test_reference_matches_the_code(script):
    """docs/reference.md equals the generator's output."""
    module = script("make_reference").page()
    assert (ROOT / "docs" / "reference.md").read_text() == module, "run: python docs/make_reference.py"


def test_reference_has_every_public_name(script):
    """Every exported name is in the reference."""
    page = (ROOT / "docs" / "reference.md").read_text()
    assert [name for name in saveslot.__all__ if not re.search(rf"\b{name}\b", page)] == []


def test_reference_has_what_users_call_and_nothing_else(script):
    """The reference of held sessions and managers has the calls that `saveslot.blocking` has, and no others."""
    page = (ROOT / "docs" / "reference.md").read_text()
    for variable, kind in (("sessions", blocking.SessionManager), ("held", blocking.Held)):
        shown = re.findall(rf"^### {variable}\.(\w+)$", page, re.MULTILINE)
        fields = {"session", "lost", "cancelled", "resident", "namespace", "session_ttl_hours"}
        assert set(shown) == {name for name in dir(kind) if not name.startswith("_")} - fields


def test_every_error_has_a_section():
    """The troubleshooting page has a section for every error class."""
    page = (ROOT / "docs" / "how-to" / "troubleshoot.md").read_text()
    sections = set(re.findall(r"^### (\w+)$", page, re.MULTILINE))
    assert sections == {kind.__name__ for kind in BY_CODE.values()}


def test_diagrams_match_their_script(script):
    """docs/diagrams is what the script draws, and loads nothing from elsewhere."""
    module = script("make_diagrams")
    assert sorted(path.stem for path in module.FOLDER.glob("*.svg")) == sorted(
        each.__name__ for each in module.DIAGRAMS
    )
    for each in module.DIAGRAMS:
        drawn = (module.FOLDER / f"{each.__name__}.svg").read_text()
        assert drawn == module.drawn(each), "run: python docs/make_diagrams.py"
        assert re.findall(r"(?:href|src)\s*=|url\((?!#)", drawn) == []


def test_types_of_the_typescript_client_match_the_server(script):
    """The TypeScript client's types equal what its script makes of the server's OpenAPI document."""
    module = script("make_types", "clients/typescript")
    assert module.FILE.read_text() == module.text(), "run: make types-typescript"


def test_site_has_every_page_and_no_dead_link(script, tmp_path, monkeypatch):
    """Each page of docs/ can be reached from the site's navigation, and links between its pages resolve."""
    module = script("make_site")
    monkeypatch.setattr(module, "BUILD", tmp_path)
    monkeypatch.setattr(module, "PAGES", tmp_path / "pages")
    module.gather()
    config = tomllib.loads((tmp_path / "zensical.toml").read_text())
    sections = [links for section in config["project"]["nav"] for links in section.values() if isinstance(links, list)]
    reached = {place for links in sections for link in links for place in link.values()}
    guides = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert {guide for guide in guides if not guide.startswith(("decisions/", "README"))} - reached == set()
    for page in (tmp_path / "pages").rglob("*.md"):
        prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)\s#]+)", prose):
            assert re.match(r"[a-z]+:", target) or (page.parent / target).exists(), f"{page.name}: {target}"


def test_readme_figures_match_the_last_measurement(script):
    """README's table equals bench/RESULTS.md."""
    module = script("make_table")
    readme = module.README.read_text()
    assert module.BEGIN in readme
    assert readme == module.renewed(readme, module.RESULTS.read_text()), "run: python docs/make_table.py"


def test_picture_is_complete_and_self_contained():
    """The picture shows the demo's last line, and loads nothing from elsewhere."""
    picture = (ROOT / "docs" / "demo.svg").read_text()
    assert "nothing lost, nothing done twice" in picture
    assert re.findall(r"(?:href|src|url)\s*[=(]|<script", picture) == []
    assert len(picture) < 100_000


def test_picture_moves_unless_the_reader_prefers_less_motion():
    """Every piece of text with a class has its keyframes; without animations the end is all that is visible."""
    picture = (ROOT / "docs" / "demo.svg").read_text()
    still, moving = picture.split("@media (prefers-reduced-motion:no-preference){")
    assert "animation" not in still
    style, texts = moving.split("</style>")
    used = set(re.findall(r'class="w (w\d+)', texts))
    assert len(used) > 20
    assert used == set(re.findall(r"\.(w\d+)\{animation-name", style))
    assert "nothing lost" in next(line for line in texts.splitlines() if "nothing lost" in line and 'h"' not in line)
    assert re.search(r'class="w w\d+ h"[^>]*>at work<', texts)


def test_picture_shows_each_text_while_it_stood_there(script):
    """A text of the first of two frames disappears, one of the second appears, and one of both does not move."""
    module = script("make_picture")
    frames = [module.Frame(0.0, ["always", "first"]), module.Frame(7.0, ["always", "then"])]
    picture = module.drawn(frames)  # of 14 seconds
    assert '<text x="14"' in picture
    assert re.search(r"<text x[^>]*>always<", picture)
    assert re.search(r'<text class="w w(\d) h"[^>]*>first<', picture)
    assert re.search(r'<text class="w w(\d)"[^>]*>then<', picture)
    assert "{0.00%{visibility:visible}50.00%{visibility:hidden}}" in picture
    assert "{0%{visibility:hidden}50.00%{visibility:visible}}" in picture

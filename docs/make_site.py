"""Gather the pages of the docs site in build/pages: python docs/make_site.py; `make docs` then builds it.

The pages stay where they are read on a code host. The site has its own places for those outside docs/, so links are
rewritten; of a link to a file that is not on the site, such as a test, the words stay. docs/README.md is its
navigation.
"""  # noqa: INP001

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build"
PAGES = BUILD / "pages"
# Where a file of the repository stands on the site.
PLACES = {
    "README.md": "index.md",
    "docs/README.md": "contents.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "FORMAT.md": "format.md",
    "SECURITY.md": "reporting.md",
    "bench/RESULTS.md": "speed.md",
}
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)|(?<=src=\")([^\"]+)(?=\")")
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
CONFIG = """\
[project]
site_name = "Saveslot"
site_description = "Durable sessions and checkpoints for AI agents"
docs_dir = "pages"
site_dir = "site"
use_directory_urls = false # links work from a folder, too; search needs a web server
nav = {nav}

[project.extra]
generator = false

[project.theme]
language = "en"
font = false # system fonts: the site asks no other host for anything
features = [
  "content.code.copy",
  "navigation.footer",
  "navigation.sections",
  "navigation.top",
  "navigation.tracking",
  "search.highlight",
  "toc.follow",
]

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"
toggle.icon = "lucide/moon"
toggle.name = "Dark"

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"
toggle.icon = "lucide/sun"
toggle.name = "Light"
"""


def places() -> dict[str, str]:
    """Every file of the site: its path in the repository, and on the site."""
    result = dict(PLACES)
    for path in sorted((ROOT / "docs").rglob("*")):
        source = path.relative_to(ROOT).as_posix()
        if path.suffix in {".md", ".svg"} and source not in result:
            place = path.relative_to(ROOT / "docs").as_posix()
            result[source] = place.replace("README.md", "index.md")
    for path in sorted((ROOT / "examples").glob("*.py")):
        result[f"examples/{path.name}"] = f"examples/{path.stem}.md"
    return result


def page(source: str, places: dict[str, str]) -> str:
    """Return a page with its links as the site needs them; code is left alone."""
    text = (ROOT / source).read_text(encoding="utf-8")
    if source.endswith(".py"):
        return f"# {source}\n\n```python\n{text}```\n"
    here = Path(places[source]).parent

    def moved(match: re.Match[str]) -> str:
        words, target, heading, image = match.groups()
        if re.match(r"[a-z]+:", target or image):
            return match[0]
        name = _within(Path(source).parent, target or image)
        if name not in places:
            return words
        place = Path(os.path.relpath(places[name], here)).as_posix()
        return place if image else f"[{words}]({place}{heading or ''})"

    blocks: list[str] = CODE.findall(text)
    prose = [LINK.sub(moved, part) for part in CODE.split(text)]
    return "".join(part + block for part, block in zip(prose, [*blocks, ""], strict=True))


def _within(folder: Path, target: str) -> str:
    """Return the path in the repository that a link in this folder means."""
    return Path(os.path.normpath(folder / target)).as_posix()


def navigation(places: dict[str, str]) -> list[tuple[str, list[tuple[str, str]]]]:
    """The sections of docs/README.md, each with its pages: title and place."""
    text = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    sections: list[tuple[str, list[tuple[str, str]]]] = []
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, _, body = part.partition("\n")
        links = [
            (name, places[_within(Path("docs"), target)])
            for name, target in re.findall(r"\[([^\]]+)\]\(([^)#]+)\)", body)
        ]
        if links:
            sections.append((title, links))
    return sections


def config(places: dict[str, str]) -> str:
    lines = ['  { "Start" = "index.md" },']
    for title, links in navigation(places):
        pages = ", ".join(f'{{ "{name}" = "{place}" }}' for name, place in links)
        lines.append(f'  {{ "{title}" = [{pages}] }},')
    return CONFIG.format(nav="[\n" + "\n".join(lines) + "\n]")


def gather() -> None:
    result = places()
    shutil.rmtree(PAGES, ignore_errors=True)
    for source, place in result.items():
        target = PAGES / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.endswith(".svg"):
            shutil.copyfile(ROOT / source, target)
        else:
            target.write_text(page(source, result), encoding="utf-8")
    (BUILD / "zensical.toml").write_text(config(result), encoding="utf-8")


if __name__ == "__main__":
    gather()

"""The web page: its files, as ES modules without a build step.

`/` and the page's other places are one document. It names its files below a digest over all of them, so a browser keeps
them for good and asks only whether the document changed. Each place's document hints at the modules that its screen
needs; the page loads those of other screens later. The page is a client of `/v1` like any other.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from starlette.responses import Response

from saveslot.errors import NotFound
from saveslot.server.call import Call
from saveslot.server.routes import Route

TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
# Places that exist, and the module of each one's screen, which app.js imports.
PLACES = {
    "/": "now.js",
    "/sessions": "sessions.js",
    "/sessions/{id}": "session.js",
    "/compare": "compare.js",
    "/storage": "storage.js",
    "/analytics": "analytics.js",
    "/events": "events.js",
    "/settings": "settings.js",
}
# What a module imports before it runs. `import("./x.js")` does not match: that one is loaded later.
IMPORT = re.compile(rb'^import .*from "\./([^"]+)";$', re.MULTILINE)
# A year: the digest in the name changes with the content.
FOR_GOOD = "public, max-age=31536000, immutable"


class File(NamedTuple):
    type: str
    text: bytes
    packed: bytes  # gzip


class Page(NamedTuple):
    digest: str
    documents: dict[str, File]  # by place
    files: dict[str, File]


def _file(type: str, text: bytes) -> File:
    return File(type, text, gzip.compress(text, 9, mtime=0))


@cache
def page() -> Page:
    """Read the page once per process."""
    folder = Path(__file__).parent
    texts = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix in TYPES}
    digest = hashlib.sha256()
    template = (folder / "index.html").read_text("utf-8")
    for name, text in [("index.html", template.encode()), *texts.items()]:
        digest.update(b"%s %d\n%s" % (name.encode(), len(text), text))
    version = digest.hexdigest()[:16]
    documents: dict[str, File] = {}
    for place, screen in PLACES.items():
        # Without the hints the browser would find the modules import by import, one round trip after another.
        modules = sorted(needed(texts, ["app.js", screen]))
        hints = "\n".join(f'  <link rel="modulepreload" href="/page/{version}/{name}">' for name in modules)
        document = template.replace("{version}", version).replace("  {modules}", hints)
        documents[place] = _file("text/html; charset=utf-8", document.encode())
    files = {name: _file(TYPES[Path(name).suffix], text) for name, text in texts.items()}
    return Page(version, documents, files)


def needed(texts: dict[str, bytes], modules: list[str]) -> set[str]:
    """Return these modules and all that they import, directly or through others."""
    names: set[str] = set()
    while modules:
        name = modules.pop()
        if name not in names:
            names.add(name)
            modules += [match.decode() for match in IMPORT.findall(texts[name])]
    return names


async def show(call: Call) -> Response:
    tag = f'"{page().digest}"'
    headers = {"etag": tag, "cache-control": "no-cache"}
    if call.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return _response(call, page().documents[call.route.path], headers)


async def send(call: Call) -> Response:
    name, version = call.path["file"], call.path["version"]
    if version != page().digest or name not in page().files:
        raise NotFound(f"there is no file {name} in version {version} of the page; reload it")
    return _response(call, page().files[name], {"cache-control": FOR_GOOD})


def _response(call: Call, file: File, headers: dict[str, str]) -> Response:
    headers["vary"] = "accept-encoding"
    if "gzip" in call.headers.get("accept-encoding", ""):
        return Response(file.packed, headers={**headers, "content-encoding": "gzip"}, media_type=file.type)
    return Response(file.text, headers=headers, media_type=file.type)


ROUTES = [
    *(Route("GET", place, "open", show, "The web page.", namespaced=False) for place in PLACES),
    Route("GET", "/page/{version}/{file}", "open", send, "A file of the web page.", namespaced=False),
]

"""The web page: its files, as ES modules without a build step.

`/` and the page's other places are one document. It names its files below a digest over all of them, so a browser keeps
them for good and asks only whether the document changed. The page is a client of `/v1` like any other.
"""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from starlette.responses import Response

from saveslot.errors import NotFound
from saveslot.server.call import Call
from saveslot.server.routes import Route

TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
# Places that exist; each is the same document, and the page shows what the URL says.
PLACES = ("/", "/sessions", "/sessions/{id}", "/compare", "/storage", "/analytics", "/events", "/settings")
# A year: the digest in the name changes with the content.
FOR_GOOD = "public, max-age=31536000, immutable"


class File(NamedTuple):
    type: str
    text: bytes
    packed: bytes  # gzip


class Page(NamedTuple):
    digest: str
    document: File
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
    # Without the hints the browser would find the modules import by import, one round trip after another.
    modules = [name for name in texts if name.endswith(".js") and name != "theme.js"]
    hints = "\n".join(f'  <link rel="modulepreload" href="/page/{version}/{name}">' for name in modules)
    document = template.replace("{version}", version).replace("  {modules}", hints)
    files = {name: _file(TYPES[Path(name).suffix], text) for name, text in texts.items()}
    return Page(version, _file("text/html; charset=utf-8", document.encode()), files)


async def show(call: Call) -> Response:
    tag = f'"{page().digest}"'
    headers = {"etag": tag, "cache-control": "no-cache"}
    if call.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return _response(call, page().document, headers)


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

"""The pages: files of this package, served as they are. No build step, nothing from elsewhere.

Their URLs hold a digest of all of them, so that a browser keeps each for ever and still has, after an
upgrade, either all of the old ones or all of the new ones: modules name each other relatively. Only the
entry page is asked for every time.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI, Request, Response

__all__ = ["mount"]

_FOLDER = Path(__file__).parent / "static"
_ENTRY = "index.html"
_PLACE = b"/static/current/"
"""What stands in the entry page for the folder with the digest."""
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_FOR_EVER = "public, max-age=31536000, immutable"
_ASK_AGAIN = "no-cache"
_DIGEST_CHARS = 16


@dataclass(frozen=True, slots=True)
class _Asset:
    """A file, as it is answered."""

    body: bytes
    media_type: str


def mount(app: FastAPI) -> None:
    """Answer `/` and `/static/` with the pages. They hold no data: whoever reads them needs no token.

    Files are read once. What is not among them is not found, whatever its path looks like.
    """
    files = {path.relative_to(_FOLDER).as_posix(): path for path in _FOLDER.rglob("*") if path.is_file()}
    assets = {name: _Asset(path.read_bytes(), _TYPES[path.suffix]) for name, path in files.items()}
    digest = _digest(assets)
    entry = assets.pop(_ENTRY)
    page = entry.body.replace(_PLACE, f"/static/{digest}/".encode())
    etag = f'"{digest}"'

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    def index(request: Request) -> Response:
        headers = {"Cache-Control": _ASK_AGAIN, "ETag": etag}
        if etag in request.headers.get("If-None-Match", ""):
            return Response(status_code=304, headers=headers)
        return Response(page, media_type=entry.media_type, headers=headers)

    @app.api_route("/static/{of}/{name:path}", methods=["GET", "HEAD"], include_in_schema=False)
    def asset(of: str, name: str) -> Response:
        found = assets.get(name) if of == digest else None
        if found is None:
            return Response(status_code=404, headers={"Cache-Control": _ASK_AGAIN})
        return Response(found.body, media_type=found.media_type, headers={"Cache-Control": _FOR_EVER})


def _digest(assets: dict[str, _Asset]) -> str:
    whole = hashlib.sha256()
    for name, each in sorted(assets.items()):
        whole.update(f"{name} {len(each.body)}\n".encode())
        whole.update(each.body)
    return whole.hexdigest()[:_DIGEST_CHARS]

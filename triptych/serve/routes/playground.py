"""The playground: one page at `/`, one of the API at `/docs`, and their files, served by a table of names."""

from pathlib import Path

from fastapi import APIRouter
from starlette.responses import FileResponse

from triptych.serve.errors import ApiError

router = APIRouter(include_in_schema=False)

_FOLDER = Path(__file__).parent.parent / "playground"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# A name that is not here has no file: no part of a path comes from a request.
_FILES = {path.name: path for path in sorted(_FOLDER.iterdir()) if path.suffix in _TYPES}

_HEADERS = {
    # Data URIs are what the API sends; blobs are recordings and files to save.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data: blob:; media-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    # Another version of the server must not meet an older script.
    "Cache-Control": "no-cache",
}


@router.get("/")
async def page() -> FileResponse:
    return _answer("index.html")


@router.get("/docs")
async def reference() -> FileResponse:
    return _answer("docs.html")


@router.get("/playground/{name}")
async def file(name: str) -> FileResponse:
    if name not in _FILES:
        raise ApiError(404, "Not Found", code="not_found")
    return _answer(name)


def _answer(name: str) -> FileResponse:
    path = _FILES[name]
    return FileResponse(path, media_type=_TYPES[path.suffix], headers=_HEADERS)

"""The style sheet, the script and the icon. Their addresses change with their contents, so browsers keep them."""

import hashlib
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response

_KINDS = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
_FILES = {
    file.name: file.read_bytes()
    for file in (resources.files("qs_web") / "static").iterdir()
    if file.name.rpartition(".")[2] in _KINDS
}
_VERSIONS = {name: hashlib.sha256(data).hexdigest()[:12] for name, data in _FILES.items()}


def asset(name: str) -> str:
    """Returns the address of a file, relative to the page's path."""
    return f"static/{name}?v={_VERSIONS[name]}"


async def send_asset(request: Request) -> Response:
    """Answers with a file."""
    name = request.path_params["name"]
    if name not in _FILES:
        return Response("no such file\n", 404, media_type="text/plain")
    keep = "public, max-age=31536000, immutable" if request.query_params.get("v") == _VERSIONS[name] else "no-cache"
    return Response(_FILES[name], media_type=_KINDS[name.rpartition(".")[2]], headers={"cache-control": keep})

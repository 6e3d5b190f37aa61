"""Makes the answers for browsers: HTML from templates, static files, and the notices that say what an action has done.

All values in a template are escaped. Nothing is inline and nothing comes from another host, so that the
Content-Security-Policy of `guard.py` can forbid both.
"""

import hashlib
from collections.abc import Mapping
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

_templates = Environment(
    autoescape=True,  # in every template, whatever its name: names, payloads and reasons come from anybody
    loader=PackageLoader("qs_web"),
    undefined=StrictUndefined,  # a mistyped name is an error, and not an empty place on the page
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)


def render(template: str, values: Mapping[str, Any], status: int = 200) -> HTMLResponse:
    """Renders a template into a response. template: its name without .html."""
    return HTMLResponse(_templates.get_template(f"{template}.html").render(values), status)


_KINDS = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
_FILES = {
    file.name: file.read_bytes()
    for file in (resources.files("qs_web") / "static").iterdir()
    if file.name.rpartition(".")[2] in _KINDS
}
# A version of the page has its files under addresses of its own, so browsers keep them and never mix two versions.
_VERSIONS = {name: hashlib.sha256(data).hexdigest()[:12] for name, data in _FILES.items()}


def asset(name: str) -> str:
    """Returns the address of a file, relative to the page's path."""
    return f"static/{name}?v={_VERSIONS[name]}"


async def send_asset(request: Request) -> Response:
    """Answers with the style sheet, the script or the icon."""
    name = request.path_params["name"]
    if name not in _FILES:  # a look-up among the files that were read: no path from a browser is ever opened
        return Response("no such file\n", 404, media_type="text/plain")
    keep = "public, max-age=31536000, immutable" if request.query_params.get("v") == _VERSIONS[name] else "no-cache"
    return Response(_FILES[name], media_type=_KINDS[name.rpartition(".")[2]], headers={"cache-control": keep})


_NOTICES = {
    "pushed": ("Pushed 1 message.", "Pushed {} messages."),
    "deleted": ("Deleted 1 message.", "Deleted {} messages."),
    "released": ("Released 1 message.", "Released {} messages."),
    "redriven": ("Moved 1 message back.", "Moved {} messages back."),
    "redriven-in-part": (
        "Moved 1 message back so far, and more wait: move all back again to go on.",
        "Moved {} messages back so far, and more wait: move all back again to go on.",
    ),
    "rejected": ("Rejected 1 message: it is a dead letter now.", "Rejected {} messages: they are dead letters now."),
    "purged": ("Purged the queue: 1 message removed.", "Purged: {} messages removed."),
    "paused": ("Paused 1 queue.", "Paused {} queues."),
    "resumed": ("Resumed 1 queue.", "Resumed {} queues."),
    "queues-deleted": ("Deleted 1 queue.", "Deleted {} queues."),
    "created": ("Created the queue.", "Created {} queues."),
    "changed": ("Changed the options.", "Changed {} options."),
    "nothing": ("Nothing was selected.", "Nothing was selected."),
}


def notice(key: str, number: str) -> str:
    """Returns the line that says what an action has done, "" for an unknown key.

    number: digits, else 1 is taken. The address of a page has the key and the number, never the text: a link of
    somebody else could make the page say anything.
    """
    one, many = _NOTICES.get(key, ("", ""))
    count = int(number) if number.isascii() and number.isdigit() and len(number) < 16 else 1
    return one if count == 1 else many.format(f"{count:,}")

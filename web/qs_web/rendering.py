"""HTML from templates. Everything that a template writes is escaped."""

from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse

_templates = Environment(
    autoescape=True,
    loader=PackageLoader("qs_web"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)


def render(template: str, values: Mapping[str, Any], status: int = 200) -> HTMLResponse:
    """Returns the response that a template makes. template: its name without .html."""
    return HTMLResponse(_templates.get_template(f"{template}.html").render(values), status)

"""Hooks of mkdocs.yml. The pages are written for GitHub; this makes the same text right for the site.

The site begins with the beginning of README.md, up to its worker, in place of the first lines of docs/index.md.

The pages link to files outside docs/. The site has those too: README.md, CONTRIBUTING.md, CHANGELOG.md, SECURITY.md and
the schema are in its folder `project/`, with the same paths as in the project. Links to other things, such as folders,
become plain text. What belongs to an item of a list is indented by four spaces, as Python-Markdown wants it.
"""

import re
from pathlib import Path
from posixpath import dirname, join, normpath, relpath
from typing import Any

from mkdocs.structure.files import File

_PROJECT = Path(__file__).resolve().parent.parent
_FOLDER = "project/"
_FILES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "schemas/qs_schemas/qs.xsd")
_ITEM = re.compile(r"(?:- +|\d+\. +)")
_HOME = "index.md"
_HOME_ENDS, _CONTENTS = "\n## A worker\n", "\n## Contents\n"
"""Headings: before the first ends what the home page has of README.md, with the second goes on docs/index.md."""
_GO_ON = "\n[First steps](../README.md) goes on with a worker and the bus.\n"
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\[\]]*)\]\((?P<target>[^()\s#]+)(?P<section>#[^()\s]*)?\)")


def on_files(files: Any, *, config: Any) -> Any:
    """Adds the files of the project that pages link to."""
    for name in _FILES:
        files.append(File.generated(config, _FOLDER + name, abs_src_path=str(_PROJECT / name)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Returns the page with its links and lists as they have to be in the site."""
    source = page.file.src_uri
    if source == _HOME:
        markdown = home(markdown, (_PROJECT / "README.md").read_text(encoding="utf-8"))
    return indented(_LINK.sub(lambda link: _rewritten(link, source), markdown))


def home(index: str, readme: str) -> str:
    """Returns docs/index.md with the beginning of README.md in place of its first lines. ValueError if a heading is
    missing."""
    begin = readme[: readme.index(_HOME_ENDS)]
    begin = re.sub(r"(?<=\]\()(?![a-z]+:|#)(docs/)?", lambda found: "" if found[1] else "../", begin)
    return begin + _GO_ON + index[index.index(_CONTENTS) :]


def indented(markdown: str) -> str:
    """Returns the text with everything in an item of a list indented by four spaces, and an empty line after a
    paragraph in an item."""
    lines: list[str] = []
    missing, fenced, loose = 0, False, False
    for line in markdown.splitlines():
        item = None if fenced else _ITEM.match(line)
        if item:
            if loose and lines[-1].startswith(" "):
                lines.append("")
            missing, loose = 4 - len(item[0]), False
        elif not line:
            loose = True
        elif not line.startswith(" "):
            missing = 0
            fenced ^= line.startswith("```")
        lines.append(line if item or not line.startswith(" ") else " " * missing + line)
    return "\n".join(lines)


def _rewritten(link: re.Match[str], page: str) -> str:
    """Returns the link as the site has it. page: its path in the site's sources."""
    target = link["target"]
    if "://" in target:
        return link[0]
    folder = dirname(page.removeprefix(_FOLDER) if page.startswith(_FOLDER) else f"docs/{page}")
    path = normpath(join(folder, target))  # in the project
    if path not in _FILES and not path.startswith("docs/"):
        return link["text"]
    there = _FOLDER + path if path in _FILES else path.removeprefix("docs/")
    return f"{link['image']}[{link['text']}]({relpath(there, dirname(page))}{link['section'] or ''})"

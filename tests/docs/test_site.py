"""The pages as a site: mkdocs builds it, strictly, and the site reads as the pages do."""

import html
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.chromium import Chromium, chromium, missing
from support.serving import PROJECT

pytestmark = pytest.mark.slow  # 10 s to build the site, 5 s for a browser

MKDOCS = [str(Path(sys.executable).parent / "mkdocs"), "build", "--strict"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site. mkdocs checks that every page is in the navigation, and every link and anchor leads
    somewhere."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [*MKDOCS, "--site-dir", str(folder)],
        cwd=PROJECT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def window(site: Path) -> Iterator[Chromium]:
    if text := missing():
        pytest.skip(text)
    with chromium(f"file://{site}") as browser:
        yield browser


def test_the_site(site: Path) -> None:
    """Every page is there, and no list or table is left as text. The site asks no other host for anything."""
    pages = {path.relative_to(site).as_posix(): path.read_text("utf-8") for path in site.rglob("*.html")}
    assert {path.with_suffix(".html").name for path in (PROJECT / "docs").glob("*.md")} <= pages.keys()
    assert (site / "project/schemas/qs_schemas/qs.xsd").exists()
    left = [
        (name, text)
        for name, page in pages.items()
        for text in re.findall(r"<p>(.*?)</p>", page, re.DOTALL)
        if re.search(r"^\s*(?:- |\d+\. |\||```)", text, re.MULTILINE)
    ]
    assert not left
    loaded = [
        (name, tag)
        for name, page in pages.items()
        for tag in re.findall(r'<(?:script|link|img)[^>]*"https?:[^>]*>', page)
    ]
    assert not loaded


def test_the_home_page(site: Path) -> None:
    """It has every line of the beginning of README.md, with the picture, and then the contents of docs/index.md."""
    page = (site / "index.html").read_text("utf-8")
    article = page[page.index("<article") : page.index("</article")]
    words = re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", "", article)))
    readme = (PROJECT / "README.md").read_text("utf-8").partition("\n## A worker\n")[0]
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)|```\w*|[*`#]", lambda found: (found[1] or "").strip(), readme)
    lines = [" ".join(line.split()) for line in text.splitlines() if line and not line.startswith("Producers push")]
    assert len(lines) > 10
    assert [line for line in lines if line not in words] == []
    assert '<img alt="Producers push' in article
    assert article.index("Install and start") < article.index("Contents") < article.index("Glossary")


@pytest.mark.parametrize("width", [1200, 390])
def test_examples_of_the_protocol_fit(window: Chromium, width: int) -> None:
    """The end of each document can be seen without scrolling sideways, on a desk and on a phone; on a desk the first
    example has the lines of the page."""
    window.resize(width, 900)
    window.open("/protocol.html")
    sizes = window.run(
        "return [...document.querySelectorAll('.language-text code')].map((each) => [each.scrollWidth, "
        "each.clientWidth, Math.round(each.clientHeight / parseFloat(getComputedStyle(each).lineHeight))])"
    )
    assert isinstance(sizes, list)
    assert len(sizes) > 20
    assert [size for size in sizes if size[0] > size[1]] == []
    if width == 1200:
        first = re.search(r"^```qs\n(.*?)^```", (PROJECT / "docs/protocol.md").read_text("utf-8"), re.M | re.S)
        assert first is not None
        assert abs(sizes[0][2] - first[1].count("\n")) <= 2  # the box has a margin of its own

"""The pages as a site: mkdocs builds it, strictly, and the site reads as the pages do."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.serving import PROJECT

MKDOCS = [str(Path(sys.executable).parent / "mkdocs"), "build", "--strict"]


@pytest.mark.slow  # 8 s
def test_the_site(tmp_path: Path) -> None:
    """Every page is in the navigation, every link and anchor leads somewhere, and no list or table is left as text.
    The site asks no other host for anything."""
    done = subprocess.run(
        [*MKDOCS, "--site-dir", str(tmp_path)],
        cwd=PROJECT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    pages = {path.relative_to(tmp_path).as_posix(): path.read_text("utf-8") for path in tmp_path.rglob("*.html")}
    assert {path.with_suffix(".html").name for path in (PROJECT / "docs").glob("*.md")} <= pages.keys()
    assert (tmp_path / "project/schemas/qs_schemas/qs.xsd").exists()
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

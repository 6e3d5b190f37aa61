"""docs/pipeline.md is true: its five commands give an archive and a report, with a real Spark."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from serving import PROJECT
from spark_queues import SHORT_LIVED_JVM

from qs_pipeline.errors import NoJavaError
from qs_pipeline.java import find_java

PAGE = PROJECT / "docs" / "pipeline.md"
TEXT = PAGE.read_text(encoding="utf-8")


@pytest.fixture
def _java(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        find_java()
    except NoJavaError as error:
        pytest.skip(f"THE COMMANDS OF docs/pipeline.md ARE NOT TESTED: {error}")
    monkeypatch.setenv("JDK_JAVA_OPTIONS", SHORT_LIVED_JVM)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("_java")
def test_five_commands(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    run_console_blocks: Callable[..., int],
    fenced_blocks: Callable[..., list[Any]],
) -> None:
    """One of them installs what is installed here. Takes 40 s: Spark starts twice."""
    assert run_console_blocks(PAGE) == 4
    monkeypatch.chdir(tmp_path / "console")
    example = fenced_blocks(TEXT, "python")[0].body
    exec(compile(example, PAGE.name, "exec"), {})
    assert capsys.readouterr().out.strip() == example.rpartition("#")[2].strip() == "[(1000,)]"
    assert "<html" in Path("report/index.html").read_text()

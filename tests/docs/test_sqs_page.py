"""docs/sqs.md says what the engine is made of: its bounds, its arguments, and what it cannot do."""

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from support.sqs_serving import SqsServer, sqs_serving

from qs_storage.engine import Feature
from qs_storage.remote import sqs_calls as calls
from qs_storage.remote import sqs_queue as queue
from qs_storage.remote.sqs import CallPolicy, SqsEngine

PAGE = Path(__file__).parents[2].joinpath("docs", "sqs.md").read_text()
WORDS = " ".join(PAGE.split())


def test_bounds() -> None:
    """Each bound is on the page, as it is."""
    for bound in (
        f"1 to {calls.LONGEST_NAME} of",
        f"{calls.MOST_BYTES} bytes",
        f"at most {calls.MOST_ENTRIES} messages",
        f"at most {queue.LONGEST_DELAY} seconds",
        f"at most {queue.LONGEST_WINDOW // 3600} hours",
        f"At most {queue.MOST_IN_FLIGHT:,}",
        f"`{calls.MID}`",
        f"`{calls.ENCODING}`",
    ):
        assert bound in WORDS, bound


def test_call_policy() -> None:
    """Every figure of how long something is tried is named, and its default told."""
    named = re.search(r"`CallPolicy\((.*)\)`", PAGE)
    assert named is not None
    assert re.findall(r"(\w+)=", named.group(1)) == [field.name for field in fields(CallPolicy)]
    policy = CallPolicy()
    assert f"tried {policy.attempts} times, with pauses from {policy.pause} s on" in WORDS
    assert f"{policy.connect_timeout:.0f} s are for a connection and {policy.read_timeout:.0f} s for an answer" in WORDS
    assert f"for up to {policy.longest_poll} seconds" in WORDS


def test_arguments() -> None:
    """The arguments that only this engine has are in the table."""
    own = set(inspect.signature(SqsEngine).parameters) - {"root", "clock", "disk"}
    assert own == set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))


def test_what_it_cannot_do() -> None:
    """The table of differences has every operation that is answered with 501."""
    [row] = [line for line in PAGE.splitlines() if line.startswith("| `get-message`")]
    for feature in (Feature.GET, Feature.LIST, Feature.COPY):
        assert feature in SqsEngine.cannot
        assert feature.value in row
    assert "501" in row


@pytest.fixture(name="endpoint")
def _endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[SqsServer]:
    """moto's server, and the credentials that the page exports. Takes about 3 s."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "any")
    with sqs_serving() as server:
        yield server


def test_what_the_page_shows(endpoint: SqsServer, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The console blocks and the program print what the page shows, with an endpoint on another port."""
    page = tmp_path / "sqs.md"
    page.write_text(PAGE.replace("http://127.0.0.1:9324", endpoint.url), encoding="utf-8")
    assert request.getfixturevalue("run_console_blocks")(page) == 5
    [program] = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == "['pears']\n"

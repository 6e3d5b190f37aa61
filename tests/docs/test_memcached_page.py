"""docs/memcached.md: the keys and the limits that it names are those that are."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.memcached_serving import Memcached, engine_on, needs_memcached
from support.serving import PROJECT

from qs_storage.engine import Draft, Options
from qs_storage.remote import memcached as engine
from qs_storage.remote import memcached_items as items
from qs_storage.remote import memcached_layout as layout
from qs_storage.remote import memcached_queue as queue
from qs_storage.remote import memcached_servers as servers

PAGE = (Path(PROJECT) / "docs" / "memcached.md").read_text(encoding="utf-8")
WORDS = " ".join(PAGE.split())
KEYS = [key for row in re.findall(r"^\| (`NS:.*?) \|", PAGE, re.MULTILINE) for key in re.findall(r"`([^`]+)`", row)]


@pytest.fixture
def memcached() -> Iterator[Memcached]:
    with Memcached() as server:
        yield server


def _pattern(key: str) -> str:
    key = re.escape(key)
    for name, stands_for in {
        "QUEUE": "(?:a%2Fb|=[0-9a-f]{32})", "NS": "qs", "GEN": "[0-9a-f]{12}", "pN": r"p\d+", "TOKEN": "[0-9a-f]{24}",
        "DIGEST": "[0-9a-f]{32}", "SIZE": r"\d+",
    }.items():  # fmt: skip
        key = key.replace(name, stands_for)
    return key


@needs_memcached
def test_the_console_blocks(memcached: Memcached, tmp_path: Path, run_console_blocks: Callable[..., int]) -> None:
    """The examples print what the page shows, with a memcached on another port."""
    page = tmp_path / "memcached.md"
    page.write_text(PAGE.replace(":11211", f":{memcached.port}"), encoding="utf-8")
    assert run_console_blocks(page) == 5


@needs_memcached
def test_keys(memcached: Memcached, tmp_path: Path) -> None:
    """Every key in memcached is one of those in the table, and each of these is there."""
    store = engine_on(memcached, root=tmp_path, namespace="qs")
    for qid in ("a/b", "x" * 121):
        store.create(qid, Options(capacity=10))
        store.queue(qid).push([Draft(b"x" * (items.CHUNK + 1), key="k")])
    store.close()
    dump = memcached.command("lru_crawler metadump all").decode()
    found = [re.sub("%25", "%", key).replace("%3a", ":") for key in re.findall(r"^key=(\S+)", dump, re.MULTILINE)]
    found = [key.replace("%3A", ":").replace("%3d", "=").replace("%3D", "=") for key in found]
    unused = set(KEYS)
    for key in found:
        matching = {name for name in KEYS if re.fullmatch(_pattern(name), key)}
        assert matching, key
        unused -= matching
    assert not unused


@pytest.mark.parametrize(
    "text",
    [
        f"of {items.CHUNK:,} bytes",
        f"| messages of one list | {layout.MOST:,} |",
        f"some {layout.PAGE} messages",
        f"for {items._EXPIRE} s |",
        f"{layout.ROW} bytes of a page",
        f"{servers.CONNECT_TIMEOUT:g} s for the connection, {servers.CALL_TIMEOUT:g} s for an answer",
        f"at most every {items._RECOUNT:g} s",
        "every half second" if queue.POLL_INTERVAL == 0.5 else "",
        f"-l {engine.DEFAULT_SERVERS[0][0]} -p {engine.DEFAULT_SERVERS[0][1]}",
        "choose another namespace",
        "whether it has been done is not known",
    ],
)
def test_figures(text: str) -> None:
    """Bounds and times, as the code has them."""
    assert text
    assert text in WORDS

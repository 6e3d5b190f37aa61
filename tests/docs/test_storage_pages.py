"""The pages about storages are true: their examples are run, and bounds, keys, flags and layouts are those of the
engines."""

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from support.console import Block
from support.servers.processes import PROJECT
from support.storage.memcached import Memcached, engine_on, needs_memcached
from support.storage.sqs import SqsServer, sqs_serving

from qs_server.main import qs_dir
from qs_server.main.opening import ENGINES, Storages
from qs_storage import dirq
from qs_storage.engine import Draft, Engine, Feature, Options
from qs_storage.policy import STORAGES_WITH
from qs_storage.postgres.engine import PostgresEngine
from qs_storage.remote import memcached as memcached_engine
from qs_storage.remote import memcached_items, memcached_layout, memcached_queue, sqs_calls, sqs_queue
from qs_storage.remote import memcached_servers as servers
from qs_storage.remote.memcached import MemcachedEngine
from qs_storage.remote.sqs import CallPolicy, SqsEngine
from qs_storage.tools import elements
from qs_storage.tools.elements import LAYOUTS, STATES


def test_storage_page_example(run_console_blocks: Callable[..., int]) -> None:
    """The example prints what the page shows."""
    assert run_console_blocks(PROJECT / "docs" / "storage.md") > 8


STORAGE_TEXT = PROJECT.joinpath("docs", "storage.md").read_text(encoding="utf-8")
STORAGES: dict[str, type[Engine]] = {
    **ENGINES,
    "memcached": MemcachedEngine,
    "postgres": PostgresEngine,
    "sqs": SqsEngine,
}
REFUSED = {
    Feature.KEY,
    Feature.CAPACITY,
    Feature.GET,
    Feature.LIST,
    Feature.COPY,
    Feature.CLAIM,
    Feature.SET,
    Feature.PAUSE,
    Feature.DEAD,
    Feature.REDRIVE,
    Feature.REASON,
    Feature.BACKOFF,
    Feature.RETENTION,
    Feature.HEADERS,
    Feature.PRIORITY,
    Feature.EXPIRES,
    Feature.UNIQUE,
    Feature.GROUP,
    Feature.PACE,
    Feature.GIVEN,
}
"""What a client can ask for: the answer is 501. That these are refused is shown with the contract."""


def storage_rows() -> dict[str, list[str]]:
    """The table of the section, by the first cell of each row: the others."""
    section = STORAGE_TEXT.split("\n## What each storage cannot do\n")[1].split("\n## ")[0]
    lines = [re.split(r" *\| *", line.strip())[1:-1] for line in section.splitlines() if line.startswith("|")]
    assert set(lines[1]) == {"---"}
    del lines[1]
    assert len({first for first, *_ in lines}) == len(lines)
    return {first: others for first, *others in lines}


def cell_of(engine: type[Engine], feature: Feature) -> str:
    """Returns how the page says whether an engine can: for one that keeps nothing, there is mostly nothing to say."""
    if feature not in engine.cannot:
        return "yes" if Feature.KEEP not in engine.cannot else "-"
    return "501" if feature in REFUSED else "no"


def test_storage_table_has_column_for_each_storage() -> None:
    """A column for each storage that the server offers, by its name."""
    assert list(STORAGES) == list(Storages())
    assert all(engine.name == name for name, engine in STORAGES.items())
    assert storage_rows()[""] == [f"`{name}`" for name in STORAGES]


def test_storage_table_has_row_for_each_feature() -> None:
    """A row for each feature, in the order in which they are declared."""
    assert list(storage_rows())[1:] == [feature.value for feature in Feature]


@pytest.mark.parametrize("feature", Feature)
def test_storage_table_says_what_engine_lacks(feature: Feature) -> None:
    """The table says of each storage exactly what it lacks."""
    assert storage_rows()[feature.value] == [cell_of(engine, feature) for engine in STORAGES.values()]


@pytest.mark.parametrize("feature", STORAGES_WITH)
def test_refusals_name_storages_that_can(feature: Feature) -> None:
    """The error for what a storage lacks names the others as the engines declare it."""
    can = {name for name, engine in STORAGES.items() if not {feature, Feature.KEEP} & set(engine.cannot)}
    assert set(STORAGES_WITH[feature]) == can


MEMCACHED_TEXT = (Path(PROJECT) / "docs" / "memcached.md").read_text(encoding="utf-8")
MEMCACHED_WORDS = " ".join(MEMCACHED_TEXT.split())
MEMCACHED_KEYS = [
    key
    for row in re.findall(r"^\| (`NS:.*?) \|", MEMCACHED_TEXT, re.MULTILINE)
    for key in re.findall(r"`([^`]+)`", row)
]


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
def test_memcached_page_examples(memcached: Memcached, tmp_path: Path, run_console_blocks: Callable[..., int]) -> None:
    """The examples print what the page shows, with a memcached on another port."""
    page = tmp_path / "memcached.md"
    page.write_text(MEMCACHED_TEXT.replace(":11211", f":{memcached.port}"), encoding="utf-8")
    assert run_console_blocks(page) == 5


@needs_memcached
def test_memcached_page_names_every_key(memcached: Memcached, tmp_path: Path) -> None:
    """Every key in memcached is one of those in the table, and each of these is there."""
    store = engine_on(memcached, root=tmp_path, namespace="qs")
    for qid in ("a/b", "x" * 121):
        store.create(qid, Options(capacity=10))
        store.queue(qid).push([Draft(b"x" * (memcached_items.CHUNK + 1), key="k")])
    store.close()
    dump = memcached.command("lru_crawler metadump all").decode()
    found = [re.sub("%25", "%", key).replace("%3a", ":") for key in re.findall(r"^key=(\S+)", dump, re.MULTILINE)]
    found = [key.replace("%3A", ":").replace("%3d", "=").replace("%3D", "=") for key in found]
    unused = set(MEMCACHED_KEYS)
    for key in found:
        matching = {name for name in MEMCACHED_KEYS if re.fullmatch(_pattern(name), key)}
        assert matching, key
        unused -= matching
    assert not unused


@pytest.mark.parametrize(
    "text",
    [
        f"of {memcached_items.CHUNK:,} bytes",
        f"| messages of one list | {memcached_layout.MOST:,} |",
        f"some {memcached_layout.PAGE} messages",
        f"for {memcached_items._EXPIRE} s |",
        f"{memcached_layout.ROW} bytes of a page",
        f"{servers.CONNECT_TIMEOUT:g} s for the connection, {servers.CALL_TIMEOUT:g} s for an answer",
        f"at most every {memcached_items._RECOUNT:g} s",
        "every half second" if memcached_queue.POLL_INTERVAL == 0.5 else "",
        f"-l {memcached_engine.DEFAULT_SERVERS[0][0]} -p {memcached_engine.DEFAULT_SERVERS[0][1]}",
        "choose another namespace",
        "whether it has been done is not known",
    ],
)
def test_memcached_page_gives_bound(text: str) -> None:
    """Bounds and times, as the code has them."""
    assert text
    assert text in MEMCACHED_WORDS


SQS_TEXT = Path(__file__).parents[2].joinpath("docs", "sqs.md").read_text()
SQS_WORDS = " ".join(SQS_TEXT.split())


def test_sqs_page_gives_bounds() -> None:
    """Each bound is on the page, as it is."""
    for bound in (
        f"1 to {sqs_calls.LONGEST_NAME} of",
        f"{sqs_calls.MOST_BYTES} bytes",
        f"at most {sqs_calls.MOST_ENTRIES} messages",
        f"at most {sqs_queue.LONGEST_DELAY} seconds",
        f"at most {sqs_queue.LONGEST_WINDOW // 3600} hours",
        f"At most {sqs_queue.MOST_IN_FLIGHT:,}",
        f"at most {sqs_calls.MOST_ATTRIBUTES} attributes",
        f"`{sqs_calls.MID}`",
        f"`{sqs_calls.ENCODING}`",
    ):
        assert bound in SQS_WORDS, bound


def test_sqs_page_gives_call_policy() -> None:
    """Every figure of how long something is tried is named, and its default told."""
    named = re.search(r"`CallPolicy\((.*)\)`", SQS_TEXT)
    assert named is not None
    assert re.findall(r"(\w+)=", named.group(1)) == [field.name for field in fields(CallPolicy)]
    policy = CallPolicy()
    assert f"tried {policy.attempts} times, with pauses from {policy.pause} s on" in SQS_WORDS
    assert (
        f"{policy.connect_timeout:.0f} s are for a connection and {policy.read_timeout:.0f} s for an answer"
        in SQS_WORDS
    )
    assert f"for up to {policy.longest_poll} seconds" in SQS_WORDS


def test_sqs_page_names_arguments() -> None:
    """The arguments that only this engine has are in the table."""
    own = set(inspect.signature(SqsEngine).parameters) - {"root", "clock", "disk"}
    assert own == set(re.findall(r"^\| `(\w+)` \|", SQS_TEXT, re.MULTILINE))


def test_sqs_page_says_what_is_answered_with_501() -> None:
    """The table of differences has every operation that is answered with 501."""
    [row] = [line for line in SQS_TEXT.splitlines() if line.startswith("| `get-message`")]
    for feature in (Feature.GET, Feature.LIST, Feature.COPY):
        assert feature in SqsEngine.cannot
        assert feature.value in row
    assert "501" in row


@pytest.fixture(name="endpoint")
def _endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[SqsServer]:
    """Runs moto's server, with the credentials that the page exports. Takes about 3 s."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "any")
    with sqs_serving() as server:
        yield server


def test_sqs_page_examples(endpoint: SqsServer, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The console blocks and the program print what the page shows, with an endpoint on another port."""
    page = tmp_path / "sqs.md"
    page.write_text(SQS_TEXT.replace("http://127.0.0.1:9324", endpoint.url), encoding="utf-8")
    assert request.getfixturevalue("run_console_blocks")(page) == 5
    [program] = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == "['pears']\n"


DIRECTORIES = PROJECT / "docs" / "directories.md"
DIRECTORIES_TEXT = DIRECTORIES.read_text(encoding="utf-8")


def test_directories_page_examples(run_console_blocks: Callable[..., int]) -> None:
    """The examples print what the page shows."""
    assert run_console_blocks(DIRECTORIES) > 8


@pytest.mark.parametrize("command", ["pump", "sink", "ls", "purge"])
def test_directories_page_names_every_flag(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The page has a section for each command, and names every flag of it."""
    assert f"\n## {command}\n" in DIRECTORIES_TEXT
    with pytest.raises(SystemExit):
        qs_dir.main([command, "--help"])
    flags = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", capsys.readouterr().out))
    assert len(flags) > 3
    assert [flag for flag in flags if not re.search(rf"`(qs-dir \w+ )?{flag}\b", DIRECTORIES_TEXT)] == []


def test_directories_page_names_states_and_layouts() -> None:
    """The page explains each state as ls shows it, and each layout."""
    shown = [qs_dir.shown(state) for state in STATES]
    assert [word for word in (*shown, *LAYOUTS) if f"`{word}`" not in DIRECTORIES_TEXT] == []


def test_directories_page_gives_defaults() -> None:
    """The page gives the defaults of purge."""
    [temp, lock] = [row for row in DIRECTORIES_TEXT.splitlines() if re.match(r"\| `--max-(temp|lock) S`", row)]
    assert re.findall(r"default: (\d+)", temp) == [str(elements.MAX_TEMP_VSQS), str(elements.MAX_TEMP)]
    assert re.findall(r"default: (\d+)", lock) == [str(elements.MAX_LOCK)]


DIRQ = PROJECT / "docs" / "dirq.md"
DIRQ_TEXT = DIRQ.read_text(encoding="utf-8")


Blocks = Callable[[str, str], list[Block]]


def test_dirq_page_examples(fenced_blocks: Blocks, tmp_path: Path) -> None:
    """The programs print what the page shows below them."""
    programs, printed = fenced_blocks(DIRQ_TEXT, "python"), fenced_blocks(DIRQ_TEXT, "text")[:-1]
    assert len(programs) == len(printed) == 2
    for program, expected in zip(programs, printed, strict=True):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program.body],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        assert (done.stdout, done.stderr) == (expected.body, "")


def test_dirq_page_gives_signatures(fenced_blocks: Blocks) -> None:
    """The page gives those of the code."""
    paths_told = fenced_blocks(DIRQ_TEXT, "text")[-1].body
    paths_found = []
    for made in (dirq.QueueSimple, dirq.Queue):
        bare = [p.replace(annotation=p.empty) for p in inspect.signature(made).parameters.values()]
        paths_found.append(f"{made.__name__}{inspect.Signature(bare)}")
    assert paths_told.splitlines() == [line.replace("mappingproxy({})", "{}") for line in paths_found]


def test_dirq_page_imports_work() -> None:
    """Each import that the page tells to write works."""
    shown = re.findall(r"\| `(from qs_storage\.[^`]+)` \|", DIRQ_TEXT)
    assert len(shown) == 5
    for line in shown:
        exec(line, {})


def shape_of(path: str) -> str:
    return re.sub(r"\b[0-9a-f]{14}\b", "ELEMENT", re.sub(r"\b[0-9a-f]{8}\b", "DIRECTORY", path))


def paths_told(queue: str) -> set[str]:
    """The shapes of the paths in the page's table."""
    table = DIRQ_TEXT.partition(f"| in a directory of `{queue}` |")[2].partition("\n\n")[0]
    return {shape_of(path) for row in table.splitlines() for path in re.findall(r"`([^`]+)`", row.split("|")[1])}


def paths_found(path: Path) -> set[str]:
    paths = (Path(above) / name for above, directories, files in os.walk(path) for name in [*directories, *files])
    return {shape_of(str(one.relative_to(path))) for one in paths}


def test_dirq_page_layout_of_queue_simple(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue has exactly the files of the table, in the middle of an addition too."""
    queue = dirq.QueueSimple(tmp_path, sync=False)
    queue.lock(queue.add(b""))
    during: list[set[str]] = []

    def link(old: str, new: str) -> None:
        during.append(paths_found(tmp_path))
        os.link(old, new)

    monkeypatch.setattr(queue._disk, "link", link)
    queue.add(b"")
    assert during == [paths_told("QueueSimple")]


def test_dirq_page_layout_of_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of an addition and of a removal, the table names all paths that are there, and no others."""
    queue = dirq.Queue(tmp_path, schema={"body": "string"}, sync=False)
    names = [queue.add({"body": ""}) for _ in range(2)]
    assert all(map(queue.lock, names))
    during: set[str] = set()

    def rename(old: str, new: str) -> None:
        during.update(paths_found(tmp_path))
        os.rename(old, new)
        during.update(paths_found(tmp_path))

    monkeypatch.setattr(queue._disk, "rename", rename)
    queue.add({"body": ""})
    queue.remove(names[0])
    parts = re.compile(r"(temporary|obsolete)(/ELEMENT/.*)?")
    assert {one for one in during if not parts.fullmatch(one)} == paths_told("Queue")

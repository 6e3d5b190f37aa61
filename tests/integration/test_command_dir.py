"""`qs-dir pump` and sink: real processes on real directories, with the packages vsqs and dirq as the other side."""

import errno
import os
import re
import signal
import time
from pathlib import Path

import pytest
from dirq.queue import Queue as OriginalQueue
from support.storage.directories import DIRQ, WITHIN, dir_tool, element, finish, listed, original_dirq, start, states
from support.storage.vsqs_original import original, output

from qs_storage import vsqs
from qs_storage.tools.elements import LAYOUTS
from qs_storage.tools.ends import Arrivals
from qs_testing.programs import until


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pump_and_sink(path: Path, layout: str) -> None:
    """`sink` prints and removes what pump stored, in order; both report number and rate."""
    done = dir_tool("pump", path, "--layout", layout, "--count", 30, "--size", 5)
    assert re.fullmatch(r"stored 30 messages, 150 bytes, in \d+\.\d\d s: \d+ a second\n", done.stderr)
    assert done.stdout == ""
    done = dir_tool("sink", path, "--print", "--count", 30)
    assert done.stdout.splitlines() == [str(number).ljust(5, ".") for number in range(1, 31)]
    assert re.fullmatch(r"took 30 messages, 150 bytes, in \d+\.\d\d s: \d+ a second\n", done.stderr)
    assert listed(path) == []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_several_at_once(path: Path, layout: str) -> None:
    """Two pumps and then two sinks on one directory: each message is taken once, and nothing is left."""
    pumps = [start("pump", path, "--layout", layout, "--lines", "--no-sync") for _ in range(2)]
    sent = [[f"{name}-{number}" for number in range(60)] for name in "ab"]
    for process, lines in zip(pumps, sent, strict=True):
        assert process.stdin is not None
        process.stdin.write("\n".join(lines))
    assert [finish(process)[0] for process in pumps] == [0, 0]
    sinks = [start("sink", path, "--print", "--wait", 0, "--no-sync") for _ in range(2)]
    ended = [finish(process) for process in sinks]
    assert [code for code, _, _ in ended] == [0, 0]
    assert sorted(line for _, out, _ in ended for line in out.splitlines()) == sorted(sent[0] + sent[1])
    assert listed(path) == []


def test_lines(path: Path) -> None:
    """Each line of stdin is a message, as it is, empty ones too; the last one needs no end."""
    dir_tool("pump", path, "--lines", stdin=b"one\n\n\xff\r\nlast")
    with vsqs.Queue(path, create=True) as queue:
        assert [queue.receive(timeout=0)[1] for _ in range(5)] == [b"one", b"", b"\xff\r", b"last", None]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_lines_as_they_come(path: Path, layout: str) -> None:
    """A line is stored when it is there, not when the input ends; a sink that waits gets it. Ctrl-C ends pump."""
    path.mkdir()
    taken = start("sink", path, "--layout", layout, "--print", "--count", 1)
    pump = start("pump", path, "--layout", layout, "--lines")
    assert pump.stdin is not None
    pump.stdin.write("now\nbegun")
    pump.stdin.flush()
    assert finish(taken)[:2] == (0, "now\n")
    code, _, err = finish(pump, signal.SIGINT)
    assert (code, err) == (130, "stored 1 message, 3 bytes\n")


def test_rate(path: Path) -> None:
    """--rate bounds how fast messages come."""
    done = dir_tool("pump", path, "--rate", 50, "--count", 15)
    found = re.search(r"in (\d+\.\d\d) s", done.stderr)
    assert found is not None
    assert float(found[1]) >= 0.17  # of 14 intervals of 0.02 s: up to 100 ms are caught up


def test_rate_after_a_pause(path: Path) -> None:
    """Lines that come late, and all at once, do not come faster than --rate for that."""
    pump = start("pump", path, "--lines", "--rate", 20)
    assert pump.stdin is not None
    with vsqs.Queue(path, create=True) as queue:
        pump.stdin.write("1\n")
        pump.stdin.flush()
        assert queue.receive(timeout=WITHIN)[1] == b"1"
        assert queue.receive(timeout=0.5) == (None, None)
        pump.stdin.write("2\n" * 10)
        pump.stdin.flush()
        mids = [int(queue.receive(timeout=WITHIN)[0] or "") for _ in range(10)]
        assert mids[-1] - mids[0] >= 300_000  # of 450 ms; up to 100 ms are caught up
    assert finish(pump)[0] == 0


def test_pump_waits_while_queue_is_full(path: Path) -> None:
    """Pump waits while the queue is full: by --capacity, or by its own options."""
    with vsqs.Queue(path, create=True) as queue:
        pump = start("pump", path, "--capacity", 2, "--count", 3)
        mids = [queue.receive(60, timeout=WITHIN)[0] for _ in range(2)]
        assert queue.receive(timeout=0.3) == (None, None)
        queue.delete(mids[0] or "")
        assert queue.receive(timeout=WITHIN)[1] == b"3"
        assert finish(pump)[0] == 0
    (path / ".queue.toml").write_text("capacity = 2\n")
    pump = start("pump", path, "--capacity", 9, "--count", 1)
    assert dir_tool("purge", path, "--all", "--yes").stdout.endswith("2 messages removed\n")
    assert finish(pump)[0] == 0


# -- the original packages as the other side ------------------------------------------------------------------------


def test_original_vsqs(path: Path) -> None:
    """The package vsqs takes what pump stores, and sink what that publishes."""
    dir_tool("pump", path, "--count", 5)
    assert [line.split()[1] for line in output(original("consume", path, 1))] == ["1", "2", "3", "4", "5"]
    sink = start("sink", path, "--print", "--count", 3)
    output(original("publish", path, "m", 3))
    assert finish(sink)[:2] == (0, "m-0\nm-1\nm-2\n")


@pytest.mark.parametrize("layout", DIRQ)
def test_original_dirq_takes(path: Path, layout: str) -> None:
    """The package dirq takes what pump stores."""
    dir_tool("pump", path, "--layout", layout, "--count", 5)
    queue = original_dirq(path, layout)
    found = []
    for name in queue:
        assert queue.lock(name)
        found.append(queue.get(name))
        queue.remove(name)
    assert found == [{"body": text} if layout == "dirq" else text.encode() for text in "12345"]
    assert listed(path) == []


@pytest.mark.parametrize("layout", DIRQ)
def test_original_dirq_adds(path: Path, layout: str) -> None:
    """A sink that waits takes what the package dirq adds, but not what that has locked until it unlocks it."""
    queue = original_dirq(path, layout)
    names = [queue.add(element(layout, text)) for text in ("held", "free")]
    assert queue.lock(names[0])
    sink = start("sink", path, "--layout", layout, "--print")
    assert sink.stdout is not None
    assert sink.stdout.readline() == "free\n"
    until(lambda: states(path) == ["locked"], *path.iterdir())  # sink prints a message before it removes it
    queue.add(element(layout, "new"))
    assert sink.stdout.readline() == "new\n"
    queue.unlock(names[0])
    assert sink.stdout.readline() == "held\n"
    code, out, err = finish(sink, signal.SIGINT)
    assert (code, out) == (130, "")
    assert err.startswith("took 3 messages, 11 bytes, in ")
    assert err.endswith("; 1 came out of order\n")


def test_schema(path: Path) -> None:
    """--schema says what elements hold: the payload goes into body, or the first piece that is not a table."""
    schema = "header=table?,data=binary"
    dir_tool("pump", path, "--layout", "dirq", "--schema", schema, "--lines", stdin=b"\xff\n")
    assert [found.read_bytes() for found in path.rglob("data")] == [b"\xff"]
    refused = dir_tool("sink", path, "--wait", 0, check=1)
    assert re.fullmatch(
        r"qs-dir: missing data file: \S+/body \(it holds data: say with --schema which of that is to be read, "
        r"as in --schema data=binary\); 0 messages were taken out before\n",
        refused.stderr,
    )
    assert states(path) == ["ready"]
    assert dir_tool("sink", path, "--schema", schema, "--count", 1).stderr == "took 1 message, 1 byte\n"


@pytest.mark.parametrize("schema", [[], ["--schema", "body=string,note=string"]])
def test_strings_that_are_no_text(path: Path, schema: list[str]) -> None:
    """A string is taken as its bytes, also one that is not UTF-8: the oldest element does not stop sink for ever."""
    queue = OriginalQueue(str(path), schema={"body": "binary", "note": "binary"})
    for body in (b"\xff", b"next"):
        queue.add({"body": body, "note": b"\xfe"})
    assert states(path) == ["ready", "ready"]
    with open(path.parent / "printed", "wb") as printed:
        assert finish(start("sink", path, *schema, "--print", "--wait", 0, stdout=printed))[0] == 0
    assert (path.parent / "printed").read_bytes() == b"\xff\nnext\n"
    assert listed(path) == []


@pytest.mark.parametrize("table", [b"no tab", b"\xff\t1\n", None])
def test_elements_that_cannot_be_read(path: Path, table: bytes | None) -> None:
    """A table that is none, or a directory in its place: the error says what is there and what to do; that helps."""
    name = OriginalQueue(str(path), schema={"body": "binary", "header": "binary"}).add({"body": b"1", "header": b""})
    header = path / name / "header"
    header.unlink()
    header.mkdir() if table is None else header.write_bytes(table)
    refused = dir_tool("sink", path, "--schema", "body=string,header=table", "--wait", 0, check=1)
    held = "body" if table is None else "body, header"
    assert (
        f"(it holds {held}: say with --schema which of that is to be read, as in --schema body=binary); "
        in refused.stderr
    )
    assert (f"{header.parent}" in refused.stderr) == (table != b"no tab")
    assert states(path) == ["ready"]
    if table is not None:
        assert dir_tool("sink", path, "--schema", "body=binary", "--wait", 0).stderr == "took 1 message, 1 byte\n"


def test_element_without_pieces(path: Path) -> None:
    """There is nothing to read it by: the error says that, and which element it is."""
    name = OriginalQueue(str(path), schema={"body": "binary"}).add({"body": b"1"})
    (path / name / "body").unlink()
    refused = dir_tool("sink", path, "--layout", "dirq", "--wait", 0, check=1)
    assert refused.stderr == (
        f"qs-dir: missing data file: {path}/{name}/body (it holds no piece of data: remove it if it is not needed); "
        "0 messages were taken out before\n"
    )


# -- what sink waits by ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", DIRQ)
def test_arrivals(path: Path, layout: str) -> None:
    """Additions of others are reported, also in later intermediate directories; new locks are not."""
    queue = original_dirq(path, layout)
    arrivals = Arrivals(str(path))
    try:
        queue.add(element(layout, "one"))
        assert arrivals.wait(WITHIN)
        arrivals.refresh()
        assert not arrivals.wait(0)
        name = queue.add(element(layout, "two"))
        assert arrivals.wait(WITHIN)
        assert not arrivals.wait(0)
        assert queue.lock(name)
        assert not arrivals.wait(0)
        if layout == "dirq-simple":
            queue.unlock(name)
            assert arrivals.wait(WITHIN)
        (path / "ffffffff").mkdir()
        assert arrivals.wait(WITHIN)
        arrivals.refresh()
        os.rename(path / name, path / "ffffffff" / "0123456789abcd")
        assert arrivals.wait(WITHIN)
    finally:
        arrivals.close()


def test_arrivals_without_inotify(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without inotify, it looks again after a moment."""

    def refuse() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("qs_storage.tools.ends.Inotify", refuse)
    arrivals = Arrivals(str(path))
    begun = time.monotonic()
    assert arrivals.wait(WITHIN)
    assert time.monotonic() - begun < WITHIN / 2
    arrivals.close()

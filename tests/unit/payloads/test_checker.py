"""The processes of a checker: bounded in time and memory, replaced when they end, and gone with their parent."""

import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qs_payloads import Checker, PayloadFault, PayloadSchema, Schemas, UncheckedError
from qs_payloads.checker import PROCESSES
from qs_payloads.process import Process

MakeSchema = Callable[..., PayloadSchema]
XS = 'xmlns:xs="http://www.w3.org/2001/XMLSchema"'
SLOW = (
    '<xs:element name="a"><xs:simpleType><xs:restriction base="xs:string"><xs:pattern value="(x+x+)+y"/>'
    "</xs:restriction></xs:simpleType></xs:element>"
)
GOOD, BAD, HOSTILE = b"<a>xxy</a>", b"<a>z</a>", b"<a>" + b"x" * 60 + b"</a>"
TOO_LONG = PayloadFault(None, "", "could not be checked within 0.1 seconds")


@pytest.fixture
def slow(make_schema: MakeSchema) -> PayloadSchema:
    return make_schema(SLOW)


@pytest.fixture
def checker() -> Iterator[Checker]:
    """Yields a checker with a bound of 0.1 s; at the end no process of it may be left."""
    made = Checker(seconds=0.1)
    yield made
    made.close()
    assert children() == set()


_others: set[int] = set()
"""Processes that other tests have started."""


@pytest.fixture(autouse=True)
def _no_others() -> None:
    _others.clear()
    _others.update(children())


def children() -> set[int]:
    """Returns the processes that a test has started, also those that have ended and were not waited for."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        found.update(map(int, (task / "children").read_text().split()))
    return found - _others


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_check_that_takes_long_is_ended(slow: PayloadSchema, checker: Checker) -> None:
    """The fault says so, and is that of the payload that took long; the next check is made as if nothing had been."""
    assert not slow.is_quick(1)
    assert checker.check(slow, [GOOD, GOOD]) is None
    [first] = children()
    assert checker.check(slow, [GOOD, HOSTILE, BAD]) == (1, TOO_LONG)
    assert children() == set()
    found = checker.check(slow, [GOOD, BAD])
    assert found is not None
    assert found[0] == 1
    assert "pattern" in found[1].reason
    assert children() != {first}


def test_descriptors_do_not_leak(slow: PayloadSchema, checker: Checker) -> None:
    """Processes that were ended leave nothing open."""
    checker.check(slow, [HOSTILE])
    before = descriptors()
    for _ in range(2):
        assert checker.check(slow, [HOSTILE]) == (0, TOO_LONG)
    assert descriptors() == before


def test_many_threads(slow: PayloadSchema, checker: Checker) -> None:
    """Threads share a few processes, and each gets the answer to its own question."""
    found: list[bool] = []

    def check(number: int) -> None:
        for _ in range(10):
            answer = checker.check(slow, [GOOD] * number + [BAD])
            found.append(answer is not None and answer[0] == number)

    threads = [threading.Thread(target=check, args=[number]) for number in range(2 * PROCESSES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(found), all(found)) == (20 * PROCESSES, True)
    assert 1 <= len(children()) <= PROCESSES


def test_a_process_that_ended_while_idle_is_replaced(slow: PayloadSchema, checker: Checker) -> None:
    """No payload has a fault because somebody has ended the process."""
    assert checker.check(slow, [GOOD]) is None
    [child] = children()
    os.kill(child, signal.SIGKILL)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert checker.check(slow, [GOOD]) is None


def test_signals_to_all_are_ignored(slow: PayloadSchema, checker: Checker) -> None:
    """Neither Ctrl-C nor the end of a service reaches a process: its parent may still need it."""
    assert checker.check(slow, [GOOD]) is None
    [child] = children()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(child, number)
    assert os.getpgid(child) != os.getpgid(0)
    assert checker.check(slow, [GOOD]) is None
    assert children() == {child}


def test_large_payloads(make_schema: MakeSchema, checker: Checker) -> None:
    """Payloads that are larger than a pipe holds arrive whole."""
    schema = make_schema('<xs:element name="a" type="xs:string"/>')
    assert checker.check(schema, [b"<a>" + b"x" * 3_000_000 + b"</a>"] * 2) is None


def test_a_schema_that_has_changed(tmp_path: Path, checker: Checker) -> None:
    """Processes check with the version that the schema has in this process."""
    file = tmp_path / "order.xsd"
    file.write_text(f'<xs:schema {XS}><xs:element name="a" type="xs:int"/></xs:schema>')
    schemas = Schemas(tmp_path)
    schemas.reload()
    earlier = schemas.get("order")
    assert checker.check(earlier, [b"<a>x</a>"]) is not None
    file.write_text(file.read_text().replace("int", "string"))
    assert checker.check(earlier, [b"<a>x</a>"]) is not None
    schemas.reload()
    assert checker.check(schemas.get("order"), [b"<a>x</a>"]) is None
    assert checker.check(earlier, [b"<a>x</a>"]) is not None


MANY = "".join(f'<xs:element name="e{number}" minOccurs="0" maxOccurs="5000"/>' for number in range(1000))
BOMB = f'<xs:complexType name="a"><xs:sequence maxOccurs="9000">{MANY}</xs:sequence></xs:complexType>'


def test_a_schema_that_takes_long_to_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An XSD that libxml2 would compile for minutes is given up, named, and others are read."""
    (tmp_path / "bomb.xsd").write_text(f"<xs:schema {XS}>{BOMB}</xs:schema>")
    (tmp_path / "order.xsd").write_text(f'<xs:schema {XS}><xs:element name="a" type="xs:int"/></xs:schema>')
    monkeypatch.setattr("qs_payloads.schemas.COMPILING", 0.2)
    schemas = Schemas(tmp_path)
    assert schemas.reload() == ["bomb.xsd: does not compile within 0.2 seconds"]
    assert schemas.names == ["order"]


def test_memory_is_bounded(make_schema: MakeSchema) -> None:
    """A process that would need more memory than it may have is ended, and the fault says so."""
    schema = make_schema('<xs:element name="a"><xs:complexType mixed="true"><xs:sequence><xs:any maxOccurs="unbounded" '
                         'processContents="skip"/></xs:sequence></xs:complexType></xs:element>')  # fmt: skip
    process = Process()
    try:
        [child] = children()
        limit, _ = resource.prlimit(child, resource.RLIMIT_AS)
        assert 1024**3 < limit < 2 * 1024**3
        resource.prlimit(child, resource.RLIMIT_AS, (limit - 900 * 1024**2,) * 2)  # so that less is enough
        found = process.check(schema.source, [b"<a>" + b"<b/>" * 1_500_000 + b"</a>"], 60)
        assert found is not None
        assert found[1].reason == "could not be checked in 1 GiB of memory"
    finally:
        process.close()


PARENT = """
import sys, threading
from qs_payloads import find_schema
from qs_payloads.process import Process
source = find_schema(sys.argv[1], "order").source
idle, busy = Process(), Process()
busy.compile(source)
payload = b"<a>" + b"x" * 60 + b"</a>"
threading.Thread(target=busy.check, args=(source, [payload], 0.5), daemon=True).start()
print(idle._process.pid, busy._process.pid, flush=True)
sys.stdin.read()
"""


def test_processes_end_with_their_parent(slow: PayloadSchema, tmp_path: Path) -> None:
    """Also when the parent is killed: the idle ones at once, and a busy one when its time is over."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        handles = [os.pidfd_open(int(pid)) for pid in parent.stdout.readline().split()]
        assert len(handles) == 2
        parent.kill()
    deadline = time.monotonic() + 30
    for handle in handles:
        poll = select.poll()
        poll.register(handle)
        assert poll.poll(max(0.0, deadline - time.monotonic()) * 1000), "a process is still there"
        os.close(handle)


def test_a_process_that_does_not_start(monkeypatch: pytest.MonkeyPatch, slow: PayloadSchema, checker: Checker) -> None:
    """A broken installation is an error, and no fault of the payload."""
    monkeypatch.setattr("qs_payloads.process._CODE", "raise SystemExit(3)")
    with pytest.raises(OSError, match=r"does not start: as the process that does it ended with exit code 3$"):
        checker.check(slow, [GOOD])
    monkeypatch.undo()
    assert checker.check(slow, [GOOD]) is None


def test_a_process_that_does_not_run(slow: PayloadSchema) -> None:
    """A process that is stopped is given up after a multiple of the seconds."""
    process = Process()
    try:
        process.compile(slow.source)
        [child] = children()
        os.kill(child, signal.SIGSTOP)
        assert process.check(slow.source, [GOOD], 0.01) == (
            0, PayloadFault(None, "", "could not be checked within 0.01 seconds")
        )  # fmt: skip
        assert children() == set()
        assert not process.is_usable
    finally:
        process.close()


def test_nobody_waits_for_a_check(slow: PayloadSchema, checker: Checker) -> None:
    """A check for which nobody waits any more is not made when its turn comes: no process is started for it."""
    stop = threading.Event()
    assert checker.check(slow, [GOOD], stop) is None
    before = children()
    for child in before:
        os.kill(child, signal.SIGKILL)
    stop.set()
    with pytest.raises(UncheckedError, match="nobody waits"):
        checker.check(slow, [GOOD], stop)
    assert children() <= before


def test_after_close(slow: PayloadSchema, checker: Checker) -> None:
    """A check that comes after the close is still made, and leaves no process."""
    checker.close()
    assert checker.check(slow, [GOOD]) is None
    assert children() == set()

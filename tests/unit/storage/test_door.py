"""A queue with a schema takes in only valid messages of the programs that share its directory."""

import errno
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.storage.door import KINDS, DoorCase
from support.storage.engines import Crash, FaultyDisk
from support.storage.vsqs_original import original, output

from qs_storage import door
from qs_storage.engine import Draft, Options, QueueNotEmptyError, Receipt, State, UnfinishedError
from qs_storage.vsqs import Queue

pytestmark = pytest.mark.usefixtures("small_first_segment")
SHARED = [kind for kind in KINDS if kind != "journal"]
"""Storages whose directories hold the messages."""


@pytest.fixture(params=KINDS)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DoorCase]:
    made = DoorCase(tmp_path / "root", request.param)
    yield made
    made.engine.close()


def only(*kinds: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", kinds, indirect=True)


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if "is no message, and stays" in text]


def test_what_is_invalid_stays(case: DoorCase, caplog: pytest.LogCaptureFixture) -> None:
    """An invalid payload is no message. It stays under a name that no message has, the log names it once, and nobody
    reads it again, also after a start. Valid ones beside it are messages."""
    case.put(b"one")
    refused = case.put(b"<bad>\n\n</bad>")
    case.put(b"two")
    case.settle()
    assert case.payloads() == [b"one", b"two"]
    assert case.invalid() == [os.path.relpath(f"{refused}.invalid", case.path)]
    [text] = refusals(caplog)
    assert text == (
        f"{refused}.invalid is no message, and stays: in queue 'q', the schema 'bad' refuses it: "
        "line 3, element 'a': no"
    )
    assert len(case.checks.asked) == 3
    case.restart()
    assert case.payloads() == [b"one", b"two"]
    assert len(case.checks.asked) == 3
    assert len(case.invalid()) == len(refusals(caplog)) == 1


def test_schema_that_is_taken_away(case: DoorCase) -> None:
    """When the schema goes, what it has refused becomes messages; when another one comes, that decides."""
    case.put(b"bad")
    case.put(b"bad and worse")
    case.settle()
    assert (case.payloads(), len(case.invalid())) == ([], 2)
    case.configure("worse")
    assert (case.payloads(), len(case.invalid())) == ([b"bad"], 1)
    case.configure("")
    assert (case.payloads(), case.invalid()) == ([b"bad", b"bad and worse"], [])


def test_schemas_that_have_changed(case: DoorCase) -> None:
    """`check_again` looks again at what was refused, with the schema as it is now."""
    case.put(b"bad")
    case.settle()
    case.checks.before = lambda: setattr(case.checks, "missing", True)
    case.engine.check_again()
    case.settle()
    assert case.payloads() == []
    case.checks.before = lambda: setattr(case.checks, "missing", False)
    case.wait()
    assert len(case.invalid()) == 1
    assert len(case.checks.asked) == 3


def test_schema_that_is_missing(case: DoorCase, caplog: pytest.LogCaptureFixture) -> None:
    """While nobody can say what is valid, files wait. They are looked at each second, and the log says so once."""
    case.checks.missing = True
    case.put(b"one")
    case.put(b"bad")
    for _ in range(3):
        case.wait()
        assert (case.payloads(), case.invalid()) == ([], [])
    assert len([text for text in caplog.messages if "there is no schema 'bad'" in text]) == 1
    assert 2 <= len(case.checks.asked) <= 8
    case.checks.missing = False
    case.wait()
    assert case.payloads() == [b"one"]
    assert len(case.invalid()) == 1
    assert "again" in caplog.messages[-2] + caplog.messages[-1]


def test_what_the_server_pushed_is_not_read(case: DoorCase) -> None:
    """The server's own pushes are checked by nobody here, also not after a start: not even one that is invalid, as a
    message from before the option may be."""
    mid = case.push(b"bad")
    case.settle()
    case.restart()
    [message] = case.engine.receive(["q"], 9, None, 1 << 20)
    assert message.payload == b"bad"
    case.engine.queue("q").release(Receipt(mid), 0)
    case.engine.commit()
    case.settle()
    assert case.payloads() == [b"bad"]
    assert case.checks.asked == []


def test_queue_without_a_schema(case: DoorCase) -> None:
    """A queue without a schema checks nothing; in queues of files, a file is a message as soon as it is reported."""
    case.configure("")
    case.put(b"bad")
    case.engine.refresh()
    if case.kind == "journal":
        case.settle()
    assert case.payloads() == [b"bad"]
    assert case.checks.asked == []


def test_engine_that_checks_nothing(tmp_path: Path) -> None:
    """A schema changes nothing in programs without a check: a file is a message as soon as it is reported."""
    case = DoorCase(tmp_path / "root", "files")
    with Queue(case.path) as library:
        mid = case.put(b"bad").name
        assert library.receive(timeout=0) == (mid, b"bad")
    case.engine.close()


@only(*SHARED)
def test_it_waits_for_the_check(case: DoorCase) -> None:
    """While a check runs, which may take long, requests go on, and what is checked is no message yet."""
    case.put(b"one")
    begun, go_on = threading.Event(), threading.Event()
    case.checks.before = lambda: (begun.set(), go_on.wait(20))
    case.engine.refresh()
    assert case.engine.effects().next_upkeep == 0
    work = case.engine.begin_upkeep()
    assert work is not None
    thread = threading.Thread(target=work.run)
    thread.start()
    assert begun.wait(20)
    assert case.payloads() == []
    case.push(b"two")
    assert case.engine.effects().next_upkeep is None
    go_on.set()
    thread.join(20)
    case.engine.finish_upkeep(work)
    assert sorted(map(str, case.payloads())) == ["b'one'", "b'two'"]


@only("journal")
def test_journal_does_not_wait_for_the_check(case: DoorCase) -> None:
    """A batch that needs what upkeep does to the log's files waits for that, but not for checks."""
    case.put(b"one")
    begun, go_on = threading.Event(), threading.Event()
    case.checks.before = lambda: (begun.set(), go_on.wait(20))
    case.engine.refresh()
    work = case.engine.begin_upkeep()
    assert work is not None
    case.engine.commit()
    thread = threading.Thread(target=work.run)
    thread.start()
    assert begun.wait(20)
    maintenance = case.engine._journal.maintenance
    assert maintenance is not None
    maintenance.settle()
    case.push(b"two")
    assert not go_on.is_set()
    go_on.set()
    thread.join(20)
    case.engine.finish_upkeep(work)
    case.settle()
    assert sorted(map(str, case.payloads())) == ["b'one'", "b'two'"]


def test_slow_checks_leave_time_to_other_work(case: DoorCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run ends with the check that has taken too long, and the next one waits for as long."""
    ticks = iter(range(0, 10**6, 3))  # each look at the time is three seconds later
    monkeypatch.setattr("qs_storage.door.perf_counter", ticks.__next__)
    monkeypatch.setattr("qs_storage.journal.upkeep.ingest_run.perf_counter", ticks.__next__)
    monkeypatch.setattr(door, "SLICE", 4)
    monkeypatch.setattr("qs_storage.journal.upkeep.ingest_run.SLICE", 3)
    for number in range(3):
        case.put(b"%d" % number)
    for number in range(1, 4):
        case.settle()
        assert len(case.checks.asked) == number
        case.clock.now += 2_000_000
        case.settle()
        assert len(case.checks.asked) == number
        case.clock.now += 60_000_000
    case.settle()
    assert case.payloads() == [b"0", b"1", b"2"]


@only("files")
def test_written_anew_during_the_check(case: DoorCase) -> None:
    """A file that is replaced after it was read is checked again; one that is gone is forgotten."""
    replaced, gone = case.put(b"one"), case.put(b"two")
    case.engine.refresh()
    work = case.engine.begin_upkeep()
    assert work is not None
    work.run()
    case.write(replaced.name, b"bad")
    gone.unlink()
    case.engine.finish_upkeep(work)
    assert case.payloads() == []
    case.settle()
    assert (case.payloads(), case.invalid()) == ([], [f"{replaced.name}.invalid"])
    case.write(replaced.name, b"bad again")
    case.settle()
    assert case.invalid() == [f"{replaced.name}-2.invalid", f"{replaced.name}.invalid"]
    case.write(replaced.name, b"good")
    case.settle()
    assert case.payloads() == [b"good"]
    case.write(replaced.name, b"bad")
    case.settle()
    assert case.payloads() == []
    case.configure("")
    assert len(case.payloads()) == 1
    assert len(case.invalid()) == 2


@only("journal")
def test_file_of_the_journal_that_is_written_anew(case: DoorCase) -> None:
    """A corrected file of the same name becomes a message; the refused one beside it stays."""
    path = case.put(b"bad")
    case.settle()
    case.write(path.name, b"good")
    case.settle()
    assert (case.payloads(), case.invalid()) == ([b"good"], [f"{path.name}.invalid"])


@only("files")
def test_message_that_was_there_before(case: DoorCase) -> None:
    """A message from before the option was set stays as it is, whoever takes it and gives it back."""
    case.configure("")
    mid = int(case.put(b"bad").name)
    case.settle()
    case.configure("bad")
    until = case.clock() + 1000
    (case.path / str(mid)).rename(case.path / f"{mid}.{until}")
    case.settle()
    assert case.engine.queue("q").list_mids(State.IN_FLIGHT, 9, -1) == [mid]
    (case.path / f"{mid}.{until}").rename(case.path / str(mid))
    case.settle()
    (case.path / str(mid)).rename(case.path / f"{mid}.{until}")
    (case.path / f"{mid}.{until}").rename(case.path / str(mid))
    case.settle()
    assert case.payloads() == [b"bad"]
    assert case.checks.asked == []


@only("files")
def test_hidden_file(case: DoorCase) -> None:
    """A file that comes with the end of a delay in its name is checked, and keeps it; a refused one gets it back."""
    until = case.clock() + 1000
    case.write(f"5.{until}", b"good")
    case.write(f"6.{until}", b"bad")
    case.settle()
    assert case.invalid() == [f"6.{until}.invalid"]
    assert case.engine.queue("q").list_mids(State.ALL, 9, -1) == [5]
    case.configure("")
    assert case.engine.queue("q").list_mids(State.IN_FLIGHT, 9, -1) == [5, 6]


@only(*SHARED)
def test_lost_reports(case: DoorCase) -> None:
    """When the kernel has dropped reports, what is new in the listing is checked, and what was known is not."""
    case.push(b"bad by the server")
    case.put(b"bad")
    case.put(b"good")
    case.engine._watch._inotify.events()
    case.engine.queue("q").store.rescan()
    assert case.payloads() == [b"bad by the server"]
    case.settle()
    assert sorted(map(bytes, filter(None, case.payloads()))) == [b"bad by the server", b"good"]
    assert len(case.invalid()) == 1


@only(*SHARED)
def test_what_came_while_no_server_ran(case: DoorCase) -> None:
    """A file that is there at a start counts as having been in the queue: nothing tells who has put it there."""
    case.engine.close()
    case.put(b"bad")
    case.start()
    case.settle()
    assert case.payloads() == [b"bad"]


@only("files")
def test_copy_under_the_id_of_a_file_that_waits(case: DoorCase) -> None:
    """A copy never replaces another program's file that is being checked."""
    case.engine.create("source", Options())
    mid = case.last + 1
    (case.root / "source" / str(mid)).write_bytes(b"original")
    case.settle()
    case.put(b"other")
    case.engine.refresh()
    with pytest.raises(FileExistsError):
        case.engine.copy("source", mid, ["q"])
    case.settle()
    assert case.payloads() == [b"other"]


@only("files")
def test_dead_letter_of_another_server(case: DoorCase, tmp_path: Path) -> None:
    """A dead letter that another server on the directory moves here is not checked: moving must not fail."""
    options = Options(storage="files", dead_letter="q", max_receives=1)
    case.engine.create("failing", options)
    case.engine.commit()
    other = DoorCase.__new__(DoorCase)
    other.__dict__.update(case.__dict__)
    other.start()
    [mid] = other.engine.queue("failing").push([Draft(b"bad")])
    other.engine.commit()
    other.engine.receive(["failing"], 1, None, 1 << 20)
    other.engine.queue("failing").release(Receipt(mid), 0)
    other.engine.commit()
    case.settle()
    assert case.payloads() == [b"bad"]
    other.engine.close()


@only("dirq-simple", "dirq")
def test_element_that_another_program_has_locked(case: DoorCase) -> None:
    """A refused element is set aside when it is unlocked; its lock does not stay behind."""
    path = case.put(b"bad")
    lock = path / "locked" if case.kind == "dirq" else Path(f"{path}.lck")
    if case.kind == "dirq":
        lock.mkdir()
    else:
        os.link(path, lock)
    case.settle()
    assert (case.payloads(), case.invalid()) == ([], [])
    lock.rmdir() if case.kind == "dirq" else lock.unlink()
    case.wait()
    assert (case.payloads(), len(case.invalid())) == ([], 1)
    assert not list(case.path.rglob("*lck")) + list(case.path.rglob("locked"))
    case.configure("")
    assert case.payloads() == [b"bad"]


@only("files")
def test_original_program_does_not_see_what_was_refused(case: DoorCase) -> None:
    """The original vsqs receives what is valid, and does not take what was refused for a message."""
    case.put(b"bad")
    good = case.put(b"good")
    case.settle()
    assert output(original("receive", case.path, 60)) == [f"{good.name} good"]


@pytest.mark.parametrize("what", ["link", "pipe", "unreadable", "too large"])
@only("files")
def test_what_cannot_be_checked(
    case: DoorCase, what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Only a regular file that can be read, and is not too large, becomes a message."""
    made = case.root / ".made"
    if what == "link":
        made.symlink_to("/etc/hostname")
    elif what == "pipe":
        os.mkfifo(made)
    else:
        made.write_bytes(b"good")
    if what == "unreadable":
        real = case.disk.open

        def refuse(path: str, flags: int, mode: int = 0o777) -> int:
            if path.endswith("/7"):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
            return real(path, flags, mode)

        monkeypatch.setattr(case.disk, "open", refuse)
    if what == "too large":
        monkeypatch.setattr(door, "MAX_SIZE", 3)
    made.rename(case.path / "7")
    case.settle()
    assert case.engine.queue("q").list_mids(State.ALL, 9, -1) == []
    assert os.path.lexists(case.path / "7.invalid")
    assert len(refusals(caplog)) == 1


@pytest.mark.parametrize("case", SHARED, indirect=True)
def test_queue_that_is_removed_during_the_check(case: DoorCase) -> None:
    """The result of a check is for the queue that was there: one of the same name that is new has its own files."""
    case.put(b"one")
    case.engine.refresh()
    work = case.engine.begin_upkeep()
    assert work is not None
    work.run()
    case.engine.remove("q", force=True)
    case.engine.create("q", Options(schema="bad"))
    case.engine.finish_upkeep(work)
    case.settle()
    assert case.payloads() == []
    assert case.engine.effects().next_upkeep is None


def test_files_of_other_names(case: DoorCase) -> None:
    """A file that was not refused here keeps its name when the schema changes, whatever it is called."""
    others = {"report.invalid", "5-x.invalid", ".7.invalid", "x-2.invalid"}
    for name in others:
        (case.path / name).write_bytes(b"bad")
    case.put(b"bad")
    case.settle()
    case.configure("")
    assert case.payloads() == [b"bad"]
    assert others <= {path.name for path in case.path.iterdir()}


def test_what_was_refused_keeps_the_queue(case: DoorCase) -> None:
    """A queue is not removed with what was refused, unless by force."""
    case.put(b"bad")
    case.settle()
    with pytest.raises(QueueNotEmptyError):
        case.engine.remove("q", force=False)
    assert len(case.invalid()) == 1
    case.engine.remove("q", force=True)
    assert not case.path.exists()


def test_log_names_a_limited_number(case: DoorCase, caplog: pytest.LogCaptureFixture) -> None:
    """The log names twenty of many refused files, and says that there are more."""
    for _ in range(30):
        case.put(b"bad")
    case.settle()
    assert len(refusals(caplog)) == 20
    assert len([text for text in caplog.messages if "not named" in text]) == 1
    assert len(case.invalid()) == 30


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_an_error_at_every_file_operation(
    tmp_path: Path, kind: str, error: int, caplog: pytest.LogCaptureFixture
) -> None:
    """An error at any file operation loses nothing, and lets nothing in: afterwards, what is valid is a message, and
    what is not was set aside."""
    caplog.set_level(logging.CRITICAL)
    for at in range(1, 1000):
        disk = FaultyDisk()
        case = DoorCase(tmp_path / f"{at}", kind, disk)
        case.put(b"one")
        case.put(b"bad")
        case.engine.refresh()
        disk.arm(at, error)
        for _ in range(4):
            try:
                case.wait()
            except OSError:
                case.clock.now += 10**6
        failed = bool(disk.failed)
        disk.disarm()
        if kind == "journal":
            with suppress(UnfinishedError):  # the journal has failed: a start goes on
                case.engine.close()
            case.start()
        case.wait()
        assert (case.payloads(), len(case.invalid())) == ([b"one"], 1), at
        case.engine.close()
        if not failed:
            break
    assert at > 5


def test_a_crash_at_every_file_operation(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After a crash at any file operation, the journal's start finds each file once: as a message, or set aside."""
    caplog.set_level(logging.CRITICAL)
    for at in range(1, 1000):
        disk = FaultyDisk()
        case = DoorCase(tmp_path / f"{at}", "journal", disk)
        case.put(b"one")
        case.put(b"bad")
        case.engine.refresh()
        disk.arm(at, Crash)
        with suppress(Crash):
            case.settle()
        crashed = bool(disk.failed)
        disk.disarm()
        disk.crash()
        case.engine._watch.close()
        case.start()
        case.settle()
        assert (case.payloads(), len(case.invalid())) == ([b"one"], 1), at
        names = [path.name for path in case.path.iterdir() if path.name != ".queue.toml"]
        assert names == case.invalid()
        case.engine.close()
        if not crashed:
            break
    assert at > 12

"""The lifecycle record of a real server: over sockets, with a subscriber, at a stop, after a kill, on a full disk."""

import json
import re
import resource
import threading
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from support.clients.documents import (
    copy,
    delete,
    delete_list,
    mids,
    new_queue,
    push,
    push_list,
    receive,
    release,
    request,
    subscribe,
)
from support.servers.processes import FAST, Gone, MortalWire, ServerProcess, Wire, run_server, serving

from qs_server.main.opening import ENGINES
from qs_server.main.options import HistoryOptions
from qs_server.main.queue_server import read_options
from qs_testing.programs import until

Line = dict[str, Any]
PATTERN = re.compile(r"history-\d{8}T\d{6}\.\d{6}Z-[0-9a-f]{8}\.jsonl")
KEEPING = [name for name in ENGINES if name != "null"]
EVENTS = {"pushed", "received", "released", "expired", "extended", "deleted"}


def lines_of(folder: Path) -> list[Line]:
    """Every line of the finished files, in the order in which they were written. Nothing else may be there."""
    found: list[Line] = []
    for path in sorted(folder.iterdir()):
        assert PATTERN.fullmatch(path.name), path
        text = path.read_text("ascii")
        assert text.endswith("\n")
        found += map(json.loads, text.splitlines())
    for line in found:
        assert list(line) == ["time", "event", "queue", "mid", "size", "receives", "peer"]
        assert line["event"] in EVENTS
    return found


def address(wire: Wire) -> str:
    host, port = wire.socket.getsockname()[:2]
    return f"{host}:{port}"


def extend(qid: str, mid: int, visibility: float) -> str:
    return request("extend-message", f"<qid>{qid}</qid><mid>{mid}</mid>", visibility=visibility)


def seen(line: Line) -> tuple[str, str, int, int, int, str]:
    return line["event"], line["queue"], line["mid"], line["size"], line["receives"], line["peer"]


def storing(wire: Wire, storage: str) -> str:
    """A new queue with that storage; its name."""
    wire.ask(new_queue(storage, f'<options storage="{storage}"/>'))
    return storage


def work(one: Wire, two: Wire, storage: str) -> list[tuple[object, ...]]:
    """Two clients do everything to the messages of a queue; what is to be in the record of it."""
    a, b = address(one), address(two)
    qid, copies = storing(one, storage), f"copies-{storage}"
    one.ask(new_queue(copies, f'<options storage="{storage}"/>'))
    [first] = mids(one.ask(push(qid, "12345")))
    second, third = mids(two.ask(push_list(qid, "1", "22")))
    assert mids(two.ask(receive(qid))) == [first]
    two.ask(extend(qid, first, 60))
    two.ask(release(qid, first))
    assert mids(one.ask(receive(qid, max=2))) == [first, second]
    one.ask(copy(qid, first, copies))
    two.ask(delete(qid, first))
    one.ask(delete_list(qid, second, 7))
    one.ask(request("purge-queue", f"<qid>{qid}</qid>"))
    one.ask(request("delete-queue", f"<qid>{copies}</qid>", force="yes"))
    return [
        ("pushed", qid, first, 5, 0, a),
        ("pushed", qid, second, 1, 0, b),
        ("pushed", qid, third, 2, 0, b),
        ("received", qid, first, 5, 1, b),
        ("extended", qid, first, 5, 1, b),
        ("released", qid, first, 5, 1, b),
        ("received", qid, first, 5, 2, a),
        ("received", qid, second, 1, 1, a),
        ("pushed", copies, first, 5, 0, a),
        ("deleted", qid, first, 5, 2, b),
        ("deleted", qid, second, 1, 1, a),
        ("deleted", qid, third, 2, 0, a),
        ("deleted", copies, first, a),
    ]


@pytest.mark.parametrize("durability", ["always", "none"])
def test_what_clients_do(tmp_path: Path, durability: str) -> None:
    """Everything that several clients do to messages, in each storage, is in the record once, in order, with the
    address of each."""
    folder = tmp_path / "history"
    flags = ("--durability", durability, "--history", str(folder))
    with serving(tmp_path / "root", *flags) as server, Wire(server) as one, Wire(server) as two:
        expected = [line for storage in KEEPING for line in work(one, two, storage)]
        assert [path.name[0] for path in folder.iterdir()] == ["."]
    lines = lines_of(folder)
    # Not every storage knows the size and count of receives of what is deleted with its queue.
    known = [len(what) == len(seen(line)) for line, what in zip(lines, expected, strict=True)]
    found = [seen(line) if whole else (*seen(line)[:3], line["peer"]) for line, whole in zip(lines, known, strict=True)]
    assert found == expected
    times = [line["time"] for line in lines]
    assert times == sorted(times)
    for line in lines:
        if line["event"] == "pushed" and line["queue"] in ("journal", "files"):  # an id of dirq is not a time
            assert line["time"] >= line["mid"]


@pytest.mark.parametrize("durability", ["always", "none"])
def test_subscribers(tmp_path: Path, durability: str) -> None:
    """A delivery to a subscriber is recorded as received; the end of its connection releases what it held. In each
    storage."""
    folder = tmp_path / "history"
    expected: dict[tuple[str, int], list[tuple[object, ...]]] = {}
    flags = ("--durability", durability, "--history", str(folder))
    with serving(tmp_path / "root", *flags) as server, Wire(server) as wire:
        for storage in KEEPING:
            expected |= subscribe_twice(server, wire, storing(wire, storage))
    lines = [seen(line) for line in lines_of(folder)]
    for (qid, mid), events in expected.items():
        assert [line for line in lines if line[1:3] == (qid, mid)] == events
    assert len(lines) == sum(map(len, expected.values()))


def subscribe_twice(server: ServerProcess, wire: Wire, qid: str) -> dict[tuple[str, int], list[tuple[object, ...]]]:
    """A subscriber that deletes one of three messages, and another that deletes the rest; what is to be in the record
    of each message."""
    with Wire(server) as subscriber:
        subscriber.ask(subscribe(qid))
        pushed = mids(wire.ask(push_list(qid, "1", "22", "333")))
        assert [mids(subscriber.line())[0] for _ in pushed] == pushed
        subscriber.ask(delete(qid, pushed[0]))
        first = address(subscriber)
    with Wire(server) as subscriber:
        subscriber.ask(subscribe(qid))
        assert [mids(subscriber.line())[0] for _ in pushed[1:]] == pushed[1:]
        subscriber.ask(*(delete(qid, mid) for mid in pushed[1:]))
        second = address(subscriber)
    peer = address(wire)
    expected: dict[tuple[str, int], list[tuple[object, ...]]] = {}
    for size, mid in enumerate(pushed, 1):
        events: list[tuple[object, ...]] = [("pushed", qid, mid, size, 0, peer), ("received", qid, mid, size, 1, first)]
        if size == 1:
            events += [("deleted", qid, mid, size, 1, first)]
        else:
            events += [
                ("released", qid, mid, size, 1, first),
                ("received", qid, mid, size, 2, second),
                ("deleted", qid, mid, size, 2, second),
            ]
        expected[qid, mid] = events
    return expected


def test_files_in_time(tmp_path: Path) -> None:
    """A file is there for readers soon after its first line, while the server goes on."""
    folder = tmp_path / "history"
    flags = (*FAST, "--history", str(folder), "--history-age", "0.1")
    with serving(tmp_path / "root", *flags) as server, Wire(server) as wire:
        wire.ask(new_queue("q"))
        pushed = mids(wire.ask(push("q", "x")))
        finished = await_files(folder, 1)
        pushed += mids(wire.ask(push("q", "y")))
        assert sorted([*finished, *(await_files(folder, 2) - finished)]) == sorted(
            path.name for path in folder.iterdir()
        )
    assert [line["mid"] for line in lines_of(folder)] == pushed


def await_files(folder: Path, count: int) -> set[str]:
    """The finished files, once there are so many."""

    def finished() -> set[str]:
        return {path.name for path in folder.iterdir() if PATTERN.fullmatch(path.name)}

    until(lambda: len(finished()) >= count, folder)
    return finished()


def test_kill(tmp_path: Path) -> None:
    """After kill -9 under load and a start, there are whole lines only, and whatever was answered before the last
    moment is among them."""
    folder = tmp_path / "history"
    flags = (*FAST, "--history", str(folder))
    server = ServerProcess(tmp_path / "root", *flags)
    answered: list[int] = []
    try:
        with Wire(server) as wire:
            wire.ask(new_queue("q"))
        enough = threading.Event()

        def client() -> None:
            try:
                with closing(MortalWire(server)) as mortal:
                    while True:
                        mortal.send(*[push("q", "x")] * 20)
                        for _ in range(20):
                            answered.extend(mids(mortal.line()))
                        if len(answered) > 2000:
                            enough.set()
            except Gone:
                pass

        thread = threading.Thread(target=client)
        thread.start()
        assert enough.wait(60)
        server.kill()
        thread.join(30)
        assert [path.name[0] for path in folder.iterdir()] == ["."]
        server.start()
        recorded = {line["mid"] for line in lines_of(folder)}
        assert set(answered) <= recorded
        assert server.stop() == 0
    finally:
        server.kill()
    assert {line["event"] for line in lines_of(folder)} == {"pushed"}


def test_a_killed_servers_subscribers(tmp_path: Path) -> None:
    """Messages of a killed server's subscribers have no `released`: in the journal they are visible at the next start,
    in the other storages when their windows end."""
    folder = tmp_path / "history"
    server = ServerProcess(tmp_path / "root", *FAST, "--history", str(folder))
    expected: list[tuple[object, ...]] = []
    try:
        with ExitStack() as opened:
            for storage in KEEPING:
                wire = opened.enter_context(Wire(server))
                qid, peer = storing(wire, storage), address(wire)
                wire.ask(subscribe(qid))
                wire.send(push(qid, "x"))
                [mid] = {mid for _ in range(2) for mid in mids(wire.line())}
                expected += [("pushed", qid, mid, 1, 0, peer), ("received", qid, mid, 1, 1, peer)]
            server.kill()
        server.start()
        assert server.stop() == 0
    finally:
        server.kill()
    assert [seen(line) for line in lines_of(folder)] == expected


def test_a_record_that_cannot_grow(tmp_path: Path) -> None:
    """When the record cannot be written, clients notice nothing, and the log says it once, and how much is missing."""
    folder = tmp_path / "history"
    flags = (*FAST, "--storage", "files", "--history", str(folder))
    with serving(tmp_path / "root", *flags) as server, Wire(server) as wire:
        wire.ask(new_queue("q"))
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (4000, 4000))
        pushed = [mids(wire.ask(push("q", "x")))[0] for _ in range(100)]
        log = server.log()
        assert log.count("events are lost") == 1
        assert "File too large" in log
    recorded = [line["mid"] for line in lines_of(folder)]
    assert 0 < len(recorded) < 100
    assert recorded == pushed[: len(recorded)]
    assert f"{100 - len(recorded)} events are not in the history" in server.log()


@pytest.mark.parametrize("place", ["root/orders", "root", "file"])
def test_a_folder_that_cannot_be(tmp_path: Path, place: str) -> None:
    """A folder that would be a queue, or cannot be one: one line, exit code 1."""
    (tmp_path / "root").mkdir()
    (tmp_path / "file").write_text("")
    done = run_server("--port", "0", "--root", str(tmp_path / "root"), "--history", str(tmp_path / place))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "--history" in done.stderr


def test_history_flags_say_where_and_how_large() -> None:
    """The flags say where, and when a file is finished; without the first there is no record."""
    assert read_options([])[0].history is None
    assert read_options(["--history", "h"])[0].history == HistoryOptions("h", 64 * 1024 * 1024, 60.0, None)
    flags = ["--history", "h", "--history-size", "7", "--history-age", "0.5", "--history-keep", "9"]
    assert read_options(flags)[0].history == HistoryOptions("h", 7, 0.5, 9)


@pytest.mark.parametrize("flag", ["--history-size=0", "--history-age=0", "--history-age=nan", "--history-keep=0"])
def test_history_flags_refuse_bad_bounds(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A size, an age or a bound that makes no sense is refused."""
    with pytest.raises(SystemExit):
        read_options(["--history", "h", flag])
    assert flag.split("=", maxsplit=1)[0] in capsys.readouterr().err

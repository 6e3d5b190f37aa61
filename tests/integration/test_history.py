"""The lifecycle record of a real server: over sockets, with a subscriber, at a stop, after a kill, on a full disk."""

import json
import re
import resource
import signal
import subprocess
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from documents import (
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
from serving import COMMAND, FAST, Gone, MortalWire, ServerProcess, Wire, serving

from qs_server.main.opening import ENGINES
from qs_server.main.options import HistoryOptions
from qs_server.main.queue_server import read_options

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


@pytest.mark.parametrize("durability", ["always", "none"])
@pytest.mark.parametrize("storage", KEEPING)
def test_what_clients_do(tmp_path: Path, storage: str, durability: str) -> None:
    """Everything that several clients do to messages is in the record once, in order, with the address of each."""
    folder = tmp_path / "history"
    flags = ("--storage", storage, "--durability", durability, "--history", str(folder))
    with serving(tmp_path / "root", *flags) as server, Wire(server) as one, Wire(server) as two:
        a, b = address(one), address(two)
        one.ask(new_queue("q"))
        one.ask(new_queue("copies"))
        [first] = mids(one.ask(push("q", "12345")))
        second, third = mids(two.ask(push_list("q", "1", "22")))
        assert mids(two.ask(receive("q"))) == [first]
        two.ask(extend("q", first, 60))
        two.ask(release("q", first))
        assert mids(one.ask(receive("q", max=2))) == [first, second]
        one.ask(copy("q", first, "copies"))
        two.ask(delete("q", first))
        one.ask(delete_list("q", second, 7))
        one.ask(request("purge-queue", "<qid>q</qid>"))
        one.ask(request("delete-queue", "<qid>copies</qid>", force="yes"))
        assert [path.name[0] for path in folder.iterdir()] == ["."]
    lines = lines_of(folder)
    assert [seen(line) for line in lines[:-1]] == [
        ("pushed", "q", first, 5, 0, a),
        ("pushed", "q", second, 1, 0, b),
        ("pushed", "q", third, 2, 0, b),
        ("received", "q", first, 5, 1, b),
        ("extended", "q", first, 5, 1, b),
        ("released", "q", first, 5, 1, b),
        ("received", "q", first, 5, 2, a),
        ("received", "q", second, 1, 1, a),
        ("pushed", "copies", first, 5, 0, a),
        ("deleted", "q", first, 5, 2, b),
        ("deleted", "q", second, 1, 1, a),
        ("deleted", "q", third, 2, 0, a),
    ]
    last = lines[-1]
    assert (last["event"], last["queue"], last["mid"], last["peer"]) == ("deleted", "copies", first, a)
    times = [line["time"] for line in lines]
    assert times == sorted(times)
    assert lines[0]["time"] >= (first if storage in ("journal", "files") else 0)  # an id of dirq is no time


@pytest.mark.parametrize("storage", KEEPING)
def test_a_window_that_ends(tmp_path: Path, storage: str) -> None:
    """A window that ends by its time is nobody's doing; the end of a delay is not in the record."""
    folder = tmp_path / "history"
    flags = (*FAST, "--storage", storage, "--history", str(folder))
    with serving(tmp_path / "root", *flags) as server, Wire(server) as wire:
        wire.ask(new_queue("q"))
        [delayed] = mids(wire.ask(push("q", "x", delay=0.05)))
        assert mids(wire.ask(receive("q", wait=20, visibility=0.05))) == [delayed]
        assert mids(wire.ask(receive("q", wait=20))) == [delayed]
        peer = address(wire)
    assert [seen(line) for line in lines_of(folder)] == [
        ("pushed", "q", delayed, 1, 0, peer),
        ("received", "q", delayed, 1, 1, peer),
        ("expired", "q", delayed, 1, 1, ""),
        ("received", "q", delayed, 1, 2, peer),
    ]


@pytest.mark.parametrize("durability", ["always", "none"])
@pytest.mark.parametrize("storage", KEEPING)
def test_subscribers(tmp_path: Path, storage: str, durability: str) -> None:
    """What is sent to a subscriber it has received; what it held when its connection ended it has released."""
    folder = tmp_path / "history"
    flags = ("--storage", storage, "--durability", durability, "--history", str(folder))
    with serving(tmp_path / "root", *flags) as server, Wire(server) as wire:
        wire.ask(new_queue("q"))
        with Wire(server) as subscriber:
            subscriber.ask(subscribe("q"))
            pushed = mids(wire.ask(push_list("q", "1", "22", "333")))
            assert [mids(subscriber.line())[0] for _ in pushed] == pushed
            subscriber.ask(delete("q", pushed[0]))
            first = address(subscriber)
        with Wire(server) as subscriber:
            subscriber.ask(subscribe("q"))
            assert [mids(subscriber.line())[0] for _ in pushed[1:]] == pushed[1:]
            subscriber.ask(*(delete("q", mid) for mid in pushed[1:]))
            second = address(subscriber)
        peer = address(wire)
    lines = [seen(line) for line in lines_of(folder)]
    for size, mid in enumerate(pushed, 1):
        expected = [("pushed", "q", mid, size, 0, peer), ("received", "q", mid, size, 1, first)]
        if size == 1:
            expected += [("deleted", "q", mid, size, 1, first)]
        else:
            expected += [
                ("released", "q", mid, size, 1, first),
                ("received", "q", mid, size, 2, second),
                ("deleted", "q", mid, size, 2, second),
            ]
        assert [line for line in lines if line[2] == mid] == expected


def test_what_is_refused(tmp_path: Path) -> None:
    """What is answered with an error is not in the record; where nothing has happened, there is no file."""
    folder = tmp_path / "history"
    with serving(tmp_path / "root", *FAST, "--history", str(folder)) as server, Wire(server) as wire:
        wire.ask(new_queue("q"))
        for document in (push("none", "x"), delete("q", 1), receive("none"), receive("q"), "<qs"):
            wire.send(document)
        assert not list(folder.iterdir())
    assert not list(folder.iterdir())


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
    tick = threading.Event()
    for _ in range(2000):
        names = {path.name for path in folder.iterdir() if PATTERN.fullmatch(path.name)}
        if len(names) >= count:
            return names
        tick.wait(0.01)  # another process renames them, and says so to nobody
    raise AssertionError(f"{sorted(path.name for path in folder.iterdir())}")


def test_files_by_size(tmp_path: Path) -> None:
    """Full files are finished while the server goes on, and old ones removed, if there is a bound."""
    folder = tmp_path / "history"
    flags = (*FAST, "--history", str(folder), "--history-size", "1000", "--history-keep", "5000")
    with serving(tmp_path / "root", *flags) as server, Wire(server) as wire:
        wire.ask(new_queue("q"))
        pushed = [mids(wire.ask(push("q", "x")))[0] for _ in range(200)]
    lines = lines_of(folder)
    assert [line["mid"] for line in lines] == pushed[-len(lines) :]
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 5000
    assert len(list(folder.iterdir())) >= 3


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


@pytest.mark.parametrize("storage", KEEPING)
def test_a_killed_servers_subscribers(tmp_path: Path, storage: str) -> None:
    """What the subscribers of a killed server held is released by nobody: in the journal it is visible at the next
    start, in the others when its window ends."""
    folder = tmp_path / "history"
    server = ServerProcess(tmp_path / "root", *FAST, "--storage", storage, "--history", str(folder))
    try:
        with Wire(server) as wire:
            wire.ask(new_queue("q"))
            wire.ask(subscribe("q"))
            wire.send(push("q", "x"))
            [mid] = {mid for _ in range(2) for mid in mids(wire.line())}
            server.kill()
            peer = address(wire)
        server.start()
        assert server.stop() == 0
    finally:
        server.kill()
    assert [seen(line) for line in lines_of(folder)] == [
        ("pushed", "q", mid, 1, 0, peer),
        ("received", "q", mid, 1, 1, peer),
    ]


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


def test_two_servers(tmp_path: Path) -> None:
    """Two servers on one root with one record: together they have everything once, in files of their own."""
    folder = tmp_path / "history"
    flags = (*FAST, "--storage", "files", "--history", str(folder))
    with serving(tmp_path / "root", *flags) as first, Wire(first) as one:
        one.ask(new_queue("q"))
        [mid] = mids(one.ask(push("q", "x")))
        with serving(tmp_path / "root", *flags) as second, Wire(second) as two:
            assert mids(two.ask(receive("q", wait=20))) == [mid]
            assert mids(two.ask(delete("q", mid))) == [mid]
            assert len(list(folder.iterdir())) == 2
    assert sorted(line["event"] for line in lines_of(folder)) == ["deleted", "pushed", "received"]
    assert len(list(folder.iterdir())) == 2


def test_off(server: ServerProcess, wire: Wire) -> None:
    """Without the flag nothing is recorded."""
    wire.ask(push("q", "x"))
    wire.close()
    assert server.stop(signal.SIGTERM) == 0
    assert not list(server.root.parent.rglob("*history*"))


# -- flags


@pytest.mark.parametrize("place", ["root/orders", "root", "file"])
def test_a_folder_that_cannot_be(tmp_path: Path, place: str) -> None:
    """A folder that would be a queue, or cannot be one: one line, exit code 1."""
    (tmp_path / "root").mkdir()
    (tmp_path / "file").write_text("")
    command = [*COMMAND, "--port", "0", "--root", str(tmp_path / "root"), "--history", str(tmp_path / place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "--history" in done.stderr


def test_flags() -> None:
    """The flags say where, and when a file is finished; without the first there is no record."""
    assert read_options([])[0].history is None
    assert read_options(["--history", "h"])[0].history == HistoryOptions("h", 64 * 1024 * 1024, 60.0, None)
    flags = ["--history", "h", "--history-size", "7", "--history-age", "0.5", "--history-keep", "9"]
    assert read_options(flags)[0].history == HistoryOptions("h", 7, 0.5, 9)


@pytest.mark.parametrize("flag", ["--history-size=0", "--history-age=0", "--history-age=nan", "--history-keep=0"])
def test_bad_flags(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A size, an age or a bound that makes no sense is refused."""
    with pytest.raises(SystemExit):
        read_options(["--history", "h", flag])
    assert flag.split("=", maxsplit=1)[0] in capsys.readouterr().err

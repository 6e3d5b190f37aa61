"""Engines over other servers are found by name, of any distribution, and imported only when one is asked for."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.clients.documents import code, delete, mids, new_queue, payloads, push, receive, request, text
from support.servers.processes import FAST, Wire, run_server, serving
from support.servers.remote import Elsewhere, made, stats
from support.storage.memcached import needs_memcached

REMOTE = {"pymemcache": "memcached", "boto3": "sqs", "tape_library": "tape"}
"""Libraries, and the storage that needs each."""
NOTING = """
import atexit, os, sys
def note():
    if not os.path.isdir(os.path.dirname(os.environ["NOTED"])):
        return  # this is the process that forks, and the test is over
    with open(os.environ["NOTED"], "w") as file:
        file.write("\\n".join(sys.modules))
atexit.register(note)
"""
"""For a sitecustomize: a process notes which modules it has imported, when it ends."""
TAPE = """
from qs_storage.engine import Message, NoSuchMessageError, Options, Stats
from qs_storage.remote_engine import RemoteQueue, RootedEngine
import tape_library


class TapeQueue(RemoteQueue):
    last_mid = 0

    def __init__(self, qid, options):
        super().__init__(qid, options)
        self.tape = {}

    def make(self): pass

    def unmake(self, *, force): pass

    def push(self, drafts):
        first, self.last_mid = self.last_mid + 1, self.last_mid + len(drafts)
        mids = list(range(first, self.last_mid + 1))
        self.tape.update(zip(mids, drafts))
        return mids

    def delete(self, receipt):
        if self.tape.pop(receipt.mid, None) is None:
            raise NoSuchMessageError(f"no message {receipt.mid} is on tape")

    def stats(self):
        return Stats(ready=len(self.tape), storage=self.options.storage)


class TapeEngine(RootedEngine[TapeQueue]):
    name = "tape"
    cannot = frozenset()

    def __init__(self, root, *, clock):
        super().__init__(root)

    def describe(self):
        return "tapes are slow"

    def open_queue(self, qid, options):
        return TapeQueue(qid, options)

    def receive(self, qids, count, visibility, max_bytes, *, wait=0, stop=None, held=False, given=False):
        return [
            Message(qid, mid, "delivered", 1, 0, None, draft.payload)
            for qid in qids for mid, draft in self.queue(qid).tape.items()
        ][:count]

    def copy(self, qid, mid, into): raise NotImplementedError

    def close(self): pass
"""
"""An engine of somebody else's: it keeps messages in memory."""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as pip makes one: with a distribution that brings an engine, and the library that this needs."""
    folder = tmp_path_factory.mktemp("packages")
    (folder / "sitecustomize.py").write_text(NOTING)
    (folder / "tape_engine.py").write_text(TAPE)
    (folder / "tape_library.py").write_text("")
    about = folder / "qs_tape-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: qs-tape\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[qs.engines]\ntape = tape_engine:TapeEngine\n")
    return folder


@pytest.fixture
def installed(packages: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], set[str]]:
    """Servers that are started find the packages. Returns of which storages the last one to end had imported anything:
    modules of the engine, or the library."""
    noted = tmp_path / "noted"
    monkeypatch.setenv("PYTHONPATH", str(packages), prepend=os.pathsep)
    monkeypatch.setenv("NOTED", str(noted))

    def imported() -> set[str]:
        names = noted.read_text().split("\n")
        assert "qs_server.main.server" in names
        found = {REMOTE[name] for name in names if name in REMOTE}
        engines = {name.rpartition(".")[2].partition("_")[0] for name in names if name.startswith("qs_storage.remote.")}
        assert engines <= found
        return found

    return imported


def test_nobody_asks(tmp_path: Path, installed: Callable[[], set[str]]) -> None:
    """A server whose queues are all of the root imports no such engine, no library of one, and does not even look which
    are installed."""
    with serving(tmp_path / "root", *FAST) as server, Wire(server) as wire:
        assert code(wire.ask(new_queue("q"))) == 0
        made(wire, "f", "files")
        assert code(wire.ask(push("q", "x"))) == 0
        assert code(wire.ask(request("queue-stats"))) == 0
    assert installed() == set()
    assert "importlib.metadata" not in (tmp_path / "noted").read_text().split("\n")


@needs_memcached
def test_who_asks(elsewhere: Elsewhere, tmp_path: Path, installed: Callable[[], set[str]]) -> None:
    """A request that makes a queue, a queue in the root, --storage and a flag of its own each ask for one engine, and
    for no other one."""
    host, port = elsewhere.memcached.address
    root, memcached = tmp_path / "root", f"{host}:{port}"
    with serving(root, *FAST) as server, Wire(server) as wire:
        assert code(wire.ask(new_queue("q", '<options storage="tape"/>'))) == 0
    assert installed() == {"tape"}
    with serving(root, *FAST):
        pass
    assert installed() == {"tape"}
    for flags in (("--storage", "memcached"), ("--memcached", memcached)):
        with serving(tmp_path / "other", *FAST, *flags):
            pass
        assert installed() == {"memcached"}
    with serving(tmp_path / "other", *FAST, "--sqs-prefix", "p-"):
        pass
    assert installed() == {"sqs"}


def test_an_engine_of_another_distribution(tmp_path: Path, installed: Callable[[], set[str]]) -> None:
    """A storage that another distribution brings is used like ours: chosen for a queue, or as the default, found again
    at the next start; its warning is in the log."""
    root = tmp_path / "root"
    with serving(root, *FAST) as server, Wire(server) as wire:
        made(wire, "q", "tape")
        made(wire, "local", "journal")
        [mid] = mids(wire.ask(push("q", "x")))
        assert payloads(wire.ask(receive("q"))) == ["x"]
        assert stats(wire, "q")["storage"] == "tape"
        assert stats(wire, "local")["storage"] == "journal"
        assert code(wire.ask(delete("q", mid))) == 0
        assert code(wire.ask(delete("q", mid))) == 404
        assert code(wire.ask(receive("q", "local"))) == 501
    with serving(root, *FAST, "--storage", "tape") as server, Wire(server) as wire:
        assert "tapes are slow" in server.log()
        assert wire.ask(request("list-queues")).count("<queue>") == 2
        assert code(wire.ask(new_queue("r"))) == 0
        assert stats(wire, "r")["storage"] == stats(wire, "q")["storage"] == "tape"
        for qid in ("q", "r"):
            wire.ask(push(qid, "y"))
            assert payloads(wire.ask(receive(qid))) == ["y"]
            assert code(wire.ask(request("delete-queue", f"<qid>{qid}</qid>", force="yes"))) == 0
        assert [path.name for path in root.iterdir() if not path.name.startswith(".")] == ["local"]


def test_a_library_is_missing(
    tmp_path: Path, packages: Path, installed: Callable[[], set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of an engine of another distribution names the library and that distribution."""
    needed = "the storage 'tape' needs tape_library, which is not installed here: pip install 'qs-tape[tape]'"
    root = tmp_path / "root"
    with serving(root, *FAST) as server, Wire(server) as wire:
        made(wire, "q", "tape")
    library = packages / "tape_library.py"
    try:
        library.rename(packages / "gone")
        with serving(root, *FAST) as server, Wire(server) as wire:
            assert f"{needed}; requests about its queues are refused: 'q'" in server.log()
            for asked in (push("q", "x"), new_queue("r", '<options storage="tape"/>')):
                answer = wire.ask(asked)
                assert (code(answer), needed in text(answer)) == (501, True)
        done = run_server("--root", str(root), "--port", "0", "--storage", "tape")
        assert (done.returncode, done.stdout, done.stderr) == (1, "", f"queue-server.py: {needed}\n")
    finally:
        (packages / "gone").rename(library)


def test_a_name_that_nobody_has(tmp_path: Path, installed: Callable[[], set[str]]) -> None:
    """A storage that there is not is 501, or a wrong flag, or a root that cannot be used: each names those that there
    are, of other distributions too."""
    root = tmp_path / "root"
    with serving(root, *FAST) as server, Wire(server) as wire:
        answer = wire.ask(new_queue("q", '<options storage="wax"/>'))
        assert (code(answer), text(answer)[:46]) == (501, "there is no storage 'wax'; this server has 'jo")
        assert "<queue>" not in wire.ask(request("list-queues"))
    done = run_server("--root", str(root), "--port", "0", "--storage", "wax")
    assert (done.returncode, done.stdout) == (2, "")
    assert "'null', 'memcached', 'postgres', 'sqs', 'tape'" in done.stderr
    (root / "q").mkdir()
    (root / "q" / ".queue.toml").write_text('storage = "wax"\n')
    done = run_server("--root", str(root), "--port", "0")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "there is no storage 'wax'; there are 'journal', 'files'" in done.stderr
    assert done.stderr.endswith("'memcached', 'postgres', 'sqs', 'tape'\n")

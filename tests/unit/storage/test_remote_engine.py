"""Engines over other servers: how one is opened, and the directories of its queues."""

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from qs_storage.engine import (
    NoSuchQueueError,
    Options,
    QueueExistsError,
    RemoteError,
    UnsupportedError,
    wall_clock,
)
from qs_storage.remote_engine import GROUP, RemoteQueue, RootedEngine, foreign_queues, open_engine


class Queue(RemoteQueue):
    """A queue at a server that fails when it is told to."""

    failing = False
    made = False

    def make(self) -> None:
        if self.failing:
            raise RemoteError("no")
        self.made = True

    def unmake(self, *, force: bool) -> None:
        if self.failing:
            raise RemoteError("no")


class Elsewhere(RootedEngine[Queue]):
    name = "elsewhere"

    def open_queue(self, qid: str, options: Options) -> Queue:
        return Queue(qid, options)


class Another(Elsewhere):
    name = "another"


@pytest.fixture
def registry(tmp_path: Path) -> Elsewhere:
    return Elsewhere(str(tmp_path))


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Queue, "failing", True)


def test_one_object(registry: Elsewhere, tmp_path: Path) -> None:
    """A queue is one object, that which was made, until it is removed; the next start makes another one."""
    registry.create("q", Options())
    queue = registry.queue("q")
    assert queue.made
    assert registry.queue("q") is queue
    registry.remove("q", force=True)
    registry.create("q", Options(visibility=5))
    assert registry.queue("q") is not queue
    found = Elsewhere(str(tmp_path)).queue("q")
    assert (found.made, found.options) == (False, Options(storage="elsewhere", visibility=5))


def test_names_do_not_change(registry: Elsewhere) -> None:
    """An iteration over the names is not disturbed by other threads that add and remove some."""
    registry.create("q", Options())
    before = registry.queues()
    registry.create("r", Options())
    both = registry.queues()
    registry.remove("q", force=True)
    assert [sorted(names) for names in (before, both, registry.queues())] == [["q"], ["q", "r"], ["r"]]


def test_making_fails(registry: Elsewhere, fails: None, tmp_path: Path) -> None:
    """A queue that the other server does not make leaves nothing here."""
    with pytest.raises(RemoteError):
        registry.create("q", Options())
    assert not registry.queues()
    assert not list(tmp_path.iterdir())
    with pytest.raises(NoSuchQueueError):
        registry.queue("q")


def test_removing_fails(registry: Elsewhere, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A queue that the other server does not remove is here still, as the same object."""
    registry.create("q", Options())
    queue = registry.queue("q")
    monkeypatch.setattr(Queue, "failing", True)
    with pytest.raises(RemoteError):
        registry.remove("q", force=True)
    assert registry.queue("q") is queue
    assert [path.name for path in tmp_path.iterdir()] == ["q"]


def test_other_storages(registry: Elsewhere, tmp_path: Path) -> None:
    """The queues of other storages are not seen, and keep their names."""
    Another(str(tmp_path)).create("q", Options())
    assert not Elsewhere(str(tmp_path)).queues()
    with pytest.raises(QueueExistsError):
        registry.create("q", Options())


def test_foreign_queues(registry: Elsewhere, tmp_path: Path) -> None:
    """The queues whose storage another server may have, with its name; those without a storage are the root's own."""
    registry.create("a/b", Options())
    Another(str(tmp_path)).create("q", Options())
    for name in ("plain", ".hidden"):
        (tmp_path / name).mkdir()
    assert foreign_queues(str(tmp_path), ()) == {"a/b": "elsewhere", "q": "another"}
    assert foreign_queues(str(tmp_path), ("another",)) == {"a/b": "elsewhere"}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("lacking_qs_engine:Engine", "needs lacking_qs_engine, which is not installed here: pip install 'tape[tape]'"),
        ("qs_storage.remote_engine:Nothing", "cannot be used: qs_storage.remote_engine:Nothing fails with Attribute"),
        ("qs_storage.names:qid_of", "cannot be used: qs_storage.names:qid_of fails with TypeError("),
    ],
)
def test_an_engine_that_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, said: str
) -> None:
    """The error says what is missing and how to install it, or which entry point is wrong and why."""
    found = {"tape": EntryPoint("tape", value, GROUP)}
    monkeypatch.setattr("qs_storage.remote_engine.installed_engines", lambda: found)
    with pytest.raises(UnsupportedError) as raised:
        open_engine("tape", str(tmp_path), wall_clock, {})
    assert str(raised.value).startswith("the storage 'tape' ")
    assert said in str(raised.value)


def test_no_such_engine(tmp_path: Path) -> None:
    """A name that no entry point has is not an engine."""
    assert open_engine("tape", str(tmp_path), wall_clock, {}) is None

"""The registry of queues whose messages another server keeps."""

from pathlib import Path

import pytest

from qs_storage.engine import NoSuchQueueError, Options, QueueExistsError, RemoteError
from qs_storage.remote.registry import QueueRegistry


class Queue:
    """A queue at a server that fails when it is told to."""

    failing = False

    def __init__(self, qid: str, options: Options) -> None:
        self.options = options
        self.made = False

    def make(self) -> None:
        if self.failing:
            raise RemoteError("no")
        self.made = True

    def unmake(self, *, force: bool) -> None:
        if self.failing:
            raise RemoteError("no")


@pytest.fixture
def registry(tmp_path: Path) -> QueueRegistry[Queue]:
    return QueueRegistry(str(tmp_path), "elsewhere", None, Queue)


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Queue, "failing", True)


def test_one_object(registry: QueueRegistry[Queue], tmp_path: Path) -> None:
    """A queue is one object, that which was made, until it is removed; the next start makes another one."""
    registry.create("q", Options())
    queue = registry.queue("q")
    assert queue.made
    assert registry.queue("q") is queue
    assert registry.remove("q", force=True) is queue
    registry.create("q", Options(visibility=5))
    assert registry.queue("q") is not queue
    found = QueueRegistry(str(tmp_path), "elsewhere", None, Queue).queue("q")
    assert (found.made, found.options) == (False, Options(storage="elsewhere", visibility=5))


def test_names_do_not_change(registry: QueueRegistry[Queue]) -> None:
    """An iteration over the names is not disturbed by other threads that add and remove some."""
    registry.create("q", Options())
    before = registry.queues()
    registry.create("r", Options())
    both = registry.queues()
    registry.remove("q", force=True)
    assert [sorted(names) for names in (before, both, registry.queues())] == [["q"], ["q", "r"], ["r"]]


def test_making_fails(registry: QueueRegistry[Queue], fails: None, tmp_path: Path) -> None:
    """A queue that the other server does not make leaves nothing here."""
    with pytest.raises(RemoteError):
        registry.create("q", Options())
    assert not registry.queues()
    assert not list(tmp_path.iterdir())
    with pytest.raises(NoSuchQueueError):
        registry.queue("q")


def test_removing_fails(registry: QueueRegistry[Queue], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A queue that the other server does not remove is here still, as the same object."""
    registry.create("q", Options())
    queue = registry.queue("q")
    monkeypatch.setattr(Queue, "failing", True)
    with pytest.raises(RemoteError):
        registry.remove("q", force=True)
    assert registry.queue("q") is queue
    assert [path.name for path in tmp_path.iterdir()] == ["q"]


def test_other_storages(registry: QueueRegistry[Queue], tmp_path: Path) -> None:
    """The queues of other storages are not seen, and keep their names."""
    QueueRegistry(str(tmp_path), "another", None, Queue).create("q", Options())
    assert not QueueRegistry(str(tmp_path), "elsewhere", None, Queue).queues()
    with pytest.raises(QueueExistsError):
        registry.create("q", Options())

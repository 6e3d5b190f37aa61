"""QueueSimple and Queue: what holds for both layouts of a directory."""

import inspect
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qs_storage.dirq import Queue, QueueSimple

NOTHING = "00000000/00000000000000"
Make = Callable[..., Any]


def simple(path: Path, **named: Any) -> QueueSimple:
    return QueueSimple(**{"path": str(path / "q"), "sync": False, **named})


def schemed(path: Path, **named: Any) -> Queue:
    return Queue(**{"path": str(path / "q"), "schema": {"body": "binary"}, "sync": False, **named})


@pytest.fixture(params=[simple, schemed])
def make(request: pytest.FixtureRequest) -> Make:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def q(make: Make, tmp_path: Path) -> Any:
    return make(tmp_path)


def add(q: Any, data: bytes = b"x") -> str:
    return str(q.add({"body": data} if isinstance(q, Queue) else data))


def got(q: Any, name: str) -> bytes:
    found = q.get(name)
    return bytes(found["body"] if isinstance(q, Queue) else found)


def locked(q: Any) -> str:
    name = add(q)
    assert q.lock(name) is True
    return name


def age(q: Any, name: str, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(f"{q.path}/{name}", (then, then))


@pytest.mark.parametrize(
    ("class_", "arguments"),
    [
        (QueueSimple, {"umask": None, "granularity": 60}),
        (Queue, {"umask": None, "maxelts": 16000, "schema": {}}),
    ],
)
def test_signature(class_: type, arguments: dict[str, Any]) -> None:
    """The arguments of the documentation in its order; what it does not have goes by keyword."""
    parameters = inspect.signature(class_).parameters
    found = {name: p.default for name, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD}
    assert list(found.items()) == [("path", inspect.Parameter.empty), *arguments.items()]
    assert (parameters["rndhex"].default, parameters["sync"].default) == (None, True)


BOTH = [
    ("add", "(self, data)"),
    ("count", "(self)"),
    ("lock", "(self, {name}, permissive=True)"),
    ("unlock", "(self, {name}, permissive=False)"),
    ("get", "(self, {name})"),
    ("remove", "(self, {name})"),
    ("purge", "(self, maxtemp=300, maxlock=600)"),
    ("touch", "(self, ename)"),
]
OF_SIMPLE = [
    ("add_path", "(self, path)"),
    ("add_ref", "(self, data)"),
    ("get_path", "(self, name)"),
    ("get_ref", "(self, name)"),
]
OF_QUEUE = [
    ("enqueue", "(self, data)"),
    ("dequeue", "(self, ename, permissive=True)"),
    ("get_element", "(self, ename, permissive=True)"),
]


@pytest.mark.parametrize(
    ("class_", "name", "methods"), [(QueueSimple, "name", BOTH + OF_SIMPLE), (Queue, "ename", BOTH + OF_QUEUE)]
)
def test_signatures_of_methods(class_: type, name: str, methods: list[tuple[str, str]]) -> None:
    """Arguments and defaults as documented."""
    for method, expected in methods:
        found = inspect.signature(getattr(class_, method))
        bare = [p.replace(annotation=inspect.Parameter.empty) for p in found.parameters.values()]
        assert str(inspect.Signature(bare)) == expected.format(name=name), method


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        *((simple, {"path": wrong}) for wrong in (1, None)),
        *((simple, {"granularity": wrong}) for wrong in ("60", None)),
        *((schemed, {"maxelts": wrong}) for wrong in ("1", None)),
        *((each, {"umask": "022"}) for each in (simple, schemed)),
        *((each, {"rndhex": wrong}) for each in (simple, schemed) for wrong in ("a", "")),
    ],
)
def test_argument_of_wrong_type(tmp_path: Path, make: Make, arguments: dict[str, Any]) -> None:
    """TypeError that names the argument."""
    with pytest.raises(TypeError, match=next(iter(arguments))):
        make(tmp_path, **arguments)


def test_lock(q: Any) -> None:
    """The first lock returns True. A second one returns False, or raises FileExistsError, and leaves the lock's time.
    The lock of a missing element returns False, or raises FileNotFoundError, which names the path."""
    name = locked(q)
    age(q, name, 500)
    assert q.lock(name) is False
    with pytest.raises(FileExistsError):
        q.lock(name, permissive=False)
    assert time.time() - os.stat(f"{q.path}/{name}").st_mtime > 400
    assert q.lock(NOTHING) is False
    with pytest.raises(FileNotFoundError) as caught:
        q.lock(NOTHING, False)
    assert str(caught.value.filename).startswith(f"{q.path}/{NOTHING}")


def test_unlock(q: Any) -> None:
    """An unlock returns True; without a lock it raises FileNotFoundError or, permissive, returns False."""
    name = locked(q)
    assert q.unlock(name) is True
    with pytest.raises(FileNotFoundError):
        q.unlock(name)
    assert q.unlock(name, permissive=True) is False
    assert q.lock(name) is True


def test_walk(q: Any) -> None:
    """All elements, oldest first, whatever their state: by first and next, by for, by names()."""
    added = [add(q, b"%d" % number) for number in range(5)]
    q.lock(added[2])
    assert list(q) == added
    assert list(q.names()) == added
    found = [q.first()]
    while name := q.next():
        found.append(name)
    assert found == added
    assert q.next() == ""
    assert q.count() == 5


def test_copy(q: Any) -> None:
    """A copy goes on where the cursor stands, moves on its own, and does what the queue does."""
    added = [add(q) for _ in range(4)]
    assert q.first() == added[0]
    other = q.copy()
    assert isinstance(other, type(q))
    assert [other.next() for _ in range(4)] == [*added[1:], ""]
    assert [q.next() for _ in range(4)] == [*added[1:], ""]
    assert other.id == q.id
    assert add(other) in list(q)


def test_touch(q: Any) -> None:
    """The element's time is now, so its lock is not old; FileNotFoundError, with the path, for one that is gone."""
    name = locked(q)
    age(q, name, 5000)
    q.touch(name)
    q.purge(maxlock=600)
    assert got(q, name) == b"x"
    with pytest.raises(FileNotFoundError) as caught:
        q.touch(NOTHING)
    assert caught.value.filename == f"{q.path}/{NOTHING}"


def test_purge_of_locks(q: Any) -> None:
    """Locks older than maxlock are removed, none if it is 0. The elements stay."""
    old, new, free = locked(q), locked(q), add(q)
    for name in (old, free):
        age(q, name, 700)
    q.purge(maxlock=800)
    q.purge(maxlock=0)
    assert q.lock(old) is False
    age(q, old, 700)
    q.purge()
    assert [q.lock(name) for name in (old, new, free)] == [True, False, True]
    assert list(q) == [old, new, free]

"""QueueSet and QueueNull."""

import inspect
from pathlib import Path
from typing import Any

import pytest
from qs_storage.dirq.QueueSet import Found

from qs_storage.dirq import Queue, QueueError, QueueNull, QueueSet, QueueSimple


@pytest.fixture
def queues(tmp_path: Path) -> list[QueueSimple]:
    return [QueueSimple(str(tmp_path / name), sync=False, granularity=3600) for name in "abc"]


def fill(queues: list[QueueSimple]) -> list[tuple[str, str]]:
    """Queue's id and element, in the order of their names."""
    return sorted(((q.id, q.add(b"")) for _ in range(3) for q in queues), key=lambda one: one[1])


def walked(found: Found, more: Any) -> list[tuple[str, str]]:
    names = []
    while found[0] is not None:
        assert found[1] is not None
        names.append((found[0].id, found[1]))
        found = more()
    assert found == (None, None)
    return names


@pytest.mark.parametrize("how", [lambda qs: QueueSet(*qs), QueueSet, lambda qs: QueueSet(tuple(qs))])
def test_elements_are_merged(queues: list[QueueSimple], how: Any) -> None:
    """A set of queues, given one by one, in a list or in a tuple, has all elements, by their names."""
    added = fill(queues)
    found = how(queues)
    assert walked(found.first(), found.next) == added
    assert [(q.id, name) for q, name in found] == added
    assert [(q.id, name) for q, name in found.names()] == added
    assert found.count() == 9


def test_elements_can_be_worked_with(queues: list[QueueSimple]) -> None:
    """Each name comes with the queue that has the element."""
    fill(queues)
    for q, name in QueueSet(queues):
        assert isinstance(q, QueueSimple)
        assert q.lock(name)
        q.remove(name)
    assert [q.count() for q in queues] == [0, 0, 0]


def test_kinds_may_be_mixed(tmp_path: Path, queues: list[QueueSimple]) -> None:
    """Any directory queue; the null queue is always empty."""
    queue = Queue(str(tmp_path / "q"), schema={"a": "string"})
    name = queue.add({"a": ""})
    added = fill(queues)
    found = QueueSet(QueueNull(), queue, *queues)
    assert [(q.id, one) for q, one in found] == [(queue.id, name), *added]


def test_queues_are_copies(queues: list[QueueSimple]) -> None:
    """The cursor of a queue that was given does not move."""
    added = [queues[0].add(b""), queues[0].add(b"")]
    queues[0].first()
    found = QueueSet(queues)
    assert len(list(found)) == 2
    assert queues[0].next() == added[1]


def test_empty_sets(queues: list[QueueSimple]) -> None:
    """(None, None), or the end of an iteration."""
    for found in (QueueSet(), QueueSet(queues)):
        assert found.first() == found.next() == (None, None)
        assert list(found) == []
        assert found.count() == 0
        assert iter(found) is found
        with pytest.raises(StopIteration):
            found.next()


def test_add(queues: list[QueueSimple]) -> None:
    """One by one or in a list. A walk begins anew."""
    added = fill(queues)
    found = QueueSet(queues[0])
    found.first()
    found.add(queues[1])
    found.add([queues[2]])
    assert walked(found.first(), found.next) == added


@pytest.mark.parametrize("listed", [False, True])
def test_add_twice(queues: list[QueueSimple], listed: bool) -> None:
    """QueueError, also for another object of the same directory; none of the queues is added then."""
    found = QueueSet(queues[0])
    again = [queues[1], QueueSimple(queues[0].path)]
    with pytest.raises(QueueError, match="already in the set"):
        found.add(again) if listed else found.add(*again)
    with pytest.raises(QueueError, match="already in the set"):
        QueueSet(queues[1], queues[1])
    assert len(found.qset) == 1


def test_remove(queues: list[QueueSimple]) -> None:
    """During a walk: only the elements of that queue are missing from then on."""
    added = fill(queues)
    found = QueueSet(queues)
    assert found.first()[1] == added[0][1]
    found.remove(QueueSimple(queues[2].path))
    found.remove(queues[2])
    rest = [one for one in added[1:] if one[0] != queues[2].id]
    assert walked(found.next(), found.next) == rest
    assert found.count() == 6


@pytest.mark.parametrize("wrong", ["path", 1, None, pytest.param(object(), id="object")], ids=repr)
def test_set_of_wrong_type(queues: list[QueueSimple], wrong: Any) -> None:
    """A set of a wrong type raises TypeError."""
    found = QueueSet(queues)
    for call in (QueueSet, found.add, found.remove):
        with pytest.raises(TypeError, match="directory queues expected"):
            call(wrong)
    with pytest.raises(TypeError, match="directory queues expected"):
        QueueSet([queues[0], wrong])


# -- QueueNull --------------------------------------------------------------------------------------------------------


def test_null_takes_everything(tmp_path: Path) -> None:
    """Additions to a null queue are gone, added paths too."""
    q = QueueNull()
    given = tmp_path / "given"
    given.touch()
    assert q.add("x") == q.add_ref(b"x") == q.add({"a": 1}) == q.add_path(str(given)) == ""
    assert not given.exists()
    with pytest.raises(FileNotFoundError):
        q.add_path(given)
    assert q.purge(maxtemp=1, maxlock=1) is None  # type: ignore[func-returns-value]


def test_null_is_empty() -> None:
    """No call finds an element in a null queue."""
    q = QueueNull()
    assert (q.count(), q.first(), q.next(), list(q), list(q.names()), q.copy().first()) == (0, "", "", [], [], "")


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("get", "(self, name)"),
        ("get_ref", "(self, name)"),
        ("get_path", "(self, name)"),
        ("lock", "(self, name, permissive=True)"),
        ("unlock", "(self, name, permissive=False)"),
        ("remove", "(self, name)"),
        ("touch", "(self, ename)"),
    ],
)
def test_null_has_no_elements(method: str, expected: str) -> None:
    """NotImplementedError that names the method."""
    found = inspect.signature(getattr(QueueNull, method))
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in found.parameters.values()]
    assert str(inspect.Signature(bare)) == expected
    with pytest.raises(NotImplementedError, match=f"unsupported method: {method.replace('_ref', '')}"):
        getattr(QueueNull(), method)("00000000/00000000000000")

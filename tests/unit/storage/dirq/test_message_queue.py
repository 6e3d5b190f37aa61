"""Queues in dirq's layouts beside others: ids, options, copies, what is left behind, and what is not their engine's."""

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.storage.engines import EPOCH, LOTS, ManualClock

from qs_storage.directories import DirectoriesEngine, DirqEngine, DirqSimpleEngine, FilesEngine
from qs_storage.dirq.elements import following, mid_at, mid_of, name_of, time_of
from qs_storage.engine import (
    SECOND,
    Draft,
    Durability,
    NoSuchMessageError,
    NoSuchQueueError,
    Options,
    OtherMessageError,
    QueueExistsError,
    QueueFullError,
    QueueNotEmptyError,
    Receipt,
    State,
    StorageError,
    UnsupportedError,
)


def opened(
    root: Path, kind: type[DirectoriesEngine] = DirqEngine, clock: Callable[[], int] | None = None
) -> DirectoriesEngine:
    return kind(str(root), clock=clock or ManualClock(), durability=Durability.ALWAYS)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[DirectoriesEngine]:
    engine = opened(tmp_path)
    yield engine
    engine.close()


@pytest.fixture(params=["dirq-simple", "dirq"])
def storage(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def pushed(engine: DirectoriesEngine, qid: str, payload: bytes = b"x") -> int:
    [mid] = engine.queue(qid).push([Draft(payload)])
    engine.commit()
    return mid


def listed(engine: DirectoriesEngine, qid: str, state: State = State.ALL) -> list[int]:
    return engine.queue(qid).list_mids(state, 100, -1)


# -- ids


def test_ids() -> None:
    """An id is the hexadecimal name as a number, and says the microsecond."""
    mid = mid_at(EPOCH + 123_456, 7)
    assert name_of(mid) == f"{EPOCH // SECOND:08x}{123_456:05x}7"
    assert mid_of(name_of(mid)) == mid
    assert time_of(mid) == EPOCH + 123_456
    assert len(str(mid)) == 17


@pytest.mark.parametrize(
    ("name", "next_name"),
    [("68e78c80000000", "68e78c80000001"), ("68e78c8000000f", "68e78c80000010"), ("68e78c80f423ff", "68e78c81000000")],
)
def test_following(name: str, next_name: str) -> None:
    """After the last digit comes the next microsecond, after the last of them the next second."""
    assert name_of(following(mid_of(name))) == next_name


def test_no_id_is_left(engine: DirectoriesEngine, tmp_path: Path) -> None:
    """An element that is named after the year 2097 is a message, and does not take the ids away."""
    engine.create("q", Options())
    os.makedirs(tmp_path / "q" / "00000000" / "ffffffff000000")
    (tmp_path / "q" / "00000000" / "ffffffff000000" / "body").write_bytes(b"x")
    engine.refresh()
    assert pushed(engine, "q") < mid_of("ffffffff000000")
    assert len(listed(engine, "q")) == 2


def test_merged_by_time(tmp_path: Path) -> None:
    """A receive over queues of all kinds is in the order of time, whatever their ids are."""
    clock = ManualClock()
    engine = opened(tmp_path, clock=clock)
    kinds = ["journal", "files", "dirq-simple", "dirq", "null"]
    for kind in kinds:
        engine.create(kind, Options(storage=kind))
    for number, kind in enumerate(["dirq", "files", "null", "dirq-simple", "journal", "dirq", "files"]):
        pushed(engine, kind, b"%d" % number)
        clock.now += 1
    found = engine.receive(kinds, 100, None, LOTS)
    assert [message.payload for message in found] == [b"0", b"1", b"3", b"4", b"5", b"6"]
    assert [message.pushed_at - EPOCH for message in found] == [0, 1, 3, 4, 5, 6]
    engine.close()


# -- options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pieces": "body"}, "schema 'body': NAME=TYPE,... with each name once; this has 'body'"),
        ({"pieces": "body=binary,body=string"}, "with each name once; this has 'body=string'"),
        ({"pieces": "body=text"}, "schema 'body=text': invalid schema data type: 'text'"),
        ({"pieces": "body=binary?"}, "no mandatory data"),
        ({"pieces": "body=binary,header=string"}, "the schema wants header in every element"),
        ({"pieces": "body=binary,other=table"}, "the schema wants other in every element"),
        ({"pieces": "body=table"}, "body = 'body': a payload is bytes"),
        ({"pieces": "a=binary,b=string?", "body": "c"}, "body = 'c': the schema has no such piece of data"),
        ({"pieces": "a=binary,b=string?"}, "body = 'body': the schema has no such piece of data, it has a, b"),
        ({"pieces": 'body=binary"\nstorage = "files'}, "letters, digits and"),
    ],
)
def test_schemas_that_do_not_fit(
    engine: DirectoriesEngine, tmp_path: Path, options: dict[str, str], message: str
) -> None:
    """A schema whose elements cannot be messages is refused when the queue is made, and says why."""
    with pytest.raises(StorageError) as caught:
        engine.create("q", Options(**options))  # type: ignore[arg-type]
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    engine.create("q", Options())


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("body=string,header=table?", {"body": b"y"}),
        ("body=string,header=table", {"body": b"y", "header": b""}),
    ],
)
def test_the_table_of_headers(engine: DirectoriesEngine, tmp_path: Path, schema: str, files: dict[str, bytes]) -> None:
    """Headers are a table beside the body, sorted by name; without headers only a mandatory table is there."""
    engine.create("q", Options(storage="dirq", pieces=schema))
    headers = (("b", "2\t3"), ("a", "1\\"))
    engine.queue("q").push([Draft(b"x", headers=headers), Draft(b"y")])
    engine.commit()
    found = sorted((tmp_path / "q" / "00000000").iterdir())
    contents = [{file.name: file.read_bytes() for file in element.iterdir()} for element in found]
    assert contents == [{"body": b"x", "header": b"a\t1\\\\\nb\t2\\t3\n"}, files]
    assert [message.headers for message in engine.receive(["q"], 2, None, LOTS)] == [tuple(sorted(headers)), ()]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (Options(storage="dirq", pieces="body=binary"), "no piece header=table?"),
        (Options(storage="dirq", pieces="body=binary,header=string?"), "no piece header=table?"),
        (Options(storage="dirq-simple"), "'dirq-simple' keeps no headers"),
    ],
)
def test_headers_without_a_place(engine: DirectoriesEngine, options: Options, text: str) -> None:
    """A push with headers into a queue whose elements have no place for them is refused, with the list around it."""
    engine.create("q", options)
    with pytest.raises(UnsupportedError) as caught:
        engine.queue("q").push([Draft(b"x"), Draft(b"y", headers=(("a", "b"),))])
    assert text in str(caught.value)
    engine.commit()
    assert engine.receive(["q"], 9, None, LOTS) == []


def test_a_copy_of_headers_without_a_place(engine: DirectoriesEngine) -> None:
    """A message with headers is not copied to where they would be lost, and nothing is left there."""
    engine.create("q", Options(storage="dirq"))
    engine.create("simple", Options(storage="dirq-simple"))
    [mid, plain] = engine.queue("q").push([Draft(b"x", headers=(("a", "b"),)), Draft(b"y")])
    with pytest.raises(UnsupportedError, match="headers have no place"):
        engine.copy("q", mid, ["simple"])
    engine.copy("q", plain, ["simple"])
    assert [message.payload for message in engine.receive(["simple"], 9, None, LOTS)] == [b"y"]


@pytest.mark.parametrize("content", [b"no tab\n", b"a\tb\tc\n", b"\xff", b""], ids=repr)
def test_a_table_that_is_none(engine: DirectoriesEngine, tmp_path: Path, content: bytes) -> None:
    """A table that another program wrote wrongly counts as no headers."""
    engine.create("q", Options(storage="dirq"))
    engine.queue("q").push([Draft(b"x", headers=(("a", "b"),))])
    engine.commit()
    [element] = (tmp_path / "q" / "00000000").iterdir()
    (element / "header").write_bytes(content)
    [message] = engine.receive(["q"], 1, None, LOTS)
    assert (message.payload, message.headers) == (b"x", ())


@pytest.mark.parametrize(
    ("options", "piece"),
    [
        ({}, "body"),
        ({"pieces": "text=string"}, "text"),
        ({"pieces": "body=string,header=table?"}, "body"),
        ({"pieces": "a=binary,b=string?", "body": "a"}, "a"),
        ({"pieces": "body=binary*, note=string?*"}, "body"),
    ],
)
def test_which_piece_is_the_payload(
    engine: DirectoriesEngine, tmp_path: Path, options: dict[str, str], piece: str
) -> None:
    """The payload is the piece that the options say, also after a restart."""
    engine.create("q", Options(**options))  # type: ignore[arg-type]
    mid = pushed(engine, "q", b"text")
    [path] = (tmp_path / "q").glob(f"*/{name_of(mid)}/*")
    assert (path.name, path.read_bytes()) == (piece, b"text")
    again = opened(tmp_path)
    assert [message.payload for message in again.receive(["q"], 1, None, LOTS)] == [b"text"]
    again.close()


def test_text_only(engine: DirectoriesEngine) -> None:
    """Where the payload has to be text, other bytes are refused; nothing of the list is stored."""
    engine.create("q", Options(pieces="body=string"))
    with pytest.raises(UnsupportedError, match="not UTF-8"):
        engine.queue("q").push([Draft(b"text"), Draft(b"\xff")])
    engine.commit()
    assert listed(engine, "q") == []


def test_keys_are_refused(engine: DirectoriesEngine, storage: str) -> None:
    """Push keys are for the journal."""
    engine.create("q", Options(storage=storage))
    with pytest.raises(UnsupportedError, match=f"'{storage}' keeps no keys"):
        engine.queue("q").push([Draft(b"x", key="k")])


# -- copies


def test_copies_between_kinds(engine: DirectoriesEngine) -> None:
    """Between dirq's layouts a message keeps its id; to other kinds it cannot, and the null queue takes everything."""
    for kind in ("files", "dirq-simple", "dirq", "null"):
        engine.create(kind, Options(storage=kind))
    mid = pushed(engine, "dirq")
    engine.copy("dirq", mid, ["dirq-simple", "null", "dirq"])
    assert listed(engine, "dirq-simple") == listed(engine, "dirq") == [mid]
    other = pushed(engine, "files")
    for source, number, into in (("dirq", mid, "files"), ("files", other, "dirq"), ("dirq-simple", mid, "files")):
        with pytest.raises(UnsupportedError, match="of another kind of storage"):
            engine.copy(source, number, [into])
    engine.copy("files", other, ["null"])
    assert (listed(engine, "null"), engine.queue("null").stats().pushed) == ([], 2)
    with pytest.raises(NoSuchMessageError):
        engine.copy("null", mid, ["files"])


def test_copy_of_another(engine: DirectoriesEngine) -> None:
    """An id that is that of another payload is refused."""
    engine.create("a", Options())
    engine.create("b", Options(storage="dirq-simple"))
    mid = pushed(engine, "a")
    path = Path(engine._root.path) / "b" / f"{(mid >> 24) // 60 * 60:08x}"
    path.mkdir()
    (path / name_of(mid)).write_bytes(b"other")
    engine.refresh()
    with pytest.raises(OtherMessageError):
        engine.copy("a", mid, ["b"])


# -- what is not a message, or left behind


def test_what_is_no_message(engine: DirectoriesEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An element without the payload's piece, and a file in the place of one, are left alone, which is logged."""
    engine.create("q", Options())
    queue = tmp_path / "q" / "00000000"
    (queue / "68e78c80000000").mkdir(parents=True)
    (queue / "68e78c80000001").write_bytes(b"")
    mid = pushed(engine, "q")
    with caplog.at_level(logging.WARNING):
        engine.refresh()
        assert [message.mid for message in engine.receive(["q"], 10, None, LOTS)] == [mid]
    assert caplog.text.count("is no message that can be used") == 2
    assert (queue / "68e78c80000000").is_dir()


def test_a_payload_that_is_taken_away(engine: DirectoriesEngine, tmp_path: Path) -> None:
    """An element that has lost its piece of data is not handed out, and does not keep others from being so."""
    engine.create("q", Options())
    mid, second = pushed(engine, "q"), pushed(engine, "q")
    [path] = (tmp_path / "q").glob(f"*/{name_of(mid)}/body")
    path.unlink()
    assert [message.mid for message in engine.receive(["q"], 10, None, LOTS)] == [second]


def test_a_name_that_is_there_twice(tmp_path: Path, storage: str, caplog: pytest.LogCaptureFixture) -> None:
    """The second of two elements of one name in different directories is a message when the first is gone."""
    for number in ("68e78c40", "68e78c80"):
        path = tmp_path / "q" / number / "68e78c80000000"
        if storage == "dirq":
            path.mkdir(parents=True)
            path /= "body"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(number.encode())
    kind = DirqEngine if storage == "dirq" else DirqSimpleEngine
    found = []
    for _ in range(2):
        engine = opened(tmp_path, kind)
        [message] = engine.receive(["q"], 10, None, LOTS)
        engine.queue("q").delete(Receipt(message.mid))
        found.append(message.payload)
        assert listed(engine, "q") == []
        engine.close()
    assert found == [b"68e78c40", b"68e78c80"]
    assert "same name" in caplog.text


def test_left_behind(tmp_path: Path, storage: str) -> None:
    """A start removes the remains of a crash after dirq's own time, 300 seconds, and not earlier."""
    kind = DirqEngine if storage == "dirq" else DirqSimpleEngine
    clock = ManualClock()
    engine = opened(tmp_path, kind, clock)
    engine.create("q", Options())
    engine.queue("q").push([Draft(b"x")])
    paths = [p for p in (tmp_path / "q").glob("*/68*") if storage == "dirq" or p.name.endswith(".tmp")]
    assert len(paths) == 1
    for path in paths:
        os.utime(path, (EPOCH // SECOND, EPOCH // SECOND))
    engine._watch.close()
    for later, there in ((300, True), (2, False)):
        clock.now += later * SECOND
        opened(tmp_path, kind, clock).close()
        assert paths[0].exists() is there


def test_empty_directories(tmp_path: Path, storage: str) -> None:
    """An intermediate directory that has been empty for an hour goes, but for the last one."""
    kind = DirqEngine if storage == "dirq" else DirqSimpleEngine
    clock = ManualClock()
    folders = [tmp_path / "q" / name for name in ("00000000", "00000001", "00000002")]
    for folder in folders:
        folder.mkdir(parents=True)
        os.utime(folder, (EPOCH // SECOND, EPOCH // SECOND))
    for later, there in ((3600, [True, True, True]), (1, [False, False, True])):
        clock.now += later * SECOND
        opened(tmp_path, kind, clock).close()
        assert [folder.exists() for folder in folders] == there


def test_held_by_one_that_was_killed(tmp_path: Path, storage: str) -> None:
    """A message that a killed process held for its subscribers is ready when its window ends."""
    kind = DirqEngine if storage == "dirq" else DirqSimpleEngine
    engine = opened(tmp_path, kind)
    engine.create("q", Options())
    mid = pushed(engine, "q")
    engine.receive(["q"], 1, 100 * SECOND, LOTS, held=True)
    engine._watch.close()  # as the end of the process does
    clock = ManualClock(engine._clock())
    other = opened(tmp_path, kind, clock)
    assert listed(other, "q", State.IN_FLIGHT) == [mid]
    clock.now += 100 * SECOND
    assert listed(other, "q", State.READY) == [mid]
    assert other.queue("q").get(mid, peek=True, visibility=None).receives == 1
    other.close()


# -- the root


def test_queues_of_other_engines(engine: DirectoriesEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A directory whose storage another engine keeps is not a queue here, silently, and its name is taken."""
    for name, storage in (("a", "sqs"), ("b", "memcached")):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".queue.toml").write_text(f'storage = "{storage}"\n')
    again = opened(tmp_path)
    for each in (engine, again):
        each.refresh()
        assert list(each.queues()) == []
        with pytest.raises(NoSuchQueueError):
            each.queue("a")
        with pytest.raises(QueueExistsError):
            each.create("a", Options())
    again.close()


def test_unknown_storage(tmp_path: Path) -> None:
    """A storage that nobody knows stops the start."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / ".queue.toml").write_text('storage = "tape"\n')
    with pytest.raises(StorageError, match="there is no storage 'tape'; there are 'journal', "):
        opened(tmp_path)
    with pytest.raises(StorageError, match="no storage 'tape'; this server has 'journal', 'files', 'dirq-simple'"):
        FilesEngine(str(tmp_path / "a"), clock=ManualClock(), durability=Durability.NONE).create(
            "q", Options(storage="tape")
        )


def test_remove_keeps_what_is_not_known(engine: DirectoriesEngine, tmp_path: Path, storage: str) -> None:
    """A directory that holds something else is not removed without force, and keeps its options."""
    engine.create("q", Options(storage=storage, capacity=7))
    (tmp_path / "q" / "notes").write_text("x")
    with pytest.raises(QueueNotEmptyError, match="'notes'"):
        engine.remove("q", force=False)
    pushed(engine, "q")
    again = opened(tmp_path)
    assert again.queue("q").options.capacity == 7
    again.close()


# -- capacity


def test_capacity_counts_what_others_add(engine: DirectoriesEngine, tmp_path: Path) -> None:
    """Elements of other programs count against the capacity, and make room when they go."""
    engine.create("q", Options(storage="dirq-simple", capacity=1))
    path = tmp_path / "q" / "68e78c80"
    path.mkdir()
    (path / "68e78c80000000").write_bytes(b"")
    engine.refresh()
    with pytest.raises(QueueFullError):
        engine.queue("q").push([Draft(b"x")])
    (path / "68e78c80000000").unlink()
    assert pushed(engine, "q")

"""Claims and batches on disks that fail: an error changes nothing for good, and asking again does it once."""

import errno
import itertools
import logging
import os
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path

import pytest
from claim_calls import LOTS, part, payloads, receive
from claims_run import Shown, acknowledge, claim, finish, release, show
from crashing import AT_ONCE, HOUR, Place, segments_of
from engines import Bench, FaultyDisk, ManualClock, WithoutAttributes, always, files_engine, journal_engine

from qs_server.storage.engine import Draft, Durability, Engine, NoSuchClaimError, Options, State
from qs_server.storage.files import FilesEngine
from qs_server.storage.names import WITHHELD

KINDS = {"files": files_engine, "journal": journal_engine}


class Prepared:
    """Claims 1 and 2 of a with two messages each, three that are visible, a batch that is staged."""

    def __init__(self, kind: str, root: Path) -> None:
        self.disk = FaultyDisk()
        self.clock = ManualClock()
        self.make = KINDS[kind](Durability.ALWAYS, always(self.disk))(root)
        self.engine = self.make(self.clock)
        self.engine.create("q", Options())
        for number in range(7):
            self.engine.push("q", [Draft(b"%06d" % number)])
            self.clock.tick()
        self.engine.commit()
        claim(self.engine, "a", 1, 2)
        claim(self.engine, "a", 2, 2)
        self.engine.batches("q").stage("p", (0, 0, 0), [b"000100", b"000101"])
        self.engine.batches("q").stage("p", (0, 1, 0), [b"000102"])
        self.engine.commit()

    def crash(self) -> Engine:
        """Another process over what is there."""
        self.disk.disarm()
        self.disk.crash()
        self.engine._watch.close()  # type: ignore[attr-defined]
        self.engine = self.make(self.clock)
        return self.engine


def _again(engine: Engine) -> None:
    with_claim = {(each.consumer, each.seq) for each in engine.claims("q").all()}
    if ("a", 1) in with_claim:
        release(engine, "a", 1)
    else:
        finish(engine, "a")


OPERATIONS: dict[str, Callable[[Engine], object]] = {
    "claim": lambda engine: claim(engine, "a", 3, 2),
    "first claim": lambda engine: claim(engine, "b", 1, 2),
    "acknowledge": lambda engine: acknowledge(engine, "a", 1),
    "acknowledge all": lambda engine: acknowledge(engine, "a", 2),
    "release": _again,
    "stage": lambda engine: engine.batches("q").stage("p", (0, 2, 0), [b"000103"]),
    "first stage": lambda engine: engine.batches("q").stage("other", (0, 2, 0), [b"000103"]),
    "publish": lambda engine: engine.batches("q").publish("p", 0, [(0, 0), (1, 0)]),
    "publish nothing": lambda engine: engine.batches("q").publish("p", 3, []),
}


def shown(case: Prepared) -> Shown:
    return show(case.engine, case.clock.now)


def fails(case: Prepared, operation: Callable[[Engine], object]) -> bool:
    """Whether it is answered with an error, or the batch that it is in."""
    failed = False
    try:
        operation(case.engine)
    except OSError:
        failed = True
    try:
        case.engine.commit()
    except OSError:
        failed = True
    return failed


def half_way(before: Shown, after: Shown, found: Shown) -> bool:
    """What was acknowledged or released is so although it was answered with an error; its messages go nowhere else."""
    return (
        found.claims in (before.claims, after.claims)
        and found.acknowledged in (before.acknowledged, after.acknowledged)
        and found.published in (before.published, after.published)
        and found.messages.items() <= before.messages.items() | after.messages.items()
    )


def reference(kind: str, root: Path, operation: str) -> tuple[Shown, Shown]:
    root.mkdir()
    case = Prepared(kind, root)
    before = deepcopy(shown(case))
    OPERATIONS[operation](case.engine)
    case.engine.commit()
    after = shown(case)
    case.engine.close()
    return before, after


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "lasting"])
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_full_disk(kind: str, operation: str, lasting: bool, tmp_path: Path) -> None:
    """At each file operation: an error, and nothing else is shown; with room again it works, also after a crash."""
    before, after = reference(kind, tmp_path / "reference", operation)
    for at in itertools.count(1):
        (root := tmp_path / f"{at}").mkdir()
        case = Prepared(kind, root)
        case.disk.arm(at, errno.ENOSPC, lasting=lasting)
        failed = fails(case, OPERATIONS[operation])
        reached = bool(case.disk.failed)
        case.disk.disarm()
        hidden: list[int] = []
        if at % 2:
            case.crash()
        found = show(case.engine, case.clock.now, hidden)
        assert found in (before, after) or (failed and half_way(before, after, found)), (at, case.disk.failed)
        assert failed or (found == after and not hidden)
        if operation not in ("stage", "first stage") or failed:
            OPERATIONS[operation](case.engine)
        case.engine.commit()
        assert shown(case) == after
        if operation == "stage":
            case.engine.batches("q").publish("p", 0, [(0, 0), (1, 0), (2, 0)])
            assert payloads(receive(case.engine))[3:] == [b"%06d" % n for n in range(100, 104)]
        case.crash()
        if operation != "stage":
            assert shown(case) == after
        case.engine.close()
        if not reached:
            return


# -- a commit that fails in the middle


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    segments_of(monkeypatch, 1 << 14, 1 << 14)
    place = Place(tmp_path / "root", limits=AT_ONCE)
    place.queue("q")
    place.push("q", *(b"%d" % number for number in range(6)))
    yield place
    place.leave()


def fill(place: Place) -> None:
    """There is room for no more of the journal, and what is in it cannot be written back."""
    place.disk.refuse("_write", "*")
    place.disk.refuse("_pwrite", "*")
    place.disk.refuse("create", "*.segment*")


def test_deletes_that_were_taken_back(place: Place) -> None:
    """An acknowledged claim whose messages could not be deleted: they are, as soon as there is room."""
    claim(place.engine, "c", 1, 5)
    claims = place.engine.claims("q")
    claims.acknowledge("c", 1)
    fill(place)
    with pytest.raises(OSError, match="No space"):
        claims.finish("c", 3)
    with pytest.raises(OSError, match="No space"):
        place.engine.commit()  # of the batch that this was in
    place.disk.disarm()
    finish(place.engine, "c")
    place.engine.commit()
    assert len(place.mids("q")) == 1
    place.crash()
    assert place.payloads("q") == [b"5"]


def test_a_drop_after_deletes_that_were_taken_back(place: Place) -> None:
    """The last slice fails when it is to be certain: the claim's file stays until everything of it is deleted."""
    claim(place.engine, "c", 1, 5)
    claims = place.engine.claims("q")
    claims.acknowledge("c", 1)
    fill(place)
    with pytest.raises(OSError, match="No space"):
        claims.finish("c", 100)
    place.disk.disarm()
    with pytest.raises(OSError, match="No space"):
        place.engine.commit()  # of the batch that this was in
    finish(place.engine, "c")
    place.engine.commit()
    place.crash()
    assert place.payloads("q") == [b"5"]


def test_a_release_that_was_taken_back(place: Place) -> None:
    """The claim is gone; its messages are visible whatever becomes of the batch."""
    claim(place.engine, "c", 1, 5)
    claims = place.engine.claims("q")
    claims.release("c", 1)
    fill(place)
    assert not claims.finish("c", 100)
    with pytest.raises(OSError, match="No space"):
        place.engine.commit()
    assert place.engine.stats("q").ready == 6
    place.disk.disarm()
    assert claim(place.engine, "c", 1, 6) == [b"%d" % number for number in range(6)]
    place.crash()
    assert place.engine.stats("q").ready == 0


def test_a_publication_that_cannot_be_taken_back(place: Place) -> None:
    """The journal has all of it when the disk fails for what makes it certain: nothing of it comes, now or later."""
    batches = place.engine.batches("q")
    batches.stage("p", (0, 0, 0), [b"staged"] * 3)
    place.disk.before("rename", "*/published", lambda: fill(place))
    place.disk.refuse("rename", "*/published")
    with pytest.raises(OSError, match="No space"):
        batches.publish("p", 0, [(0, 0)])
    assert place.engine.stats("q").ready == 6
    place.disk.disarm()
    with pytest.raises(OSError, match="No space"):
        place.engine.commit()
    batches.publish("p", 0, [(0, 0)])
    place.engine.commit()
    assert place.payloads("q")[6:] == [b"staged"] * 3
    place.crash()
    assert place.payloads("q")[6:] == [b"staged"] * 3


def interrupted(place: Place) -> None:
    """A server is killed between what it stored of a batch and what makes that certain."""
    place.engine.batches("q").stage("p", (0, 0, 0), [b"staged"] * 3)
    place.engine.batches("q").stage("p", (0, 1, 0), [b"other"])

    def kill() -> None:
        raise KeyboardInterrupt

    place.disk.before("create", "*/published.tmp", kill)
    drop = "qs_server.storage.journal.queue.JournalQueue._drop_run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drop, lambda self, mids: None)
        with pytest.raises(KeyboardInterrupt):
            place.engine.batches("q").publish("p", 0, [(0, 0), (1, 0)])


@pytest.mark.parametrize("parts", ["staged", "missing", "damaged", "unreadable"])
def test_a_publication_that_was_interrupted(place: Place, parts: str) -> None:
    """Nothing of it is there, also when the parts are gone that say what it was; other parts can be published."""
    interrupted(place)
    path = place.root / "q" / ".staged" / "p" / "0.1.0"
    if parts == "missing":
        path.unlink()
    elif parts == "damaged":
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    elif parts == "unreadable":
        path.unlink()
        path.symlink_to("0.1.0")
    place.crash()
    assert place.payloads("q") == [b"%d" % number for number in range(6)]
    place.engine.batches("q").stage("p", (0, 1, 1), [b"another"])
    place.engine.batches("q").publish("p", 0, [(0, 0), (1, 1)])
    place.engine.commit()
    for _ in range(2):
        assert place.payloads("q")[6:] == [b"staged"] * 3 + [b"another"]
        place.restart()


def test_a_start_on_a_full_disk(place: Place) -> None:
    """With a claim that is acknowledged and a publication that was interrupted: nobody gets anything of either."""
    claim(place.engine, "c", 1, 2)
    claim(place.engine, "d", 1, 1)
    interrupted(place)
    place.engine.claims("q").acknowledge("c", 1)
    place.leave()
    place.disk.disarm()
    fill(place)
    start = Place.start
    refuse = place.disk.disarm
    place.disk.disarm = lambda: None  # type: ignore[method-assign]
    start(place)
    place.disk.disarm = refuse  # type: ignore[method-assign]
    assert place.engine.stats("q").ready == 3
    assert payloads(part(place.engine, 1, "d")) == [b"2"]
    place.disk.disarm()
    finish(place.engine, "c")
    place.engine.batches("q").publish("p", 0, [(0, 0), (1, 0)])
    place.engine.commit()
    for _ in range(2):
        ready = payloads(place.engine.receive(["q"], 100, 0, LOTS))
        assert ready == [b"3", b"4", b"5", *[b"staged"] * 3, b"other"]
        place.engine.commit()
        place.crash()
    assert len(place.mids("q")) == 8


# -- several servers


class Two:
    """Two servers on one root, neither of which has read the other's changes."""

    def __init__(self, root: Path, disk: type = FaultyDisk) -> None:
        self.root = root
        self.clock = ManualClock()
        self.disks = [disk(), disk()]
        self.first, self.second = self.start(0), self.start(1)
        self.first.create("q", Options(visibility=HOUR))
        self.first.commit()
        self.second.refresh()

    def start(self, number: int) -> FilesEngine:
        return FilesEngine(str(self.root), clock=self.clock, durability=Durability.ALWAYS, disk=self.disks[number])

    def push(self, *found: bytes) -> None:
        for payload in found:
            self.first.push("q", [Draft(payload)])
            self.clock.tick()
        self.first.commit()
        self.second.refresh()

    def close(self) -> None:
        self.first.close()
        self.second.close()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    made = Two(tmp_path)
    yield made
    made.close()


def test_two_claim_the_same(two: Two) -> None:
    """What one has claimed or received the other does not, though it does not know yet."""
    two.push(b"0", b"1", b"2", b"3")
    assert payloads(receive(two.first, 1)) == [b"0"]
    assert claim(two.first, "c", 1, 2) == [b"1", b"2"]
    assert claim(two.second, "d", 1, 2) == [b"3"]
    assert claim(two.second, "c", 1, 2) == [b"1", b"2"]
    assert receive(two.second) == []
    assert two.second.list_mids("q", State.READY, 10, -1) == []


def test_two_follow_each_other(two: Two) -> None:
    """Acknowledged and released by the other one."""
    two.push(b"0", b"1", b"2")
    for seq in (1, 2, 3):
        claim(two.first, "c", seq, 1)
    acknowledge(two.second, "c", 1)
    assert release(two.second, "c", 2) == 1
    assert [each.seq for each in two.first.claims("q").all()] == [3]
    with pytest.raises(NoSuchClaimError):
        two.first.claims("q").part("c", 1, (0, 1), 10, LOTS)
    two.first.refresh()
    assert payloads(receive(two.first)) == [b"1"]
    acknowledge(two.first, "c", 3)
    two.second.refresh()
    assert len(two.second.list_mids("q", State.ALL, 10, -1)) == 1


def test_two_race(two: Two) -> None:
    """The other one receives a message while the claim is being made: it is not in the claim."""
    two.push(b"0", b"1", b"2")
    rename, taken = os.rename, []

    def racing(old: str, new: str) -> None:
        if not taken and new.endswith(str(WITHHELD)):
            taken.append(True)
            taken.extend(payloads(receive(two.second, 2)))
        rename(old, new)

    two.disks[0].rename = racing  # type: ignore[method-assign]
    made = claim(two.first, "c", 1, 3)
    assert sorted([*taken[1:], *made]) == [b"0", b"1", b"2"]
    assert len(taken) == 3
    assert (claimed := two.first.claims("q").all()[0]).count == len(made) == 1
    assert claimed.bytes == 1


def test_two_and_one_is_killed(two: Two) -> None:
    """In the middle of a claim, and of a release: the messages are the other's as soon as it looks for some."""
    two.push(b"0", b"1", b"2", b"3")
    save = two.disks[0].write_file

    def killed(*_: object, **__: object) -> None:
        raise SystemExit

    two.disks[0].write_file = killed  # type: ignore[method-assign]
    two.disks[0].rename = _Limited(two.disks[0].rename, 4)  # type: ignore[method-assign]
    with pytest.raises((SystemExit, OSError)):
        claim(two.first, "c", 1, 4)
    two.disks[0].write_file = save  # type: ignore[method-assign]
    two.disks[0].crash()
    two.second.refresh()
    assert receive(two.second) == []
    assert claim(two.second, "d", 1, 4) == [b"0", b"1", b"2", b"3"]


class _Limited:
    """Works so many times."""

    def __init__(self, rename: Callable[[str, str], None], count: int) -> None:
        self._rename, self._left = rename, count

    def __call__(self, old: str, new: str) -> None:
        self._left -= 1
        if self._left < 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._rename(old, new)


def test_removed_and_made_anew(two: Two) -> None:
    """Whoever still has the claims of a queue that was removed does nothing to the new one of the name."""
    two.push(b"0")
    old, staged = two.first.claims("q"), two.first.batches("q")
    claim(two.first, "c", 1, 1)
    two.first.remove("q", force=True)
    two.first.create("q", Options())
    two.push(b"1")
    assert claim(two.first, "c", 1, 1) == [b"1"]
    for operation in (
        lambda: old.claim("d", 1, 1, None, None),
        lambda: old.acknowledge("c", 1),
        lambda: old.release("c", 1),
        lambda: old.finish("c", 1),
        lambda: staged.publish("p", 1, []),
    ):
        with pytest.raises(FileNotFoundError):
            operation()  # type: ignore[no-untyped-call]
    assert [each.consumer for each in two.first.claims("q").all()] == ["c"]
    assert payloads(part(two.first, 1, "c")) == [b"1"]


def test_two_stage_for_the_same_attempt(two: Two) -> None:
    """Whichever of two servers each of its messages came to: all that was answered is in the batch, in that order."""
    for engine, found in (
        (two.first, [b"1"]),
        (two.second, [b"two"]),
        (two.first, [b"3"]),
        (two.first, [b"4"]),
        (two.second, [b"5", b"6"]),
        (two.first, [b"7"]),
    ):
        engine.batches("q").stage("p", (0, 0, 0), found)
    two.first.batches("q").publish("p", 0, [(0, 0)])
    two.first.commit()
    assert payloads(receive(two.first)) == [b"1", b"two", b"3", b"4", b"5", b"6", b"7"]


def test_two_publish_the_same(two: Two) -> None:
    """The one is killed with its batch half visible, the other one is asked for the same: it is all there, once."""
    two.first.batches("q").stage("p", (0, 0, 0), [b"0", b"1", b"2"])
    rename = two.disks[0].rename
    shown: list[str] = []

    def killed(old: str, new: str) -> None:
        if old.endswith(".new"):
            shown.append(new)
            if len(shown) == 2:
                raise KeyboardInterrupt
        rename(old, new)

    two.disks[0].rename = killed  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        two.first.batches("q").publish("p", 0, [(0, 0)])
    two.disks[0].crash()
    two.second.batches("q").publish("p", 0, [(0, 0)])
    two.second.commit()
    assert payloads(receive(two.second)) == [b"0", b"1", b"2"]
    two.first = two.start(0)
    assert len(two.first.list_mids("q", State.ALL, 10, -1)) == 3


def test_a_start_beside_a_claim(two: Two) -> None:
    """Another server starts while a claim is being made: it waits, and leaves the claim alone."""
    two.push(b"0", b"1")
    two.second.close()
    write = two.disks[0].write_file
    claim(two.first, "other", 1, 1)

    def starting(path: str, data: bytes, *, sync: bool) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("fcntl.flock", lambda fd, how: None)
            with pytest.raises(BlockingIOError):
                _lock(two.root / "q" / ".claims" / ".lock")
        write(path, data, sync=sync)

    two.disks[0].write_file = starting  # type: ignore[method-assign]
    assert claim(two.first, "c", 1, 1) == [b"1"]
    two.second = two.start(1)
    assert receive(two.second) == []


def _lock(path: Path) -> None:
    import ctypes

    with path.open("w") as file:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.flock(file.fileno(), 2 | 4):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))


# -- from one kind to another


def test_from_the_journal_to_files_and_back(tmp_path: Path) -> None:
    """Claims hold for the other engine, which finds the messages under names that nobody consumes."""
    clock = ManualClock()
    bench = Bench(journal_engine(Durability.ALWAYS)(tmp_path), clock)
    bench.queue()
    bench.push(*(b"%d" % number for number in range(5)))
    receive(bench.engine, 1, 10)
    clock.now += 10
    claim(bench.engine, "c", 1, 2)
    claim(bench.engine, "c", 2, 1)
    bench.engine.batches("q").stage("p", (0, 0, 0), [b"staged"])
    options = tmp_path / "q" / ".queue.toml"
    for kind in ("files", "journal", "files"):
        bench.engine.close()
        text = options.read_text() if options.exists() else ""
        options.write_text(text.replace('"journal"', f'"{kind}"').replace('"files"', f'"{kind}"'))
        bench.make = KINDS[kind](Durability.ALWAYS)(tmp_path)
        bench.engine = bench.make(clock)
        assert bench.engine.options("q").storage == kind
        assert [payloads(part(bench.engine, seq)) for seq in (1, 2)] == [[b"0", b"1"], [b"2"]]
        assert bench.engine.stats("q").ready == 2
    acknowledge(bench.engine, "c", 1)
    release(bench.engine, "c", 2)
    bench.engine.batches("q").publish("p", 0, [(0, 0)])
    assert payloads(receive(bench.engine)) == [b"2", b"3", b"4", b"staged"]
    bench.engine.close()


def test_without_attributes(tmp_path: Path) -> None:
    """On a file system without extended attributes, two servers."""
    made = Two(tmp_path, WithoutAttributes)
    made.push(b"0", b"1")
    claim(made.first, "c", 1, 2)
    assert release(made.second, "c", 1) == 2
    made.first.refresh()
    assert [m.receives for m in receive(made.first)] == [2, 2]
    made.close()

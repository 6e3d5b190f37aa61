"""Tests what an engine tells the history: each event in a message's life, once, with what is known of the message."""

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.storage.engines import ENGINES, EPOCH, LOTS, Bench, FaultyDisk, ManualClock, always, failed, files_engine

from qs_storage.engine import (
    SECOND,
    Draft,
    Durability,
    Feature,
    NoSuchMessageError,
    QueueFullError,
    QueueNotEmptyError,
    Receipt,
    StaleReceiptError,
    State,
)

WINDOW = 30 * SECOND


class Noted(NamedTuple):
    """An event as it was told."""

    event: str
    qid: str
    mid: int
    size: int | None
    receives: int | None
    peer: str
    trace: str | None = None


class Recorder:
    """Remembers what it is told since the last look."""

    def __init__(self) -> None:
        self.peer = "me"
        self._noted: list[Noted] = []

    def note(
        self,
        event: str,
        qid: str,
        mid: int,
        size: int | None,
        receives: int | None,
        *,
        peer: str | None = None,
        trace: str | None = None,
    ) -> None:
        self._noted.append(Noted(event, qid, mid, size, receives, self.peer if peer is None else peer, trace))

    def note_all(
        self, event: str, qid: str, mids: Sequence[int], sizes: Sequence[int], receives: Iterable[int]
    ) -> None:
        for mid, size, times in zip(mids, sizes, receives, strict=True):
            self.note(event, qid, mid, size, times)

    def take(self) -> list[Noted]:
        noted, self._noted = self._noted, []
        return noted

    def events(self) -> list[tuple[str, int]]:
        return [(noted.event, noted.mid) for noted in self.take()]


def tell(engine: Any, recorder: Recorder | None) -> None:
    """The engine tells it from now on: as if it had been made so."""
    object.__setattr__(engine._context, "lifecycle", recorder)


class Scene(Bench):
    """An engine with the queues `q` and `other`, and what it tells."""

    def __init__(self, make: Callable[[Callable[[], int]], Any]) -> None:
        super().__init__(make)
        self.recorder = Recorder()
        tell(self.engine, self.recorder)
        self.queue("q")
        self.queue("other")

    def receive(self, count: int = 1, **named: Any) -> list[int]:
        return [message.mid for message in self.engine.receive(["q"], count, WINDOW, LOTS, **named)]


@pytest.fixture(params=ENGINES)
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(ENGINES[request.param](tmp_path))
    yield scene
    scene.engine.close()


def test_events_of_push_receive_extend_release_delete(scene: Scene) -> None:
    """A message that is pushed, received, extended, given back, received again and deleted: six lines in order."""
    [mid] = scene.push(b"12345")
    scene.receive()
    scene.engine.queue("q").extend(Receipt(mid, 1), WINDOW)
    scene.engine.queue("q").release(Receipt(mid, 1), 0)
    scene.receive()
    scene.engine.queue("q").delete(Receipt(mid, 2))
    scene.engine.commit()
    assert scene.recorder.take() == [
        Noted("pushed", "q", mid, 5, 0, "me"),
        Noted("received", "q", mid, 5, 1, "me"),
        Noted("extended", "q", mid, 5, 1, "me"),
        Noted("released", "q", mid, 5, 1, "me"),
        Noted("received", "q", mid, 5, 2, "me"),
        Noted("deleted", "q", mid, 5, 2, "me"),
    ]


def test_push_names_peer_of_each_client(scene: Scene) -> None:
    """Pushes that become visible together are each their own peer's, lists and delayed ones too."""
    pushed = []
    for peer, drafts in (("a", [Draft(b"1")]), ("b", [Draft(b"22"), Draft(b"333", SECOND)]), ("c", [Draft(b"")])):
        scene.recorder.peer = peer
        pushed.append(scene.engine.queue("q").push(drafts))
    scene.recorder.peer = "d"
    scene.engine.effects()
    scene.engine.commit()
    [first], [second, third], [fourth] = pushed
    assert scene.recorder.take() == [
        Noted("pushed", "q", first, 1, 0, "a"),
        Noted("pushed", "q", second, 2, 0, "b"),
        Noted("pushed", "q", third, 3, 0, "b"),
        Noted("pushed", "q", fourth, 0, 0, "c"),
    ]


TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_pushed_has_trace(scene: Scene) -> None:
    """The event `pushed` has the header `traceparent`, whatever its case, and no other event has. So has that of a
    copy. One that is too long is left out of the record."""
    if Feature.HEADERS in scene.engine.cannot:
        pytest.skip("has no headers")
    scene.engine.queue("q").push(
        [
            Draft(b"1", headers=(("a", "b"), ("TraceParent", TRACE))),
            Draft(b"2", headers=(("traceparent", "x" * 129),)),
            Draft(b"3", headers=(("trace", TRACE),)),
        ]
    )
    first, *_ = scene.receive(3)
    scene.engine.commit()
    noted = scene.recorder.take()
    assert [(each.event, each.trace) for each in noted if each.event == "pushed"] == [
        ("pushed", TRACE), ("pushed", None), ("pushed", None),
    ]  # fmt: skip
    assert {each.trace for each in noted if each.event == "received"} == {None}
    scene.engine.copy("q", first, ["other"])
    scene.engine.commit()
    assert [(each.event, each.trace) for each in scene.recorder.take()] == [("pushed", TRACE)]


def test_push_of_nothing_is_no_event(scene: Scene) -> None:
    """A push of nothing is not an event."""
    scene.engine.queue("q").push([])
    scene.engine.commit()
    assert not scene.recorder.take()


def test_push_refused_for_capacity_is_no_event(scene: Scene) -> None:
    """A push for which there is no room is not an event."""
    scene.queue("small", capacity=1)
    with pytest.raises(QueueFullError):
        scene.engine.queue("small").push([Draft(b"1"), Draft(b"2")])
    scene.engine.commit()
    assert not scene.recorder.take()


def test_window_end_is_event_without_peer(scene: Scene) -> None:
    """The end of a window by its time is an event without a peer, with the receives so far, whichever request finds
    it."""
    [mid] = scene.push(b"x")
    scene.receive()
    scene.recorder.take()
    scene.clock.now += WINDOW - 1
    scene.engine.expire(100)
    assert not scene.recorder.take()
    scene.clock.now += 1
    scene.engine.expire(100)
    assert scene.recorder.take() == [Noted("expired", "q", mid, 1, 1, "")]
    scene.receive()
    scene.clock.now += WINDOW
    scene.receive()
    assert scene.recorder.take() == [
        Noted("received", "q", mid, 1, 2, "me"),
        Noted("expired", "q", mid, 1, 2, ""),
        Noted("received", "q", mid, 1, 3, "me"),
    ]


def test_delay_end_is_no_event(scene: Scene) -> None:
    """The end of a delay is not an event: neither of a push's nor of a release's."""
    [first] = scene.push(b"x", delay=SECOND)
    [second] = scene.push(b"y")
    scene.receive()
    scene.engine.queue("q").release(Receipt(second, 1), SECOND)
    assert scene.recorder.events() == [
        ("pushed", first),
        ("pushed", second),
        ("received", second),
        ("released", second),
    ]
    scene.clock.now += 2 * SECOND
    scene.engine.expire(100)
    assert scene.receive(2) == [first, second]
    assert scene.recorder.events() == [("received", first), ("received", second)]


def test_release_of_ready_message_is_no_event(scene: Scene) -> None:
    """The release of a visible message is not an event; that of a delayed one is."""
    [mid] = scene.push(b"x")
    [late] = scene.push(b"y", delay=SECOND)
    scene.recorder.take()
    with pytest.raises(StaleReceiptError):
        scene.engine.queue("q").release(Receipt(mid), 0)
    assert not scene.recorder.take()
    scene.engine.queue("q").release(Receipt(late), SECOND)
    scene.engine.queue("q").release(Receipt(late), 0)
    assert scene.recorder.events() == [("released", late), ("released", late)]


def test_get_is_event_peek_is_none(scene: Scene) -> None:
    """A peek, a list, a read by its holder and figures are no events; a get that receives is one."""
    [mid] = scene.push(b"x")
    scene.recorder.take()
    scene.engine.queue("q").get(mid, peek=True, visibility=None)
    scene.engine.queue("q").list_mids(State.ALL, 10, -1)
    scene.engine.queue("q").stats()
    assert not scene.recorder.take()
    scene.engine.queue("q").get(mid, peek=False, visibility=None)
    assert scene.recorder.take() == [Noted("received", "q", mid, 1, 1, "me")]
    scene.engine.queue("q").get(mid, peek=False, visibility=None)
    scene.engine.queue("q").read(Receipt(mid, 1))
    assert not scene.recorder.take()


def test_delivery_is_received_event(scene: Scene) -> None:
    """A delivery to a subscriber is noted as received."""
    [mid] = scene.push(b"x")
    scene.recorder.take()
    scene.receive(held=True)
    assert scene.recorder.take() == [Noted("received", "q", mid, 1, 1, "me")]


def test_refused_request_is_no_event(scene: Scene) -> None:
    """A refused request is not an event: a stale receipt, a missing message, a window that is over."""
    [mid] = scene.push(b"x")
    scene.receive()
    scene.recorder.take()
    engine = scene.engine
    refused: list[Callable[[], object]] = [
        lambda: engine.queue("q").delete(Receipt(mid, 7)),
        lambda: engine.queue("q").delete(Receipt(mid + 1)),
        lambda: engine.queue("q").release(Receipt(mid, 7), 0),
        lambda: engine.queue("q").extend(Receipt(mid + 1), None),
        lambda: engine.queue("q").extend(Receipt(mid, 7), None),
        lambda: engine.remove("q", force=False),
    ]
    for call in refused:
        with pytest.raises((StaleReceiptError, NoSuchMessageError, QueueNotEmptyError)):
            call()
    assert not scene.recorder.take()


def test_purge_is_deleted_event_for_each_message(scene: Scene) -> None:
    """Each message that a purge removes is deleted, whatever its state."""
    first, second = scene.push(b"1", b"22")
    [third] = scene.push(b"333", delay=SECOND)
    scene.receive()
    scene.recorder.take()
    scene.engine.queue("q").purge(third, 100)
    assert scene.recorder.take() == [
        Noted("deleted", "q", first, 1, 1, "me"),
        Noted("deleted", "q", second, 2, 0, "me"),
        Noted("deleted", "q", third, 3, 0, "me"),
    ]


def test_copy_is_pushed_event_where_it_is_new(scene: Scene) -> None:
    """A message that is copied is pushed where it was not; where it is already, nothing happens."""
    if Feature.COPY in scene.engine.cannot:
        pytest.skip("this engine copies nothing")
    [mid] = scene.push(b"abc")
    scene.receive()
    scene.recorder.take()
    scene.engine.copy("q", mid, ["q", "other"])
    scene.engine.copy("q", mid, ["other"])
    scene.engine.commit()
    assert scene.recorder.take() == [Noted("pushed", "other", mid, 3, 0, "me")]


def test_reject_is_dead_and_pushed_events(scene: Scene) -> None:
    """A message that is rejected is dead, by its consumer, and pushed to the dead-letter queue."""
    if {Feature.REASON, Feature.DEAD} & scene.engine.cannot:
        pytest.skip("this engine rejects nothing")
    scene.queue("mails", dead_letter="failed", max_receives=9)
    [mid] = scene.push(b"abc", qid="mails")
    scene.engine.receive(["mails"], 1, WINDOW, LOTS)
    scene.recorder.take()
    scene.engine.queue("mails").reject(Receipt(mid, 1), "why")
    scene.engine.commit()
    [letter] = scene.engine.queue("failed").list_mids(State.ALL, 10, -1)
    assert scene.recorder.take() == [
        Noted("dead", "mails", mid, 3, 1, "me"),
        Noted("pushed", "failed", letter, 3, 0, "me"),
    ]


def test_dead_letters_and_published_batches_have_traces(scene: Scene) -> None:
    """A dead letter has the trace of the message that it was, and what was staged the one that it was staged with."""
    if {Feature.HEADERS, Feature.REASON, Feature.DEAD} & scene.engine.cannot:
        pytest.skip("this engine rejects nothing, or has no headers")
    scene.queue("mails", dead_letter="failed", max_receives=9)
    mails = scene.engine.queue("mails")
    [mid] = mails.push([Draft(b"abc", headers=(("traceparent", TRACE),))])
    scene.engine.receive(["mails"], 1, WINDOW, LOTS)
    scene.engine.commit()
    scene.recorder.take()
    mails.reject(Receipt(mid, 1), "why")
    scene.engine.commit()
    assert [(each.event, each.trace) for each in scene.recorder.take()] == [("dead", None), ("pushed", TRACE)]
    if (batches := mails.batches) is not None:
        batches.stage("p", (1, 0, 0), [Draft(b"x", headers=(("traceparent", TRACE),)), Draft(b"y")])
        scene.engine.commit()
        batches.publish("p", 1, [(0, 0)])
        scene.engine.commit()
        assert [each.trace for each in scene.recorder.take()] == [TRACE, None]


def test_window_end_with_backoff_is_one_event(scene: Scene) -> None:
    """The window has expired when the back-off begins; its end is not an event, as that of a delay is none."""
    if Feature.BACKOFF in scene.engine.cannot:
        pytest.skip("this engine has no back-off")
    scene.queue("slow", backoff=WINDOW)
    [mid] = scene.push(b"abc", qid="slow")
    scene.engine.receive(["slow"], 1, WINDOW, LOTS)
    scene.recorder.take()
    for _ in range(3):
        scene.clock.now += WINDOW
        scene.engine.expire(1000)
        scene.engine.commit()
    assert scene.engine.queue("slow").list_mids(State.READY, 10, -1) == [mid]
    assert scene.recorder.take() == [Noted("expired", "slow", mid, 3, 1, "")]


def test_delete_queue_is_deleted_event_for_each_message(scene: Scene) -> None:
    """Each message that a queue held is deleted with it."""
    first, second = scene.push(b"1", b"22")
    scene.receive()
    scene.recorder.take()
    scene.engine.remove("q", force=True)
    noted = scene.recorder.take()
    assert [(each.event, each.mid, each.peer) for each in noted] == [
        ("deleted", first, "me"),
        ("deleted", second, "me"),
    ]
    assert [each.size for each in noted] == [1, 2]


def test_engine_works_without_history(tmp_path: Path) -> None:
    """Without a history everything goes on, also of what was staged before there was one."""
    bench = Bench(ENGINES["files-none"](tmp_path))
    bench.queue()
    bench.engine.queue("q").push([Draft(b"x")])
    recorder = Recorder()
    tell(bench.engine, recorder)
    bench.engine.commit()
    assert [noted.event for noted in recorder.take()] == ["pushed"]
    tell(bench.engine, None)
    bench.engine.receive(["q"], 1, None, LOTS)
    bench.engine.close()
    assert not recorder.take()


# -- the engine `files`


def test_changes_by_other_programs_are_no_events(tmp_path: Path) -> None:
    """Changes by other programs are not noted: a foreign file first appears when it is received."""
    scene = Scene(files_engine(Durability.NONE)(tmp_path))
    (tmp_path / "q" / f"{EPOCH}").write_bytes(b"foreign")
    scene.engine.refresh()
    os.rename(tmp_path / "q" / f"{EPOCH}", tmp_path / "q" / f"{EPOCH}.{EPOCH + 5}")
    scene.engine.refresh()
    os.rename(tmp_path / "q" / f"{EPOCH}.{EPOCH + 5}", tmp_path / "q" / f"{EPOCH}")
    scene.engine.refresh()
    assert not scene.recorder.take()
    assert scene.receive() == [EPOCH]
    (tmp_path / "q" / f"{EPOCH}.{EPOCH + WINDOW}").unlink()
    scene.engine.refresh()
    [noted] = scene.recorder.take()
    assert (noted.event, noted.mid, noted.size) == ("received", EPOCH, 7)
    scene.engine.close()


def test_two_servers_on_one_root_note_each_event_once(tmp_path: Path) -> None:
    """Two servers on one root each record their own work, so that both records together have everything once."""
    one, two = (Scene.__new__(Scene) for _ in range(2))
    clock = ManualClock()
    for scene in (one, two):
        scene.make, scene.clock, scene.recorder = files_engine(Durability.NONE)(tmp_path), clock, Recorder()
        scene.engine = scene.make(clock)
        tell(scene.engine, scene.recorder)
    one.queue()
    [mid] = one.push(b"x")
    two.receive()
    clock.now += WINDOW
    for scene in (one, two):
        scene.engine.refresh()
        scene.engine.expire(10)
    for scene in (one, two):
        scene.engine.refresh()
    two.engine.queue("q").delete(Receipt(mid))
    both = sorted(one.recorder.events() + two.recorder.events())
    assert both == [("deleted", mid), ("expired", mid), ("pushed", mid), ("received", mid)]
    one.engine.close()
    two.engine.close()


@pytest.mark.parametrize("operation", ["rename", "unlink", "setxattr"])
def test_operation_that_fails_is_no_event(tmp_path: Path, operation: str) -> None:
    """An operation that fails on the disk is not an event; repeated, it is one."""
    disk = FaultyDisk()
    scene = Scene(files_engine(Durability.NONE, always(disk))(tmp_path))
    [mid] = scene.push(b"x")
    scene.recorder.take()
    steps: dict[str, tuple[Callable[[], object], str]] = {
        "rename": (scene.receive, "received"),
        "setxattr": (scene.receive, "received"),
        "unlink": (lambda: scene.engine.queue("q").delete(Receipt(mid)), "deleted"),
    }
    step, event = steps[operation]
    disk.arm(1, errno.EIO, operation)
    with pytest.raises(OSError, match="Input/output"):
        step()
    disk.disarm()
    assert not scene.recorder.take()
    step()
    assert scene.recorder.events() == [(event, mid)]
    scene.engine.close()


def test_push_that_fails_in_commit_is_no_event(tmp_path: Path) -> None:
    """A push that fails when it is made visible, after it was answered, is not an event, and those beside it are."""
    disk = FaultyDisk()
    scene = Scene(files_engine(Durability.NONE, always(disk))(tmp_path))
    scene.engine.queue("q").push([Draft(b"1")])
    [second] = scene.engine.queue("q").push([Draft(b"2")])
    disk.arm(1, errno.EIO, "rename")
    scene.engine.commit()
    disk.disarm()
    assert len(failed(scene.engine)) == 1
    assert scene.recorder.events() == [("pushed", second)]
    scene.engine.close()


def test_copy_that_is_taken_back_is_deleted_event(tmp_path: Path) -> None:
    """A copy that one queue takes and another cannot is taken back: what was pushed is deleted."""
    scene = Scene(files_engine(Durability.NONE)(tmp_path))
    scene.queue("small", capacity=1)
    scene.push(b"x", qid="small")
    [mid] = scene.push(b"abc")
    scene.recorder.take()
    with pytest.raises(QueueFullError):
        scene.engine.copy("q", mid, ["other", "small"])
    scene.engine.commit()
    assert scene.recorder.events() == [("pushed", mid), ("deleted", mid)]
    scene.engine.close()


def test_event_without_receives_if_disk_does_not_say(tmp_path: Path) -> None:
    """When the disk does not say how often a message was received, the record does without, and nothing fails."""

    class Silent(FaultyDisk):
        def getxattr(self, path: str, name: str, **named: Any) -> bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        def listxattr(self, path: str, **named: Any) -> list[str]:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    scene = Scene(files_engine(Durability.NONE, always(Silent()))(tmp_path))
    [mid] = scene.push(b"x")
    scene.recorder.take()
    scene.engine.queue("q").delete(Receipt(mid))
    assert scene.recorder.take() == [Noted("deleted", "q", mid, 1, None, "me")]
    scene.engine.close()

"""A checkpoint that is written while everything changes: a start from it finds what one from the segments finds."""

import random
from contextlib import suppress
from pathlib import Path

import pytest
from support.storage.crashing import Place, segments_of
from support.storage.engines import LOTS, checkpointed

from qs_storage.engine import Draft, Durability, Options, Receipt, State, StorageError
from qs_storage.index import midmap
from qs_storage.journal.queues.claims import Consumer
from qs_storage.journal.upkeep.checkpoint import Snapshot

QUEUES = ("a", "b", "c")
WINDOW = 3_000_000


class Churn:
    """Random requests, each in a batch of its own or not."""

    def __init__(self, place: Place, seed: int) -> None:
        self.place = place
        self.random = random.Random(seed)
        self._batch = 0
        self._claims = dict.fromkeys(QUEUES, 0)

    def step(self) -> None:
        engine, choose = self.place.engine, self.random
        qid = choose.choice(QUEUES)
        self.place.clock.now += choose.randrange(1, WINDOW // 8)
        what = choose.choice(
            [self._push, self._push, self._change, self._change, self._receive, self._claim, self._stage, self._copy]
        )
        with suppress(StorageError):  # what it asks for is not there any more
            what(qid)
        if choose.random() < 0.7:
            engine.commit()

    def _push(self, qid: str) -> None:
        drafts = [
            Draft(
                self.random.randbytes(self.random.choice([10, 800])),
                self.random.choice([0, 0, 0, WINDOW]),
                self.random.choice([None, None, str(self.random.randrange(50))]),
            )
            for _ in range(self.random.randrange(1, 8))
        ]
        plain = self.random.random() < 0.5
        self.place.engine.queue(qid).push([Draft(draft.payload) for draft in drafts] if plain else drafts)

    def _some(self, qid: str, state: State = State.ALL) -> int:
        mids = self.place.engine.queue(qid).list_mids(state, 10**6, -1)
        return self.random.choice(mids) if mids else 0

    def _change(self, qid: str) -> None:
        engine = self.place.engine
        mid = self._some(qid)
        match self.random.randrange(4):
            case 0:
                engine.queue(qid).release(Receipt(mid), self.random.choice([0, WINDOW]))
            case 1:
                engine.queue(qid).extend(Receipt(self._some(qid, State.IN_FLIGHT)), WINDOW)
            case _:
                engine.queue(qid).delete(Receipt(mid))

    def _receive(self, qid: str) -> None:
        self.place.engine.receive([qid], self.random.randrange(1, 6), WINDOW, LOTS, held=self.random.random() < 0.2)

    def _claim(self, qid: str) -> None:
        claims = self.place.engine.queue(qid).claims
        kind = self.random.randrange(3)
        if kind == 0:
            if claims.claim("one", self._claims[qid] + 1, 5, None, None).count:
                self._claims[qid] += 1
        elif kind == 1:
            claims.acknowledge("one", self.random.randrange(self._claims[qid] + 1))
        else:
            claims.release("one", self._claims[qid])

    def _stage(self, qid: str) -> None:
        batches = self.place.engine.queue(qid).batches
        if self.random.random() < 0.7:
            staged = [Draft(b"staged")] * self.random.randrange(3)
            batches.stage("p", (self._batch, self.random.randrange(2), 0), staged)
        else:
            known = batches.producers.get("p")
            names = [] if known is None else [name[1:] for name in known.staged if name[0] == self._batch]
            batches.publish("p", self._batch, names)
            self._batch += 1

    def _copy(self, qid: str) -> None:
        other = self.random.choice(QUEUES)
        self.place.engine.copy(qid, self._some(qid), [other])


def _seen(place: Place) -> object:
    """All that a start found out."""
    store = place.engine._journal.open()
    queues = {}
    for qid, queue in sorted(place.engine._journal.queues.items()):
        queue.expire()  # their time has passed, which no record says
        queue.keys.forget_old(place.clock.now, 10**6)  # a start from a checkpoint leaves old ones out
        table = queue
        mids = table.index.messages.after(-1, 10**6)
        queues[qid] = (
            [(mid, table.state_of(mid), table.places.get(mid), table.index.size(mid)) for mid in mids],
            dict(table.origins),
            list(table.index.new.after(-1, 10**6)),
            table.last_mid,
            {key: known for key, known in queue.keys.entries.items() if queue.keys.find(key, place.clock.now)},
            {
                name: (each.acked, {seq: (list(held.record.mids), held.gone) for seq, held in each.claims.items()})
                for name, each in queue.claims.consumers.items()
                if each != Consumer()
            },
            {
                name: (each.last, each.staged)
                for name, each in queue.batches.producers.items()
                if each.staged or each.last >= 0
            },
        )
    return queues, {segment: size for segment, size in store.usage.live.items() if size}


@pytest.mark.parametrize("seed", range(12))
def test_what_changes_while_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A checkpoint is right however claims, batches, copies, moves and deletes fall between its pieces. Every second
    time with dead letters."""
    segments_of(monkeypatch, 1 << 16, 1 << 16)
    monkeypatch.setattr(midmap, "CHUNK", 16)
    monkeypatch.setattr("qs_storage.journal.upkeep.checkpoint.SLICE", 0.0)
    monkeypatch.setattr("qs_storage.journal.upkeep.checkpoint._AT_A_TIME", 4)
    place = Place(tmp_path / "root", Durability.NONE)
    place.queue(*QUEUES)
    if seed % 2:
        place.engine.configure("a", Options(storage="journal", dead_letter="b", max_receives=2))
        place.engine.configure("b", Options(storage="journal", dead_letter="c", max_receives=1))
    churn = Churn(place, seed)
    keeper = place.engine._journal
    store, room = keeper.open(), keeper.room
    assert room is not None
    for _ in range(400):
        churn.step()
    place.engine.commit()
    snapshot = Snapshot(store, keeper.queues.values())
    while True:
        room.commit()
        if snapshot.step():
            break
        for _ in range(churn.random.randrange(20)):
            churn.step()
        if churn.random.random() < 0.3:
            place.engine.commit()
            room.compact(0.0, 1 << 62)
        place.engine.commit()
    snapshot.publish()
    for _ in range(churn.random.randrange(40)):
        churn.step()
    place.engine.commit()
    room.commit()
    place.crash()
    assert checkpointed(place.engine) is not None
    found = _seen(place)
    place.engine.commit()  # what it has moved to dead-letter queues
    place.leave()
    (place.root / ".journal/checkpoint").unlink()
    place.start()
    assert checkpointed(place.engine) is None
    assert found == _seen(place)
    assert any(queue.origins for queue in place.engine._journal.queues.values()) == bool(seed % 2)
    place.leave()


def test_a_record_that_a_checkpoint_knows_is_not_applied_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim that is made and released behind the checkpoint's position, before its messages are written, counts as
    one receive."""
    monkeypatch.setattr("qs_storage.journal.upkeep.checkpoint.SLICE", 0.0)
    place = Place(tmp_path / "root", Durability.NONE)
    place.queue("before", "q")
    place.push("before", b"x")
    [mid] = place.push("q", b"x")
    snapshot = Snapshot(place.engine._journal.open(), place.engine._journal.queues.values())
    assert not snapshot.step()
    claims = place.engine.queue("q").claims
    claims.claim("one", 1, 1, None, None)
    claims.release("one", 1)
    place.engine.commit()
    while not snapshot.step():
        continue
    snapshot.publish()
    place.crash()
    assert checkpointed(place.engine) is not None
    assert place.engine.queue("q").get(mid, peek=True, visibility=None).receives == 1
    place.leave()

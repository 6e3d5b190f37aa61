"""The claims of a consumer: offsets in Spark's log, slices, and what each refusal of the server becomes."""

import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.spark.claims import QUEUE, Ledger

from qs_client import Claim, Conflict, NotImplementedByServer, Stale
from qs_pipeline.claims import INITIAL, PARTITIONS, SLICE_BYTES, SLICE_MOST, Claims, Offset, Slice, partitions, search
from qs_pipeline.errors import CheckpointLostError, ConsumerInUseError, DataLossError, NoSuchQueueError, PipelineError


@given(st.integers(1, 10**18), st.integers(1, 10**5), st.integers(0, 10**12), st.text(max_size=20))
def test_offset_round_trip(seq: int, count: int, size: int, checksum: str) -> None:
    """An offset is read as written, and written again as the same text: Spark compares texts."""
    offset = Offset.of(Claim(seq, count, size, 1, 2, checksum))
    text = json.dumps(offset.to_json())
    assert Offset.from_json(json.loads(text)) == offset
    assert json.dumps(Offset.from_json(json.loads(text)).to_json()) == text


def test_offset_before_first_claim() -> None:
    """Before the first claim there are no messages, and so neither ids nor a checksum."""
    assert INITIAL.to_json() == {"seq": 0, "count": 0, "bytes": 0}
    assert Offset.from_json(INITIAL.to_json()) == INITIAL
    assert Offset.from_json({"seq": 1, "count": 1, "lost": 2}).to_json()["lost"] == 2


@pytest.mark.parametrize(
    "values",
    [
        {"logOffset": 5},
        {"seq": "1", "count": 1},
        {"seq": -1, "count": 1},
        {"seq": True, "count": 1},
        {"seq": 0, "count": 1},
        {"seq": 1, "count": 0},
    ],
)
def test_offset_of_another_source_is_refused(values: dict[str, Any]) -> None:
    """A checkpoint of another source is refused, and named."""
    with pytest.raises(CheckpointLostError, match="is no offset of the source qs"):
        Offset.from_json(values)


def _positions(piece: Slice, count: int) -> range:
    start = count * piece.part // piece.parts
    return range(start, start + piece.size(count))


@given(st.integers(1, 100_000), st.integers(0, 10**10), st.none() | st.integers(1, 3000))
def test_cut_covers_every_position_once(count: int, size: int, wanted: int | None) -> None:
    """The slices of all partitions, one after the other, are the whole claim; each can be asked for."""
    end = 0
    for partition in partitions(count, size, wanted):
        assert partition.size(count) >= 1
        for piece in partition.cut(count, size):
            positions = _positions(piece, count)
            assert positions.start == end
            assert 1 <= len(positions) <= SLICE_MOST
            end = positions.stop
    assert end == count


@given(st.integers(1, 100_000), st.integers(1, 500), st.data())
def test_halves_of_slice(count: int, parts: int, data: st.DataObject) -> None:
    """A slice is its two halves, one after the other."""
    piece = Slice(data.draw(st.integers(0, parts - 1)), parts)
    left, right = piece.halves()
    assert [*_positions(left, count), *_positions(right, count)] == list(_positions(piece, count))


@pytest.mark.parametrize(
    ("count", "size", "wanted", "parts"),
    [
        (5, 5, None, 1),
        (5, 5, 3, 3),
        (2, 5, 3, 2),
        (25_000, 10_000, None, 1),
        (25_001, 10_000, None, 2),
        (100_000, 0, None, 4),
        (10, 8 * 16 * SLICE_BYTES, None, 8),
        (100_000, 10**12, None, PARTITIONS),
        (100_000, 0, 100, 100),
        (0, 0, None, 0),
        (0, 0, 4, 0),
    ],
)
def test_partitions_by_number_and_size(count: int, size: int, wanted: int | None, parts: int) -> None:
    """There are as many partitions as asked for, else as many as pay; none is empty."""
    assert len(partitions(count, size, wanted)) == parts


def test_cut_by_bytes() -> None:
    """Large messages are asked for in smaller slices."""
    (partition,) = partitions(100, 20 * SLICE_BYTES, 1)
    assert len(list(partition.cut(100, 20 * SLICE_BYTES))) == 20


@pytest.fixture
def ledger() -> Ledger:
    """A queue of ten messages, 1 to 10."""
    ledger = Ledger()
    ledger.push(*(b"%d" % number for number in range(1, 11)))
    return ledger


def _claims(ledger: Ledger, consumer: str = "c", strict: bool = True) -> Claims:
    return Claims(ledger.server(), consumer, strict)


def _after(claims: Claims, done: Offset, most: int | None = None) -> Offset:
    return claims.after(done, most, None, None)


def test_after_acknowledges_and_claims(ledger: Ledger) -> None:
    """Each step acknowledges what is done, and no more; at the end there is nothing to claim."""
    claims = _claims(ledger)
    first = _after(claims, INITIAL, 4)
    assert (first.seq, first.count, first.first, first.last) == (1, 4, 1, 4)
    second = _after(claims, first, 4)
    assert list(ledger.claims) == [("c", 2)]
    assert (second.first, second.last) == (5, 8)
    third = _after(claims, second, 4)
    assert third.count == 2
    assert _after(claims, third).count == 0
    assert not ledger.claims


def test_after_returns_claim_that_was_not_logged(ledger: Ledger) -> None:
    """The driver was killed between the claim and the offset log: the next one gets that claim, whatever its limit."""
    lost = _after(_claims(ledger), INITIAL, 4)
    assert _after(_claims(ledger), INITIAL, 9) == lost
    assert len(ledger.ready) == 6


def test_warn_of_others_without_checkpoint(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    """A query that starts from nothing says that it takes over claims of its name, and of no other."""
    _claims(ledger, "other").claim(1, 1)
    _claims(ledger).warn_of_others()
    assert not caplog.records
    _claims(ledger).claim(1, 4)
    _claims(ledger).warn_of_others()
    assert "claim 1 of the consumer 'c' of the queue 'orders'" in caplog.text
    assert "(4 messages) exists already" in caplog.text


def test_after_with_deleted_checkpoint(ledger: Ledger) -> None:
    """A query without a checkpoint, under a name that has acknowledged claims, is refused and changes nothing."""
    claims = _claims(ledger)
    _after(claims, _after(claims, INITIAL, 4), 4)
    with pytest.raises(CheckpointLostError, match=r"the checkpoint was deleted, .*qs claims --release c orders"):
        _after(_claims(ledger), INITIAL)
    assert list(ledger.claims) == [("c", 2)]


def test_after_with_consumer_in_use(ledger: Ledger) -> None:
    """The query that falls behind is told that another works under its name."""
    claims = _claims(ledger)
    first = _after(claims, INITIAL, 4)
    claims.acknowledge(_after(claims, first, 4))
    with pytest.raises(
        ConsumerInUseError, match=r"at claim 1 of the consumer 'c'.*another query works under the same name"
    ):
        _after(_claims(ledger), first)


def test_after_with_queue_made_again(ledger: Ledger) -> None:
    """The queue was made again: the checkpoint is ahead, and the query stops, unless it may lose messages."""
    done = Offset(5, 1, 1, 1, 1, "x")
    with pytest.raises(DataLossError, match=r"at claim 5 .*the server has given none of that number"):
        _after(_claims(ledger), done)
    assert _after(_claims(ledger, strict=False), done).seq == 1


def test_loss_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """While a query that has gone on waits for messages, it asks often."""
    claims = _claims(Ledger(), strict=False)
    for _ in range(3):
        assert _after(claims, Offset(5, 1, 1, 1, 1, "x")).count == 0
    assert len(caplog.records) == 1


def test_after_counts_lost_claims(ledger: Ledger) -> None:
    """A claim was released, and made again by a query that may lose messages: Spark has to see that it is a new one."""
    made = _after(_claims(ledger), INITIAL)
    ledger.server().ask(lambda client: client.release_claim(QUEUE, "c", 1))
    again = _after(_claims(ledger, strict=False), made)
    assert (again.seq, again.checksum) == (made.seq, made.checksum)
    assert again.to_json() != made.to_json()
    assert _claims(ledger).is_there(again)
    ledger.push(b"more")
    assert _after(_claims(ledger), again).lost == 1


def test_is_there_compares_checksum(ledger: Ledger) -> None:
    """A checkpoint's claim is read again only if it is the same; else another query has made it."""
    claims = _claims(ledger)
    made = _after(claims, INITIAL, 4)
    assert claims.is_there(made)
    with pytest.raises(ConsumerInUseError, match=r"claim 1 of the consumer 'c'.*holds other messages"):
        claims.is_there(Offset(1, 4, 4, 1, 4, "other"))


def test_is_there_without_claim(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    """Released by an operator: an error, or with failOnDataLoss false a warning and no messages."""
    made = _after(_claims(ledger), INITIAL, 4)
    ledger.server().ask(lambda client: client.release_claim(QUEUE, "c", 1))
    for check in (_claims(ledger).is_there, lambda offset: _claims(ledger).read(offset, Slice(0, 1))):
        with pytest.raises(DataLossError, match=r"claim 1 of .* is no longer there: .*failOnDataLoss false"):
            check(made)
    with caplog.at_level(logging.WARNING):
        assert _claims(ledger, strict=False).is_there(made) is False
        assert _claims(ledger, strict=False).read(made, Slice(0, 1)) == []
    assert caplog.text.count("no longer there") == 2


def test_read_tells_of_purged_messages(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    """Purged while they were claimed: an error that says how many, or a warning and what is left."""
    made = _after(_claims(ledger), INITIAL, 4)
    del ledger.claims["c", 1][2]
    assert [each.mid for each in _claims(ledger).read(made, Slice(1, 2))] == [3, 4]
    with pytest.raises(DataLossError, match=r"1 messages of claim 1 of the consumer 'c' .* are gone"):
        _claims(ledger).read(made, Slice(0, 2))
    with caplog.at_level(logging.WARNING):
        assert [each.mid for each in _claims(ledger, strict=False).read(made, Slice(0, 2))] == [1]
    assert "1 messages of claim 1" in caplog.text


def test_missing_queue_is_no_missing_claim(ledger: Ledger) -> None:
    """A missing queue and a missing claim are different errors."""
    made = _after(_claims(ledger), INITIAL, 4)
    ledger.deleted = True
    for ask in (lambda c: _after(c, INITIAL), lambda c: c.read(made, Slice(0, 1)), lambda c: c.acknowledge(made)):
        with pytest.raises(NoSuchQueueError, match=r"there is no queue 'orders' on 127.0.0.1:9876"):
            ask(_claims(ledger))


def test_next_without_checkpoint(ledger: Ledger) -> None:
    """A batch read gets the claim that waits to be acknowledged, and then a new one, whatever its number."""
    claims = _claims(ledger)
    first = claims.next(2, None)
    assert claims.next(5, None) == first
    done = first
    for seq in range(2, 6):
        claims.acknowledge(done)
        done = claims.next(2, None)
        assert done.seq == seq
    claims.acknowledge(done)
    assert claims.next(2, None).count == 0


@pytest.mark.parametrize("last", [0, 1, 2, 3, 7, 100, 10**6])
def test_search_takes_few_questions(last: int) -> None:
    """The number that follows the last acknowledged one is found in few questions."""
    asked = []

    def claim(seq: int) -> Offset:
        asked.append(seq)
        if seq <= last:
            raise Stale(409, "stale", "")
        if seq > last + 1:
            raise Conflict(409, "conflict", "")
        return Offset(seq)

    assert search(claim).seq == last + 1
    assert len(asked) <= 42


def test_search_that_finds_none() -> None:
    """If another query moves on at the same time, the search ends with an error."""

    def claim(seq: int) -> Offset:
        raise Stale(409, "stale", "") if seq < 10 else Conflict(409, "conflict", "")

    with pytest.raises(ConsumerInUseError, match="claims are changing"):
        search(claim)


def test_claim_of_storage_without_claims(ledger: Ledger) -> None:
    """The error says what was asked, of which queue, what that needs, and what the server says to do."""
    server = ledger.server()

    def refuse(*_: object, **__: object) -> None:
        raise NotImplementedByServer(501, "not-implemented", "its storage is 'files': qs new")

    server._client.claim_messages = refuse  # type: ignore[method-assign]
    with pytest.raises(
        PipelineError, match=r"claims on the queue 'orders': .* of the storage journal \(.*'files': qs new"
    ):
        _after(Claims(server, "c"), INITIAL)

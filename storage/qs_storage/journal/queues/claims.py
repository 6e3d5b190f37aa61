"""Claims on the messages of one queue: a claim hides its messages until its consumer acknowledges or releases it.

A claim is one record in the log, and its end is another.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain

from ...engine import Claim, ClaimOrderError, Message, NoSuchClaimError, StaleReceiptError, checksum_of
from ...names import WITHHELD, check_name, quoted
from ...policy import is_exhausted
from ..log import records
from ..log.places import segment_of
from .messages import MessageTable

_OWN = 1 << 10
"""Bytes of room that a claim which ends windows leaves for its own record, beside its ids."""
_PAGE = 1000
"""Messages read from the index at a time."""


@dataclass(slots=True)
class OpenClaim:
    """An open claim. place: the place of its record; gone: the ids of its messages that were removed since."""

    record: records.Claim
    place: int
    gone: set[int]

    def remaining(self) -> Sequence[int]:
        """Returns the ids of the claim's messages that still exist, increasing."""
        return [mid for mid in self.record.mids if mid not in self.gone] if self.gone else self.record.mids


@dataclass(slots=True)
class Consumer:
    """The state of a consumer. acked: its last acknowledged claim, 0 without any; place: the place of that claim's
    ACKED record; claims: its open claims."""

    acked: int = 0
    place: int = 0
    claims: dict[int, OpenClaim] = field(default_factory=dict)


class LogClaims:
    """Makes and ends the claims on one queue.

    Ensures:
    1. A claim has the same messages each time it is read, until it ends; it has no time-out and survives restarts.
    2. A message is in one claim at most, and no receive gets a message that is in a claim.
    3. Each call can be repeated: the number of the claim says which one is meant.

    Assumes that a consumer counts its claims up from 1, without a gap. Every method may raise OSError, and
    BadQueueNameError for the consumer's name. Never ends a claim by itself."""

    most = 100_000
    """The most messages in one claim. Its record has 8 bytes for each, and is one step that others wait for."""

    def __init__(self, table: MessageTable) -> None:
        self._table = table
        self._store = table.store
        self._transaction = table.transaction
        self._clock = table.clock
        self.consumers: dict[str, Consumer] = {}

    def claim(self, consumer: str, seq: int, count: int, max_bytes: int | None, upto: int | None) -> Claim:
        """Claims the oldest visible messages as claim seq of the consumer, or returns that claim if it exists. count,
        max_bytes, upto: the most messages, the most bytes of payload (the first message may have more), and the
        greatest id. A claim without messages is not kept. StaleReceiptError if claim seq is acknowledged,
        ClaimOrderError if an earlier one is missing, NoSuchClaimError if it was released."""
        check_name("consumer", consumer)
        existing = self._existing(consumer, seq)
        if existing is not None:
            return _described(existing.record)
        # What is due may be claimed too. It leaves room for the claim's own record.
        self._table.expire(keep=_OWN + 8 * min(count, self.most, len(self._table)))
        mids, size = self._choose(min(count, self.most), max_bytes, upto)
        now = self._clock()
        if mids:
            self._make(records.Claim(self._table.number, seq, now, size, consumer, mids))
        return _describe(consumer, seq, mids, size, now)

    def _existing(self, consumer: str, seq: int) -> OpenClaim | None:
        state = self.consumers.get(consumer, Consumer())
        if seq <= state.acked:
            raise StaleReceiptError(
                f"claim {seq} of consumer {quoted(consumer)} on queue {self._table.qid!r} is acknowledged: the next "
                f"one is {self._last(state) + 1}"
            )
        if seq in state.claims:
            return state.claims[seq]
        following = self._last(state) + 1
        if seq < following:
            raise NoSuchClaimError(
                f"claim {seq} of consumer {quoted(consumer)} on queue {self._table.qid!r} was released"
            )
        if seq > following:
            raise ClaimOrderError(
                f"consumer {quoted(consumer)} has made {following - 1} claims on queue {self._table.qid!r}: the next "
                f"one is {following}, not {seq}"
            )
        return None

    def _last(self, consumer: Consumer) -> int:
        return max([consumer.acked, *consumer.claims])

    def _choose(self, count: int, max_bytes: int | None, upto: int | None) -> "tuple[array[int], int]":
        index = self._table.index
        chosen = array("Q")
        total, after = 0, self._table.too_old_upto()
        if self._table.options.paused:
            return chosen, total
        if self._table.options.max_in_flight is not None:
            count = min(count, max(self._table.options.max_in_flight - index.out, 0))
        while len(chosen) < count and (mids := index.visible(after, min(count - len(chosen), _PAGE))):
            after = mids[-1]
            if index.order is not None or self._table.ends.count:
                mids = [mid for mid in mids if self._may_claim(mid)]
                if not mids:
                    continue
            sizes = [size or 0 for size in index.sizes(mids)]
            fitting = len(mids) if upto is None else bisect_right(mids, upto)
            if max_bytes is not None and total + sum(sizes) > max_bytes:
                fitting = min(fitting, bisect_right(list(accumulate(sizes)), max_bytes - total))
                fitting = fitting or int(not chosen and (upto is None or mids[0] <= upto))  # the first of all, always
            chosen.extend(mids[:fitting])
            total += sum(sizes[:fitting])
            if fitting < len(mids):
                break
        return chosen, total

    def _may_claim(self, mid: int) -> bool:
        """Tells whether a claim may have a visible message: not while others have messages of its group, which it would
        overtake, and not after its end."""
        order, end = self._table.index.order, self._table.ends.get(mid)
        return (order is None or order.is_free(mid)) and (end is None or end > self._clock())

    def _make(self, record: records.Claim) -> None:
        place = self._append(record.write())
        new = self._table.index.new.among(record.mids)
        self._table.index.withhold_all(record.mids)
        consumer = self.consumers.setdefault(record.consumer, Consumer())
        consumer.claims[record.seq] = OpenClaim(record, place, set())
        self._transaction.undo(self._unmake, record, new)
        self._count_received(record.mids)

    def _count_received(self, mids: Sequence[int]) -> None:
        self._table.count("delivered", len(mids))
        self._table.count("redelivered", sum(map(self._table.receives.__contains__, mids)))
        self._table.note_all("received", mids, more=1)

    def _append(self, body: bytes) -> int:
        size = records.HEAD.size + len(body)
        if size > self._transaction.left:
            raise self._transaction.refusal(size)
        return self._transaction.append(body)

    def _unmake(self, record: records.Claim, new: Sequence[int]) -> None:
        del self.consumers[record.consumer].claims[record.seq]
        for mid in record.mids:
            self._table.show(mid, 0, delayed=False)
        for mid in new:
            self._table.index.new.add(mid)

    def part(
        self, consumer: str, seq: int, part_of: tuple[int, int], count: int, max_bytes: int
    ) -> list[Message] | None:
        """Returns the messages of a slice of a claim that still exist. part: (n, m) for the n-th of m slices, counted
        from 0. Returns None if the slice has more than count messages, or has several with more than max_bytes of
        payload. NoSuchClaimError."""
        part, parts = part_of
        claim = self._open_claim(consumer, seq)
        mids = claim.record.mids
        slice_ = mids[len(mids) * part // parts : len(mids) * (part + 1) // parts]
        if len(slice_) > count:
            return None
        table = self._table
        messages: list[Message] = []
        room = max_bytes
        for mid in slice_:
            if mid in claim.gone:
                continue
            payload = self._store.payload(table.number, mid, table.places.get(mid) or 0)
            room -= len(payload)
            if room < 0 and messages:
                return None
            receives = table.receives.get(mid, 0) + 1
            message = Message(table.qid, mid, "delivered", receives, table.time(mid), None, payload)
            messages.append(table.with_past(message))
        return messages

    def _open_claim(self, consumer: str, seq: int) -> OpenClaim:
        check_name("consumer", consumer)
        claim = self.consumers.get(consumer, Consumer()).claims.get(seq)
        if claim is None:
            raise NoSuchClaimError(
                f"consumer {quoted(consumer)} has no claim {seq} on queue {self._table.qid!r}: it was never made, is "
                "acknowledged, or was released"
            )
        return claim

    def open_before(self, consumer: str, seq: int) -> list[int]:
        """Returns the numbers of the consumer's open claims before seq. ClaimOrderError if there was no claim seq
        yet."""
        check_name("consumer", consumer)
        state = self.consumers.get(consumer, Consumer())
        if seq > self._last(state):
            raise ClaimOrderError(
                f"consumer {quoted(consumer)} has made {self._last(state)} claims on queue {self._table.qid!r}: there "
                f"is no claim {seq} to acknowledge"
            )
        return sorted(number for number in state.claims if number < seq)

    def acknowledge(self, consumer: str, seq: int) -> int:
        """Deletes the messages of every claim up to seq. Returns their number. ClaimOrderError if there was no claim
        seq yet."""
        self.open_before(consumer, seq)  # raises
        state = self.consumers.get(consumer, Consumer())
        if seq <= state.acked:
            return 0
        done = {number: claim for number, claim in sorted(state.claims.items()) if number <= seq}
        remaining = [claim.remaining() for claim in done.values()]
        # The ids of one claim are in order: to sort 100,000 again takes 5 ms.
        mids = remaining[0] if len(remaining) == 1 else sorted(chain.from_iterable(remaining))
        place = self._append(records.Acked(self._table.number, seq, consumer, mids).write())
        for number in done:
            del state.claims[number]
        self._transaction.undo(self._unacknowledge, state, state.acked, state.place, done)
        state.acked, state.place = seq, place
        self._table.vanish(mids if isinstance(mids, array) else array("Q", mids), WITHHELD)
        return len(mids)

    def _unacknowledge(self, consumer: Consumer, acked: int, place: int, done: dict[int, OpenClaim]) -> None:
        consumer.acked, consumer.place = acked, place
        consumer.claims.update(done)

    def release(self, consumer: str, seq: int) -> int:
        """Ends a claim and makes its messages visible again. Returns their number. NoSuchClaimError."""
        claim = self._open_claim(consumer, seq)
        mids = claim.remaining()
        self._append(records.Unclaimed(self._table.number, seq, consumer, mids).write())
        del self.consumers[consumer].claims[seq]
        self._transaction.undo(self._unrelease, claim, mids)
        self._make_visible(mids)
        self._table.count("released", len(mids))
        self._table.note_all("released", mids)
        return len(claim.record.mids)

    def _make_visible(self, mids: Sequence[int]) -> None:
        """Counts the claim as a receive of each message, and makes the messages visible. Messages received too often
        stay hidden until `expire` moves them to the dead-letter queue. mids: increasing."""
        table = self._table
        receives = [table.receives.get(mid, 0) + 1 for mid in mids]
        table.receives.update(zip(mids, receives, strict=True))
        table.index.show_all(mids)
        table.watch_ends(mids)
        too_often = {times for times in set(receives) if is_exhausted(table.options, times)}
        exhausted = [mid for mid, times in zip(mids, receives, strict=True) if times in too_often]
        if exhausted:
            table.index.take_all(exhausted, 1)
            table.hidden(1)
        if len(exhausted) < len(mids):
            table.arrived()

    def _unrelease(self, claim: OpenClaim, mids: Sequence[int]) -> None:
        self.consumers[claim.record.consumer].claims[claim.record.seq] = claim
        for mid in mids:
            self._table.set_receives(mid, self._table.receives[mid] - 1)
            self._table.index.withhold(mid)

    def removed(self, mid: int) -> None:
        """Notes that a message was removed, in the claim that has the message."""
        for consumer in self.consumers.values():
            for claim in consumer.claims.values():
                # A search, and not a set: a claim keeps its ids in 8 bytes each.
                at = bisect_left(claim.record.mids, mid)
                if at < len(claim.record.mids) and claim.record.mids[at] == mid and mid not in claim.gone:
                    claim.gone.add(mid)
                    self._transaction.undo(claim.gone.discard, mid)

    def all(self) -> Iterator[Claim]:
        """Yields the claims that are open at the first step, by consumer and number, also those that requests end
        meanwhile."""
        opened = [state.claims[seq] for _, state in sorted(self.consumers.items()) for seq in sorted(state.claims)]
        for claim in opened:
            yield _described(claim.record)

    # -- a start, and compaction ----------------------------------------------------------------------------------

    def restore(self, place: int, record: records.Claim) -> None:
        """Replays a CLAIM record. Skips messages that are not in the table yet: they were copied, and their records
        follow."""
        consumer = self.consumers.setdefault(record.consumer, Consumer())
        if record.seq <= consumer.acked:
            return
        claim = OpenClaim(record, place, set(record.gone))
        consumer.claims[record.seq] = claim
        for mid in claim.remaining():
            if self._table.index.expiry(mid) is not None and self._table.is_newer(mid, place):
                self._table.index.withhold(mid)

    def settle(self) -> None:
        """Ends a replay: counts missing messages of claims as removed, and makes the messages of lost claims
        visible."""
        claimed: set[int] = set()
        for consumer in self.consumers.values():
            for claim in consumer.claims.values():
                claim.gone.update(mid for mid in claim.remaining() if not self._is_withheld(mid))
                claimed.update(claim.remaining())
        lost = [
            mid
            for mids, expiries in self._table.index.hidden.pages(-1)
            for mid, expiry in zip(mids, expiries, strict=True)
            # Their CLAIM is lost, by damage: nobody could acknowledge or release them.
            if expiry == WITHHELD and mid not in claimed
        ]
        for mid in lost:
            self._table.show(mid, 0, delayed=False)

    def restore_end(self, place: int, record: records.Acked | records.Unclaimed) -> None:
        consumer = self.consumers.setdefault(record.consumer, Consumer())
        withheld = [mid for mid in record.mids if self._is_withheld(mid) and self._table.is_newer(mid, place)]
        if isinstance(record, records.Unclaimed):
            consumer.claims.pop(record.seq, None)
            self._make_visible(withheld)
            return
        consumer.acked, consumer.place = max(consumer.acked, record.seq), place
        for seq in [seq for seq in consumer.claims if seq <= record.seq]:
            del consumer.claims[seq]
        for mid in withheld:
            self._table.restore_deletion(mid)

    def _is_withheld(self, mid: int) -> bool:
        return self._table.index.expiry(mid) == WITHHELD

    def copy_records(self, segment: int) -> Iterator[int]:
        """Copies the needed records of the segments up to this one to the end of the log. Before each copy, yields the
        bytes to append. As other requests may run at each `yield`, looks up what to copy after it."""
        number = self._table.number
        for consumer, state in list(self.consumers.items()):
            if state.acked and segment_of(state.place) <= segment:
                yield records.HEAD.size + len(records.Acked(number, state.acked, consumer).write())
                if segment_of(state.place) <= segment:
                    self._copy_record(state, records.Acked(number, state.acked, consumer).write())
            for seq, claim in list(state.claims.items()):
                while state.claims.get(seq) is claim and segment_of(claim.place) <= segment:
                    yield records.HEAD.size + len(self._open_record(claim))
                    body = self._open_record(claim)  # more of its messages may be gone
                    if state.claims.get(seq) is claim and records.HEAD.size + len(body) <= self._transaction.left:
                        self._copy_record(claim, body)

    @staticmethod
    def _open_record(claim: OpenClaim) -> bytes:
        return replace(claim.record, gone=sorted(claim.gone)).write()

    def _copy_record(self, owner: Consumer | OpenClaim, body: bytes) -> None:
        self._transaction.undo(setattr, owner, "place", owner.place)
        owner.place = self._transaction.append(body)


def _described(record: records.Claim) -> Claim:
    return _describe(record.consumer, record.seq, record.mids, record.size, record.since)


def _describe(consumer: str, seq: int, mids: Sequence[int], size: int, since: int) -> Claim:
    first, last = (mids[0], mids[-1]) if mids else (None, None)
    return Claim(consumer, seq, len(mids), size, first, last, checksum_of(mids), since)

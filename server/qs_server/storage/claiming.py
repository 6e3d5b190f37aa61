"""Claims on the messages of one queue: what a consumer has read once stays as it is until that one is done with it.

The claim's file is the truth (`claim_files.py`). Beside it every message of a claim is withheld: hidden without an end.
Whatever a crash leaves between the two is put right when the queue is opened: see `settle`.
"""

import logging
from collections.abc import Sequence
from typing import Protocol

from .claim_files import Claim, ClaimFiles, describe
from .engine import ClaimOrderError, Clock, Message, NoSuchClaimError, StaleReceiptError

_logger = logging.getLogger(__name__)
MOST = 100_000
"""Messages of one claim: some 0.3 s for the server."""
_LOOK = 1000
"""Messages that are looked at together."""


class Withholding(Protocol):
    """What is asked of a queue."""

    qid: str

    def expire(self, count: int | None = None) -> int: ...

    def ready_after(self, after: int, count: int) -> list[int]:
        """Visible messages with ids greater than after, in order, at most count."""

    def measure(self, mid: int) -> int | None:
        """Bytes of a message; None when it is gone."""

    def hold_fast(self) -> None:
        """Everything that was done so far survives a power loss, if anything does. OSError: it was taken back."""

    def withhold(self, mid: int) -> bool:
        """Hides a message without an end, if it is there. Nothing is known of it on disk that a crash would keep, or it
        is put right by `withhold` and `give_up` after the next start."""

    def give_up(self, mid: int) -> None:
        """A withheld message is as visible as if it had never been hidden."""

    def hand_back(self, mid: int) -> None:
        """A withheld message has been received once more, and is visible."""

    def read_withheld(self, mid: int) -> Message | None:
        """A withheld message as it is handed out; None when it is not withheld."""

    def remove_withheld(self, mid: int) -> None:
        """Deletes a message, if it is withheld."""

    def withheld(self) -> list[int]:
        """All that are, in order."""

    def note_claimed(self, mids: Sequence[int]) -> None:
        """They count as delivered."""


class Claims:
    """Of one queue. Every method may raise OSError; those that name a consumer BadQueueNameError."""

    def __init__(self, queue: Withholding, files: ClaimFiles, clock: Clock, most: int) -> None:
        """most: messages of one claim."""
        self.most = most
        self._queue = queue
        self._files = files
        self._clock = clock
        self._loose: list[int] = []  # of claims that were released: still to be made visible, the last one first
        self._deleted: dict[tuple[str, int], int] = {}  # of acknowledged claims: how many messages have been

    def claim(self, consumer: str, seq: int, count: int, max_bytes: int | None, upto: int | None) -> Claim:
        """The oldest visible messages become claim seq of the consumer: at most count, with ids up to upto, and no more
        than fit in max_bytes, but for the first. If it has that claim already, that one. Without any messages, nothing
        is kept. StaleReceiptError when it is acknowledged, ClaimOrderError when an earlier one is missing,
        NoSuchClaimError when it was released."""
        with self._files.locked():
            known = self._known(consumer, seq)
            if known is not None:
                return known
            self._queue.expire()
            self._queue.hold_fast()  # what could still be taken back is in no claim
            mids, size = self._choose(min(count, self.most), max_bytes, upto)
            now = self._clock()
            if not mids:
                return describe(consumer, seq, mids, 0, now)
            return self._make(consumer, seq, mids, size, now)

    def _known(self, consumer: str, seq: int) -> Claim | None:
        found = self._files.find(consumer, seq)
        acknowledged = self._files.acknowledged(consumer)
        if seq <= acknowledged:
            raise StaleReceiptError(
                f"claim {seq} of consumer {consumer!r} on queue {self._queue.qid!r} is acknowledged: the next one is "
                f"{self._last(consumer) + 1}"
            )
        if found is not None:
            return found[0]
        following = self._last(consumer) + 1
        if seq < following:
            raise NoSuchClaimError(f"claim {seq} of consumer {consumer!r} on queue {self._queue.qid!r} was released")
        if seq > following:
            raise ClaimOrderError(
                f"consumer {consumer!r} has made {following - 1} claims on queue {self._queue.qid!r}: the next one is "
                f"{following}, not {seq}"
            )
        return None

    def _last(self, consumer: str) -> int:
        return max([self._files.acknowledged(consumer), *self._files.numbers(consumer)])

    def _choose(self, count: int, max_bytes: int | None, upto: int | None) -> tuple[list[int], int]:
        chosen: list[int] = []
        total, after = 0, -1
        while len(chosen) < count and (mids := self._queue.ready_after(after, min(count - len(chosen), _LOOK))):
            after = mids[-1]
            for mid in mids:
                if upto is not None and mid > upto:
                    return chosen, total
                size = self._queue.measure(mid)
                if size is None:
                    continue
                if chosen and max_bytes is not None and total + size > max_bytes:
                    return chosen, total
                chosen.append(mid)
                total += size
        return chosen, total

    def _make(self, consumer: str, seq: int, chosen: list[int], size: int, now: int) -> Claim:
        taken: list[int] = []
        try:
            for mid in chosen:
                if self._queue.withhold(mid):
                    taken.append(mid)
                else:
                    size = -1  # another process was faster
            if size < 0:
                size = sum(self._queue.measure(mid) or 0 for mid in taken)
            claim = describe(consumer, seq, taken, size, now)
            if taken:
                self._files.save(claim, taken)
        except BaseException:
            for mid in taken:
                self._queue.give_up(mid)
            raise
        self._queue.note_claimed(taken)
        return claim

    def part(
        self, consumer: str, seq: int, part_of: tuple[int, int], count: int, max_bytes: int
    ) -> list[Message] | None:
        """Slice (number, how many there are) of a claim, without what has been deleted since. None when it has more
        than count messages, or more payload than max_bytes and more than one message. NoSuchClaimError."""
        part, parts = part_of
        found = self._files.find(consumer, seq)
        if found is None or seq <= self._files.acknowledged(consumer):
            raise self._no_such(consumer, seq)
        claim, mids = found
        slice_ = mids[claim.count * part // parts : claim.count * (part + 1) // parts]
        if len(slice_) > count:
            return None
        messages: list[Message] = []
        room = max_bytes
        for mid in slice_:
            message = self._queue.read_withheld(mid)
            if message is None:
                continue
            room -= len(message.payload or b"")
            if room < 0 and messages:
                return None
            messages.append(message)
        return messages

    def _no_such(self, consumer: str, seq: int) -> NoSuchClaimError:
        return NoSuchClaimError(
            f"consumer {consumer!r} has no claim {seq} on queue {self._queue.qid!r}: it was never made, is "
            "acknowledged, or was released"
        )

    def acknowledge(self, consumer: str, seq: int) -> None:
        """Every claim up to seq is done with; `finish` deletes the messages. ClaimOrderError when there is no claim of
        that number yet."""
        with self._files.locked():
            if seq <= self._files.acknowledged(consumer):
                return
            last = self._last(consumer)
            if seq > last:
                raise ClaimOrderError(
                    f"consumer {consumer!r} has made {last} claims on queue {self._queue.qid!r}: there is no claim "
                    f"{seq} to acknowledge"
                )
            self._files.acknowledge(consumer, seq)

    def release(self, consumer: str, seq: int) -> int:
        """The claim is none any more; `finish` makes its messages visible. How many they are. NoSuchClaimError."""
        with self._files.locked():
            found = self._files.find(consumer, seq)
            if found is None or seq <= self._files.acknowledged(consumer):
                raise self._no_such(consumer, seq)
            self._files.drop(consumer, seq)
            self._loose.extend(reversed(found[1]))
            return found[0].count

    def finish(self, consumer: str, count: int) -> bool:
        """Does at most count messages' worth of what acknowledging and releasing have left to do. Whether there may be
        more."""
        while count and self._loose:
            self._queue.hand_back(self._loose[-1])
            self._loose.pop()
            count -= 1
        acknowledged = self._files.acknowledged(consumer)
        for seq in self._files.numbers(consumer):
            if seq > acknowledged or not count:
                break
            count = self._finish_claim(consumer, seq, count)
        return not count

    def _finish_claim(self, consumer: str, seq: int, count: int) -> int:
        found = self._files.find(consumer, seq)
        if found is None:
            return count
        mids = found[1]
        done = self._deleted.get((consumer, seq), 0)
        for mid in mids[done : done + count]:
            self._queue.remove_withheld(mid)
            done += 1
            self._deleted[consumer, seq] = done
            count -= 1
        if done == len(mids) and count:
            self._queue.hold_fast()  # before nothing says any more that they are to be deleted
            self._files.drop(consumer, seq)
            self._deleted.pop((consumer, seq), None)
        return count

    def all(self) -> list[Claim]:
        """Those that are neither acknowledged nor released, by consumer and number."""
        claims: list[Claim] = []
        for consumer in self._files.consumers():
            acknowledged = self._files.acknowledged(consumer)
            numbers = (seq for seq in self._files.numbers(consumer) if seq > acknowledged)
            claims += [found[0] for seq in numbers if (found := self._files.find(consumer, seq)) is not None]
        return claims

    def settle(self) -> None:
        """When the queue has been opened: its messages are withheld if and only if they are in a claim, and what was
        acknowledged is deleted."""
        withheld = self._queue.withheld()
        if not withheld and not self._files.exist():
            return
        with self._files.locked():
            claimed: set[int] = set()
            for consumer in self._files.consumers():
                for seq in self._files.numbers(consumer):
                    found = self._files.find(consumer, seq)
                    claimed.update(mid for mid in found[1] if self._queue.withhold(mid)) if found else None
            for mid in withheld:
                if mid not in claimed:
                    self._queue.give_up(mid)
            for consumer in self._files.consumers():
                self._finish_at_start(consumer)

    def _finish_at_start(self, consumer: str) -> None:
        try:
            while self.finish(consumer, _LOOK):
                pass
        except OSError as error:
            _logger.warning(
                "messages of queue %r that %r has acknowledged stay hidden for now: %s",
                self._queue.qid,
                consumer,
                error,
            )

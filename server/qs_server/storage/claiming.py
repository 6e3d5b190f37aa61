"""Claims on the messages of one queue: what a consumer has read once stays as it is until that one is done with it.

The claim's file is the truth (`claim_files.py`). Beside it every message of a claim is withheld: hidden without an end.
Whatever a crash leaves between the two is put right when the queue is opened: see `settle`.
"""

import contextlib
import errno
import logging
import os
from collections.abc import Callable, Iterator, Sequence

from .claim_files import Claim, ClaimFiles, describe
from .claimable import Withholding
from .engine import ClaimOrderError, Clock, Message, NoSuchClaimError, StaleReceiptError, StorageError

_logger = logging.getLogger(__name__)
MOST = 100_000
"""Messages of one claim: some 0.3 s for the server."""
DAMAGED = "damaged"
"""The checksum of a claim of which nothing is known."""
_LOOK = 1000
"""Messages that are looked at together."""


class Claims:
    """Of one queue. Every method may raise OSError; those that name a consumer BadQueueNameError, and StorageError when
    a file about that one is damaged."""

    def __init__(self, queue: Withholding, files: ClaimFiles, clock: Clock, most: int) -> None:
        """most: messages of one claim."""
        self.most = most
        self._queue = queue
        self._files = files
        self._clock = clock
        self._loose: list[int] = []  # of claims that were released: still to be made visible, the last one first
        self._strays: list[int] = []  # of claims that came to nothing: as above
        self._deleted: dict[tuple[str, int], int] = {}  # of acknowledged claims: how many messages have been

    def claim(self, consumer: str, seq: int, count: int, max_bytes: int | None, upto: int | None) -> Claim:
        """The oldest visible messages become claim seq of the consumer: at most count, with ids up to upto, and no more
        than fit in max_bytes, but for the first. If it has that claim already, that one. Without any messages, nothing
        is kept. StaleReceiptError when it is acknowledged, ClaimOrderError when an earlier one is missing,
        NoSuchClaimError when it was released."""
        with self._locked():
            known = self._known(consumer, seq)
            if known is not None:
                self._files.make_certain(consumer, anew=not self._queue.alone)
                return known
            self._queue.catch_up()
            self._queue.hold_fast()  # what could still be taken back is in no claim
            mids, size = self._choose(min(count, self.most), max_bytes, upto)
            if not mids and self._free_orphans():
                mids, size = self._choose(min(count, self.most), max_bytes, upto)
            now = self._clock()
            if not mids:
                return describe(consumer, seq, mids, 0, now)
            return self._make(consumer, seq, mids, size, now)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """FileNotFoundError when the queue was removed, also if there is another one of the name by now."""
        self._check()
        with self._files.locked():
            self._check()
            yield

    def _check(self) -> None:
        if not self._queue.is_there():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._queue.qid)

    def _known(self, consumer: str, seq: int) -> Claim | None:
        acknowledged = self._files.acknowledged(consumer)
        if seq <= acknowledged:
            raise StaleReceiptError(
                f"claim {seq} of consumer {consumer!r} on queue {self._queue.qid!r} is acknowledged: the next one is "
                f"{self._last(consumer) + 1}"
            )
        found = self._files.find(consumer, seq)
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
            for mid, size in zip(mids, self._queue.measure(mids), strict=True):
                if upto is not None and mid > upto:
                    return chosen, total
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
            self._queue.withhold(chosen, taken)
            if len(taken) < len(chosen):  # another process was faster
                size = sum(filter(None, self._queue.measure(taken)))
            claim = describe(consumer, seq, taken, size, now)
            if taken:
                self._files.save(claim, taken)
        except BaseException:
            if not self._stands(consumer, seq):
                self._strays += taken
                with contextlib.suppress(OSError):
                    self._give_up_strays()
            raise
        self._queue.note_claimed(taken)
        return claim

    def _stands(self, consumer: str, seq: int) -> bool:
        try:
            return self._files.has(consumer, seq)
        except OSError:
            return True

    def _give_up_strays(self) -> None:
        while self._strays:
            self._queue.give_up(self._strays[-1])
            self._strays.pop()

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
        for message in self._queue.read_all_withheld(slice_):
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
        with self._locked():
            acknowledged = self._files.acknowledged(consumer)
            if seq <= acknowledged:
                if seq > 0:
                    self._files.make_certain(consumer, anew=not self._queue.alone)
                return
            numbers = self._files.numbers(consumer)
            last = max([acknowledged, *numbers])
            if seq > last:
                raise ClaimOrderError(
                    f"consumer {consumer!r} has made {last} claims on queue {self._queue.qid!r}: there is no claim "
                    f"{seq} to acknowledge"
                )
            for number in numbers:
                if number <= seq:
                    self._files.find(consumer, number)  # of a damaged one, nobody would know what to delete
            self._files.acknowledge(consumer, seq)

    def release(self, consumer: str, seq: int) -> int:
        """The claim is none any more; `finish` makes its messages visible. How many they are. NoSuchClaimError."""
        with self._locked():
            mids, damaged = self._ids_of(consumer, seq)
            if mids is None or (seq <= self._files.acknowledged(consumer) and not damaged):
                self._hand_back(len(self._loose))
                self._free_orphans()
                raise self._no_such(consumer, seq)
            try:
                self._files.drop(consumer, seq)
            finally:
                if not self._stands(consumer, seq):
                    self._loose.extend(reversed(mids))
            if not self._queue.alone:
                self._hand_back(len(self._loose))  # before somebody else puts it right, and claims them
            return len(mids)

    def _ids_of(self, consumer: str, seq: int) -> tuple[Sequence[int] | None, bool]:
        """Of the messages of a claim; of a damaged one, of those which may be in no other one. Whether it is."""
        try:
            found = self._files.find(consumer, seq)
        except StorageError:
            claimed, damaged = self._claimed(lambda mid: True)
            return [mid for mid in self._queue.withheld() if mid not in claimed] if damaged == 1 else [], True
        return None if found is None else found[1], False

    def _claimed(self, which: Callable[[int], bool]) -> tuple[set[int], int]:
        """Those of all messages in claims; and how many damaged claims there are."""
        claimed: set[int] = set()
        damaged = 0
        for consumer in self._files.consumers():
            for seq in self._files.numbers(consumer):
                try:
                    found = self._files.find(consumer, seq)
                except (StorageError, OSError) as error:
                    _logger.error("%s", error)
                    damaged += 1
                else:
                    claimed.update(filter(which, found[1] if found else ()))
        return claimed, damaged

    def _free_orphans(self) -> bool:
        """Gives up what another server has withheld that was killed before there was a claim, or when it had been
        released. Whether there was anything."""
        if self._queue.alone or self._loose:
            return False
        claimed, damaged = self._claimed(lambda mid: True)
        if not damaged:
            self._strays = [mid for mid in self._queue.withheld() if mid not in claimed]
        found = bool(self._strays)
        self._give_up_strays()
        return found

    def _hand_back(self, count: int) -> int:
        """At most count of what is loose; how many are left of count."""
        while count and self._loose:
            self._queue.hand_back(self._loose[-1])
            self._loose.pop()
            count -= 1
        return count

    def finish(self, consumer: str, count: int) -> bool:
        """Does at most count messages' worth of what acknowledging and releasing have left to do. Whether there may be
        more."""
        self._check()
        self._give_up_strays()
        count = self._hand_back(count)
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
        if not done:
            # That it is acknowledged lasts as long as that they are deleted.
            self._files.make_certain(consumer, anew=not self._queue.alone)
        while count and done < len(mids):
            removed = self._queue.remove_withheld(mids[done : done + count])
            done += removed
            self._deleted[consumer, seq] = done
            count -= removed
        if done == len(mids) and count:
            self._queue.hold_fast()  # before nothing says any more that they are to be deleted
            self._deleted.pop((consumer, seq), None)
            if self._queue.withheld_of(mids):
                return 0  # a commit has failed meanwhile, and taken back what was deleted: again, then
            self._files.drop(consumer, seq)
        return count

    def all(self) -> list[Claim]:
        """Those that are neither acknowledged nor released, by consumer and number. Of a damaged one nothing is known
        but that: its count is 0 and its checksum `damaged`, and it stays here until it is released."""
        claims: list[Claim] = []
        for consumer in self._files.consumers():
            try:
                acknowledged = self._files.acknowledged(consumer)
            except StorageError:
                acknowledged = 0
            for seq in self._files.numbers(consumer):
                claim = self._look_at(consumer, seq)
                if claim is not None and (seq > acknowledged or claim.checksum == DAMAGED):
                    claims.append(claim)
        return claims

    def tell_of(self, mid: int) -> bool:
        """Whether a message of that id is in a claim, or was when it was removed from the queue."""
        if not self._files.exist():
            return False
        for consumer in self._files.consumers():
            for seq in self._files.numbers(consumer):
                with contextlib.suppress(StorageError):
                    found = self._files.find(consumer, seq)
                    if found is not None and found[1] and found[1][0] <= mid <= found[1][-1] and mid in found[1]:
                        return True
        return False

    def _look_at(self, consumer: str, seq: int) -> Claim | None:
        try:
            found = self._files.find(consumer, seq)
        except (StorageError, OSError):
            return Claim(consumer, seq, 0, 0, None, None, DAMAGED, self._files.since(consumer, seq))
        return None if found is None else found[0]

    # -- a start --------------------------------------------------------------------------------------------------

    def settle(self) -> bool:
        """When the queue has been opened: its messages are withheld if and only if they are in a claim, and what was
        acknowledged is deleted. Whether that could be done; if not, what may be in a claim is withheld all the same."""
        withheld = self._queue.withheld()
        if not withheld and not self._files.exist():
            return True
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._files.locked())
            except OSError as error:
                _logger.error("the claims on queue %r cannot be locked: %s", self._queue.qid, error)
                if not self._queue.alone:
                    withheld = []  # others may be at work: what is in no claim stays hidden until the next start
            for consumer in self._files.consumers():
                self._files.clear_left_behind(consumer)
            claimed, damaged = self._claimed(self._queue.withhold_again)
            if damaged:
                self._hide_doubtful()
            else:
                self._strays = [mid for mid in withheld if mid not in claimed]
            failed = [who for who in ("", *self._files.consumers()) if not self._finish_at_start(who)]
            return not failed

    def _hide_doubtful(self) -> None:
        """Whatever may be in a damaged claim goes to nobody."""
        if self._queue.alone:  # else the directory says what is withheld
            self._queue.catch_up()
            after = -1
            while mids := self._queue.ready_after(after, _LOOK):
                after = mids[-1]
                self._queue.withhold(mids, [])
        _logger.error(
            "what may be in damaged claims on queue %r goes to nobody: restore the files and restart the server, or "
            "release the claims (qs claims --release CONSUMER --seq NUMBER %s)",
            self._queue.qid,
            self._queue.qid,
        )

    def _finish_at_start(self, consumer: str) -> bool:
        """consumer: empty for what is nobody's."""
        try:
            self._give_up_strays()
            if consumer:
                self._files.make_certain(consumer, anew=not self._queue.alone)
            while consumer and self.finish(consumer, _LOOK):
                pass
        except (OSError, StorageError) as error:
            _logger.error("messages of queue %r that are over and done with stay hidden: %s", self._queue.qid, error)
            return False
        return True

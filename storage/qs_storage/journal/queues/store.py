"""What the queues of one log share: payloads in memory and on disk, live bytes, and the queues that have each payload.

A payload is written once, and stays where it is while messages move: another queue may have the same message (a copy),
or have it under another id (a dead letter, or one that was moved back).
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Protocol

from ...index.message_index import Index
from ...index.midmap import MidMap
from ..log.log import Log, Transaction
from ..log.places import SHIFT
from ..log.reader import PayloadCache, Reader
from ..log.records import PUSH_SIZE, Staged, payload_of, whose
from ..log.segments import Usage
from .keys import KEYS, KnownKeys

_PAGE = 1000
"""Payloads that are released together, if none of them has moved or is shared."""
Owner = tuple[int, int]
"""A queue number, and the id that a message has there and in the queues that share its payload."""


class Sharer(Protocol):
    """The methods of a queue that the store calls. `QueueState` implements them; the store cannot import `QueueState`,
    because each queue has the store."""

    number: int
    index: Index
    places: MidMap

    def id_of_staged(self, record: Staged, /) -> int | None: ...


class PayloadStore:
    """The payloads of one log: in memory and on disk, how many bytes are live, and which queues have which payload.

    Ensures:
    1. A payload counts as live bytes once, however many queues have it, and only while at least one has it.
    2. A payload is returned only as that of the message that was asked for: a valid checksum alone says that a record
       is as it was written, not that the place is right.
    3. A payload of a batch that is not committed yet can be read, from the cache or from `Transaction.unwritten`.

    Assumes that queues report each message that they add and remove, with its place and size. Never writes to the log,
    and never decides what is copied: compaction does, and asks the store."""

    def __init__(self, log: Log, transaction: Transaction, reader: Reader, cache: int, keys: int = KEYS) -> None:
        """cache: the most bytes of payloads in memory; keys: the most keys of pushes."""
        self.log = log
        self.transaction = transaction
        self.reader = reader
        self.cache = PayloadCache(cache)
        self.usage = Usage()
        self.tables: dict[int, Sharer] = {}
        """The queues by their numbers in the log."""
        self.last_number = 0
        """The greatest number that a queue has or had."""
        self.last_named = 0
        """The greatest number that the log had at the start: its last segment names each queue up to that."""
        self.families: dict[int, set[int]] = {}
        """For each queue number, the queues that may share payloads with it. A removed queue keeps its entry while its
        records exist: see `leave`."""
        self.moved: dict[int, dict[int, Sequence[Owner]]] = {}
        """For each segment, the owners of payloads whose messages have moved to another queue, by their places; also
        the owners that they had before, whose copies may be left. Other payloads belong to whom their record says."""
        self._is_starting = True  # while the log is read, it is not known which payloads several queues have
        self._copied: dict[int, set[int]] = {}
        """For each segment, the places of payloads that several queues have, or once had: most have never been copied,
        and then a queue need not ask the thousands that it has shared other payloads with."""
        self._gone: dict[int, int] = {}  # for removed queues: the last segment that may have their records
        self.known_keys = KnownKeys(keys)

    def enter(self, number: int, queue: Sharer) -> None:
        """Registers a queue under a number. A queue may have several numbers: see `IndexReader`."""
        self.tables[number] = queue
        self.saw_number(number)

    def saw_number(self, number: int) -> None:
        """Makes new numbers of queues greater than this one."""
        self.last_number = max(self.last_number, number)

    # -- payloads -------------------------------------------------------------------------------------------------

    def payload(self, number: int, mid: int, place: int) -> bytes:
        """Returns the payload of a message. number: the number of its queue; place: the place of the record with its
        payload. OSError; DamagedRecordError if that record cannot be read, or belongs to another message."""
        # First in memory: most messages are received soon after they were pushed.
        payload = self.cache.get(place)
        if payload is None:
            # What compaction has copied in this batch is in no segment yet, and not worth room in the cache.
            payload = self.transaction.unwritten.get(place)
        return self._read(number, mid, place) if payload is None else payload

    def _read(self, number: int, mid: int, place: int) -> bytes:
        body = self.reader.body(place)
        try:
            # What is read may be anything with a valid checksum: another kind of record, or another message's.
            payload = payload_of(body)
            owners = self.owners_of(place, body)
        except (struct.error, ValueError):
            payload = None
        if payload is None:
            raise self.reader.damaged(place, "it is not a message")
        for owner, found in owners:
            # None: a staged message whose queue is removed. Its id is known to the copies only, so the family has to
            # do.
            if found in (None, mid) and (owner == number or number in self.families.get(owner, ())):
                return bytes(payload)
        owner, found = owners[0]
        raise self.reader.damaged(place, f"it is message {found} of queue {owner}, not {mid} of {number}")

    def owners_of(self, place: int, body: memoryview) -> Sequence[tuple[int, int | None]]:
        """Returns the owners of the payload in a record: a queue number and an id for each. A message that has moved
        may have several. The id is None for a staged message that is not published, or whose queue is removed, as only
        copies of the message are left. struct.error, ValueError."""
        owners = self.owners_at(place)
        if owners is not None:
            return owners
        _, number, mid = whose(body)
        if body[0] != Staged.KIND:
            return ((number, mid),)
        table = self.tables.get(number)
        return ((number, None if table is None else table.id_of_staged(Staged.read(body))),)

    # -- who has a payload ----------------------------------------------------------------------------------------

    def drop(self, queue: Sharer, mid: int, place: int, size: int) -> Sequence[Owner] | None:
        """Releases the payload of a message that a queue removes. size: the bytes of the payload. Returns the payload's
        owners, to pass to `set_owners` before `keep`; None if the owners stay, or the message of the record is the only
        one."""
        # A start may know of a message before and after it moved, from a checkpoint that was written meanwhile.
        may_be_shared = self.families or (self._is_starting and self.moved)
        if not may_be_shared or not self._is_shared(queue, mid, place):
            self.usage.drop(place, size + PUSH_SIZE)
            self.cache.drop(place)
            if self.moved and (moved := self.moved.get(place >> SHIFT)) and place in moved:
                return moved.pop(place)
        return None

    def drop_all(
        self, queue: Sharer, mids: Sequence[int], places: Sequence[int], sizes: Sequence[int]
    ) -> list[Sequence[Owner] | None]:
        """Releases the payloads of many messages, in a fifth of the time that single drops take. The places differ.
        Returns the result of `drop` for each."""
        found: list[Sequence[Owner] | None] = []
        for at in range(0, len(places), _PAGE):
            page, their = places[at : at + _PAGE], sizes[at : at + _PAGE]
            segment = min(page) >> SHIFT
            if self._is_starting:
                alone = not self.families and not self.moved
            else:
                known = self._copied.get(segment), self.moved.get(segment, {}).keys()
                # Tested for a page of places at a time, in C: a purge of a million messages releases that many
                # payloads.
                alone = all(not each or each.isdisjoint(page) for each in known)
            if alone and max(page) >> SHIFT == segment:
                self.usage.drop(page[0], sum(their) + len(page) * PUSH_SIZE)
                self.cache.drop_all(page)
                found += [None] * len(page)
            else:
                parts = zip(mids[at : at + _PAGE], page, their, strict=True)
                found += [self.drop(queue, mid, place, size) for mid, place, size in parts]
        return found

    def keep(self, queue: Sharer, mid: int, place: int, size: int) -> None:
        """Counts the payload of a message that a queue has added, or has again."""
        # Without families no payload is shared, and nobody has to be asked.
        if not (self.families or self._is_starting) or not self._is_shared(queue, mid, place):
            self.usage.add(place, size + PUSH_SIZE)

    def _is_shared(self, queue: Sharer, mid: int, place: int) -> bool:
        if not self._is_starting and place not in self._copied.get(place >> SHIFT, ()):
            return False
        owners = self.owners_at(place) or ((queue.number, mid),)
        for owner, known in owners:
            for number in self.families.get(owner, (owner,)):
                other = self.tables.get(number)
                if other is None or (other is queue and known == mid):
                    continue
                if other.places.get(known) == place:
                    self.note_copied(place)
                    return True
        return False

    def owners_at(self, place: int) -> Sequence[Owner] | None:
        """Returns the owners of a payload whose message has moved, None if the message has not moved."""
        moved = self.moved.get(place >> SHIFT)
        return None if moved is None else moved.get(place)

    def hand_over(self, place: int, queue: Sharer, mid: int, owner: Owner) -> Sequence[Owner] | None:
        """Notes the new owner of the payload of a message that a queue has just removed, beside its former owners if
        copies of the message are left. Returns the former owners, to set again if the move is taken back."""
        moved = self.moved.setdefault(place >> SHIFT, {})
        before = moved.get(place)
        # Else a message that is moved to and fro would get more and more owners.
        is_shared = before is not None and self.families and self._is_shared(queue, mid, place)
        former = before if before is not None and is_shared else ((queue.number, mid),)
        moved[place] = (*former, owner)
        return before

    def set_owners(self, place: int, owners: Sequence[Owner] | None) -> None:
        """Sets the owners of the message with its payload at a place. None: the owner is the message that the record
        names."""
        if owners is not None:
            self.moved.setdefault(place >> SHIFT, {})[place] = owners
        elif (moved := self.moved.get(place >> SHIFT)) is not None:
            moved.pop(place, None)

    def note_copied(self, place: int) -> None:
        """Notes that several queues have the payload at a place."""
        self._copied.setdefault(place >> SHIFT, set()).add(place)

    def sharers(self, number: int, mid: int, place: int) -> list[Sharer]:
        """Returns the queues that have a message with its payload at a place. number: the number of one of them."""
        queues = map(self.tables.get, self.families.get(number, (number,)))
        return [queue for queue in queues if queue is not None and queue.places.get(mid) == place]

    def join(self, one: int, other: int) -> None:
        """Notes that two queues share payloads from now on. A message that they share has the same id in both."""
        own = self.families.get(one, {one})
        if one in own and other in own:  # a checkpoint may have named the family before the queue
            return
        joined = self.families.get(other, {other})
        fewer, family = (own, joined) if len(own) < len(joined) else (joined, own)
        family.update(fewer, (one, other))  # not a new set: a message is copied to thousands of queues in turn
        if (one if fewer is own else other) in self.families:  # else no other entry has the smaller set
            for number in [number for number, known in self.families.items() if known is fewer]:
                self.families[number] = family
        self.families[one] = self.families[other] = family

    def leave(self, number: int) -> None:
        """Forgets a removed queue, except its family: copies of its messages may need its payloads."""
        self.tables.pop(number, None)
        family = self.families.get(number)
        if family is not None:
            family.discard(number)
            if not family:
                del self.families[number]

    def forget(self, segments: Iterable[int]) -> None:
        """Forgets segments that are given up, and removed queues that have no records left."""
        for segment in segments:
            self.usage.forget(segment)
            self._copied.pop(segment, None)
            self.moved.pop(segment, None)
            self.reader.forget(segment)
            self.cache.forget(segment)
        for number in self.families.keys() - self.tables.keys():
            # A record of a removed queue may be in any segment up to the one that was written when it went.
            if self._gone.setdefault(number, self.log.number) < (self.log.segments.oldest or 0):
                del self.families[number], self._gone[number]

    def end_start(self) -> None:
        """Ends a start: from now on it is known which payloads several queues have, and no replayed change can be taken
        back."""
        self._is_starting = False
        self.transaction.changed.clear()

    def reset(self) -> None:
        """Forgets all that was read from the log, so that the log can be read again."""
        self.usage.clear()
        self.families.clear()
        self.moved.clear()
        self._gone.clear()
        self._copied.clear()
        self.known_keys.reset()
        self.tables.clear()
        self.last_number = 0
        self.transaction.changed.clear()

    def close(self) -> None:
        self.reader.close()
        self.log.close()

"""Keeps the receipt handles of messages in flight: only the receiver gets one, and SQS does nothing without it."""

import threading
from collections import Counter
from dataclasses import dataclass

from ...engine import SECOND, Clock, NoSuchMessageError, Receipt, RemoteError, StaleReceiptError

MOST = 120_000
"""Messages kept, over all queues: as many as SQS lets be in flight in one. Some 800 bytes each."""
_KEPT = 50 * SECOND
"""How long an ended window is remembered."""
_SWEEP_INTERVAL = 10 * SECOND


@dataclass(slots=True)
class Held:
    """handle: of SQS; until: the end of the window."""

    message: str
    handle: str
    receives: int
    until: int


class Receipts:
    """Messages in flight, by queue and id. Several threads may use it."""

    def __init__(self, clock: Clock, most: int = MOST) -> None:
        self._clock = clock
        self._most = most
        self._held: dict[tuple[str, int], Held] = {}
        self._mids: dict[tuple[str, str], int] = {}  # queue and SQS's id -> id
        self._expired: Counter[str] = Counter()
        self._next_sweep = 0
        self._lock = threading.Lock()

    def room(self) -> int:
        """Returns how many more messages may be received. RemoteError for none."""
        with self._lock:
            self._sweep()
            room = self._most - len(self._held)
        if room <= 0:
            raise RemoteError(
                f"{self._most} messages of SQS are in flight through this server, which is as many as it remembers: "
                "delete or release some, or use shorter windows"
            )
        return room

    def _sweep(self) -> None:
        """Removes messages whose windows ended long ago, now and then and when there is no room."""
        now = self._clock()
        if now < self._next_sweep and len(self._held) < self._most:
            return
        self._next_sweep = now + _SWEEP_INTERVAL
        for qid, mid in [key for key, held in self._held.items() if held.until <= now - _KEPT]:
            self._remove(qid, mid)
            self._expired[qid] += 1

    def add(self, qid: str, mid: int, held: Held) -> int:
        """Adds a received message. Returns its id here: mid, or the next one that is free in the queue. A message
        that is in flight already keeps its id, and its receives grow, which SQS does not promise."""
        with self._lock:
            known = self._mids.get((qid, held.message))
            if known is not None:
                mid = known
                before = self._held[qid, mid]
                held.receives = max(held.receives, before.receives + 1)
                self._expired[qid] += before.until <= self._clock()
            while known is None and (qid, mid) in self._held:
                mid += 1
            self._held[qid, mid] = held
            self._mids[qid, held.message] = mid
            return mid

    def find(self, qid: str, receipt: Receipt) -> Held:
        """Raises NoSuchMessageError; StaleReceiptError, also when the window has ended."""
        held = self._held.get((qid, receipt.mid))
        if held is None:
            raise NoSuchMessageError(
                f"message {receipt.mid} of queue {qid!r} is not in flight through this server, and SQS does nothing to "
                "others: receive it here first"
            )
        if receipt.receives is not None and receipt.receives != held.receives:
            raise StaleReceiptError(f"message {receipt.mid} has been received {held.receives} times by now")
        if held.until <= self._clock():
            raise StaleReceiptError(f"the window of message {receipt.mid} has ended: SQS may have given it to another")
        return held

    def drop(self, qid: str, mid: int, held: Held) -> bool:
        """Returns False if it was removed already, or received again."""
        with self._lock:
            if self._held.get((qid, mid)) is not held:
                return False
            self._remove(qid, mid)
            return True

    def expired(self, qid: str) -> int:
        """Returns how many windows have ended, some counted a minute late."""
        return self._expired[qid]

    def forget(self, qid: str) -> None:
        with self._lock:
            for queue, mid in [key for key in self._held if key[0] == qid]:
                self._remove(queue, mid)

    def _remove(self, qid: str, mid: int) -> None:
        held = self._held.pop((qid, mid))
        del self._mids[qid, held.message]

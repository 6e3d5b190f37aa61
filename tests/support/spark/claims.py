"""A queue with claims and staging in memory, and a client of it, with the server's contract.

It serves unit tests of the code above the client. Integration tests show that a real server does the same.
"""

import builtins
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from qs_client import BadRequest, Claim, Conflict, Delivery, Draft, ListMessages, NotFound, Part, QueueClient, Stale
from qs_pipeline.connection import QueueConnection
from qs_pipeline.options import Options

QUEUE = "orders"


def _bad(text: str) -> BadRequest:
    return BadRequest(400, "bad-request", text)


@dataclass
class Ledger:
    """The server's side. ready: payloads by mid; drafts: all that was ever staged; carries: the greatest number of
    messages of one answer."""

    ready: dict[int, bytes] = field(default_factory=dict)
    claims: dict[tuple[str, int], dict[int, bytes]] = field(default_factory=dict)
    sums: dict[tuple[str, int], Claim] = field(default_factory=dict)
    acknowledged: dict[str, int] = field(default_factory=dict)
    staged: dict[tuple[str, int, int, int], list[bytes]] = field(default_factory=dict)
    drafts: list[Draft] = field(default_factory=list)
    published: dict[str, int] = field(default_factory=dict)
    carries: int = 1000
    deleted: bool = False

    def push(self, *payloads: bytes) -> list[int]:
        first = max([0, *self.ready, *(mid for claim in self.claims.values() for mid in claim)]) + 1
        mids = list(range(first, first + len(payloads)))
        self.ready.update(zip(mids, payloads, strict=True))
        return mids

    def last(self, consumer: str) -> int:
        return max([self.acknowledged.get(consumer, 0), *(seq for name, seq in self.claims if name == consumer)])

    def server(self, **options: Any) -> QueueConnection:
        """Returns a `QueueConnection` whose client is one of this queue; it never waits."""
        return QueueConnection(
            Options(QUEUE, **options), 1.0, lambda *_, **__: cast(QueueClient, LedgerClient(self)), sleep=lambda _: None
        )


class LedgerClient:
    """The methods of QueueClient that the pipeline uses. trouble: called before each method; may raise."""

    def __init__(self, ledger: Ledger, trouble: Callable[[str], None] = lambda _: None) -> None:
        self._ledger = ledger
        self._trouble = trouble
        self.asked: list[str] = []

    def disconnect(self) -> None:
        pass

    def _called(self, name: str) -> None:
        self.asked.append(name)
        self._trouble(name)
        if self._ledger.deleted:
            raise NotFound(404, "not-found", "there is no queue 'orders'")

    def stats(self, qid: str) -> list[Any]:
        self._called("stats")
        return []

    def claim_messages(
        self,
        qid: str,
        consumer: str,
        seq: int,
        *,
        max: int,  # noqa: A002
        max_bytes: int | None = None,
        upto: int | None = None,
    ) -> Claim:
        self._called("claim_messages")
        ledger = self._ledger
        if seq <= ledger.acknowledged.get(consumer, 0):
            raise Stale(409, "stale", "acknowledged")
        if (consumer, seq) in ledger.claims:
            return ledger.sums[consumer, seq]
        if seq != ledger.last(consumer) + 1:
            raise Conflict(409, "conflict", "a gap")
        taken: dict[int, bytes] = {}
        for mid in sorted(ledger.ready):
            size = sum(map(len, taken.values())) + len(ledger.ready[mid])
            if len(taken) == max or (upto is not None and mid > upto) or (max_bytes and taken and size > max_bytes):
                break
            taken[mid] = ledger.ready[mid]
        for mid in taken:
            del ledger.ready[mid]
        if not taken:
            return Claim(seq, 0, 0)
        checksum = hashlib.sha256(repr(list(taken)).encode()).hexdigest()[:16]
        ledger.claims[consumer, seq] = taken
        size = sum(map(len, taken.values()))
        claim = Claim(seq, len(taken), size, min(taken), builtins.max(taken), checksum, consumer)
        ledger.sums[consumer, seq] = claim
        return claim

    def get_claim(self, qid: str, consumer: str, seq: int, *, part: int = 0, parts: int = 1) -> list[Delivery]:
        self._called("get_claim")
        if (consumer, seq) not in self._ledger.claims:
            raise NotFound(404, "not-found", "no such claim")
        count = self._ledger.sums[consumer, seq].count
        claim = self._ledger.claims[consumer, seq]
        first = self._ledger.sums[consumer, seq].first or 0
        mids = range(first + count * part // parts, first + count * (part + 1) // parts)
        if len(mids) > self._ledger.carries:
            raise _bad("ask for more parts")
        return [Delivery(mid, claim[mid], qid, 0, mid) for mid in mids if mid in claim]

    def ack_claim(self, qid: str, consumer: str, seq: int) -> None:
        self._called("ack_claim")
        if seq > self._ledger.last(consumer):
            raise Conflict(409, "conflict", "above what was claimed")
        for key in [key for key in self._ledger.claims if key[0] == consumer and key[1] <= seq]:
            del self._ledger.claims[key]
        self._ledger.acknowledged[consumer] = builtins.max(seq, self._ledger.acknowledged.get(consumer, 0))

    def release_claim(self, qid: str, consumer: str, seq: int) -> int:
        self._called("release_claim")
        messages = self._ledger.claims.pop((consumer, seq))
        self._ledger.ready.update(messages)
        return len(messages)

    def list_claims(self, qid: str) -> list[Claim]:
        self._called("list_claims")
        return [self._ledger.sums[key] for key in self._ledger.claims]

    def stage_messages(
        self, qid: str, producer: str, payloads: Iterable[bytes | str | Draft], *, batch: int, part: int, attempt: int
    ) -> int:
        drafts = [payload if isinstance(payload, Draft) else Draft(payload) for payload in payloads]
        entries = [draft.payload.encode() if isinstance(draft.payload, str) else draft.payload for draft in drafts]
        self._ledger.drafts += drafts
        self._ledger.staged.setdefault((producer, batch, part, attempt), []).extend(entries)
        self._called("stage_messages")  # an answer that is lost: it is stored, and the client does not know
        return len(entries)

    def publish_staged(self, qid: str, producer: str, batch: int, parts: Sequence[Part]) -> None:
        self._called("publish_staged")
        ledger = self._ledger
        last = ledger.published.get(producer, 0)
        if batch <= last:
            return
        if batch > max([last, *(key[1] for key in ledger.staged if key[0] == producer)]) + 1:
            raise Conflict(409, "conflict", "too far ahead")
        if not parts:
            return
        keys = [(producer, batch, part.number, part.attempt) for part in parts]
        if any(key not in ledger.staged for key in keys):
            raise NotFound(404, "not-found", "never staged")
        for key in keys:
            ledger.push(*ledger.staged[key])
        ledger.staged = {key: value for key, value in ledger.staged.items() if key[:1] != (producer,) or key[1] > batch}
        ledger.published[producer] = batch

    def send(self, request: ListMessages) -> None:
        self._request = request

    def recv(self) -> ListMessages:
        self._called("list_messages")
        request, after = self._request, self._request.after or 0
        mids = sorted(mid for mid in self._ledger.ready if mid > after)[: request.max]
        return ListMessages(request.qid, mids=mids)

"""A queue that keeps nothing, like dirq's QueueNull: for load tests, or to switch a queue off."""

from collections.abc import Sequence
from dataclasses import replace

from .engine import Draft, Headers, Message, NoSuchMessageError, Options, Receipt, State, Stats
from .names import MAX_MID
from .shared import DirectoryIdentity, EngineContext, EngineQueue


class NullQueue:
    """A queue that keeps nothing: what is pushed gets an id, and is counted. See EngineQueue.

    Ids are microseconds, and increase while the server runs; after a restart they may come again, as nothing records
    them."""

    claims: None = None
    batches: None = None
    redrive: None = None

    def __init__(self, path: str, qid: str, options: Options, context: EngineContext) -> None:
        self.path = path
        self.qid = qid
        self.options = options
        self.last_mid = -1
        self._context = context
        self.counts = Stats(storage=options.storage)
        self._identity = DirectoryIdentity(path, context.disk)

    def in_place(self) -> bool:
        return self._identity.in_place()

    def __len__(self) -> int:
        return 0

    def push(self, drafts: Sequence[Draft]) -> list[int]:
        """Counts messages and gives them ids. Ignores keys, as nothing is stored twice, and all other attributes."""
        return self.push_payloads([draft.payload for draft in drafts])

    def push_payloads(self, payloads: Sequence[bytes]) -> list[int]:
        first = min(max(self._context.clock(), self.last_mid + 1), MAX_MID - len(payloads))
        mids = list(range(first, first + len(payloads)))
        if mids:
            self.last_mid = mids[-1]
        self.counts.pushed += len(mids)
        return mids

    def take_in(self, mid: int, source: EngineQueue) -> bool:
        """Counts a copy, whatever the meaning of its id, and keeps nothing."""
        source.payload_of(mid)  # it has to be there
        self.counts.pushed += 1
        return True

    def _none(self, mid: int) -> NoSuchMessageError:
        return NoSuchMessageError(f"queue {self.qid!r} holds no message {mid}: its storage keeps none")

    def first_ready(self) -> int | None:
        return None

    @property
    def ready(self) -> int:
        return 0

    obtainable = ready

    def take(
        self, mid: int, visibility: int | None, max_bytes: int | None = None, *, held: bool = False
    ) -> Message | None:
        return None

    def take_first(self, count: int, visibility: int | None, max_bytes: int, *, held: bool = False) -> list[Message]:
        return []

    def get(self, mid: int, *, peek: bool, visibility: int | None) -> Message:
        raise self._none(mid)

    def read(self, receipt: Receipt) -> Message:
        raise self._none(receipt.mid)

    def payload_of(self, mid: int) -> bytes:
        raise self._none(mid)

    def headers_of(self, mid: int) -> Headers:
        raise self._none(mid)

    def priority_of(self, mid: int) -> int:
        return 0

    def delete(self, receipt: Receipt) -> None:
        raise self._none(receipt.mid)

    def release(
        self, receipt: Receipt, delay: int | None, *, count: bool = True, reason: str | None = None
    ) -> int | None:
        raise self._none(receipt.mid)

    def reject(self, receipt: Receipt, reason: str | None) -> None:
        raise self._none(receipt.mid)

    def extend(self, receipt: Receipt, visibility: int | None) -> int:
        raise self._none(receipt.mid)

    def remove(self, mid: int, expiry: int) -> bool:
        return False

    def list_mids(self, state: State, count: int, after: int) -> list[int]:
        return []

    def purge(self, upto: int, count: int) -> int:
        return 0

    def prepare_stats(self) -> bool:
        return False

    def stats(self) -> Stats:
        return replace(self.counts)

    def time(self, number: int) -> int:
        return number

    def next_expiry(self) -> int | None:
        return None

    def expire(self, count: int | None = None) -> int:
        return 0

    def retire(self, count: int) -> int:
        return 0

    def close(self) -> list[int]:
        return []

    def arrived(self) -> None: ...

    def obey_options(self) -> None: ...

    def commit(self) -> None: ...

    def dismantle(self) -> None: ...

    def note_removed(self) -> None: ...

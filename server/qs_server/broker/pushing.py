"""Merges the pushes of a batch, from many clients or from one that pipelines, into one push for each queue, in half the
time (scripts/bench/second_paths.py).

Pushes with lists, delays or keys, and those that fail here, are handled like any other request.
"""

from collections.abc import Sequence
from itertools import islice, repeat

from qs_schemas import PushMessage
from qs_storage.engine import Draft, Engine, StorageError

from .jobs import Work

_new = tuple.__new__
_ENOUGH = 3
"""Messages that must be exceeded for a merged push."""
_BYTES = 4 << 20
"""Bytes of payload after which no other client's messages are added to a merged push."""


def push_together(storage: Engine, works: Sequence[Work]) -> None:
    """Does the next pushes of each work, queue by queue, for queues that are faster with many at once."""
    runs: dict[str, list[tuple[Work, list[PushMessage]]]] = {}
    for work in works:
        pushes = work.pushes()
        if pushes:
            runs.setdefault(pushes[0].qid or "", []).append((work, pushes))
    for qid, found in runs.items():
        if len(found) + len(found[0][1]) > _ENOUGH:
            _push(storage, qid, found)


def _push(storage: Engine, qid: str, found: list[tuple[Work, list[PushMessage]]]) -> None:
    try:
        queue = storage.queue(qid)
    except (StorageError, OSError):
        return
    if not queue.merges_pushes:
        return
    drafts: list[Draft] = []
    size = taken = 0
    for _, pushes in found:
        if size > _BYTES:
            break
        payloads = [p if isinstance(p := push.payload, bytes) else (p or "").encode() for push in pushes]
        size += sum(map(len, payloads))
        drafts += map(_new, repeat(Draft), zip(payloads, repeat(0), repeat(None)))  # half the time of `Draft(…)`
        taken += 1
    try:
        mids = iter(queue.push(drafts))
    except (StorageError, OSError):
        return
    for work, pushes in found[:taken]:
        work.pushed(islice(mids, len(pushes)))
        work.early_commits = storage.early_commits

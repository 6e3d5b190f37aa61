"""A message while it is in the bus's hands, and how it is written for a subscriber."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from qs_schemas import GetMessage, serialize

if TYPE_CHECKING:
    from .feeds import Feed


@dataclass(slots=True, eq=False)
class Record:
    """waiting: those who have not handled it yet; handled: somebody has; keepers: those who wait for room to be sent
    it, and need the payload for that; done: nobody waits for it any more; doubtful: those of
    the waiting who got it, and of whom it is not sure that they were to get it."""

    feed: Feed
    mid: int
    receives: int | None
    pushed_at: int | None
    payload: bytes | None
    size: int
    waiting: int = 0
    handled: bool = False
    keepers: int = 0
    done: bool = False
    fetching: bool = False
    doubtful: int = 0

    @property
    def key(self) -> tuple[str, int]:
        """What a subscriber knows it by."""
        return self.feed.label, self.mid

    def document(self, req: str | None, early: bool) -> bytes:
        """The delivery to a subscription of that form, see there. For a record that has its payload."""
        return serialize(
            GetMessage(
                self.feed.label,
                self.mid,
                payload=self.payload,
                status="delivered",
                receives=self.receives,
                pushed_at=self.pushed_at,
                req=req,
                type="response",
            ),
            early,
        )

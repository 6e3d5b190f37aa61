"""What claims ask of a queue: to hide messages without an end, to read them, to delete them, or to show them again."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from .engine import Message


class Withholding(Protocol):
    """What is asked of a queue."""

    qid: str
    alone: bool
    """Whether no other server has the queue."""

    def is_there(self) -> bool:
        """Whether it has not been removed, nor its directory."""

    def catch_up(self) -> None:
        """Knows what others have done, and what is due is visible."""

    def ready_after(self, after: int, count: int) -> list[int]:
        """Visible messages with ids greater than after, in order, at most count."""

    def measure(self, mids: Sequence[int]) -> list[int | None]:
        """Bytes of messages, whose ids increase; None of one that is gone."""

    def hold_fast(self) -> None:
        """Everything that was done so far survives a power loss, if anything does. OSError: it was taken back."""

    def withhold(self, mids: Sequence[int], done: list[int]) -> None:
        """Hides visible messages without an end; done: gets those which are, also when OSError is raised. One is not
        when somebody was faster. Nothing is known of it on disk that a crash would keep, or it is put right by
        `withhold_again` and `give_up` after the next start."""

    def withhold_again(self, mid: int) -> bool:
        """At a start: hides a message of a claim, whatever its state seems to be. False when it is gone."""

    def withheld_of(self, mids: Sequence[int]) -> list[int]:
        """Those of these messages, whose ids increase, that are withheld."""

    def give_up(self, mid: int) -> None:
        """A withheld message is as visible as if it had never been hidden."""

    def hand_back(self, mid: int) -> None:
        """A withheld message has been received once more, and is visible; that stays so if the batch is taken back."""

    def read_all_withheld(self, mids: Sequence[int]) -> Iterator[Message]:
        """Messages, whose ids increase, as they are handed out, without those that are not withheld. To be taken all
        at once: nothing else may happen to the queue meanwhile."""

    def remove_withheld(self, mids: Sequence[int]) -> int:
        """Deletes messages, those that are withheld, the first ones first. How many of mids are done with, at least
        one: OSError when none could be."""

    def withheld(self) -> list[int]:
        """All that are, in order."""

    def note_claimed(self, mids: Sequence[int]) -> None:
        """They count as delivered."""

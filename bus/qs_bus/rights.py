"""What one client of the bus may do: the rights of its principal, and which durable names are its own."""

from collections.abc import Iterable
from typing import Protocol

from qs_schemas import errors as table
from qs_serving.access.principal import Principal, Right

from .refused import RefusedError


class Caller(Protocol):
    """Who the requests of a connection come from. May change at any time."""

    @property
    def principal(self) -> Principal | None:
        """The principal; None for a client that may do nothing but say who it is."""


class Rights:
    """What a client may do now. That changes when the client authenticates, and when the access file is read again."""

    __slots__ = ("_caller",)

    def __init__(self, caller: Caller | None) -> None:
        """caller: None if there is no access file. Then everybody may do everything."""
        self._caller = caller

    @property
    def owner(self) -> str | None:
        """The owner of the durable names that the client makes: its principal. None if it has none."""
        principal = None if self._caller is None else self._caller.principal
        return None if principal is None else principal.name

    def may_read(self, qid: str) -> bool:
        """Tells whether the client may get the messages of a queue."""
        return self._caller is None or (
            self._caller.principal is not None and self._caller.principal.may(Right.READ, qid)
        )

    def may_use(self, owner: str | None) -> bool:
        """Tells whether the client may use the durable names of an owner, as far as that is not a matter of the queue.
        A name without an owner belongs to everybody."""
        if self._caller is None or owner is None:
            return True
        principal = self._caller.principal
        return principal is not None and (principal.admin or principal.name == owner)

    def check(self) -> None:
        """Raises RefusedError if the client may do nothing but say who it is."""
        if self._caller is not None and self._caller.principal is None:
            raise self.refused("may do nothing else")

    def check_queues(self, right: Right, qids: Iterable[str]) -> None:
        """Raises RefusedError unless the client has a right to each of the queues, whether they exist or not."""
        principal = None if self._caller is None else self._caller.principal
        for qid in qids if self._caller is not None else ():
            if principal is None or not principal.may(right, qid):
                raise self.refused(f"may not {right.value} the queue {qid!r}")

    def refused(self, why: str) -> RefusedError:
        """Returns the error for a request that the client may not make. why: as in `may not read the queue 'q'`."""
        name = self.owner
        if name is None:
            text = f"a client that has not authenticated {why}: send authenticate with a token first"
            return RefusedError(table.UNAUTHORIZED, text)
        return RefusedError(table.FORBIDDEN, f"{name!r} {why}")

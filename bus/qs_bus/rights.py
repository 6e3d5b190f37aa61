"""Decides what one client of the bus may do: which queues it may read, and which durable names it may use. Makes the
errors that refuse the rest."""

from qs_schemas import ErrorCode, Message, errors
from qs_serving.access import caller as access
from qs_serving.access.access import Access
from qs_serving.access.principal import Right


class RefusedError(Exception):
    """Reports that a request is refused. error: the row of the error table; text: why, and what to do."""

    def __init__(self, error: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.error = error


class Rights:
    """Decides what a client may do now. Decisions change when the client authenticates, and when the access file is
    read again.

    Ensures that without an access file everybody may do everything. Callers must not remember an answer, but ask again
    before each action.
    """

    __slots__ = ("_caller",)

    def __init__(self, caller: access.Caller | None) -> None:
        """caller: the client's identity, None without an access file."""
        self._caller = caller

    @property
    def owner(self) -> str | None:
        """The owner of the durable names that the client makes: its principal, None for a client without one."""
        principal = None if self._caller is None else self._caller.principal
        return None if principal is None else principal.name

    def may_read(self, qid: str) -> bool:
        """Tells whether the client may get the messages of a queue."""
        # Not remembered: the caller uses the access file as it is now.
        return self._caller is None or self._caller.may(Right.READ, qid)

    def may_use(self, owner: str | None) -> bool:
        """Tells whether the client may use the durable names of an owner, on the queues that it may read. owner: None
        for the names that clients without a principal share."""
        if self._caller is None:
            return True
        principal = self._caller.principal
        return principal is not None and (principal.admin or principal.name == owner)

    def check(self, rights: access.Rights | None, request: Message) -> None:
        """Checks that the client may make a request, as `Caller.check` does. Raises NotAllowedError."""
        if self._caller is not None:
            self._caller.check(rights, request)

    def check_pattern(self, name: str) -> None:
        """Checks that the client may keep a pattern for a durable name on the server: one that may read no queue could
        only fill the server. Raises RefusedError."""
        principal = None if self._caller is None else self._caller.principal
        if self._caller is not None and (principal is None or not principal.may_somewhere(Right.READ)):
            text = f"the name {name!r} cannot have patterns: the client may read no queue"
            raise RefusedError(errors.UNAUTHORIZED if self.owner is None else errors.FORBIDDEN, text)

    def refused_name(self, qid: str | None, name: str) -> RefusedError:
        """Returns the error that ends the subscription of a client to a durable name that now belongs to another
        principal. qid: None for the name of a pattern."""
        of = "" if qid is None else f" of the queue {qid!r}"
        text = f"the name {name!r}{of} belongs to another principal: subscribe again to have your own"
        return RefusedError(errors.UNAUTHORIZED if self.owner is None else errors.FORBIDDEN, text)

    def refused_queue(self, qid: str) -> RefusedError:
        """Returns the error for a queue that the client may not read."""
        refusal = None if self._caller is None else self._caller.refusal_to_read([qid])
        return RefusedError(*refusal or (errors.FORBIDDEN, f"the queue {qid!r} may not be read"))


def may_read(access: Access | None, owner: str | None, qid: str) -> bool:
    """Tells whether the owner of a durable name may read a queue now, also while no client of the owner is there.
    access: None without an access file; owner: None for names that clients without a principal share."""
    if access is None:
        return True
    table = access.table
    principal = table.anonymous if owner is None else table.principals.get(owner)
    return principal is not None and principal.may(Right.READ, qid)

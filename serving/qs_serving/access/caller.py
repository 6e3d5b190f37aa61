"""Whose requests those of one connection are."""

from collections.abc import Iterable, Mapping
from enum import Enum

from qs_schemas import ErrorCode, Fault, Message
from qs_schemas import errors as table

from .access import Access
from .access_file import AccessTable
from .principal import Principal, Right
from .tokens import owner_of

Rights = Mapping[str, Right]
"""Field of a request that names queues -> the right that it needs to each of them."""
MONITOR: Rights = {"op": Right.MONITOR}
"""For a request that is about the server. The decision is the same whatever stands for the name of a queue."""
_MOST_WRONG = 10
"""Wrong tokens of one connection. The last one closes it."""
_FIRST = "authenticate with a token first"


class NotAllowedError(Exception):
    """A request is refused. error: row of the table of errors; the text says what is missing. delay: seconds after
    which the client is to be told."""

    def __init__(self, error: ErrorCode, text: str, delay: float = 0.0) -> None:
        super().__init__(text)
        self.error = error
        self.delay = delay


class _How(Enum):
    """The way in which a connection has said who it is."""

    NOT = "not at all"
    TOKEN = "by a token"  # noqa: S105 - not a token
    CERTIFICATE = "by a client certificate"
    WRONGLY = "by a wrong token"


class Caller:
    """One connection, and what it may do now: that changes when it authenticates, and when the access file is read
    again. One thread at a time changes it; the loop may ask meanwhile."""

    def __init__(self, access: Access, peer: str, certificate: Iterable[str] = ()) -> None:
        """peer: address of the client, for the log; certificate: the names in the client's certificate."""
        self._access = access
        self._peer = peer
        self._certificate = tuple(certificate)
        self._how = _How.CERTIFICATE if self._certificate else _How.NOT
        self._digest = b""
        self._wrong = 0
        self._found: tuple[AccessTable | None, Principal | None] = None, None
        """The principal by an access table. One object, so that another thread never sees one without the other."""

    @property
    def principal(self) -> Principal | None:
        """The client's principal, the anonymous one, or None if the client may only authenticate."""
        current, found = self._access.table, self._found
        if found[0] is not current:
            self._found = found = current, self._find(current)
        return found[1]

    @property
    def is_known(self) -> bool:
        """True if the client has said who it is, and the access file has that principal."""
        principal = self.principal
        return principal is not None and principal.name is not None

    @property
    def may_stay(self) -> bool:
        """True if the client may do more than authenticate: it is known, or [anonymous] gives it rights."""
        principal = self.principal
        return principal is not None and (principal.name is not None or principal.has_rights)

    def _find(self, current: AccessTable) -> Principal | None:
        if self._how is _How.TOKEN:
            return current.principals.get(current.tokens.get(self._digest, ""))
        if self._how is _How.CERTIFICATE:
            for listed, name in current.certificates.items():
                if listed in self._certificate:
                    return current.principals[name]
        return None if self._how is _How.WRONGLY else current.anonymous

    def authenticate(self, token: str) -> str:
        """Becomes the principal of a token, and returns its name. NotAllowedError: it is nobody from now on; the answer
        to that is to be given after the error's delay, and a 429 closes the connection."""
        found = owner_of(token, self._access.table.tokens)
        self._how = _How.WRONGLY if found is None else _How.TOKEN
        self._digest, name = found or (b"", "")
        self._found = None, None
        if found is not None:
            return name
        self._wrong += 1
        delay = self._access.failures.note(self._peer)
        if self._wrong >= _MOST_WRONG:
            raise NotAllowedError(table.TOO_MANY, f"{_MOST_WRONG} wrong tokens on one connection; it is closed", delay)
        raise NotAllowedError(table.UNAUTHORIZED, "the token is wrong: no principal of the access file has it", delay)

    def check(self, rights: Rights | None, request: Message | Fault) -> None:
        """Raises NotAllowedError unless the request is allowed. rights: None if everybody may make it, empty if every
        principal may."""
        if rights is None:
            return
        current, principal = self._found
        if current is not self._access.table:
            principal = self.principal
        if principal is None:
            raise self._refused()
        for field, right in rights.items():
            named = getattr(request, field)
            decisions = principal.decisions[right]
            for qid in (named,) if type(named) is str else named or ():
                if not decisions[qid]:
                    raise self._refused(right, f"the queue {qid!r}")

    @property
    def owner(self) -> str | None:
        """The name of the principal to whom everything belongs that the client names now; None for clients that have
        said nothing. NotAllowedError if it is nobody any more."""
        principal = self.principal
        if principal is None:
            raise self._refused()
        return principal.name

    @property
    def is_admin(self) -> bool:
        principal = self.principal
        return principal is not None and principal.admin

    def may(self, right: Right, qid: str) -> bool:
        """Returns whether it has a right to a queue now."""
        principal = self.principal
        return principal is not None and principal.may(right, qid)

    def may_see(self, qid: str) -> bool:
        """Returns whether it may know that a queue exists."""
        principal = self.principal
        return principal is not None and principal.may_see(qid)

    def check_origins(self, qids: Iterable[str]) -> None:
        """Raises NotAllowedError unless it may write to these queues, which dead letters came from. The request did not
        name them, so the error names none of which it may not know that it exists."""
        for qid in qids:
            if not self.may(Right.WRITE, qid):
                known = f"the queue {qid!r}" if self.may_see(qid) else "a queue"
                raise self._refused(Right.WRITE, f"{known} that one of the dead letters came from")

    def refusal_to_read(self, qids: Iterable[str]) -> tuple[ErrorCode, str] | None:
        """Returns why it may not read all of the queues, None if it may."""
        for qid in qids:
            if not self.may(Right.READ, qid):
                error = self._refused(Right.READ, f"the queue {qid!r}")
                return error.error, str(error)
        return None

    def _refused(self, right: Right = Right.READ, to: str = "") -> NotAllowedError:
        """Returns the error for a right that is missing. to: says what the right would be for. One that may do nothing
        is not told which."""
        principal, what = self.principal, f"may not {right.value} {to}"
        if right is Right.MONITOR:
            what = "may not monitor the server"
        if principal is None or principal.name is None:
            advice = _FIRST
            if self._how is _How.CERTIFICATE:
                advice = f"no principal has a name of your certificate ({', '.join(map(repr, self._certificate))})"
            text = advice if principal is None else f"a client that has not authenticated {what}: {advice}"
            return NotAllowedError(table.UNAUTHORIZED, text)
        return NotAllowedError(table.FORBIDDEN, f"the principal {principal.name!r} {what}")

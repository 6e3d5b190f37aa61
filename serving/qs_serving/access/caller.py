"""Decides who the client of one connection is, and checks its requests.

A token is 32 random bytes as text. Only the SHA-256 of a token is kept, in the access file and in memory: nobody can
authenticate with the hash. A plain hash is enough, since nobody guesses 32 random bytes.
"""

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from enum import Enum

from qs_schemas import ErrorCode, Fault, Message, errors
from qs_schemas.limits import TOKEN

from .access import Access, AccessTable
from .principal import Principal, Right

Rights = Mapping[str, Right]
"""Field of a request that names queues -> the right that it needs to each of them."""
MONITOR: Rights = {"op": Right.MONITOR}
"""The rights for a request that is about the server. The decision is the same for every name of a queue."""
_MOST_WRONG = 10
"""Wrong tokens of one connection. The last one closes it."""
_FIRST = "authenticate with a token first"


def digest(token: str) -> bytes:
    """Returns the SHA-256 of a token's UTF-8 bytes."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def owner_of(token: str, known: Mapping[bytes, str]) -> tuple[bytes, str] | None:
    """Returns the digest of a token and the name of its owner, None if nobody has this token. known: digest ->
    owner."""
    # Takes the same time whatever is wrong with the token: every digest is compared, and each comparison reads the
    # whole digest. The time of a look-up in the dict would tell how much of a digest is right.
    own = digest(token if 0 < len(token) <= TOKEN else "")
    found = None
    for each, name in known.items():
        if hmac.compare_digest(own, each):
            found = each, name
    return found if 0 < len(token) <= TOKEN else None


class NotAllowedError(Exception):
    """Reports that a request is refused. The text says which right is missing. error: the row of the table of errors;
    delay: the seconds to wait before the client is told."""

    def __init__(self, error: ErrorCode, text: str, delay: float = 0.0) -> None:
        super().__init__(text)
        self.error = error
        self.delay = delay


class _Credential(Enum):
    """Names the credential that the client has given last."""

    NONE = "not at all"
    TOKEN = "by a token"  # noqa: S105 - not a token
    CERTIFICATE = "by a client certificate"
    REFUSED = "by a wrong token"


class Caller:
    """Decides what the client of one connection may do.

    1. A decision follows the access file as it was read last, and the last `authenticate`: a right that is taken away
       is gone with the next request, also on an open connection.
    2. A wrong token makes the client lose its principal.
    3. An error never names a queue that the client may not know of, and tells a client that may do nothing only how to
       authenticate.

    One thread at a time changes a Caller. The loop may ask for decisions meanwhile.
    """

    def __init__(self, access: Access, peer: str, certificate: Iterable[str] = ()) -> None:
        """peer: the client's address, for the log; certificate: the names in the client's certificate."""
        self._access = access
        self._peer = peer
        self._certificate = tuple(certificate)
        self._credential = _Credential.CERTIFICATE if self._certificate else _Credential.NONE
        self._digest = b""
        self._wrong = 0
        self._found: tuple[AccessTable | None, Principal | None] = None, None
        """The principal, and the access table in which it was found. They are one object, so that another thread never
        sees one without the other."""

    @property
    def principal(self) -> Principal | None:
        """The client's principal, the anonymous one, or None if the client may only authenticate."""
        current, found = self._access.table, self._found
        if found[0] is not current:
            self._found = found = current, self._find(current)
        return found[1]

    @property
    def is_known(self) -> bool:
        """True if the client has given a valid credential of a principal that the access file has."""
        principal = self.principal
        return principal is not None and principal.name is not None

    @property
    def may_stay(self) -> bool:
        """True if the client may do more than authenticate: the client is known, or [anonymous] gives it rights."""
        principal = self.principal
        return principal is not None and (principal.name is not None or principal.has_rights)

    def _find(self, current: AccessTable) -> Principal | None:
        if self._credential is _Credential.TOKEN:
            return current.principals.get(current.tokens.get(self._digest, ""))
        if self._credential is _Credential.CERTIFICATE:
            for listed, name in current.certificates.items():
                if listed in self._certificate:
                    return current.principals[name]
        return None if self._credential is _Credential.REFUSED else current.anonymous

    def authenticate(self, token: str) -> str:
        """Makes the client the principal of a token, and returns its name. Raises NotAllowedError if the token is
        wrong; the client has no principal then. The caller sends the error after its delay, and a 429 closes the
        connection."""
        found = owner_of(token, self._access.table.tokens)
        self._credential = _Credential.REFUSED if found is None else _Credential.TOKEN
        self._digest, name = found or (b"", "")
        self._found = None, None  # forgets the principal of before
        if found is not None:
            return name
        self._wrong += 1
        delay = self._access.failures.note(self._peer)
        if self._wrong >= _MOST_WRONG:
            raise NotAllowedError(errors.TOO_MANY, f"{_MOST_WRONG} wrong tokens on one connection; it is closed", delay)
        raise NotAllowedError(errors.UNAUTHORIZED, "the token is wrong: no principal of the access file has it", delay)

    def check(self, rights: Rights | None, request: Message | Fault) -> None:
        """Checks that the client may make a request. rights: the rights that the request needs; None if everybody may
        make it, empty if every principal may. Raises NotAllowedError."""
        if rights is None:
            return
        # Each request comes here: the property is called only after the file has been read again, and a remembered
        # decision is a look-up in a dict.
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
        """The name of the principal that owns the keys, consumers and producers which the client names; None for
        clients that have given no credential. Raises NotAllowedError if the client's principal is not in the access
        file any more."""
        principal = self.principal
        if principal is None:
            raise self._refused()
        return principal.name

    @property
    def is_admin(self) -> bool:
        principal = self.principal
        return principal is not None and principal.admin

    def may(self, right: Right, qid: str) -> bool:
        """Tells whether the client now has a right to a queue."""
        principal = self.principal
        return principal is not None and principal.may(right, qid)

    def may_see(self, qid: str) -> bool:
        """Tells whether the client may know that a queue exists."""
        principal = self.principal
        return principal is not None and principal.may_see(qid)

    def check_origins(self, qids: Iterable[str]) -> None:
        """Checks that the client may write to queues that dead letters came from. The request did not name these
        queues, so the error names only a queue that the client may know of. Raises NotAllowedError."""
        for qid in qids:
            if not self.may(Right.WRITE, qid):
                known = f"the queue {qid!r}" if self.may_see(qid) else "a queue"
                raise self._refused(Right.WRITE, f"{known} that one of the dead letters came from")

    def refusal_to_read(self, qids: Iterable[str]) -> tuple[ErrorCode, str] | None:
        """Returns the error for the first of the queues that the client may not read, None if the client may read
        all."""
        for qid in qids:
            if not self.may(Right.READ, qid):
                error = self._refused(Right.READ, f"the queue {qid!r}")
                return error.error, str(error)
        return None

    def _refused(self, right: Right = Right.READ, to: str = "") -> NotAllowedError:
        """Returns the error for a right that is missing. to: words for the thing that the right is for."""
        principal, what = self.principal, f"may not {right.value} {to}"
        if right is Right.MONITOR:
            what = "may not monitor the server"
        if principal is None or principal.name is None:
            advice = _FIRST
            if self._credential is _Credential.CERTIFICATE:
                advice = f"no principal has a name of your certificate ({', '.join(map(repr, self._certificate))})"
            text = advice if principal is None else f"a client that has not authenticated {what}: {advice}"
            return NotAllowedError(errors.UNAUTHORIZED, text)
        return NotAllowedError(errors.FORBIDDEN, f"the principal {principal.name!r} {what}")

"""Statements that are sent together, and whose answers are read together: libpq's pipeline mode, without psycopg's.

psycopg's own pipeline sends each statement at once, and waits for the socket before each: a system call that wakes the
database's process, and some 40 microseconds of Python, for each of the five statements that a transaction has. Here a
round trip is one system call, and a transaction costs a third of the processor time.
"""

import re
import select
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, count
from struct import pack
from typing import TYPE_CHECKING, Any, LiteralString, NamedTuple

from psycopg import Connection as PsycopgConnection
from psycopg import OperationalError
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus, Format

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult


Row = tuple[Any, ...]
Connection = PsycopgConnection[Row]
Packer = Callable[[Any], bytes]
_PARAMETER = re.compile(r"%b::([a-z0-9]+(?:\[\])?)")
_FAILED = (ExecStatus.FATAL_ERROR, ExecStatus.PIPELINE_ABORTED)
_NULL = pack(">i", -1)


class _Kind(NamedTuple):
    """A type of the database. oid: its number there; letter, size: of its values in `struct`; packs: makes a value's
    bytes, where struct does not."""

    oid: int
    letter: str = ""
    size: int = 0
    packs: Packer | None = None

    def one(self) -> Packer:
        """Returns what packs one value."""
        if self.packs is not None:
            return self.packs
        format_ = ">" + self.letter
        return lambda value: pack(format_, value)

    def many(self) -> Packer:
        """Returns what packs an array of values, None for NULL."""
        oid, size, item, one = self.oid, self.size, "i" + self.letter, self.one()

        def dump(values: Sequence[Any]) -> bytes:
            if not values:
                return pack(">iii", 0, 0, oid)
            has_null = None in values
            header = pack(">iiiii", 1, has_null, oid, len(values), 1)
            if size and not has_null:
                pairs = chain.from_iterable([(size, value) for value in values])
                return header + pack(">" + item * len(values), *pairs)
            parts = [header]
            for value in values:
                if value is None:
                    parts.append(_NULL)
                else:
                    packed = one(value)
                    parts += (pack(">i", len(packed)), packed)
            return b"".join(parts)

        return dump


_KINDS = {
    "smallint": _Kind(21, "h", 2),
    "int": _Kind(23, "i", 4),
    "bigint": _Kind(20, "q", 8),
    "boolean": _Kind(16, "?", 1),
    "text": _Kind(25, packs=str.encode),
    "bytea": _Kind(17, packs=bytes),
    "jsonb": _Kind(3802, packs=lambda value: b"\x01" + value.encode()),
}
_PACKERS = {
    **{name: kind.one() for name, kind in _KINDS.items()},
    **{f"{name}[]": kind.many() for name, kind in _KINDS.items()},
}
"""By the name of a type: what makes the bytes of a parameter. A jsonb is given as text."""


class _Statement:
    """A statement as the database has it prepared."""

    def __init__(self, text: str, number: int) -> None:
        """text: with `%b::TYPE` for each parameter. ValueError for a parameter without a type."""
        kinds = _PARAMETER.findall(text)
        if len(kinds) != text.count("%"):
            raise ValueError(f"each parameter of a statement needs its type: {text}")
        numbers = iter(range(1, len(kinds) + 1))
        self.name = b"qs%d" % number
        self.text = re.sub("%b", lambda _: f"${next(numbers)}", text).encode()
        self.packers = [_PACKERS[kind] for kind in kinds]
        self.formats = [Format.BINARY] * len(kinds)


class Answer:
    """What a statement will return. Reading it sends what has been asked, and waits."""

    __slots__ = ("_pipeline", "result")

    def __init__(self, pipeline: "Pipeline") -> None:
        self._pipeline = pipeline
        self.result: PGresult | None = None

    def fetchall(self) -> list[Row]:
        """Returns the rows. psycopg.Error, of this statement or of one before it."""
        if self.result is None:
            self._pipeline.read()
        return self._pipeline.rows(self.result)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.fetchall())

    @property
    def status(self) -> str:
        """The command that the database says to have done."""
        if self.result is None:
            self._pipeline.read()
        said = self.result.command_status if self.result is not None else None
        return (said or b"").decode()


class Pipeline:
    """The statements of one connection, between `begin` and `end`. For one thread at a time.

    Ensures that psycopg can use the connection after `end`, if it is not broken. Assumes that nobody else uses it
    before. Statements are prepared once for a connection. Parameters are sent in their binary form, by the types that
    stand in the statement: psycopg would choose types by the values, and prepare one statement anew for each size of
    number."""

    def __init__(self, connection: Connection, heard: Callable[[], object] = lambda: None) -> None:
        """heard: called when the database has answered."""
        self._heard = heard
        self._libpq = connection.pgconn
        self._transformer = Transformer(connection)
        self._statements: dict[str, _Statement] = {}
        self._numbers = count()
        self._asked: list[tuple[_Statement, Answer | None]] = []
        """Statements without an answer yet; with None, those that are being prepared."""
        self._poll = select.poll()
        self._socket = -1

    def begin(self) -> None:
        """Begins. psycopg.Error."""
        self._socket = self._libpq.socket
        self._poll.register(self._socket, select.POLLIN)
        self._libpq.enter_pipeline_mode()

    def ask(self, statement: LiteralString, given: Sequence[Any] = ()) -> Answer:
        """Adds a statement to those that are sent next. psycopg.Error."""
        known = self._statements.get(statement)
        if known is None:
            known = self._statements[statement] = _Statement(statement, next(self._numbers))
            self._libpq.send_prepare(known.name, known.text)
            self._asked.append((known, None))
        values = [None if value is None else packs(value) for packs, value in zip(known.packers, given, strict=True)]
        self._libpq.send_query_prepared(known.name, values, known.formats, Format.BINARY)
        answer = Answer(self)
        self._asked.append((known, answer))
        return answer

    def read(self) -> None:
        """Sends what was asked, and waits for all answers. Raises the first error of a statement, as psycopg.Error."""
        if not self._asked:
            return
        asked, self._asked = self._asked, []
        self._libpq.pipeline_sync()
        self._send()
        failed: PGresult | None = None
        for statement, answer in asked:
            result = self._result()
            if result is not None and result.status in _FAILED:
                failed = failed or result
                if answer is None:  # it is not prepared, and its name is not used again
                    self._statements = {text: one for text, one in self._statements.items() if one is not statement}
            if answer is not None:
                answer.result = result
            while result is not None:
                result = self._result()
        self._result()  # the end of this round trip
        self._heard()
        if failed is not None:
            raise error_from_result(failed)

    def _send(self) -> None:
        while self._libpq.flush():
            # It is more than the socket takes. The database may send answers before it reads on.
            self._poll.modify(self._socket, select.POLLIN | select.POLLOUT)
            if any(events & select.POLLIN for _, events in self._poll.poll()):
                self._libpq.consume_input()
            self._poll.modify(self._socket, select.POLLIN)

    def _result(self) -> "PGresult | None":
        """Returns the next result, None at the end of those of a statement. Other threads run while this one waits."""
        while self._libpq.is_busy():
            self._poll.poll()
            self._libpq.consume_input()
        return self._libpq.get_result()

    def rows(self, result: "PGresult | None") -> list[Row]:
        """Returns the rows of a result. psycopg.Error for an error."""
        if result is None:
            raise OperationalError("the database has not answered")
        if result.status in _FAILED:
            raise error_from_result(result)
        if not result.ntuples:
            return []
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, result.ntuples, tuple)

    def end(self) -> None:
        """Ends. Waits for answers that nobody has read. psycopg.Error: an error in these, or a broken connection."""
        try:
            self.read()
        finally:
            self._poll.unregister(self._socket)
            if self._libpq.status == ConnStatus.OK:  # of a broken one nothing is used any more
                self._libpq.exit_pipeline_mode()

"""Checks the payloads that come into queues with a schema.

The handlers of all operations that bring payloads call `checked`, with the options that the queue has at that moment. A
small payload is checked at once, and a large one, or one of a schema that may take long, by a process of its own while
the requests of others run.
"""

import logging
import threading
from collections.abc import Callable, Generator, Sequence
from functools import partial

from qs_payloads import Checker, NoSuchSchemaError, PayloadFault, PayloadSchema, Schemas, UncheckedError
from qs_storage.disk import reason_of
from qs_storage.engine import Options, StorageError, UnavailableError

from ..broker.jobs import Call, Pause

_logger = logging.getLogger(__name__)
_EACH = 100
"""Bytes for which a payload counts beside its own: the smallest one takes some 8 us to check."""
Found = tuple[int, PayloadFault] | None
"""The first payload that is not valid, by its place, and why; None if all are valid."""


class InvalidPayloadError(StorageError):
    """Reports a payload that is not valid by the schema of the queue that it was to come into."""


class Door:
    """Lets payloads into queues with a schema if they are valid, and counts those that are refused.

    Ensures that nothing is let in unchecked: while a schema cannot be had, its queues take nothing. Any thread may use
    it. Never holds up its caller for more than a millisecond or so, except in `refusal`."""

    def __init__(self, schemas: Schemas | None = None, checker: Checker | None = None) -> None:
        """schemas: None for a server without a directory of schemas; checker: given with schemas."""
        self._schemas = schemas
        self._checker = checker
        self._reading = threading.Lock()
        self.refused: dict[str, int] = {}
        """By queue: the requests, and the files of its directory, that were refused since the start."""

    def fault_in_name(self, name: str) -> str | None:
        """Returns why a queue cannot get this schema, None if it can."""
        if self._schemas is None:
            return "this server has no schemas: start it with --schemas DIR, the directory of their files"
        try:
            self._schemas.get(name)
        except NoSuchSchemaError as error:
            return str(error)
        return None

    def _schema(self, qid: str, name: str) -> PayloadSchema:
        try:
            if self._schemas is not None:
                return self._schemas.get(name)
            why = "this server was started without --schemas"
        except NoSuchSchemaError as error:
            why = str(error)
        raise UnavailableError(f"queue {qid!r} takes nothing while its schema {name!r} cannot be had: {why}")

    def quick_check(self, qid: str, name: str) -> Callable[[bytes], bool]:
        """Returns a function that says of a payload whether it is valid, and can be found so at once. The function
        counts nothing. UnavailableError."""
        schema = self._schema(qid, name)

        def is_valid(payload: bytes) -> bool:
            try:
                return schema.is_quick(len(payload)) and schema.fault(payload) is None
            except Exception:  # a fault of a library must not end the batch: the request itself will tell it
                return False

        return is_valid

    def is_quick(self, qid: str, name: str, size: int, count: int) -> bool:
        """Tells whether so many payloads of so many bytes together can be checked at once. UnavailableError."""
        return _is_quick(self._schema(qid, name), size, count)

    def checked(
        self, qid: str, options: Callable[[], Options], payloads: Sequence[bytes]
    ) -> Generator[Pause, object, None]:
        """Checks payloads that are to come into a queue. Pauses while a process checks what may take long. options:
        returns those that the queue has now: its schema may change during a pause, and then that one decides.
        InvalidPayloadError, UnavailableError."""
        checked = ""
        while (name := options().schema) != checked and name:
            schema = self._schema(qid, name)
            if _is_quick(schema, sum(map(len, payloads)), len(payloads)):
                found = _first_fault(schema, payloads)
            else:
                call: Call[Found] = Call(partial(self._check_for, qid, schema, payloads))
                yield Pause(call=call)
                found = call.result()
            self._refuse(qid, name, len(payloads), found)
            checked = name

    def check_now(self, qid: str, options: Options, payloads: Sequence[bytes]) -> None:
        """Checks payloads for which `is_quick` is true. InvalidPayloadError, UnavailableError."""
        found = _first_fault(self._schema(qid, options.schema), payloads)
        self._refuse(qid, options.schema, len(payloads), found)

    def refusal(self, qid: str, options: Options, payload: bytes) -> str | None:
        """Returns why a payload that somebody has put into a queue's directory must not come in, None if it may. May
        take some seconds. UnavailableError."""
        schema = self._schema(qid, options.schema)
        quick = _is_quick(schema, len(payload), 1)
        found = _first_fault(schema, [payload]) if quick else self._check(schema, [payload])
        if found is None:
            return None
        self._count(qid)
        return f"the schema {options.schema!r} refuses it: {found[1]}"

    def _check(self, schema: PayloadSchema, payloads: Sequence[bytes], stop: threading.Event | None = None) -> Found:
        assert self._checker is not None  # noqa: S101 - given with the schemas
        return self._checker.check(schema, payloads, stop)

    def _check_for(self, qid: str, schema: PayloadSchema, payloads: Sequence[bytes], stop: threading.Event) -> Found:
        """Checks what a client waits for. UnavailableError, also for an error of the system, which would be taken for
        one of the disk."""
        try:
            return self._check(schema, payloads, stop)
        except UncheckedError:  # the server stops, or the client has gone
            raise UnavailableError(f"nothing was stored in queue {qid!r}: the check was given up") from None
        except OSError as error:
            why = f"no process can be started that checks payloads by the schema {schema.name!r}: {reason_of(error)}"
            _logger.error("queue %r: %s", qid, why)
            raise UnavailableError(f"nothing was stored in queue {qid!r}, as {why}; try again later") from None

    def _refuse(self, qid: str, name: str, count: int, found: Found) -> None:
        if found is not None:
            self._count(qid)
            at, fault = found
            which = "the payload" if count == 1 else f"message {at + 1} of {count}"
            raise InvalidPayloadError(f"{which} is not valid by the schema {name!r} of queue {qid!r}: {fault}")

    def _count(self, qid: str) -> None:
        self.refused[qid] = self.refused.get(qid, 0) + 1

    def read_again(self) -> None:
        """Reads the schemas again, which may take as long as they take to compile: not for the loop. A file that cannot
        be used is named in the log, and what was read of it before still holds."""
        schemas = self._schemas
        if schemas is None:
            return
        with self._reading:  # one after the other, so that the last SIGHUP sees the last files
            try:
                faults = schemas.reload()
            except OSError as error:
                faults = [f"the directory of the schemas cannot be read, and the schemas stay: {error}"]
            for fault in faults:
                _logger.error("%s", fault)
            _logger.info("schemas: %s", ", ".join(schemas.names) or "none")

    def close(self) -> None:
        if self._checker is not None:
            self._checker.close()


def _is_quick(schema: PayloadSchema, size: int, count: int) -> bool:
    return schema.is_quick(size + _EACH * count)


def _first_fault(schema: PayloadSchema, payloads: Sequence[bytes]) -> Found:
    for at, payload in enumerate(payloads):
        if (fault := schema.fault(payload)) is not None:
            return at, fault
    return None

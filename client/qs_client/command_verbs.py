"""The subcommands of `qs`: each is a function (client, arguments, output) that returns the exit code.

Those of queues are in `command_queues`, those that look at messages in `command_look`. `tail` has no client, but the
security of one of a bus; `new_token` needs neither."""

import contextlib
import itertools
import os
import sys
import time
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from qs_schemas import Delivery, Draft

from .batches import drafts_in_batches
from .client import QueueClient
from .command_labels import Labels
from .command_labels import read as labels_in_file
from .command_look import list_messages
from .command_output import INCOMPLETE, NOTHING, OK, Output, complain
from .errors import Invalid, NotFound, ServerError, Stale
from .place import endpoint
from .security import Security

_AT_ONCE = 100  # messages received at a time: if the command is killed, they stay hidden until their window ends
_PIECE = 1024 * 1024  # bytes of a read
_TIMEOUT = 30.0  # seconds for a connection to a bus
_NO_LABELS = Labels({})
_OF_BUS = "bus:"  # prefix of the queues in which a bus keeps its own data
_COUNTS = ("new", "ready", "in_flight", "delayed")
_LISTED = (*_COUNTS, "dead", "subscribers", "waiting", "paused")
_FIGURES = (
    *_COUNTS, "bytes", "oldest", "pushed", "delivered", "expired", "deleted", "dead", "retired", "paused",
    "subscribers", "waiting", "refused", "schema", "idle", "storage",
)  # fmt: skip


# -- push -------------------------------------------------------------------------------------------------------------


def push(client: QueueClient, arguments: Namespace, out: Output) -> int:
    """Pushes each argument, each file, or else stdin as one message; with --lines each line of files or stdin. With
    --key there is one message, which the client pushes again if no answer comes."""
    if arguments.create:
        client.new_queue(arguments.queue, exist_ok=True)
    for inputs in _groups(arguments):
        sources: deque[str] = deque()
        for batch in drafts_in_batches(_noted(inputs, sources)):
            for mid in _stored(client, arguments, batch, [sources.popleft() for _ in batch]):
                out.line(str(mid), {"qid": arguments.queue, "mid": mid})
            out.flush()  # the reader learns at once what is stored
    return OK


_Inputs: TypeAlias = Iterable[tuple[str, Draft]]
"""Messages to push, each with the name of the input that it comes from."""


def _noted(inputs: _Inputs, sources: deque[str]) -> Iterator[Draft]:
    """Yields the messages, and adds the names of their inputs to `sources`."""
    for source, draft in inputs:
        sources.append(source)
        yield draft


def _stored(client: QueueClient, arguments: Namespace, batch: list[Draft], sources: list[str]) -> Iterable[int]:
    """Pushes messages and yields their ids. If the queue's schema does not allow one of them, those before it are
    stored, and the error names its input."""
    if len(batch) > 1:
        try:
            yield from client.push_many(arguments.queue, batch)
            return
        except Invalid:  # a list is stored whole or not at all: one by one it shows which message is meant
            pass
    for source, draft in zip(sources, batch, strict=True):
        try:
            mid = client.push(
                arguments.queue,
                draft.payload,
                delay=draft.delay,
                key=arguments.key,
                unique=arguments.unique,
                priority=draft.priority,
                expires=draft.expires,
                group=draft.group,
                headers=draft.headers,
            )
        except Invalid as error:
            raise Invalid(error.code, error.type, f"{source}: {error.text}", error.resp) from None
        yield mid


def _groups(arguments: Namespace) -> Iterator[_Inputs]:
    """Yields the messages in groups of what is available: it does not wait for slow input to fill a batch."""
    # The bytes that the shell gave, also if they are no UTF-8.
    payloads = enumerate(arguments.payload, 1)
    yield [(f"payload {number}", _draft(arguments, os.fsencode(payload))) for number, payload in payloads]
    files = arguments.file or ([] if arguments.payload else ["-"])
    if arguments.lines:
        for name in files:
            numbers = itertools.count(1)
            for lines in _lines(name):
                yield [(f"{_input(name)}, line {next(numbers)}", _draft(arguments, line)) for line in lines]
    else:
        yield (
            (_input(name), _draft(arguments, _content(name, allow_empty=arguments.allow_empty), labels_in_file(name)))
            for name in files
        )


def _input(name: str) -> str:
    return "standard input" if name == "-" else name


def _draft(arguments: Namespace, payload: bytes, kept: Labels = _NO_LABELS) -> Draft:
    """Returns a message to push. kept: what `qs export` has kept with its file; what the arguments say goes first."""
    given = dict(arguments.header)
    names = {name.lower() for name in given}
    return Draft(
        payload,
        delay=arguments.delay,
        priority=kept.priority if arguments.priority is None else arguments.priority,
        expires=arguments.expires,
        group=arguments.group or kept.group,
        headers={**{name: text for name, text in kept.headers.items() if name.lower() not in names}, **given},
    )


@contextlib.contextmanager
def _descriptor(name: str) -> Iterator[int]:
    if name == "-":
        if sys.stdin is None:
            raise OSError("standard input is closed: give the payload, name a file, or redirect it")
        if sys.stdin.isatty():
            complain("reading from the terminal: end the input with Ctrl-D on a line of its own")
        yield sys.stdin.fileno()
        return
    with open(name, "rb") as file:
        yield file.fileno()


def _content(name: str, *, allow_empty: bool) -> bytes:
    """Reads a file, or stdin. Raises ValueError for an empty one: a failed command before a pipe looks the same."""
    with _descriptor(name) as descriptor:
        content = b"".join(iter(lambda: os.read(descriptor, _PIECE), b""))
    if not content and not allow_empty:
        raise ValueError(
            f"{_input(name)} is empty: nothing was pushed for it (--allow-empty pushes a message without content)"
        )
    return content


def _lines(name: str) -> Iterator[list[bytes]]:
    """Yields complete lines without their ends: the lines of one read at a time."""
    # By os.read: a file object would wait until its buffer is full, and a line of slow input would be pushed late.
    with _descriptor(name) as descriptor:
        incomplete: list[bytes] = []
        while piece := os.read(descriptor, _PIECE):
            *whole, rest = piece.split(b"\n")
            if whole:
                whole[0] = b"".join([*incomplete, whole[0]])
                incomplete.clear()
                yield whole
            if rest:
                incomplete.append(rest)
        if incomplete:
            yield [b"".join(incomplete)]


# -- receive and what comes after -------------------------------------------------------------------------------------


def receive(client: QueueClient, arguments: Namespace, out: Output) -> int:
    """Prints up to --max messages. --wait applies to the first one."""
    remaining, wait = arguments.max, arguments.wait
    while remaining:
        most = min(remaining, _AT_ONCE)
        deliveries = client.receive(arguments.queues, most, wait, arguments.visibility, arguments.order)
        if not deliveries:
            break
        _hand_out(client, deliveries, arguments, out)
        remaining -= len(deliveries)
        wait = 0
    return NOTHING if remaining == arguments.max else OK


def _hand_out(client: QueueClient, deliveries: list[Delivery], arguments: Namespace, out: Output) -> None:
    try:
        for delivery in deliveries:
            out.message(delivery, heading=arguments.verbose, headers=arguments.headers)
        out.flush()
    except BaseException:  # not printed (reader gone, disk full, Ctrl-C): leave them to others
        with contextlib.suppress(ServerError, OSError):
            for delivery in deliveries:
                client.release(delivery)
        raise
    if arguments.delete:
        missing = len(deliveries) - len(client.delete_many(deliveries))
        if missing:
            complain(f"{missing} of these messages had been received by another consumer before they could be deleted")


def delete(client: QueueClient, arguments: Namespace, out: Output) -> int:
    """Deletes messages, and reports messages that do not exist."""
    deleted = set(client.delete_many(arguments.queue, arguments.mids))
    for mid in arguments.mids:
        if mid in deleted:
            out.line(None, {"qid": arguments.queue, "mid": mid})
        else:
            complain(f"no message {mid} in {arguments.queue!r}")
    return OK if deleted.issuperset(arguments.mids) else INCOMPLETE


def release(client: QueueClient, arguments: Namespace, out: Output) -> int:
    """Releases messages, and reports messages that are not in flight or do not exist."""
    given = {"delay": arguments.delay, "count": not arguments.no_count, "reason": arguments.reason}
    return _settle_each(client.release, arguments, given, out)


def reject(client: QueueClient, arguments: Namespace, out: Output) -> int:
    """Makes messages dead letters, and reports messages that are in a claim or do not exist."""
    return _settle_each(client.reject, arguments, {"reason": arguments.reason}, out)


def _settle_each(call: Callable[..., None], arguments: Namespace, given: dict[str, Any], out: Output) -> int:
    code = OK
    for mid in arguments.mids:
        try:
            call(arguments.queue, mid, **given)
        except (NotFound, Stale) as error:
            if str(mid) not in error.text:  # it is the queue that does not exist
                raise
            complain(error.text)
            code = INCOMPLETE
        else:
            out.line(None, {"qid": arguments.queue, "mid": mid})
    return code


# -- queues -----------------------------------------------------------------------------------------------------------


def ls(client: QueueClient, arguments: Namespace, out: Output) -> int:
    """Lists the queues, without --all except for those of a bus; or lists messages: of one queue, or with --state of
    all queues."""
    if arguments.queue is not None:
        return list_messages(client, arguments, out, [arguments.queue])
    if arguments.state is not None:
        return list_messages(client, arguments, out, [qid for qid in client.queues() if _shown(qid, arguments)])
    if arguments.long:
        out.queues((queue for queue in client.stats() if _shown(queue.qid, arguments)), _LISTED)
    else:
        for qid in filter(lambda qid: _shown(qid, arguments), client.queues()):
            out.line(qid, {"qid": qid})
    return OK


def _shown(qid: str, arguments: Namespace) -> bool:
    return arguments.all or not qid.startswith(_OF_BUS)


def stats(client: QueueClient, arguments: Namespace, out: Output) -> int:
    """Prints all figures of one queue or of all, and why nothing comes out of those that give nothing."""
    out.queues(client.stats(arguments.queue), _FIGURES)
    return OK


def figures(client: QueueClient, arguments: Namespace, out: Output) -> int:
    """Prints the figures of the server, one a line."""
    found = NOTHING
    for figure in client.server_stats(connections=arguments.connections):
        if not arguments.names or any(fnmatchcase(figure.name, name) for name in arguments.names):
            labels = ",".join(f'{label}="{value}"' for label, value in figure.labels.items())
            shown = f"{figure.name}{{{labels}}}" if labels else figure.name
            out.line(f"{shown} {figure.value}", asdict(figure))
            found = OK
    return found


def ping(client: QueueClient, arguments: Namespace, out: Output) -> int:
    """Checks that the server answers, and prints the time that the answer took."""
    start = time.perf_counter()
    client.ping()
    seconds = time.perf_counter() - start
    server = endpoint(client.host, client.port)
    out.line(f"{server} answered in {seconds * 1000:.1f} ms", {"server": server, "seconds": round(seconds, 6)})
    return OK


# -- tail -------------------------------------------------------------------------------------------------------------


def tail(security: Security, arguments: Namespace, out: Output) -> int:
    """Prints each message, and then acknowledges it. Returns after --max messages, otherwise only by an exception.

    Raises ServerUnavailable when the bus cannot be reached at the start; later outages are reported and survived. A bus
    without its queue server does not take the subscription: that is reported, and raised only after a given --timeout.
    """
    from .bus_client import BusClient  # noqa: PLC0415 - it imports logging, which takes long

    host, port, _ = arguments.address
    timeout = _TIMEOUT if arguments.timeout is None else arguments.timeout
    with BusClient(host, port, timeout=timeout, on_trouble=complain, tls=security.context, token=security.token) as bus:
        messages = bus.subscribe(
            arguments.queues,
            ack=True,
            name=arguments.name,
            where=arguments.where,
            match="pattern" if arguments.match else None,
        )
        messages.open(patient=arguments.timeout is None)
        for message in itertools.islice(messages, arguments.max):
            out.message(message, heading=arguments.verbose, headers=arguments.headers, ended=True)
            out.flush()
            bus.delete(message)
    return OK


# -- token ------------------------------------------------------------------------------------------------------------


def new_token(_: Namespace, out: Output) -> int:
    """Prints a token of 32 random bytes, and the line of the access file: the SHA-256 of its UTF-8 bytes."""
    import hashlib  # noqa: PLC0415 - other subcommands start faster without these
    import secrets  # noqa: PLC0415

    token = f"qs_{secrets.token_urlsafe(32)}"
    digest = f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"
    out.line(f'{token}\ntokens = ["{digest}"]', {"token": token, "hash": digest})
    return OK

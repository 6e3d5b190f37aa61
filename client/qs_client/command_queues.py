"""The subcommands of `qs` that make, change, empty and delete queues, and move dead letters. See `command_verbs`.

`purge` and `rm --force` ask before they remove messages, where somebody can answer: if stdin and stderr are terminals.
Scripts, which have none, are asked nothing.
"""

import shlex
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from typing import TextIO

from qs_schemas import Claim

from .argument_values import CHANGEABLE, given_options
from .batches import MOST
from .client import QueueClient
from .command_output import DECLINED, INCOMPLETE, NOTHING, OK, Output, as_time, complain
from .errors import BadRequest, Conflict, Forbidden, NotEmpty, NotFound

# Errors of a single queue: the other queues can still be deleted. ValueError: a name that XML cannot carry.
_OF_THIS_QUEUE = (BadRequest, Forbidden, NotFound, Conflict, ValueError)


def new(client: QueueClient, arguments: Namespace, out: Output) -> int:
    """Creates a queue. With --exist-ok, accepts an existing one that has the named options."""
    client.new_queue(
        arguments.queue, exist_ok=arguments.exist_ok, storage=arguments.storage, **given_options(arguments)
    )
    out.line(None, {"qid": arguments.queue})
    return OK


def change(client: QueueClient, arguments: Namespace, out: Output) -> int:
    """Changes options, and removes those of --remove."""
    removed = dict.fromkeys(name.replace("-", "_") for name in arguments.remove)
    client.set_queue(arguments.queue, **{**removed, **given_options(arguments)})
    out.line(None, {"qid": arguments.queue})
    return OK


def options(client: QueueClient, arguments: Namespace, out: Output) -> int:
    """Prints the options that are set, one a line."""
    found = asdict(client.queue_options(arguments.queue))
    values = {name: found[name] for name in ("storage", *CHANGEABLE) if found[name] is not None}
    rows = [f"{name.replace('_', '-')} {_shown(value)}" for name, value in values.items()]
    out.line("\n".join(rows) or None, {"qid": arguments.queue, **values})
    return OK


def _shown(value: float | str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def pause(client: QueueClient, arguments: Namespace, out: Output) -> int:
    """Pauses the named queues in order, up to the first one that cannot be paused."""
    for qid in arguments.queues:
        client.pause(qid)
        out.line(None, {"qid": qid})
    return OK


def resume(client: QueueClient, arguments: Namespace, out: Output) -> int:
    """Resumes the named queues in order, up to the first one that cannot be resumed."""
    for qid in arguments.queues:
        client.resume(qid)
        out.line(None, {"qid": qid})
    return OK


def rm(client: QueueClient, arguments: Namespace, out: Output) -> int:
    """Deletes queues, and reports those that it cannot delete."""
    if arguments.force and not _may_remove_messages(client, arguments, arguments.queues, "rm --force"):
        return DECLINED
    code = OK
    for qid in arguments.queues:
        try:
            client.delete_queue(qid, force=arguments.force)
        except _OF_THIS_QUEUE as error:
            complain(f"{error}{' (to lose its messages: qs rm --force)' if isinstance(error, NotEmpty) else ''}")
            code = INCOMPLETE
        else:
            out.line(None, {"qid": qid})
    return code


def purge(client: QueueClient, arguments: Namespace, out: Output) -> int:
    """Removes all messages of a queue, and prints how many there were."""
    if not _may_remove_messages(client, arguments, [arguments.queue], "purge"):
        return DECLINED
    count = client.purge(arguments.queue)
    out.line(str(count), {"qid": arguments.queue, "count": count})
    return OK


def _may_remove_messages(client: QueueClient, arguments: Namespace, queues: Sequence[str], what: str) -> bool:
    """Asks whether the messages of queues are to be removed, with their numbers. Does not ask if there are no messages,
    with --yes, or where nobody would answer."""
    # Both: the question is shown on stderr, as stdout may go to a program, and the answer is read from stdin.
    if arguments.yes or not (_is_terminal(sys.stdin) and _is_terminal(sys.stderr)):
        return True
    holdings = [held for qid in queues if (held := _holding(client, qid))]
    return not holdings or _agrees(f"{'; '.join(holdings)}. qs {what} removes them for good. Go on? [y/N] ")


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def _holding(client: QueueClient, qid: str) -> str:
    """Returns the content of a queue in words; empty for an empty queue, and for a queue whose removal will be an
    error."""
    try:
        [info] = client.stats(qid)
    except Forbidden:  # somebody may be allowed to empty a queue, and not to see how full it is
        return f"{qid!r} may hold messages"
    except _OF_THIS_QUEUE:
        return ""
    counts = [count for count in (info.ready, info.in_flight, info.delayed) if count is not None]
    if not counts:
        return f"{qid!r} may hold messages"
    total = sum(counts)
    flying = f", {info.in_flight} of them in flight" if info.in_flight else ""
    return f"{qid!r} holds {total} message{'' if total == 1 else 's'}{flying}" if total else ""


def _agrees(question: str) -> bool:
    """Asks on the terminal. Anything but y or yes means no, the end of the input too."""
    try:
        sys.stderr.write(f"qs: {question}")
        sys.stderr.flush()
        answer = sys.stdin.readline()
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        complain("nothing was removed")
        raise
    agreed = answer.strip().lower() in ("y", "yes")
    if not answer.endswith("\n"):  # Ctrl-D leaves the cursor behind the question
        sys.stderr.write("\n")
    if not agreed:
        complain("nothing was removed")
    return agreed


def redrive(client: QueueClient, arguments: Namespace, out: Output) -> int:
    """Moves the named dead letters, or as many as there are now, and prints how many were moved."""
    if arguments.mids:
        moved = client.redrive(arguments.queue, arguments.mids, to=arguments.to)
    else:
        moved = _redrive_all(client, arguments)
    out.line(str(len(moved)), {"qid": arguments.queue, "count": len(moved), "mids": moved})
    return OK if moved else NOTHING


def _redrive_all(client: QueueClient, arguments: Namespace) -> list[int]:
    """Moves the messages that the queue holds at the beginning, and not those that come back meanwhile: a message whose
    consumer fails at once would be moved for ever."""
    [before] = client.stats(arguments.queue)
    left = sum(count or 0 for count in (before.ready, before.in_flight, before.delayed))
    left = left if arguments.max is None else min(left, arguments.max)
    moved: list[int] = []
    while left > 0 and (found := client.redrive(arguments.queue, to=arguments.to, max=min(left, MOST))):
        moved += found
        left -= len(found)
    return moved


def claims(client: QueueClient, arguments: Namespace, out: Output) -> int:
    """Prints the claims, one a line. With --release, releases them and prints how many messages are visible again."""
    found = client.list_claims(arguments.queue)
    if arguments.release is None:
        _list_claims(found, out)
        return OK
    whose = arguments.release, arguments.owner
    wanted = [claim for claim in found if (claim.consumer, claim.owner) == whose and arguments.seq in (None, claim.seq)]
    for claim in sorted(wanted, key=lambda claim: claim.seq, reverse=True):  # last first: this frees the numbers
        count = client.release_claim(arguments.queue, arguments.release, claim.seq, owner=claim.owner)
        fields = {"qid": arguments.queue, "consumer": claim.consumer, "seq": claim.seq, "released": count}
        out.line(f"claim {claim.seq} of {claim.consumer}: {count} messages are visible again", fields)
    if not wanted:
        which = "no claim" if arguments.seq is None else f"no claim {arguments.seq}"
        of = "" if arguments.owner is None else f" of the principal {arguments.owner!r}"
        complain(f"{arguments.release!r}{of} has {which} on {arguments.queue!r}")
    return OK if wanted else NOTHING


def _list_claims(claims: list[Claim], out: Output) -> None:
    head = ["CONSUMER", "CLAIM", "MESSAGES", "BYTES", "SINCE", "FIRST", "LAST"]
    rows = [[str(c.consumer), str(c.seq), str(c.count), str(c.bytes), as_time(c.since), *_ends(c)] for c in claims]
    if any(c.owner is not None for c in claims):  # only an operator with the right admin is shown those of others
        head.append("OWNER")
        for row, claim in zip(rows, claims, strict=True):
            row.append(_quoted(claim.owner))
    out.table(head, rows, map(asdict, claims))


def _quoted(owner: str | None) -> str:
    """Returns an owner in the form that `--owner` takes in a shell; nothing for the caller's own claims."""
    return "" if owner is None else shlex.quote(owner)


def _ends(claim: Claim) -> tuple[str, str]:
    return str(claim.first or ""), str(claim.last or "")

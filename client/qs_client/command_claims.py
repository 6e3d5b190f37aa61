"""`qs claims`: lists the claims on a queue, and releases those of a consumer that will not come back."""

import shlex
from argparse import Namespace
from dataclasses import asdict

from qs_schemas import Claim

from .client import QueueClient
from .command_output import NOTHING, OK, Output, as_time, complain


def list_or_release(client: QueueClient, arguments: Namespace, out: Output) -> int:
    """Prints the claims, one a line. With --release, releases them and prints how many messages are visible again."""
    claims = client.list_claims(arguments.queue)
    if arguments.release is None:
        _list(claims, out)
        return OK
    whose = arguments.release, arguments.owner
    wanted = [
        claim for claim in claims if (claim.consumer, claim.owner) == whose and arguments.seq in (None, claim.seq)
    ]
    for claim in sorted(wanted, key=lambda claim: claim.seq, reverse=True):  # last first: this frees the numbers
        count = client.release_claim(arguments.queue, arguments.release, claim.seq, owner=claim.owner)
        record = {"qid": arguments.queue, "consumer": claim.consumer, "seq": claim.seq, "released": count}
        out.line(f"claim {claim.seq} of {claim.consumer}: {count} messages are visible again", record)
    if not wanted:
        which = "no claim" if arguments.seq is None else f"no claim {arguments.seq}"
        of = "" if arguments.owner is None else f" of the principal {arguments.owner!r}"
        complain(f"{arguments.release!r}{of} has {which} on {arguments.queue!r}")
    return OK if wanted else NOTHING


def _list(claims: list[Claim], out: Output) -> None:
    head = ["CONSUMER", "CLAIM", "MESSAGES", "BYTES", "SINCE", "FIRST", "LAST"]
    rows = [[str(c.consumer), str(c.seq), str(c.count), str(c.bytes), as_time(c.since), *_ends(c)] for c in claims]
    if any(c.owner is not None for c in claims):  # only an operator with the right admin is shown those of others
        head.append("OWNER")
        for row, claim in zip(rows, claims, strict=True):
            row.append(_quoted(claim.owner))
    out.table(head, rows, map(asdict, claims))


def _quoted(owner: str | None) -> str:
    """Returns an owner as `--owner` takes it in a shell; nothing for oneself."""
    return "" if owner is None else shlex.quote(owner)


def _ends(claim: Claim) -> tuple[str, str]:
    return str(claim.first or ""), str(claim.last or "")

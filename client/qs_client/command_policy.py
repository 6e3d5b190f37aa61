"""The subcommands of `qs` for new queues and their options, dead letters and pauses. See `command_verbs`."""

from argparse import Namespace
from dataclasses import asdict

from .argument_values import CHANGEABLE, given_options
from .batches import MOST
from .client import QueueClient
from .command_output import NOTHING, OK, Output


def new(client: QueueClient, arguments: Namespace, out: Output) -> int:
    """Creates a queue. With --exist-ok, one that exists and has the options that are named is as good."""
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
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def pause(client: QueueClient, arguments: Namespace, out: Output) -> int:
    """Pauses queues."""
    for qid in arguments.queues:
        client.pause(qid)
        out.line(None, {"qid": qid})
    return OK


def resume(client: QueueClient, arguments: Namespace, out: Output) -> int:
    """Resumes queues."""
    for qid in arguments.queues:
        client.resume(qid)
        out.line(None, {"qid": qid})
    return OK


def redrive(client: QueueClient, arguments: Namespace, out: Output) -> int:
    """Moves the dead letters that are named, or as many as there are now, and prints how many were moved."""
    if arguments.mids:
        moved = client.redrive(arguments.queue, arguments.mids, to=arguments.to)
    else:
        moved = _redrive_all(client, arguments)
    out.line(str(len(moved)), {"qid": arguments.queue, "count": len(moved), "mids": moved})
    return OK if moved else NOTHING


def _redrive_all(client: QueueClient, arguments: Namespace) -> list[int]:
    """Moves the messages that the queue holds at the beginning, and not what comes back while this goes on: a message
    whose consumer fails at once would be moved for ever."""
    [before] = client.stats(arguments.queue)
    left = sum(count or 0 for count in (before.ready, before.in_flight, before.delayed))
    left = left if arguments.max is None else min(left, arguments.max)
    moved: list[int] = []
    while left > 0 and (found := client.redrive(arguments.queue, to=arguments.to, max=min(left, MOST))):
        moved += found
        left -= len(found)
    return moved

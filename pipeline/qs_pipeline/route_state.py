"""The state of a route between runs: its name, made once, and the last batch that it has pushed from.

DIR/route.json     name, queue; batch: the last that may be pushed; to, errors, query: its targets; done: it is pushed
DIR/checkpoint/    Spark's
DIR/lock           held while the route runs
"""

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .archive_layout import short_hash
from .checkpoint import COMMITS, OFFSETS, Checkpoint
from .errors import CheckpointLostError, PipelineError, UsageError
from .files import Files

_STATE = "route.json"


def default_state(server: str, queue: str, environment: Mapping[str, str] = os.environ) -> str:
    """Returns the default directory of a route's state. It depends only on server and queue: a command with another
    query or --errors continues with what an earlier one has claimed."""
    home = environment.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(home, "qs-pipeline", f"route-{short_hash(server, queue)}")


@dataclass(frozen=True, slots=True)
class Targets:
    """The targets of a batch's messages. query: the query's text; errors: the queue for messages that the query cannot
    handle."""

    to: str
    errors: str | None
    query: str

    def to_json(self) -> dict[str, Any]:
        """Returns the stored form, with a hash of the query."""
        return {"to": self.to, "errors": self.errors, "query": short_hash(self.query)}


class RouteState:
    """The state of a route, in a directory that is made if it is missing.

    Ensures:
    1. A batch of which a part may have been pushed is only ever finished to the same queues with the same query. With
       others, a message could go to two queues, or a new result would be dropped as a repetition of the old one.
    2. A checkpoint that is gone, or older than what was pushed, is an error.
    3. `begin` and `done` are durable when they return.

    Assumes that one route at a time works in the directory: the caller holds its lock.
    """

    def __init__(self, files: Files, queue: str, targets: Targets) -> None:
        """targets: this run's.

        Raises UsageError if the state belongs to another queue, or a batch is half pushed to other targets,
        CheckpointLostError if the checkpoint is older than what was pushed, and PipelineError if the state is damaged.
        """
        self._files = files
        self._targets = targets.to_json()
        self.checkpoint = Checkpoint(files, "checkpoint")
        data = files.read(_STATE)
        if data is None:
            # A new name would claim anew, and what the old one has claimed would stay hidden.
            if self.checkpoint.last(OFFSETS) is not None:
                raise CheckpointLostError(f"{files.uri(_STATE)} is gone: restore it from a backup")
            self._stored: dict[str, Any] = {"name": f"route-{secrets.token_hex(6)}", "queue": queue, "batch": None}
            self._write()
        else:
            self._stored = self._parse(data)
        self.name = str(self._stored["name"])
        if self._stored["queue"] != queue:
            raise UsageError(
                f"{files.uri('')} is the state of a route from {self._stored['queue']!r}: give another --state"
            )
        # In this order: a torn entry is not a batch, and a commit is only written for one that was begun.
        self.checkpoint.mend()
        self._compare()
        if self._stored.get("done"):
            self.checkpoint.must_have_commit(self._stored["batch"])
        self._check_targets()

    def begin(self, batch: int) -> None:
        """Notes the targets of a batch durably. Call it before any part of the batch is pushed."""
        self.checkpoint.sync(batch)
        stored = self._stored | {"batch": batch, "done": False} | self._targets
        if stored != self._stored:  # a batch that is run again is noted already
            self._stored = stored
            self._write()

    def refused(self) -> None:
        """Notes that no part of the begun batch is pushed, so its targets may change."""
        self._stored["to"] = None
        self._write()

    def done(self, batch: int) -> None:
        """Notes that all of the batch is pushed."""
        if self._stored["batch"] == batch and not self._stored.get("done"):
            self._stored["done"] = True
            self._write()

    def _compare(self) -> None:
        begun, last = self._stored["batch"], self.checkpoint.last(OFFSETS)
        if begun is not None and (last is None or last < begun):
            raise CheckpointLostError(
                f"the checkpoint {self.checkpoint.uri} is gone, or older than what was pushed: restore it from a "
                f"backup, or give another --state; what it had claimed stays claimed by {self.name} until it is "
                f"released (qs claims {self._stored['queue']})"
            )

    def _check_targets(self) -> None:
        stored, noted = self._stored, self.checkpoint.last(COMMITS)
        # Spark's commit says so too, if the process was killed before it could call `done`.
        finished = stored["batch"] is None or stored.get("done") or (noted is not None and noted >= stored["batch"])
        if finished or stored.get("to") is None:
            return
        for name, what in (("to", "--to"), ("errors", "--errors"), ("query", "query")):
            if stored.get(name) != self._targets[name]:
                before = "" if name == "query" else f" ({stored.get(name) or 'none'} before)"
                raise UsageError(
                    f"batch {stored['batch']} of the route in {self._files.uri('')} may be half pushed, and the {what} "
                    f"is another one now{before}: run it as before, to finish that batch, or give another --state"
                )

    def _write(self) -> None:
        self._files.replace(_STATE, json.dumps(self._stored, ensure_ascii=False).encode() + b"\n")

    def _parse(self, data: bytes) -> dict[str, Any]:
        try:
            stored = json.loads(data)
            if isinstance(stored["name"], str) and isinstance(stored["queue"], str):
                return {**stored, "batch": None if stored["batch"] is None else int(stored["batch"])}
        except (ValueError, KeyError, TypeError):
            pass
        raise PipelineError(f"{self._files.uri(_STATE)} is damaged: restore it from a backup")

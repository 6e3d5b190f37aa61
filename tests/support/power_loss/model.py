"""Models what an engine must hold after a power loss, without files or a journal.

Operations are numbered. Each adds a state (`Mark`) to the chain of every message and queue that it changes. A power
loss comes between two numbers: the first `answered` operations were answered to clients, those up to `begun` were under
way, and the others had not begun.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from qs_storage.engine import Draft, Engine, Feature, Headers

Key = tuple[int, int]
"""A message: the number of the operation that made its queue, and its id."""


KEY_WINDOW = 300 * 1_000_000
"""Microseconds for which a key is remembered, at least: the five minutes of docs/protocol.md. Later, the engine may
know the key or not."""


def headers_for(payload: bytes, number: int | None = None) -> Headers:
    """Returns the headers with which runs push a payload: none, some, or more than an attribute of a file has room for.
    So a message that has others than it was pushed with is known by itself. number: chooses among the three, instead
    of the length."""
    kind = (len(payload) if number is None else number) % 3
    return () if kind == 0 else (("first", payload[:6].hex()), ("second", "\u00e9" * (10 if kind == 1 else 700)))


def draft_for(engine: Engine, payload: bytes, delay: int = 0, key: str | None = None) -> Draft:
    """Returns what runs push: a payload with headers, and with a priority and a group if the engine keeps those."""
    draft = Draft(payload, delay, key, headers=headers_for(payload))
    if Feature.GROUP in engine.cannot:
        return draft
    return draft._replace(
        priority=(0, 0, 9)[len(payload) % 3], group=("", "a", "gr\u00f6\u00dfe", "")[len(payload) % 4]
    )


class Held(NamedTuple):
    """A message, whose headers and order follow from its payload: see `draft_for`. until: the time when it becomes
    visible, 0 if it is visible; delayed: hidden without being in flight."""

    payload: bytes
    receives: int = 0
    until: int = 0
    delayed: bool = False

    def at(self, now: int) -> "Held":
        return self._replace(until=0, delayed=False) if self.until and self.until <= now else self


class Keyed(NamedTuple):
    """A push with a key. made: the number of the operation that made the queue."""

    operation: int
    qid: str
    made: int
    mid: int
    at: int


class Mark(NamedTuple):
    """The effect of an operation on a message or queue. value: None for a removed one; for a queue, its options."""

    operation: int
    what: str
    value: object


@dataclass
class SeenQueue:
    """The state of a queue in a new engine. next_mid: the id that a push was given; keys: the results of pushes with
    each of these keys."""

    options: object
    messages: dict[int, Held]
    next_mid: int
    keys: dict[str, int] = field(default_factory=dict)


Seen = dict[str, SeenQueue]


@dataclass(frozen=True)
class Leniency:
    """The operations that a power loss may leave half done if they were not answered. None, unless the engine's pages
    say so."""

    apart: frozenset[str] = frozenset()
    """Operations on several messages of which a part may be done: copy."""
    bare: bool = False
    """True if a queue that was being removed may still be there without its options."""
    notes: frozenset[str] = frozenset()
    """Operations that may be lost though they were answered, as long as no other one of the message follows."""
    half: Callable[[list[Held], Held], bool] = lambda steps, found: False
    """Tells whether a message may be found in a state between these steps, none of which has left it."""


STRICT = Leniency()


@dataclass
class Model:
    """The chains of states, and the present: what the engine holds when all operations are done.

    `trouble` ensures, of an engine that was opened after a power loss:
    1. Every answered operation holds: each message is in the state of the last one that changed it, or a later one.
    2. No operation that had not begun has left anything.
    3. An operation that was under way is done or not, and its effect on several messages whole or not at all
       (`keep_whole`): a list, a copy to several queues, the making or removing of a queue.
    4. No message is unknown, torn or there twice, and no id is given a second time.
    5. A key stands for the message that was pushed with it, in its queue and for as long as it is promised.
    What an engine's pages except is in its Leniency. Must never ask an engine how it should be: the model is the other
    side of the comparison.
    """

    queues: dict[str, list[Mark]] = field(default_factory=dict)
    messages: dict[int, dict[int, list[Mark]]] = field(default_factory=dict)
    """Chains of messages, by the operation that made their queue, and by id."""
    whole: list[tuple[int, str, list[tuple[str, Key]]]] = field(default_factory=list)
    """Messages that one operation made together and that may not be there in part: the operation, its name, and the
    queue and key of each message."""
    keys: dict[str, Keyed] = field(default_factory=dict)
    present: dict[str, tuple[int, dict[int, Held]]] = field(default_factory=dict)
    """Queue -> the operation that made it, and the messages in it."""

    # -- what is done

    def create(self, operation: int, qid: str, options: object) -> None:
        self.queues.setdefault(qid, []).append(Mark(operation, "create", options))
        self.present[qid] = operation, {}

    def remove(self, operation: int, qid: str) -> None:
        self.queues[qid].append(Mark(operation, "remove", None))
        del self.present[qid]  # the chains of its messages stay: a power loss may bring the queue back with them

    def set(self, operation: int, what: str, qid: str, mid: int, held: Held | None) -> None:
        """Sets the state of a message; None: the message is gone."""
        made, messages = self.present[qid]
        self.messages.setdefault(made, {}).setdefault(mid, []).append(Mark(operation, what, held))
        if held is None:
            del messages[mid]
        else:
            messages[mid] = held

    def keep_whole(self, operation: int, what: str, messages: Iterable[tuple[str, int]]) -> None:
        """Notes that an operation has made these messages all or none."""
        self.whole.append((operation, what, [(qid, (self.present[qid][0], mid)) for qid, mid in messages]))

    def now(self, qid: str, now: int) -> dict[int, Held]:
        """Returns the messages of a queue, oldest first."""
        return {mid: held.at(now) for mid, held in sorted(self.present[qid][1].items())}

    # -- what is left of it

    def trouble(self, seen: Seen, answered: int, begun: int, now: int, leniency: Leniency = STRICT) -> list[str]:
        """Returns what a power loss must not have left, an empty list when nothing is wrong."""
        found = [f"{qid}: a queue that nobody made" for qid in seen.keys() - self.queues.keys()]
        steps: dict[tuple[str, Key], list[int]] = {}
        for qid, chain in self.queues.items():
            allowed = _allowed(chain, answered, begun)
            queue = seen.get(qid)
            if queue is None:
                if all(mark is not None and mark.value is not None for mark in allowed):
                    found.append(f"{qid}: the queue is gone")
                continue
            made = [mark for mark in allowed if mark is not None and mark.value is not None]
            if not made:
                found.append(f"{qid}: the queue must not be there")
                continue
            # The last one first: an empty queue may be the one before, but then it would have lost its messages.
            tries = [self._of_queue(qid, queue, mark, (answered, begun, now), leniency) for mark in reversed(made)]
            best = min(tries, key=lambda one: len(one[0]))
            found += best[0]
            steps.update(best[1])
        return found + [
            f"operation {operation} is there in half: {[key for key in keys if key in steps]}"
            for operation, what, keys in self.whole
            if answered <= operation < begun
            and what not in leniency.apart
            and not _all_or_none(operation, [steps[k] for k in keys if k in steps])
        ]

    def _of_queue(
        self, qid: str, seen: SeenQueue, made: Mark, when: tuple[int, int, int], leniency: Leniency
    ) -> tuple[list[str], dict[tuple[str, Key], list[int]]]:
        answered, begun, now = when
        # A queue loses its options before its directory, so that nothing is lost that somebody puts there meanwhile.
        going = any(
            mark.value is None and max(answered, made.operation) <= mark.operation < begun for mark in self.queues[qid]
        )
        found = []
        if seen.options != made.value and not (going and leniency.bare):
            found.append(f"{qid}: its options are {seen.options}, not {made.value}")
        steps: dict[tuple[str, Key], list[int]] = {}
        unknown = set(seen.messages)
        last = -1
        for mid, chain in self.messages.get(made.operation, {}).items():
            if chain[0].operation >= begun:
                continue  # if it is still there, it stays unknown
            last = max(last, mid) if chain[0].operation < answered else last
            actual = seen.messages.get(mid)
            if actual is None and chain[-1].value is None and chain[-1].operation < answered:
                continue  # gone, as it has to be: most messages of a long run
            unknown.discard(mid)
            allowed = _allowed(chain, answered, begun, leniency.notes)
            values = [_at(mark, now) for mark in allowed]
            matching = _matching(allowed, values, actual, leniency)
            if matching:
                steps[qid, (made.operation, mid)] = matching
            else:
                found.append(f"{qid}: message {mid} is {_short(actual)}, not one of {[_short(v) for v in values]}")
        found += [f"{qid}: message {mid} ({_short(seen.messages[mid])}) is not known" for mid in sorted(unknown)]
        payloads = [held.payload for held in seen.messages.values()]
        if len(set(payloads)) != len(payloads):
            found.append(f"{qid}: a message is there twice")
        # Also ids of messages that are gone: a consumer that comes late would delete the new message for the old one.
        if seen.next_mid <= max([last, *seen.messages]):
            found.append(f"{qid}: the id {seen.next_mid} was given after {max([last, *seen.messages])}")
        return found + self._keys(seen, made, when), steps

    def _keys(self, seen: SeenQueue, made: Mark, when: tuple[int, int, int]) -> list[str]:
        """Checks that a key stands for the message that was pushed with it, for a time, and for nothing in another
        queue."""
        answered, _, now = when
        found = []
        for key, mid in seen.keys.items():
            known = self.keys[key]
            same = known.made == made.operation and now - known.at < KEY_WINDOW
            if same and (known.operation < answered or known.mid in seen.messages) and mid != known.mid:
                found.append(f"{known.qid}: the key {key} is not known any more: {mid} was given, not {known.mid}")
            # The queue was made anew since: the push must have stored a message, with an id of its own.
            if known.made != made.operation and mid < seen.next_mid:
                found.append(f"{known.qid}: the key {key} of another queue is known: {mid} was given")
        return found


def _allowed(chain: list[Mark], answered: int, begun: int, notes: frozenset[str] = frozenset()) -> list[Mark | None]:
    """Returns the earliest state that may be left (None: no message) and the later ones. notes: operations that may be
    lost though they were answered."""
    must = [at for at, mark in enumerate(chain) if mark.operation < answered and mark.what not in notes]
    first = must[-1] + 1 if must else 0
    may = [mark for mark in chain[first:] if mark.operation < begun]
    return [chain[first - 1] if must else None, *may]


def _at(mark: Mark | None, now: int) -> Held | None:
    return mark.value.at(now) if mark is not None and isinstance(mark.value, Held) else None


def _matching(
    allowed: list[Mark | None], values: list[Held | None], actual: Held | None, leniency: Leniency
) -> list[int]:
    """Returns the operations that may have been the last one of a message, by number; -1 for no operation. Returns an
    empty list when the message cannot be in this state."""
    found = [
        -1 if mark is None else mark.operation for mark, value in zip(allowed, values, strict=True) if value == actual
    ]
    steps = [value for value in values if value is not None]
    if found or actual is None or len(steps) < 2 or not leniency.half(steps, actual):
        return found
    return [-1 if mark is None else mark.operation for mark in allowed if mark is None or mark.value is not None]


def _all_or_none(operation: int, steps: list[list[int]]) -> bool:
    return all(any(step >= operation for step in one) for one in steps) or all(
        any(step < operation for step in one) for one in steps
    )


def _short(held: Held | None) -> str:
    if held is None:
        return "gone"
    payload = held.payload if len(held.payload) < 30 else held.payload[:20] + b"... %d" % len(held.payload)
    return str(held._replace(payload=payload))

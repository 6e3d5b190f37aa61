"""Implements the feed that gives each message to every member whose condition the message matches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from .feeds import PREFETCH, DeliveryBatch, Documents, DurableName, Feed, HeldMessage, Member, Release, ServerRequests
from .filtering import Evaluator, FilterCounts, Group, Matching, chosen, matching, quick, together

if TYPE_CHECKING:
    from .conditions import Condition
    from .retry_queue import RetryQueue


class CopyRequests(ServerRequests, Protocol):
    """Describes the requests of a fan-out to the queue server: `ServerRequests`, and copies."""

    @property
    def copies(self) -> RetryQueue[FanOut, int]:
        """Ids of messages to copy to the queues of the feed's durable names."""


class Copies(NamedTuple):
    """Describes copies to request together. names: the durable names that need them; queues: theirs; mids: the
    messages."""

    names: list[DurableName]
    queues: list[str]
    mids: list[int]


class _Arrival(NamedTuple):
    """Holds messages that came together and wait to be evaluated. groups: those to whom they may go."""

    messages: deque[HeldMessage]
    groups: list[Group]


class FanOut(Feed):
    """Gives each message to every member, and copies it to the queue of every durable name, if it matches their
    condition.

    Ensures, beside what a feed does:
    1. A message is deleted only when the queue of every name whose condition it matches has it, also if all members
       have handled it before.
    2. Slow members hold up others only when `hold` messages wait, or when all members are slow.
    3. Where the server counts receives, a message that several members release goes back once, and comes again to the
       members that have released it.
    4. Each condition is evaluated once for a message, and the payload is parsed once. What takes long is evaluated
       later, or in a thread, and later messages stand in line behind it, so that the order holds.
    5. A message that matches no condition of those that are there is handled: it is deleted.

    Assumes that the server does not store a second copy in a queue that has the message's id already: a copy may be
    requested again. A fan-out must not send a message to a member that joined after the message came.
    """

    def __init__(self, qid: str, upstream: CopyRequests, memory: int, hold: int, evaluator: Evaluator) -> None:
        """hold: how many messages slow subscribers may hold up while others go on; evaluator: evaluates conditions over
        large payloads."""
        super().__init__(qid, qid, upstream, memory)
        self._copies = upstream.copies
        self._hold = hold
        self._evaluator = evaluator
        self.names: dict[DurableName, Feed] = {}
        self.groups: dict[Condition | None, Group] = {}
        """Members and names by their conditions."""
        self._filters = False
        """True if messages must be evaluated, or must wait behind others that are."""
        self._line: deque[_Arrival] = deque()
        """Messages that wait to be evaluated, the oldest first. Each is held like one that waits for a slow member."""
        self._in_line = 0
        self._is_unchanged = False
        """True if the same members and names are there as when the last message came into the line."""
        self._evaluating: list[HeldMessage] = []
        """The first messages in line, while they are being evaluated."""
        self.coming = 0
        """The number of acknowledging members that will join as soon as the server has noted them."""
        self.joining = 0
        """The number of members that are about to join, also under a name."""
        self.expected = 0
        """The number of acknowledging members from before the bus was killed, for whom the feed waits."""
        self._awaited: dict[int, dict[Member, None]] = {}
        """Messages that were released on the server, and the members that wait for them to come again."""

    @property
    def wanted(self) -> bool:
        return not (self.expected or self._stopped) and bool(self.members or self.names)

    def _distribute(self, messages: list[HeldMessage]) -> None:
        if self._filters:
            self._filter(messages)
            return
        unhandled = len(self.members) + bool(self.names)  # all names count as one
        names = frozenset(self.names)
        for message in messages:
            message.unhandled = unhandled
            if not unhandled:
                self._settle(message)
            elif names:
                message.names = names
                self._copies.add(self, message.mid)
        if unhandled:
            _offer(messages, self.members)
            for message in messages:  # only now it is known whether a member has to wait
                self.keep_payload(message)

    # -- members and names, by their conditions

    def join(self, member: Member) -> None:
        self._is_unchanged = False
        self._group(member.condition).members[member] = None
        super().join(member)

    def add_name(self, name: DurableName, share: Feed, condition: Condition | None = None) -> None:
        """Adds a durable name, or gives it another condition. It gets copies of the matching messages that come from
        now on."""
        self.remove_name(name)
        self._is_unchanged = False
        self.names[name] = share
        self._group(condition).names[name] = None

    def remove_name(self, name: DurableName) -> Feed | None:
        """Removes a durable name, and returns its feed if there is one. Messages are no longer copied for it."""
        for group in list(self.groups.values()):
            if name in group.names:
                del group.names[name]
                self._forget_empty(group)
        return self.names.pop(name, None)

    def _group(self, condition: Condition | None) -> Group:
        """Returns the group of those that have this condition, and makes it if there is none."""
        group = self.groups.get(condition)
        if group is None:
            group = self.groups[condition] = Group(condition, {}, {}, FilterCounts())
            self._set_filters()
        return group

    def _forget_empty(self, group: Group) -> None:
        if not (group.members or group.names):
            del self.groups[group.condition]
            self._set_filters()

    def _set_filters(self) -> None:
        self._filters = bool(self._line) or any(condition is not None for condition in self.groups)

    # -- messages that conditions decide about

    def _filter(self, messages: list[HeldMessage]) -> None:
        """Evaluates messages that have come, as far as that is quick. Later ones stand in line."""
        groups = list(self.groups.values())
        count = 0 if self._line else quick(messages, groups)
        if count:
            first = messages[:count]
            self._pass_on(first, groups, _evaluation(first, groups)())
            for message in first:
                self.keep_payload(message)
        if count < len(messages):
            self._stand_in_line(messages[count:])
            self._advance()

    def _stand_in_line(self, messages: list[HeldMessage]) -> None:
        for message in messages:
            message.awaiting_room += 1
            self.keep_payload(message)
        self._in_line += len(messages)
        if not (self._line and self._is_unchanged):
            # Who joins from now on does not get them.
            self._line.append(_Arrival(deque(), [group.copy() for group in self.groups.values()]))
            self._is_unchanged = True
        self._line[-1].messages.extend(messages)

    def _advance(self) -> None:
        """Evaluates the messages in line, as far as their payloads are in memory."""
        while self._line and not self._evaluating:
            messages, groups = self._line[0].messages, self._still_here(self._line[0].groups)
            if not messages:
                self._line.popleft()
            elif not any(group.members or group.names for group in groups):
                self._leave_line(len(messages), groups, [])
            elif messages[0].payload is None:
                self.fetch(message for arrival in self._line for message in arrival.messages)
                break
            else:
                self._evaluating, in_thread = together(messages, groups)
                evaluate = _evaluation(self._evaluating, groups)
                then = partial(self._evaluated, self._evaluating, groups)
                self._evaluator.start(evaluate, then, in_thread=in_thread)
        self._set_filters()

    def _evaluated(self, messages: list[HeldMessage], groups: list[Group], found: Matching) -> None:
        """Takes what a thread has found out about the first messages in line."""
        if self._evaluating is messages:  # else a stop has emptied the line
            self._evaluating = []
            self._leave_line(len(messages), self._still_here(groups), found)
            self._advance()

    def _leave_line(self, count: int, groups: list[Group], found: Matching) -> None:
        """Passes on the first messages in line."""
        waiting = self._line[0].messages
        messages = [waiting.popleft() for _ in range(count)]
        self._in_line -= count
        self._pass_on(messages, groups, found)
        for message in messages:
            self.release_payload(message)

    def _still_here(self, groups: list[Group]) -> list[Group]:
        """Returns groups without members and names that have left. The groups stay, also empty ones."""
        return [
            group._replace(
                members={member: None for member in group.members if member in self.members},
                names={name: None for name in group.names if name in self.names},
            )
            for group in groups
        ]

    def _pass_on(self, messages: list[HeldMessage], groups: list[Group], found: Matching) -> None:
        """Gives messages to the members and names whose conditions they match. Releases the messages if nobody is
        there, and deletes those that match nobody."""
        if not any(group.members or group.names for group in groups):
            for message in messages:
                self._settle(message)
            return
        members = self._assign(messages, groups, found)
        unmatched = []
        for message in messages:
            if message.names:
                self._copies.add(self, message.mid)
            elif not message.unhandled:
                message.handled = message.done = True
                unmatched.append(message.mid)
        if unmatched:
            self._delete(*unmatched)
        shared = Documents() if len(members) > 1 else None
        for bits, some in members.items():
            if bits:
                _offer(chosen(messages, bits), some, shared)

    def _assign(self, messages: list[HeldMessage], groups: list[Group], found: Matching) -> dict[int, list[Member]]:
        """Notes for whom messages are waited for, and counts what the conditions have decided. Returns the members by
        the messages that they get, see `Matching`: those that get the same ones are sent the same batch."""
        members: dict[int, list[Member]] = {}
        for group, bits in zip(groups, found, strict=True):
            if group.condition is not None:
                self._count(group, bits.bit_count(), len(messages))
            if group.members:
                members.setdefault(bits, []).extend(group.members)
            if group.names:
                names = frozenset(group.names)
                for message in chosen(messages, bits):
                    message.unhandled = 1  # all names count as one
                    message.names |= names
        for bits, some in members.items():
            for message in chosen(messages, bits):
                message.unhandled += len(some)
        return members

    def _count(self, group: Group, matched: int, messages: int) -> None:
        deciding = len(group.members) + len(group.names)
        for counts in (group.counts, self._evaluator.counts):
            counts.let_through += deciding * matched
            counts.kept_back += deciding * (messages - matched)

    def stop(self) -> None:
        """Ends the subscription, and gives up the messages in line: the server gets them back."""
        super().stop()
        for arrival in self._line:
            for message in arrival.messages:
                self.release_payload(message)
        self._line.clear()
        self._in_line, self._evaluating = 0, []
        self._set_filters()

    @property
    def asked_for(self) -> bool:
        """Tells whether a member or a name gets the messages, or soon will."""
        return bool(self.members or self.names or self.joining or self.expected)

    @property
    def unused(self) -> bool:
        """Tells whether the feed has no member, no name and no message."""
        return not (self.asked_for or self.messages)

    @property
    def acknowledging(self) -> int:
        """The number of members that acknowledge."""
        return sum(member.ack for member in self.members)

    # -- copies for names

    def uncopied(self, mids: Iterable[int]) -> list[Copies]:
        """Returns which names still need copies of these messages, in the order of the messages for each name. Names
        that have ended need none."""
        alike: dict[frozenset[DurableName], list[int]] = {}  # nearly always all messages go to the same names
        for mid in mids:
            message = self.messages.get(mid)
            if message is not None and message.names:
                alike.setdefault(message.names, []).append(mid)
        if len(alike) > 1:
            needed: dict[DurableName, set[int]] = {}
            for names, some in alike.items():
                for name in names:
                    needed.setdefault(name, set()).update(some)
            joined: dict[tuple[int, ...], list[DurableName]] = {}
            for name, wanted in needed.items():
                joined.setdefault(tuple(mid for mid in mids if mid in wanted), []).append(name)
            found = [(names, list(some)) for some, names in joined.items()]
        else:
            found = [(list(names), some) for names, some in alike.items()]
        here = [([name for name in names if name in self.names], some) for names, some in found]
        return [Copies(names, [self.names[name].qid for name in names], some) for names, some in here if names]

    def copied(self, mids: Iterable[int], names: Iterable[DurableName]) -> None:
        """Notes that the queues of names have copies. A message counts as handled when no name needs one any more."""
        finished = []
        for mid in mids:
            message = self.messages.get(mid)
            if message is not None and message.names:
                message.handled = True
                message.names = message.names.difference(names)
                if not message.names:
                    finished.append(message)
        self.handled(finished)

    def not_copied(self, mids: Iterable[int]) -> None:
        """Stops waiting for copies of messages whose names have all ended."""
        for mid in mids:
            message = self.messages.get(mid)
            if message is not None and message.names:
                message.names = frozenset()
                self.not_handled(message)

    def _adjust(self) -> None:
        held = len(self.messages) - self._in_line  # no member holds those up
        # Doubled and halved, because each change is a request. The limits are far apart: most changes do nothing.
        if held > self.prefetch * 3 // 4:
            # Messages that slow members hold up must not block the others. If all are slow, there is no one to block.
            if self.prefetch < self._hold and (self.names or not all(member.blocked for member in self.members)):
                self.prefetch = min(self.prefetch * 2, self._hold + PREFETCH)
                self._upstream.sync(self)
        elif self.prefetch > PREFETCH and held < self.prefetch // 8:
            self.prefetch = max(self.prefetch // 2, PREFETCH)
            self._upstream.sync(self)

    def on_room(self, member: Member) -> None:
        """Adjusts the prefetch when a slow member has caught up. The member itself sends its waiting messages."""
        if not member.blocked:
            self._adjust()

    def resend(self, message: HeldMessage, member: Member) -> None:
        member.enqueue(message)
        member.pump()

    # -- what the server sends again, because it counts how often

    def _release_for(self, message: HeldMessage, member: Member, delay: float | None, *, counts: bool) -> None:
        """Releases a message on the server, once for all members that release the message before it comes again."""
        awaiting = self._awaited.setdefault(message.mid, {})
        if not awaiting:
            # The delay of the first one counts: the server has one copy, and one time at which it is visible again.
            release = Release(message.mid, message.receives, delay, counts, awaited=True, reason=message.reason)
            self._upstream.releases.add(self, release)
        awaiting[member] = None

    def _come_again(self, message: HeldMessage, payload: bytes, headers: dict[str, str]) -> None:
        members = self._awaited.pop(message.mid, None)
        if members:
            # The payload is in memory, and counted, if other members wait for the message: it must not count twice.
            in_memory = message.payload is not None
            if not in_memory:
                message.payload, message.headers = payload, headers
            _offer([message], members)
            if not in_memory:
                self.keep_payload(message)

    def awaits(self, mid: int) -> bool:
        return mid in self._awaited

    def missing(self, mid: int) -> None:
        """Gives up a message that has become a dead letter. Members that have the message and did not release it may
        still handle it."""
        for _ in self._awaited.pop(mid, ()):
            self._stop_awaiting(mid)

    def leave(self, member: Member) -> None:
        super().leave(member)
        group = self.groups[member.condition]
        del group.members[member]
        self._forget_empty(group)
        for mid, members in list(self._awaited.items()):
            if member in members:
                del members[member]
                if not members:
                    del self._awaited[mid]
                self._stop_awaiting(mid)

    def _stop_awaiting(self, mid: int) -> None:
        """Counts that a member does not wait for a message any more, because the server has the message again, or has
        it no longer."""
        message = self.messages[mid]
        if message.unhandled > 1 or message.handled:
            self._count_down(message)
        else:
            # No member is left, and the message has been released: a second release would concern another receive.
            message.done = True
            del self.messages[mid]

    def _lost(self, message: HeldMessage) -> None:
        for arrival in self._line:
            if message in arrival.messages:
                arrival.messages.remove(message)
                self._in_line -= 1
                self.release_payload(message)
                self._settle(message)
                return
        # Members that have been sent the message may still acknowledge it, and are still waited for.
        for member in self.members:
            if member.drop_waiting(message):
                self.release_payload(message)
                self._count_down(message)

    def _resume(self) -> None:
        self._advance()
        for member in self.members:
            if member.blocked:
                member.pump()


def _evaluation(messages: list[HeldMessage], groups: list[Group]) -> Callable[[], Matching]:
    """Returns the function that evaluates the conditions of groups for messages, whose payloads are in memory. It may
    be called in any thread."""
    contents = [(message.payload or b"", message.headers or {}) for message in messages]
    return partial(matching, [group.condition for group in groups], contents)


def _offer(messages: list[HeldMessage], members: Iterable[Member], shared: Documents | None = None) -> None:
    """Gives members messages whose payloads are in memory. shared: see `DeliveryBatch`."""
    batch = DeliveryBatch(messages, shared=shared)
    for member in members:
        member.offer(batch)
    batch.report()

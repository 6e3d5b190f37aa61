"""Which of a queue's visible messages is handed out next, where that is not simply the oldest: priorities and groups.

A queue without either has no `Order`: its index says which message is the oldest.
"""

from collections.abc import Iterable

from .midmap import MidMap, MidSet

READY, OUT, DELAYED = 1, 2, 3
"""The states of a message: visible; handed out, and neither deleted nor given back; hidden by a delay. 0: not there."""


class _Group:
    """The messages of one group. offered: its message that may be handed out next, None if none may; lane, turn: the
    lane in which that stands, and where."""

    __slots__ = ("delayed", "lane", "name", "offered", "out", "ready", "turn")

    def __init__(self, name: str) -> None:
        self.name = name
        self.ready = MidSet()
        self.delayed = MidSet()
        self.out = 0
        self.offered: int | None = None
        self.lane: _Lane | None = None
        self.turn = 0


class _Ranked:
    """A message with a priority, a group or both, and its state."""

    __slots__ = ("group", "priority", "state")

    def __init__(self, priority: int, group: _Group | None) -> None:
        self.priority = priority
        self.group = group
        self.state = 0


class _Lane:
    """The messages of one priority that may be handed out. free: those without a group; heads: the next message of each
    group that may go, by its id, or by the group's turn; turn: when the free ones have theirs."""

    __slots__ = ("free", "heads", "turn")

    def __init__(self, free: MidSet) -> None:
        self.free = free
        self.heads = MidMap()
        self.turn = 0


class Order:
    """The visible messages of one queue in the order in which they are handed out.

    Ensures:
    1. A message of a higher priority goes first, and within one priority the oldest: by age, or if it is `fair`, one of
       each group in turn. Messages without a group share a turn.
    2. At most `most` messages of a group are out at a time. With 1, a group is in strict order: no message is offered
       while an older one of its group is out, or was given back and is delayed.
    3. Each step takes the same time for ten groups and for a hundred thousand, as only the next message of a group
       stands in line. A group's next message decides the group's priority.

    Assumes that `set` is called with each change of a message's state, and `rank` before a message with a priority or a
    group is there. Messages with neither are in the index alone, which tells nobody of them: their lane is the index's
    own set. Knows no clock."""

    __slots__ = ("_fair", "_groups", "_lanes", "_most", "_ranked", "_turn", "ready")

    def __init__(self, plain: MidSet, most: int, *, fair: bool) -> None:
        """plain: the visible messages that have neither, which the index keeps; most: the most messages of a group that
        are out at a time."""
        self._most = most
        self._fair = fair
        self._ranked: dict[int, _Ranked] = {}
        self._groups: dict[str, _Group] = {}
        self._lanes = {0: _Lane(plain)}  # by priority, the highest first
        self._turn = 0  # the last turn that was given
        self.ready = MidSet()
        """The visible messages with a priority or a group, also those that may not be handed out now."""

    def __bool__(self) -> bool:
        """Tells whether there is a message with a priority or a group. Without one, no order is needed."""
        return bool(self._ranked)

    # -- which is next

    def first(self) -> int | None:
        """Returns the message that is handed out next, None if none may be."""
        for lane in self._lanes.values():
            if not lane.heads.count:
                if lane.free.count:
                    return lane.free.first()
                continue
            turn, free = lane.heads.first() or 0, lane.free.first()
            if free is not None and (lane.turn if self._fair else free) < turn:
                return free
            return lane.heads.get(turn)
        return None

    @property
    def count(self) -> int:
        """The number of messages that may be handed out at once, without those of a group behind its next one."""
        return sum([lane.free.count + lane.heads.count for lane in self._lanes.values()])

    def priority_of(self, mid: int) -> int:
        ranked = self._ranked.get(mid)
        return 0 if ranked is None else ranked.priority

    def is_free(self, mid: int) -> bool:
        """Tells whether a visible message may be taken together with the visible ones of its group that are older."""
        ranked = self._ranked.get(mid)
        if ranked is None or ranked.group is None:
            return True
        group = ranked.group
        return not group.out and not self._waits(group, mid)

    def may_go(self, mid: int) -> bool:
        """Tells whether a visible message may be handed out before those that are next."""
        ranked = self._ranked.get(mid)
        if ranked is None or ranked.group is None:
            return True
        return ranked.group.out < self._most and (self._most > 1 or ranked.group.offered == mid)

    def _waits(self, group: _Group, mid: int) -> bool:
        """Tells whether an older message of the group keeps a visible one back, as a strict order asks: one that was
        given back, and is delayed."""
        older = group.delayed.first() if self._most == 1 else None
        return older is not None and older < mid

    # -- changes

    def rank(self, mid: int, priority: int, group: str) -> None:
        """Gives a message that is not there yet its priority, and its group, empty for none."""
        found: _Group | None = None
        if group:
            found = self._groups.get(group)
            if found is None:
                found = self._groups[group] = _Group(group)
        self._ranked[mid] = _Ranked(priority, found)
        if priority not in self._lanes:
            lanes = self._lanes | {priority: _Lane(MidSet())}
            self._lanes = {each: lanes[each] for each in sorted(lanes, reverse=True)}

    def set(self, mid: int, state: int) -> bool:
        """Notes the state of a message after a change, 0 if it is gone. Returns False for a message with neither a
        priority nor a group."""
        ranked = self._ranked.get(mid)
        if ranked is None:
            return False
        before, ranked.state = ranked.state, state
        if state == READY:
            self.ready.add(mid)
        elif before == READY:
            self.ready.discard(mid)
        if not state:
            del self._ranked[mid]
        if ranked.group is not None:
            self._set_in(ranked.group, mid, before, state)
            return True
        lane = self._lanes[ranked.priority]
        if state == READY:
            lane.free.add(mid)
        elif before == READY:
            if state == OUT:
                self._served(lane, mid)
            lane.free.discard(mid)
        return True

    def take(self, mid: int) -> None:
        """Notes that a message is handed out which was visible, also one with neither a priority nor a group. Only this
        ends a turn of those: what becomes of a message that is out, as an extension, is no turn."""
        if not self.set(mid, OUT):
            self._served(self._lanes[0], mid)

    def _served(self, lane: _Lane, mid: int) -> None:
        """Gives the messages of a lane that have no group their next turn, after one of them had its turn. mid: that
        one, which may be out of the lane already."""
        first = lane.free.first() if self._fair else -1
        if first is None or mid <= first:
            self._turn += 1
            lane.turn = self._turn

    def _set_in(self, group: _Group, mid: int, before: int, state: int) -> None:
        if before == READY:
            group.ready.discard(mid)
        elif before == DELAYED:
            group.delayed.discard(mid)
        if state == READY:
            group.ready.add(mid)
        elif state == DELAYED:
            group.delayed.add(mid)
        group.out += (state == OUT) - (before == OUT)
        self._offer(group)

    def set_all(self, mids: Iterable[int], state: int) -> list[int]:
        """Notes the same state of many messages. Returns those with a priority or a group."""
        return [mid for mid in mids if self.set(mid, state)]

    def _offer(self, group: _Group) -> None:
        """Puts the next message of a group in line, or takes it out if none may go."""
        mid = group.ready.first() if group.out < self._most else None
        if mid is not None and self._waits(group, mid):
            mid = None
        if mid != group.offered:
            before = None if group.offered is None else self._ranked.get(group.offered)
            # A group whose next message was handed out has had its turn: not one whose next message is another now, as
            # an older one was given back.
            stays = group.lane is not None and (before is None or before.state != OUT)
            if group.lane is not None:
                group.lane.heads.pop(group.turn)
            group.offered, group.lane = mid, None
            if mid is not None:
                if not self._fair:
                    group.turn = mid
                elif not stays:
                    self._turn += 1
                    group.turn = self._turn
                group.lane = self._lanes[self._ranked[mid].priority]
                group.lane.heads.set(group.turn, mid)
        if mid is None and not (group.ready.count or group.delayed.count or group.out):
            self._groups.pop(group.name, None)

    def configure(self, most: int, *, fair: bool) -> None:
        """Changes the rules for all messages, in a step for each group. most, fair: see `__init__`."""
        if (most, fair) == (self._most, self._fair):
            return  # a queue that is only paused keeps its turns, and does not look at a hundred thousand groups
        self._most, self._fair, self._turn = most, fair, 0
        for lane in self._lanes.values():
            lane.heads, lane.turn = MidMap(), 0
        for group in list(self._groups.values()):
            group.offered = group.lane = None
            self._offer(group)

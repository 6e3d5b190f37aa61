"""The connection to PostgreSQL is cut at each statement of each operation: what was answered is done, once; what fails
is done or not, as the error says."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, LiteralString

import pytest
from support.storage.engines import LOTS, ManualClock
from support.storage.postgres import Database, Postgres, engine_on, needs_postgres
from support.storage.postgres_wire import StatementProxy, statements_of

from qs_storage.engine import (
    SECOND,
    Draft,
    Message,
    NotKnownError,
    Options,
    Receipt,
)
from qs_storage.postgres.known import FOREVER
from qs_storage.postgres.links import with_settings

pytestmark = needs_postgres
_numbers = itertools.count(1)
_SHOWN = """
SELECT q.qid, m.payload, l.id IS NOT NULL, coalesce(l.receives, h.receives), coalesce(l.reason, h.reason), h.state,
       h.until, h.consumer, h.seq, m.grp, m.priority, m.headers, m.ukey, m.origin IS NOT NULL
FROM qs.messages m JOIN qs.queues q USING (queue) LEFT JOIN qs.line l USING (queue, id) LEFT JOIN qs.hidden h
USING (queue, id) WHERE q.qid LIKE %s ORDER BY q.qid, m.id
"""
"""All that there is of messages. A message in both places, or in none, shows."""


@dataclass
class At:
    """An engine through the proxy, with queues `name` and `name-dead`. mids: of the messages, in their order: two that
    are in flight, two that are visible, one that is delayed."""

    engine: Any
    clock: ManualClock
    name: str
    mids: list[int]

    @property
    def queue(self) -> Any:
        return self.engine.queue(self.name)

    def receipt(self, which: int) -> Receipt:
        return Receipt(self.mids[which], 1)

    def receive(self, count: int) -> list[Message]:
        found: list[Message] = self.engine.receive([self.name], count, 30 * SECOND, LOTS)
        return found

    def claim(self) -> object:
        return self.queue.claims.claim("c", 1, 10, None, None)

    def stage(self) -> object:
        return self.queue.batches.stage("p", (0, 0, 7), [Draft(b"staged 1"), Draft(b"staged 2")])


Do = Callable[[At], object]


def nothing(_: At) -> None:
    """Prepares nothing."""


def expire(at: At) -> None:
    """Lets all windows end."""
    at.clock.now += 100 * SECOND


OPERATIONS: dict[str, tuple[Do, Do]] = {
    "push": (nothing, lambda at: at.queue.push([Draft(b"new")])),
    "push a list": (nothing, lambda at: at.queue.push([Draft(b"1"), Draft(b"2", delay=SECOND), Draft(b"3")])),
    "push with a key": (nothing, lambda at: at.queue.push([Draft(b"new", key="k")])),
    "push with all": (
        nothing,
        lambda at: at.queue.push(
            [Draft(b"new", key="k", unique=True, priority=3, expires=SECOND, group="g", headers=(("a", "b"),))]
        ),
    ),
    "receive": (nothing, lambda at: at.receive(2)),
    "receive what has expired": (expire, lambda at: at.receive(9)),
    "delete": (nothing, lambda at: at.queue.delete(at.receipt(0))),
    "release": (nothing, lambda at: at.queue.release(at.receipt(0), 0)),
    "release, late": (nothing, lambda at: at.queue.release(at.receipt(0), 5 * SECOND, reason="why")),
    "extend": (nothing, lambda at: at.queue.extend(at.receipt(0), 99 * SECOND)),
    "reject": (nothing, lambda at: at.queue.reject(at.receipt(0), "why")),
    "get": (nothing, lambda at: at.queue.get(at.mids[2], peek=False, visibility=SECOND)),
    "purge": (nothing, lambda at: at.queue.purge(at.mids[-1], 3)),
    "copy": (nothing, lambda at: at.engine.copy(at.name, at.mids[2], [f"{at.name}-dead"])),
    "redrive": (
        lambda at: at.queue.reject(at.receipt(0), "why"),
        lambda at: (
            (letters := at.engine.queue(f"{at.name}-dead").redrive)
            and letters.move([(mid, at.queue) for mid, _ in letters.letters((), 10)])
        ),
    ),
    "claim": (nothing, At.claim),
    "acknowledge": (At.claim, lambda at: at.queue.claims.acknowledge("c", 1)),
    "release a claim": (At.claim, lambda at: at.queue.claims.release("c", 1)),
    "stage": (nothing, At.stage),
    "publish": (At.stage, lambda at: at.queue.batches.publish("p", 0, [(0, 7)])),
    "remove": (nothing, lambda at: at.engine.remove(at.name, force=True)),
    "configure": (
        nothing,
        lambda at: at.engine.configure(at.name, replace(at.engine.options(at.name), visibility=77)),
    ),
}
"""Name -> what happens before, and the operation."""


class Place:
    """An engine through a proxy, and the database itself."""

    def __init__(self, database: Database, proxy: StatementProxy, root: Path) -> None:
        self.database = database
        self._administrator = database.connect()
        self.proxy = proxy
        self.clock = ManualClock()
        dsn = database.server.dsn_of(database.name, port=proxy.port)
        self.engine = engine_on(database, root, self.clock, dsn=dsn)
        for part in (self.engine._upkeep, self.engine._heartbeat):  # their statements are not those to be cut
            part._link._dsn = with_settings(database.dsn)
            part._link.cut()

    def sql(self, text: LiteralString, *parameters: str) -> list[Any]:
        """Runs a statement as the administrator, on a connection that stays. Returns its rows."""
        cursor = self._administrator.execute(text, parameters or None)
        return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        self.engine.close()
        self._administrator.close()

    def prepared(self, before: Do) -> At:
        """Makes queues with messages. What is prepared is the same each time, and the engine has its connections."""
        self.proxy.arm()
        self.sql("DELETE FROM qs.messages; DELETE FROM qs.line; DELETE FROM qs.hidden")
        name = f"q{next(_numbers):05d}"
        self.engine.create(f"{name}-dead", Options())
        self.engine.create(name, Options(dead_letter=f"{name}-dead", max_receives=10))
        mids = self.engine.queue(name).push([Draft(b"%d" % number) for number in range(4)])
        mids += self.engine.queue(name).push([Draft(b"late", delay=60 * SECOND)])
        at = At(self.engine, self.clock, name, mids)
        at.receive(2)
        before(at)
        return at

    def shown(self, at: At) -> list[Any]:
        """Returns the messages of the queues, with times from now on and without their names."""
        rows = self.sql(_SHOWN, f"{at.name}%")
        now = self.clock.now
        options = self.sql("SELECT options FROM qs.queues WHERE qid = %s", at.name)
        staged = self.sql(
            "SELECT payload FROM qs.staged JOIN qs.queues USING (queue) WHERE qid = %s ORDER BY number", at.name
        )
        changing = [
            (row[0] == at.name, *row[1:6], row[6] and (row[6] >= FOREVER or row[6] - now), *row[7:]) for row in rows
        ]
        return [changing, [{**each, "dead_letter": ""} for (each,) in options], staged]


@pytest.fixture(scope="module")
def place(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with postgres.database() as database, statements_of(postgres) as proxy, pytest.MonkeyPatch.context() as patch:
        patch.setattr("qs_storage.postgres.links._PLANS_LAST", float("inf"))  # each run has the same statements
        place = Place(database, proxy, tmp_path_factory.mktemp("cuts"))
        yield place
        place.close()


Cut = tuple[LiteralString, int, bool]


def cuts(found: Sequence[tuple[LiteralString, int]]) -> list[Cut]:
    """Returns where to cut: before each statement, and after the last of each transaction, whose answer is lost."""
    return [(text, nth, passes) for text, nth in found for passes in ((False, True) if text == "COMMIT" else (False,))]


def statements(place: Place, before: Do, do: Do) -> tuple[list[tuple[str, int]], list[Any], list[Any]]:
    """Does the operation without a cut. Returns its statements, each with the number of the same before it, and the
    states before and after."""
    at = place.prepared(before)
    old = place.shown(at)
    place.proxy.arm()
    do(at)
    sent = list(place.proxy.sent)
    place.proxy.arm()
    return [(text, sent[:number].count(text)) for number, text in enumerate(sent)], old, place.shown(at)


@pytest.mark.parametrize("name", OPERATIONS)
def test_cut_at_each_statement(place: Place, name: str) -> None:
    """The engine repeats what was not committed; what is not known is only said when the commit was sent, and then the
    operation is done as a whole or not at all."""
    before, do = OPERATIONS[name]
    found, old, new = statements(place, before, do)
    unknown = 0
    for text, nth, passes in cuts(found):
        at = place.prepared(before)
        place.proxy.arm(text, nth, passes=passes)
        try:
            do(at)
        except NotKnownError:
            unknown += 1
            assert "COMMIT" in place.proxy.sent, (text, nth, passes, place.proxy.sent)
            _settle(place)
            assert place.shown(at) in (old, new), (text, nth, passes)
        else:
            _settle(place)
            assert place.shown(at) == new, (text, nth, passes)
    assert unknown


def _settle(place: Place) -> None:
    """Waits until the transactions of connections that were cut have ended."""
    place.sql("BEGIN; LOCK TABLE qs.messages, qs.line, qs.hidden, qs.staged, qs.queues; COMMIT")


OFTEN = {"push a list", "receive", "delete", "reject", "publish"}
"""The operations whose connections are also terminated in each run of the tests."""


@pytest.mark.parametrize(
    "name", [each if each in OFTEN else pytest.param(each, marks=pytest.mark.long) for each in OPERATIONS]
)
def test_terminated_at_each_statement(place: Place, name: str) -> None:
    """An administrator ends all connections before the statement: nothing answered is lost or done twice."""
    before, do = OPERATIONS[name]
    found, old, new = statements(place, before, do)

    def terminate() -> None:
        place.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name LIKE 'qs%'"
        )

    for text, nth in found:
        at = place.prepared(before)
        place.proxy.arm(text, nth, do=terminate)
        try:
            do(at)
        except NotKnownError:
            assert "COMMIT" in place.proxy.sent
            assert place.shown(at) in (old, new), (text, nth)
        else:
            assert place.shown(at) == new, (text, nth)


def test_a_repeated_push_with_a_key(place: Place) -> None:
    """A push with a key that is repeated after `not known` is stored once, wherever the connection was cut."""

    def push(at: At) -> None:
        at.queue.push([Draft(b"a", key="k"), Draft(b"b", key="l")])

    found, _, new = statements(place, nothing, push)
    repeated = 0
    for text, nth, passes in cuts(found):
        at = place.prepared(nothing)
        place.proxy.arm(text, nth, passes=passes)
        try:
            push(at)
        except NotKnownError:
            repeated += 1
            push(at)
        assert place.shown(at) == new, (text, nth, passes)
    assert repeated

"""No SQL is made from text of clients: whatever stands in a name, a key, a group, a header, a reason or a payload is a
value."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from support.storage.engines import LOTS
from support.storage.postgres import Database, Postgres, engine_on, needs_postgres

from qs_storage.engine import SECOND, Draft, Options, Receipt, State

pytestmark = needs_postgres
HOSTILE = [
    "'; DROP TABLE qs.messages; --",
    "\\'; DROP SCHEMA qs CASCADE; --",
    '"; DROP TABLE qs.line; --',
    "$$; DROP TABLE qs.hidden; $$",
    "%s %b %(x)s %% {} {0}",
    "$1 $2 :name ?",
    '{a,b,NULL,"c"}',
    "NULL",
    "\\x00\\000\\",
    "a\nb\tc\rd",
    "/* */ -- #",
    "größe \U0001f600 \u202e \ufeff",
    "',E'\\'||pg_sleep(9)||'",
    "q" * 200,
    "..",
    "a/b",
]
PAYLOADS = [b"", b"\0", b"\0\xff\\", bytes(range(256)), b"'; DROP TABLE qs.messages; --", b"\\x00", b"{}", b"\xc3("]
_numbers = itertools.count()


@pytest.fixture(scope="module")
def bound(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Database]]:
    with postgres.database() as database:
        engine = engine_on(database, tmp_path_factory.mktemp("hostile"))
        engine.create("other", Options())
        engine.queue("other").push([Draft(b"stays")])
        yield engine, database
        engine.close()
        assert database.sql("SELECT payload FROM qs.messages JOIN qs.queues USING (queue) WHERE qid = 'other'") == [
            b"stays"
        ]


@pytest.mark.parametrize("text", HOSTILE)
def test_text(bound: tuple[Any, Database], text: str) -> None:
    """Names, groups, keys, headers, reasons, consumers and producers come back as they were."""
    engine, _ = bound
    name = "".join(each for each in text if each.isprintable())[:200] or "x"
    other, key = f"{name[:190]}-2", text[:128]
    engine.create(name, Options())
    engine.create(other, Options(dead_letter=name, max_receives=5))
    queue = engine.queue(other)
    drafts = [Draft(b"x", key=key, unique=unique, group=key, headers=(("h", text),)) for unique in (True, False)]
    [mid, same] = queue.push(drafts)
    assert mid == same
    [message] = engine.receive([queue.qid], 10, None, LOTS)
    assert (message.mid, message.group, message.headers) == (mid, key, (("h", text),))
    queue.release(Receipt(mid, 1), 0, reason=text)
    [message] = engine.receive([queue.qid], 10, None, LOTS)
    assert message.reason == text[:256] or message.reason == text
    queue.reject(Receipt(mid, 2), text)
    dead = engine.queue(name)
    [letter] = dead.list_mids(State.ALL, 10, -1)
    found = dead.read(Receipt(letter))
    assert (found.payload, found.origin.qid, found.group) == (b"x", queue.qid, key)
    claimed = dead.claims.claim(name, 1, 10, None, None)
    assert claimed.count == 1
    assert [each.consumer for each in dead.claims.all()] == [name]
    dead.claims.acknowledge(name, 1)
    dead.batches.stage(name, (0, 0, 1), [Draft(b"staged")])
    dead.batches.publish(name, 0, [(0, 1)])
    assert [each.payload for each in engine.receive([name], 10, None, LOTS)] == [b"staged"]
    for qid in (other, name):
        assert qid in engine.queues()
        engine.remove(qid, force=True)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_payload(bound: tuple[Any, Database], payload: bytes) -> None:
    """Any bytes come back, pushed alone, with an attribute, copied, and staged."""
    engine, _ = bound
    name = f"p{next(_numbers)}"
    engine.create(name, Options())
    queue = engine.queue(name)
    [mid] = queue.push([Draft(payload)])
    queue.push([Draft(payload, delay=0, priority=1)])
    engine.create(f"{name}-copy", Options())
    engine.copy(name, mid, [f"{name}-copy"])
    assert queue.get(mid, peek=True, visibility=None).payload == payload
    found = engine.receive([name, f"{name}-copy"], 10, 9 * SECOND, LOTS)
    assert [message.payload for message in found] == [payload] * 3

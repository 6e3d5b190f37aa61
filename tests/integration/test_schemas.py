"""Queues with a schema on a real server: what comes in, what is refused, and what says so."""

import os
import resource
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from html import escape
from pathlib import Path
from typing import Any

import pytest
from support.clients.documents import code, push
from support.faults import small_disk
from support.servers.processes import FAST, ServerProcess, Wire, serving
from support.storage.postgres import IS_THERE, Postgres, needs_postgres

from qs_client import BadRequest, Draft, Full, Invalid, NotFound, QueueClient, Unavailable
from qs_storage.dirq import Queue, QueueSimple

XSD = """<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema"><xs:element name="order"><xs:complexType><xs:sequence>
<xs:element name="total" type="xs:decimal"/><xs:element name="note" type="xs:string" minOccurs="0"/>
</xs:sequence></xs:complexType></xs:element></xs:schema>"""
OTHER = XSD.replace('"order"', '"bill"')
VALID = "<order><total>12.50</total></order>"
INVALID = "<order>\n<total>much</total></order>"
LARGE = f"<order><total>1</total><note>{'x' * 100_000}</note></order>"


@pytest.fixture(scope="module")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the schemas `order` and `bill`."""
    directory = tmp_path_factory.mktemp("schemas")
    (directory / "order.xsd").write_text(XSD)
    (directory / "bill.xsd").write_text(OTHER)
    return directory


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory, schemas: Path) -> Iterator[ServerProcess]:
    """One server with schemas for all tests of this file."""
    root = tmp_path_factory.mktemp("shared") / "root"
    with ExitStack() as stack:
        flags = [*FAST, "--schemas", str(schemas)]
        if IS_THERE:
            database = stack.enter_context(stack.enter_context(Postgres()).database())
            flags += ["--postgres", database.dsn]
        yield stack.enter_context(serving(root, *flags))


@pytest.fixture(params=["journal", "files", pytest.param("postgres", marks=needs_postgres)])
def orders(client: QueueClient, request: pytest.FixtureRequest, qid: str) -> str:
    """A queue for valid orders, in each storage."""
    name = f"{qid}-orders"
    client.new_queue(name, storage=request.param, schema="order")
    return name


def held(client: QueueClient, qid: str) -> int:
    """Returns how many messages a queue has."""
    [info] = client.stats(qid)
    return (info.ready or 0) + (info.in_flight or 0)


@pytest.mark.parametrize("padding", ["", "<!--" + "x" * 100_000 + "-->"], ids=["small", "large"])
def test_a_push_is_checked(client: QueueClient, orders: str, padding: str) -> None:
    """A valid payload comes in; any other is refused with line, element and reason, and counted. A payload of any size
    is checked."""
    client.push(orders, VALID + padding)
    with pytest.raises(Invalid, match=r"(?s)order.*line 2.*total.*much") as caught:
        client.push(orders, INVALID + padding)
    assert (caught.value.code, caught.value.type) == (422, "invalid")
    for wrong in ("no XML" + padding, "<bill><total>1</total></bill>" + padding, "<!DOCTYPE order>" + VALID + padding):
        with pytest.raises(Invalid):
            client.push(orders, wrong)
    [info] = client.stats(orders)
    assert (info.schema, info.refused, held(client, orders)) == ("order", 4, 1)


def test_a_list_is_all_or_nothing(client: QueueClient, orders: str) -> None:
    """A list with one payload that is not valid is refused as a whole, small or large, and says which it is."""
    for count in (3, 1000):
        with pytest.raises(Invalid, match=f"message 2 of {count}"):
            client.push_many(orders, [VALID, INVALID, *[VALID] * (count - 2)])
        assert held(client, orders) == 0
    assert len(client.push_many(orders, [VALID] * 1000)) == 1000


def test_pushes_that_come_together(client: QueueClient, orders: str) -> None:
    """Pushes that come together are refused each by itself, and the others are stored in their order."""
    with client.pipeline() as pipeline:
        results = [pipeline.push(orders, text) for text in (VALID, INVALID, LARGE, VALID, "x", LARGE)]
        outcomes: list[Any] = []
        for result in results:
            try:
                outcomes.append(result.result())
            except Invalid:
                outcomes.append(None)
    assert [outcome is None for outcome in outcomes] == [False, True, False, False, True, False]
    taken = [outcome for outcome in outcomes if outcome is not None]
    assert taken == sorted(taken)
    assert [each.text for each in client.receive(orders, 9)] == [VALID, LARGE, VALID, LARGE]


@pytest.fixture(params=["journal", pytest.param("postgres", marks=needs_postgres)])
def jobs(client: QueueClient, request: pytest.FixtureRequest, qid: str) -> str:
    """A queue without a schema, and with its name and an end two more, `-plain` and, with a schema, `-checked`; in each
    storage that can all."""
    client.new_queue(f"{qid}-jobs", storage=request.param)
    client.new_queue(f"{qid}-jobs-plain", storage=request.param)
    client.new_queue(f"{qid}-jobs-checked", storage=request.param, schema="order")
    return f"{qid}-jobs"


def test_copies_are_checked(client: QueueClient, jobs: str) -> None:
    """A message is copied into a queue with a schema only if it is valid, whatever its state; into several queues it
    comes into all or none."""
    qid = jobs
    good, bad, large = (client.push(qid, text) for text in (VALID, INVALID, LARGE))
    client.receive(qid, 2)  # a message in flight is checked too
    for mid in (good, large):
        client.copy(qid, mid, f"{qid}-checked")
    for target in ([f"{qid}-checked"], [f"{qid}-plain", f"{qid}-checked"]):
        with pytest.raises(Invalid, match="much"):
            client.copy(qid, bad, target)
    with pytest.raises(Invalid, match="much"):
        client.copy(qid, [good, bad, large], [f"{qid}-checked"])
    assert (held(client, f"{qid}-plain"), held(client, f"{qid}-checked")) == (0, 2)
    with pytest.raises(NotFound):
        client.copy(qid, 5, f"{qid}-checked")


def test_staged_messages_are_checked(client: QueueClient, jobs: str) -> None:
    """Messages are staged all or none; claims of what is there are not affected."""
    qid = jobs
    with pytest.raises(Invalid, match="message 3 of 3"):
        client.stage_messages(f"{qid}-checked", "p", [VALID, VALID, INVALID], batch=1)
    client.stage_messages(f"{qid}-checked", "p", [VALID, LARGE], batch=1)
    client.publish_staged(f"{qid}-checked", "p", 1, [(0, 0)])
    assert client.claim_messages(f"{qid}-checked", "c", 1).count == 2


def test_letters_that_are_not_valid_stay(client: QueueClient, jobs: str) -> None:
    """Dead letters move whatever their payload is; back they come only if they are valid, all or none."""
    qid = jobs
    client.new_queue(f"{qid}-dead", storage=client.queue_options(qid).storage)
    client.set_queue(qid, dead_letter=f"{qid}-dead", max_receives=1)
    client.set_queue(f"{qid}-dead", schema="bill")  # the move of a dead letter is no push
    for text in (VALID, INVALID):
        client.push(qid, text)
        client.release(client.receive(qid)[0])
    client.set_queue(qid, schema="order")
    good, bad = client.list_messages(f"{qid}-dead", state="all")
    with pytest.raises(Invalid, match=f"message {bad} .*much"):
        client.redrive(f"{qid}-dead")
    assert held(client, f"{qid}-dead") == 2
    assert len(client.redrive(f"{qid}-dead", [good])) == 1
    assert (held(client, qid), held(client, f"{qid}-dead")) == (1, 1)


def test_what_is_there_stays(client: QueueClient, qid: str) -> None:
    """A schema that is set concerns pushes from then on, also those that come with the request that sets it; one that
    is taken away concerns none."""
    client.push(qid, "no XML")
    client.set_queue(qid, schema="order")
    with pytest.raises(Invalid):
        client.push(qid, "no XML")
    client.set_queue(qid, schema=None)
    client.push(qid, "no XML")
    assert held(client, qid) == 2
    assert client.queue_options(qid).schema is None
    [info] = client.stats(qid)
    assert (info.schema, info.refused) == (None, None)


def test_names_of_schemas(client: QueueClient, qid: str) -> None:
    """A schema that is not there is refused with the names of those that are; with exist_ok, another schema is
    another option."""
    for name in ("oder", "../order", "order.json"):
        with pytest.raises((BadRequest, ValueError), match=r"order|characters"):
            client.new_queue(f"{qid}-x", schema=name)
        with pytest.raises((BadRequest, ValueError), match=r"order|characters"):
            client.set_queue(qid, schema=name)
    client.new_queue(f"{qid}-y", schema="order.xsd")
    assert not client.new_queue(f"{qid}-y", schema="order.xsd", exist_ok=True)
    with pytest.raises(Exception, match=r"schema is .order\.xsd., not .bill."):
        client.new_queue(f"{qid}-y", schema="bill", exist_ok=True)


def test_a_full_queue_is_full(client: QueueClient, qid: str) -> None:
    """A checked push is refused by the capacity as any other is."""
    client.new_queue(f"{qid}-few", schema="order", capacity=1)
    client.push(f"{qid}-few", LARGE)
    for text in (VALID, LARGE):
        with pytest.raises(Full):
            client.push(f"{qid}-few", text)
    with pytest.raises(Invalid):
        client.push_many(f"{qid}-few", [Draft(INVALID, priority=3)])


@contextmanager
def started(root: Path, *flags: str) -> Iterator[tuple[ServerProcess, QueueClient]]:
    with serving(root, *FAST, *flags) as server, QueueClient(server.host, server.port, timeout=20) as client:
        yield server, client


def _put(path: Path, storage: str, number: int, text: str) -> None:
    """Puts a message into a queue's directory, as a program without a server does."""
    if storage == "dirq":
        Queue(str(path), schema={"body": "binary"}).add({"body": text.encode()})
    elif storage == "dirq-simple":
        QueueSimple(str(path)).add(text.encode())
    else:
        (path / f"{number}.new").write_text(text)
        (path / f"{number}.new").rename(path / str(number))


@pytest.mark.parametrize("storage", ["journal", "files", "dirq", "dirq-simple"])
def test_what_other_programs_put_there(tmp_path: Path, schemas: Path, storage: str) -> None:
    """A file that another program puts into the directory of a queue is a message if it is valid, small or large. The
    rest stays as files, is counted, and is named in the log; when the schema changes, it is looked at again."""
    own = shutil.copytree(schemas, tmp_path / "schemas")
    long = "<!--" + "x" * 100_000 + "-->"
    texts = [VALID, INVALID, LARGE, INVALID + long, "no XML", VALID]

    def received(client: QueueClient, count: int) -> list[str]:
        found: list[str] = []
        while len(found) < count:
            found += [each.text for each in client.receive("orders", 9, wait=20)]
        return sorted(found)

    with started(tmp_path / "root", "--schemas", str(own), "-v") as (server, client):
        client.new_queue("orders", storage=storage, schema="order")
        path = tmp_path / "root" / "orders"
        for number, text in enumerate(texts, 1):
            _put(path, storage, number, text)
        assert received(client, 3) == sorted([VALID, LARGE, VALID])
        server.until_logged("is no message, and stays", 3)
        [info] = client.stats("orders")
        assert (info.refused, len(list(path.rglob("*.invalid")))) == (3, 3)
        (own / "order.xsd").write_text(XSD.replace("xs:decimal", "xs:string"))
        server.process.send_signal(signal.SIGHUP)
        assert received(client, 2) == sorted([INVALID, INVALID + long])
        client.set_queue("orders", schema=None)
        assert received(client, 1) == ["no XML"]
        assert "Traceback" not in server.log()


def test_a_full_disk(tmp_path: Path, schemas: Path) -> None:
    """A large payload that has no room on the disk is refused with 507, and nothing of it is there; small ones may
    still have room."""
    with (
        small_disk(tmp_path / "disk", "3m") as disk,
        started(disk / "root", "--schemas", str(schemas)) as (_, client),
    ):
        client.new_queue("orders", schema="order")
        large = LARGE.replace("x" * 100_000, "x" * 300_000)
        stored: list[int] = []

        def fill() -> None:
            while True:
                stored.append(client.push("orders", large))

        with pytest.raises(Full, match="nothing was changed"):
            fill()
        assert held(client, "orders") == len(stored) > 0


def test_files_that_change(tmp_path: Path) -> None:
    """After SIGHUP the files are as they are now. A file that cannot be used any more changes nothing and is named in
    the log; the queue of a schema whose file is gone takes nothing until it is back, also over a restart."""
    directory = tmp_path / "schemas"
    directory.mkdir()
    (directory / "order.xsd").write_text(XSD)
    flags = ("--schemas", str(directory), "-v")

    def reload(server: ServerProcess, times: int) -> None:
        server.process.send_signal(signal.SIGHUP)
        server.until_logged("schemas: ", times)

    with started(tmp_path / "root", *flags) as (server, client):
        client.new_queue("orders", schema="order")
        (directory / "order.xsd").write_text("<broken")
        reload(server, 1)
        client.push("orders", VALID)
        assert "order.xsd" in server.log()
        (directory / "order.xsd").write_text(OTHER)
        reload(server, 2)
        for padding in ("", "<!--" + "x" * 100_000 + "-->"):
            with pytest.raises(Invalid):
                client.push("orders", VALID + padding)
            client.push("orders", "<bill><total>1</total></bill>" + padding)
        (directory / "order.xsd").unlink()
        reload(server, 3)
        with pytest.raises(Unavailable, match="order"):
            client.push("orders", VALID)
        client.set_queue("orders", visibility=5)  # other options can be changed
    with started(tmp_path / "root", *flags) as (server, client), pytest.raises(Unavailable, match="order"):
        client.push("orders", VALID)
    with started(tmp_path / "root") as (server, client):
        with pytest.raises(Unavailable, match="--schemas"):
            client.push("orders", VALID)
        with pytest.raises(BadRequest, match="--schemas"):
            client.new_queue("x", schema="order")
        assert "Traceback" not in server.log()


def test_a_schema_that_takes_long(tmp_path: Path) -> None:
    """A pattern that would take for ever is given up after two seconds: that payload is refused, and nobody else waits:
    pings and pushes into other queues are answered meanwhile."""
    directory = tmp_path / "schemas"
    directory.mkdir()
    slow = '<xs:pattern value="(x+x+)+y"/>'
    (directory / "slow.xsd").write_text(
        '<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema"><xs:element name="e"><xs:complexType><xs:sequence>'
        '<xs:element name="v" maxOccurs="unbounded"><xs:simpleType><xs:restriction base="xs:string">'
        f"{slow}</xs:restriction></xs:simpleType></xs:element></xs:sequence></xs:complexType></xs:element></xs:schema>"
    )
    with started(tmp_path / "root", "--schemas", str(directory)) as (server, client):
        client.new_queue("slow", schema="slow")
        client.new_queue("plain")
        client.push("slow", "<e><v>xxxy</v></e>")
        with Wire(server) as wire:
            wire.send(push("slow", escape(f"<e><v>{'x' * 60}</v></e>")))
            for _ in range(20):
                client.push("plain", "x")
            assert held(client, "slow") == 1
            answer = wire.line()
        assert (code(answer), "could not be checked" in answer) == (422, True), answer
        client.push("slow", "<e><v>xxxy</v></e>")


def test_no_process_can_be_started(tmp_path: Path, schemas: Path) -> None:
    """A server that cannot start the process of a check says so, and nothing of the disk; nothing is stored."""
    with started(tmp_path / "root", "--schemas", str(schemas)) as (server, client):
        client.new_queue("orders", schema="order")
        soft, hard = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
        # As many as are open: pipes to a process get no descriptors.
        taken = {int(name) for name in os.listdir(f"/proc/{server.process.pid}/fd")}
        free = min(set(range(len(taken) + 1)) - taken)
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (free, hard))
        with pytest.raises(Unavailable, match="no process can be started that checks payloads"):
            client.push("orders", LARGE)
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (soft, hard))
        assert held(client, "orders") == 0
        client.push("orders", LARGE)
        assert held(client, "orders") == 1

"""Clients that are used in a child of a fork: each process has a connection of its own, and the parent's is left
alone."""

import os
import queue
import subprocess
import sys
import threading

import pytest
from support.clients.scripted_server import GIVE_UP, Conversation, Parallel, ScriptedServer, Seen, delivering, scripted
from support.servers.processes import ServerProcess
from support.servers.tls import authority

from qs_client import DeleteMessage, Ping, QueueClient, Subscribe

_BEGIN = """
import functools, os, signal, sys, threading
import anyio
from qs_client import AsyncBusClient, AsyncQueueClient, BusClient, OtherProcess, QueueClient
signal.alarm(20)
kind, host, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
"""

_BOTH = (
    _BEGIN
    + """
rounds = 40

def work(me, client):
    for n in range(rounds):
        client.push(me, f"{me}-{n}")
        delivery = client.receive_one(me)
        assert delivery is not None and delivery.text == f"{me}-{n}", (me, n, delivery)
        client.delete(delivery)

async def awork(me, client):
    await client.ping()
    for n in range(rounds):
        await client.push(me, f"{me}-{n}")
        delivery = await client.receive_one(me, wait=n % 2)
        assert delivery is not None and delivery.text == f"{me}-{n}", (me, n, delivery)
        await client.delete(delivery)

if kind == "sync":
    client, run = QueueClient(host, port), work
    client.connect()
else:
    client, run = AsyncQueueClient(host, port), lambda me, client: anyio.run(awork, me, client, backend=kind)
    anyio.run(awork, "parent", client, backend=kind)
child = os.fork()
run("parent" if child else "child", client)
if child:
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
else:
    sys.stdout.flush()
    os._exit(0)
"""
)

_LOCKED = (
    _BEGIN
    + """
client = QueueClient(host, port)
thread = threading.Thread(target=lambda: client.receive("q", wait=3600), daemon=True)
thread.start()
sys.stdin.readline()
child = os.fork()
if child:
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), client.connected)
    sys.stdout.flush()
    os._exit(0)
signal.alarm(5)
client.ping()
client.disconnect()
os._exit(0)
"""
)

_SUBSCRIBED = (
    _BEGIN
    + """
def refused(messages):
    try:
        next(messages)
    except OtherProcess as error:
        assert "subscribe again" in str(error)
        return 0
    return 1

async def arefused(messages):
    try:
        await messages.__anext__()
    except OtherProcess:
        await messages.aclose()
        return 0
    return 1

made = {"queue": QueueClient, "bus": BusClient, "aqueue": AsyncQueueClient, "abus": AsyncBusClient}[kind](host, port)
messages = made.subscribe("q", **({"ack": True} if "bus" in kind else {}))

def fork_in(first):
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0
        return
    if kind.startswith("a"):
        try:
            arefused(messages).send(None)
        except StopIteration as done:
            code = done.value
    else:
        code = refused(messages)
        messages.close()
        if kind == "bus":
            made.delete(first)
            made.close()
        else:
            made.disconnect()
    sys.stdout.flush()
    os._exit(code)

async def main():
    first = await messages.__anext__()
    fork_in(first)
    second = await messages.__anext__()
    print(first.text, second.text)

if kind.startswith("a"):
    anyio.run(main, backend=sys.argv[4])
else:
    first = next(messages)
    fork_in(first)
    print(first.text, next(messages).text)
sys.stdout.flush()
os._exit(0)
"""
)


def started(program: str, kind: str, server: ServerProcess | ScriptedServer, *more: str) -> "subprocess.Popen[bytes]":
    return _started([program, kind, server.host, str(server.port), *more])


def _started(arguments: list[str], **variables: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **variables})


@pytest.mark.parametrize("kind", ["sync", "trio", "asyncio"])
def test_parent_and_child_at_the_same_time(kind: str, shared_server: ServerProcess) -> None:
    """Parent and child use one client at the same time, and each gets the answers to its own requests only."""
    with QueueClient(shared_server.host, shared_server.port) as client:
        client.new_queue("parent", exist_ok=True)
        client.new_queue("child", exist_ok=True)
    with started(_BOTH, kind, shared_server) as parent:
        output, _ = parent.communicate(timeout=2 * GIVE_UP)
    assert (parent.returncode, output) == (0, b"0\n")


@pytest.mark.parametrize("kind", ["sync", "trio", "asyncio"])
def test_parent_and_child_over_tls(kind: str, tls_server: ServerProcess) -> None:
    """Parent and child use one client over TLS: the child sends nothing in the parent's session, not even its end."""
    ca = authority().cert
    with QueueClient("localhost", tls_server.port, tls=ca) as client:
        client.new_queue("parent", exist_ok=True)
        client.new_queue("child", exist_ok=True)
    # The variable makes this CA the one that the system trusts.
    with _started([_BOTH, kind, "qss://localhost", str(tls_server.port)], SSL_CERT_FILE=str(ca)) as parent:
        output, _ = parent.communicate(timeout=2 * GIVE_UP)
    assert (parent.returncode, output) == (0, b"0\n")


def test_a_thread_that_waits_as_its_process_forks() -> None:
    """The child does not wait for what a thread of the parent holds; and neither the child's calls nor its disconnect()
    end what the parent's thread waits for."""
    asked = threading.Event()
    calls: list[object] = []

    def waiting(conversation: Conversation) -> None:
        conversation.read()
        asked.set()
        assert conversation.read() is None  # when the parent ends
        calls.append("ended")

    def child(conversation: Conversation) -> None:
        ping = conversation.read()
        calls.append(type(ping))
        conversation.answer(ping)
        assert conversation.read() is None

    with Parallel(waiting, child) as server, started(_LOCKED, "sync", server) as parent:
        assert asked.wait(GIVE_UP)
        output, _ = parent.communicate(b"\n", timeout=2 * GIVE_UP)
    assert (parent.returncode, output) == (0, b"0 True\n")
    assert calls == [Ping, "ended"]


@pytest.mark.parametrize(
    ("kind", "backend"),
    [("queue", ""), ("bus", ""), *((kind, each) for kind in ("aqueue", "abus") for each in ("trio", "asyncio"))],
)
def test_a_subscription_over_a_fork(kind: str, backend: str) -> None:
    """In the child a subscription of the parent raises OtherProcess, and sends nothing, whatever is called; in the
    parent it goes on."""
    seen: Seen = queue.SimpleQueue()
    with scripted(delivering(1, 2, seen=seen)) as server, started(_SUBSCRIBED, kind, server, backend) as parent:
        output, _ = parent.communicate(timeout=2 * GIVE_UP)
        assert (parent.returncode, output) == (0, b"1 2\n")
        assert server.connections == 1
    kinds = [type(seen.get(timeout=GIVE_UP)) for _ in range(seen.qsize())]
    assert kinds == ([Subscribe, DeleteMessage] if "bus" in kind else [Subscribe])

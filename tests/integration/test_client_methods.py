"""The methods over real sockets: one connection, plain values, the look of methods."""

import inspect
import itertools
import queue
import threading
from collections.abc import Iterator

import pytest
from support.clients.scripted_server import GIVE_UP, Conversation, ScriptedServer, answering, client_of, scripted

from qs_client import Error, Message, Ping, PushMessage, QueueClient, calls, policy_calls


def test_list_messages_is_lazy() -> None:
    """The iterator asks for a page when the one before is used up, and not earlier."""
    seen: queue.SimpleQueue[Message] = queue.SimpleQueue()
    pages = [calls.ListMessages("q", mids=list(range(1, 1001))), calls.ListMessages("q", mids=[1001])]
    with scripted(answering(*pages, seen=seen)) as server, client_of(server) as client:
        mids = client.list_messages("q")
        assert seen.empty()
        assert list(itertools.islice(mids, 1000)) == list(range(1, 1001))
        assert seen.qsize() == 1
        assert list(mids) == [1001]
        assert seen.qsize() == 2


@pytest.mark.parametrize("name", ["push", "receive", "delete_many", "list_messages", "ping"])
def test_methods_look_like_methods(name: str) -> None:
    """`help()` and editors see a method's own parameters, what it returns, and its documentation."""
    method, call = getattr(QueueClient, name), getattr(calls, name)
    assert method.__doc__ == call.__doc__
    assert method.__qualname__ == f"QueueClient.{name}"
    assert list(inspect.signature(method).parameters) == ["self", *inspect.signature(call).parameters]
    returns = inspect.signature(method).return_annotation
    expected = {"push": int, "ping": None, "delete_many": list[int], "list_messages": Iterator[int]}
    assert name not in expected or returns == expected[name]
    assert method.__annotations__["return"] == returns


def test_every_call_is_a_method() -> None:
    """No public call is missing from the client, and each has documentation."""
    public = [
        name
        for module in (calls, policy_calls)
        for name, call in inspect.getmembers(module, inspect.isgeneratorfunction)
        if call.__module__ == module.__name__ and not name.startswith("_")
    ]
    assert len(public) > 20
    for name in public:
        assert getattr(QueueClient, name).__doc__, name


def test_handling_deletes_or_releases() -> None:
    """A message is deleted when the block ends well, and released, the exception going on, when it does not."""
    seen: queue.SimpleQueue[Message] = queue.SimpleQueue()
    delivery = calls.Delivery(5, b"x", "q", 1)
    script = answering(
        calls.DeleteMessage("q", 5), calls.ReleaseMessage("q", 5), Error(409, "stale", "late"), seen=seen
    )
    with scripted(script) as server, client_of(server) as client:
        with client.handling(delivery) as same:
            assert same is delivery
        for _ in range(2):  # the second time the release fails, and is not what the user gets to see
            with pytest.raises(ZeroDivisionError), client.handling(delivery):
                raise ZeroDivisionError
    assert [type(seen.get(timeout=GIVE_UP)).__name__ for _ in range(3)] == [
        "DeleteMessage",
        "ReleaseMessage",
        "ReleaseMessage",
    ]


def test_several_threads_take_turns() -> None:
    """Threads that share a client each get their own answers."""

    def script(conversation: Conversation) -> None:
        while isinstance(request := conversation.read(), PushMessage):
            assert isinstance(request.payload, bytes)
            conversation.answer(request, qid="q", mid=int(request.payload))

    with scripted(script) as server, client_of(server) as client:
        wrong: list[int] = []

        def work(first: int) -> None:
            wrong.extend(n for n in range(first, first + 50) if client.push("q", str(n)) != n)

        threads = [threading.Thread(target=work, args=(first,)) for first in (0, 1000, 2000, 3000)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(GIVE_UP)
        assert wrong == []
        assert server.connections == 1


def test_ipv6() -> None:
    """An IPv6 address works as host, and stands in brackets where the server is named."""
    try:
        server = ScriptedServer(answering(Ping()), host="::1")
    except OSError:
        pytest.skip("this machine has no IPv6")
    with client_of(server) as client:
        client.ping()
        assert repr(client) == f"<QueueClient [::1]:{server.port}, connected>"
    server.stop()

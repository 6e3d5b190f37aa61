"""`send` and recv over real sockets, as bucker's programs use them."""

import queue
import socket
import threading

import pytest
from support.clients.scripted_server import GIVE_UP, SOON, Conversation, answer_bytes, answering, client_of, scripted

from qs_client import Error, ListQueues, Message, NewQueue, Ping, PushMessage, QueueClient, ServerUnavailable


def test_send_and_recv_from_another_thread() -> None:
    """Old code sets fields one by one, and sends and receives in another thread than the one that connected."""
    with scripted(answering(NewQueue("x"), Error(409, "conflict", "exists"))) as server:
        client = client_of(server)
        client.connect()
        answers: list[Message] = []

        def work() -> None:
            for _ in range(2):
                message = NewQueue()
                message.qid = "x"
                client.send(message)
                answers.append(client.recv())

        thread = threading.Thread(target=work)
        thread.start()
        thread.join(GIVE_UP)
        client.disconnect()
    assert [type(answer) for answer in answers] == [NewQueue, Error]


def test_recv_times_out_and_goes_on() -> None:
    """`recv()` raises socket.timeout when nothing came; the connection stays, and half an answer is not lost."""
    go_on = threading.Event()

    def script(conversation: Conversation) -> None:
        data = answer_bytes(conversation.read(), queues=["a"])
        conversation.write(data[:30])
        assert go_on.wait(GIVE_UP)
        conversation.write(data[30:])
        assert conversation.read() is None

    with scripted(script) as server, client_of(server, timeout=SOON) as client:
        client.send(ListQueues())
        for _ in range(3):
            with pytest.raises(socket.timeout) as raised:
                client.recv()
            assert type(raised.value) is TimeoutError
        go_on.set()
        answer = client.recv(GIVE_UP)
        assert isinstance(answer, ListQueues)
        assert answer.queues == ["a"]
        assert server.connections == 1


def test_recv_for_ever_and_at_once() -> None:
    """A client whose timeout is None waits for ever; recv(0) only looks."""
    with scripted(answering(Ping())) as server, client_of(server, timeout=None) as client:
        with pytest.raises(TimeoutError):
            client.recv(0)
        client.send(Ping())
        assert isinstance(client.recv(), Ping)


def test_recv_without_connection() -> None:
    """`recv()` before connect() says what is missing; disconnect() is harmless at any time."""
    client = QueueClient("127.0.0.1", 1)
    client.disconnect()
    with pytest.raises(ServerUnavailable, match=r"connect\(\)"):
        client.recv()


def test_recv_after_the_server_has_gone() -> None:
    """`recv()` says that the server closed the connection, and later calls connect afresh."""
    with scripted(lambda conversation: None, answering(Ping())) as server, client_of(server) as client:
        with pytest.raises(ServerUnavailable, match=r"(closed|broke) the connection"):
            client.recv()
        assert not client.connected
        client.send(Ping())
        assert isinstance(client.recv(), Ping)


def test_low_level_beside_methods() -> None:
    """An answer that is still owed to send() is kept for recv() while a method waits for its own."""
    with scripted(answering(ListQueues(["a"]), PushMessage("q", mid=5))) as server, client_of(server) as client:
        client.send(ListQueues())
        assert client.push("q", "x") == 5
        answer = client.recv()
        assert isinstance(answer, ListQueues)


def test_bad_names_are_refused_before_anything_is_sent() -> None:
    """Text that XML cannot carry is a ValueError in send() and in methods; the connection still works."""
    seen: queue.SimpleQueue[Message] = queue.SimpleQueue()
    with scripted(answering(Ping(), seen=seen)) as server, client_of(server) as client:
        with pytest.raises(ValueError, match="U\\+0000"):
            client.send(NewQueue("a\0b"))
        with pytest.raises(ValueError, match="U\\+0000"):
            client.new_queue("a\0b")
        client.ping()
        assert server.connections == 1
    assert seen.qsize() == 1

"""The real server process and what a client can send wrong: the error it gets, and that nothing changes."""

import select
import socket
from pathlib import Path

from support.clients.documents import (
    BAD,
    PING,
    code,
    delete,
    mids,
    new_queue,
    push,
    receive,
    request,
    state,
    text,
)
from support.servers.processes import FAST, ServerProcess, Wire, serving

# name: (bytes, code, what the text says, whether the connection is closed), as in bad_documents
OF_QUEUES: dict[str, tuple[str | bytes, int, str, bool]] = {
    "a name whose directory is too long": (new_queue("\N{GRINNING FACE}" * 200), 400, "255", False),
    "an unknown queue": (push("absent", "x"), 404, "absent", False),
    "a queue that exists": (new_queue("q"), 409, "already an existing queue", False),
    "a queue that is not empty": (request("delete-queue", "<qid>q</qid>"), 409, "not empty", False),
}


def test_server_answers_bad_input(server: ServerProcess, wire: Wire) -> None:
    """Everything that a client can send wrong has its documented error, changes nothing, and hurts no other client."""
    wire.ask(push("q", "precious"), push("q", "also"))
    wire.ask(receive("q", visibility=3600))
    before = state(wire, server.root)
    for name, (sent, expected, says, closes) in (BAD | OF_QUEUES).items():
        with Wire(server) as bad:
            bad.send(sent)
            answer = bad.line()
            assert (name, code(answer)) == (name, expected), answer
            assert says in text(answer), name
            assert len(answer.splitlines()) == 1
            if closes:
                assert bad.line() == "", name
            else:
                assert "<ping/>" in bad.ask(PING), name
        assert state(wire, server.root) == before, name
    assert "Traceback" not in server.log()


def test_huge_numbers_that_are_allowed(wire: Wire) -> None:
    """The greatest numbers that the contract allows are taken as what they are."""
    mid = mids(wire.ask(push("q", "x", delay="999999999.999999999")))[0]
    listed = request("list-messages", "<qid>q</qid>", state="delayed", max="9" * 18, after="0" * 18)
    assert mids(wire.ask(listed)) == [mid]
    assert mids(wire.ask(request("release-message", f"<qid>q</qid><mid>{mid}</mid>"))) == [mid]
    assert mids(wire.ask(receive("q", max="9" * 18, wait="999999999", visibility="999999999"))) == [mid]
    assert mids(wire.ask(receive("q", visibility=0))) == []
    assert mids(wire.ask(delete("q", mid))) == [mid]


def test_server_ends_half_a_document_in_time(tmp_path: Path) -> None:
    """--document-time: a document that has begun and does not end is 408, also one byte at a time; then the end."""
    with serving(tmp_path / "root", *FAST, "--document-time", "0.2") as server:
        with Wire(server) as wire:
            wire.send(PING[:30])
            assert code(wire.line()) == 408
            assert wire.line() == ""
        with Wire(server) as wire:
            for byte in PING[:-1]:
                try:
                    wire.send(byte)
                except OSError:
                    break
                if select.select([wire.socket], [], [], 0.02)[0]:
                    break
            assert code(wire.line()) == 408
        with Wire(server) as wire:
            assert "<ping/>" in wire.ask(PING)
            assert not select.select([wire.socket], [], [], 0.5)[0]  # idle: nobody is refused
            assert "<ping/>" in wire.ask(PING)


def test_server_forgets_half_a_document(server: ServerProcess, wire: Wire) -> None:
    """A client that goes in the middle of a document, or resets, leaves nothing behind."""
    before = state(wire, server.root)
    for linger in (False, True):
        with Wire(server) as half:
            half.send(push("q", "x" * 100_000)[:-20])
            if linger:
                half.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close() resets
    with Wire(server) as half:
        half.send(push("q", "x")[:-20])
        half.socket.shutdown(socket.SHUT_WR)
        assert code(half.line()) == 400
        assert half.line() == ""
    assert state(wire, server.root) == before

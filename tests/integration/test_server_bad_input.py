"""The real server process and what a client can send wrong: the error it gets, and that nothing changes."""

import re
import select
import socket
from pathlib import Path

from documents import (
    NS,
    PING,
    code,
    delete,
    mids,
    new_queue,
    push,
    push_list,
    receive,
    request,
    text,
)
from serving import FAST, ServerProcess, Wire, serving


def state(wire: Wire, root: Path) -> tuple[list[str], str]:
    """Every name in the root directory, and every message as a client sees it."""
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*"))
    listed = mids(wire.ask(request("list-messages", "<qid>q</qid>", state="all")))
    found = [
        re.sub(' resp="[^"]*"', "", wire.ask(request("get-message", f"<qid>q</qid><mid>{mid}</mid>", peek="yes")))
        for mid in listed
    ]
    return names, "".join(found)


def bomb(depth: int) -> str:
    return f'<qs xmlns="{NS}">' + "<op>" * depth + "</op>" * depth + "</qs>"


ATTRIBUTES = " ".join(f'a{number}="x"' for number in range(5000))


ENTITIES = (
    '<?xml version="1.0"?><!DOCTYPE qs [<!ENTITY a "ha">'
    + "".join(f'<!ENTITY {chr(98 + i)} "{f"&{chr(97 + i)};" * 10}">' for i in range(9))
    + f']><qs xmlns="{NS}"><op><push-message/></op><qid>q</qid><payload>&j;</payload></qs>'
)


EXTERNAL = (
    '<!DOCTYPE qs [<!ENTITY x SYSTEM "file:///etc/passwd">]>'
    f'<qs xmlns="{NS}"><op><push-message/></op><qid>q</qid><payload>&x;</payload></qs>'
)


# name: (bytes, code, what the text says, whether the connection is closed)
BAD: dict[str, tuple[str | bytes, int, str, bool]] = {
    "not XML": ("GET / HTTP/1.1\r\n\r\n", 400, "not well-formed", True),
    "binary": (bytes(range(256)), 400, "not well-formed", True),
    "tags that do not match": (f'<qs xmlns="{NS}"><op></qs></op>', 400, "not well-formed", True),
    "an attribute without quotes": (f'<qs xmlns="{NS}" req=1><op><ping/></op></qs>', 400, "not well-formed", True),
    "an undeclared entity": (push("q", "&nope;"), 400, "not well-formed", True),
    "no namespace": ("<qs><op><ping/></op></qs>", 400, "namespace", False),
    "another namespace": (PING.replace(NS, "urn:other"), 400, "namespace", False),
    "another root": (f'<queue xmlns="{NS}"/>', 400, "qs", False),
    "a DOCTYPE": ("<!DOCTYPE qs>" + PING, 400, "DOCTYPE", True),
    "an entity bomb": (ENTITIES, 400, "DOCTYPE", True),
    "an external entity": (EXTERNAL, 400, "DOCTYPE", True),
    "a processing instruction": (PING.replace("<op>", "<?php x?><op>"), 400, "processing instruction", False),
    "too deep": (bomb(5000), 400, "deeper", False),
    "too many attributes": (f'<qs xmlns="{NS}"><op {ATTRIBUTES}><ping/></op></qs>', 400, "attributes", False),
    "invalid UTF-8": (push("q", "@").encode().replace(b"@", b"\xff\xfe\x80"), 400, "not well-formed", True),
    "UTF-16 with a mark": (push("q", "x").encode("utf-16"), 400, "UTF-8", True),
    "UTF-16 without one": (push("q", "x").encode("utf-16-le"), 400, "", True),
    "UTF-16 declared": ('<?xml version="1.0" encoding="UTF-16"?>' + PING, 400, "UTF-8", True),
    "Latin-1 declared": ('<?xml version="1.0" encoding="ISO-8859-1"?>' + PING, 400, "UTF-8", True),
    "a raw NUL in a name": (new_queue("a\0b"), 400, "not well-formed", True),
    "a NUL by reference": (new_queue("a&#0;b"), 400, "not well-formed", True),
    "a control character": (new_queue("a&#127;b"), 400, "control character", False),
    "a line break in a name": (new_queue("a&#10;b"), 400, "control character", False),
    "no name": (request("new-queue"), 400, "qid", False),
    "an empty name": (new_queue("  "), 400, "qid", False),
    "a name of 300": (new_queue("x" * 300), 400, "1 to 200", False),
    "a name whose directory is too long": (new_queue("\N{GRINNING FACE}" * 200), 400, "255", False),
    "an unknown operation": (request("frobnicate"), 501, "frobnicate", False),
    "no operation": (f'<qs xmlns="{NS}"><qid>q</qid></qs>', 400, "'op'", False),
    "an empty operation": (f'<qs xmlns="{NS}"><op/></qs>', 400, "'op'", False),
    "two operations": (f'<qs xmlns="{NS}"><op><ping/><list-queues/></op></qs>', 400, "", False),
    "an unknown element": (request("ping", "<surprise/>"), 400, "surprise", False),
    "an element twice": (push("q", "x").replace("</qs>", "<qid>q</qid></qs>"), 400, "qid", False),
    "text beside elements": (PING.replace("</op>", "</op>stray"), 400, "", False),
    "an unknown attribute": (PING.replace("<op>", '<op colour="red">'), 400, "colour", False),
    "a long req": (request("ping", req="r" * 129), 400, "128", False),
    "a response": (PING.replace("<qs ", '<qs type="response" '), 400, "response", False),
    "an error": (
        f'<qs xmlns="{NS}" type="error"><error code="404" type="not-found">x</error></qs>', 400, "error", False
    ),
    "another type": (PING.replace("<qs ", '<qs type="wish" '), 400, "type", False),
    "no payload": (request("push-message", "<qid>q</qid>"), 400, "payload", False),
    "an empty list": (request("push-message", "<qid>q</qid><messages/>"), 400, "payload", False),
    "a list of 1001": (push_list("q", *["x"] * 1001), 400, "1000", False),
    "a list of 1001 to delete": (
        request("delete-message", "<qid>q</qid><messages>" + "<mid>1</mid>" * 1001 + "</messages>"), 400, "1000", False
    ),
    "bad base64": (push("q", "x").replace("<payload>", '<payload encoding="base64">'), 400, "base64", False),
    "no mid": (request("get-message", "<qid>q</qid>"), 400, "mid", False),
    "a mid that is no number": (delete("q", "abc"), 400, "message id", False),
    "a negative mid": (delete("q", "-1"), 400, "message id", False),
    "a huge mid": (delete("q", "9" * 40), 400, "18 digits", False),
    "a mid that is a path": (delete("q", "../q/1"), 400, "message id", False),
    "a mid that nobody gave": (delete("q", "9" * 18), 404, "message", False),
    "max 0": (receive("q", max=0), 400, "max", False),
    "a negative max": (receive("q", max=-1), 400, "max", False),
    "a huge max": (receive("q", max="9" * 40), 400, "18 digits", False),
    "a negative wait": (receive("q", wait=-1), 400, "wait", False),
    "a huge wait": (receive("q", wait="9" * 10), 400, "9 digits", False),
    "wait in hexadecimal": (receive("q", wait="0x10"), 400, "wait", False),
    "wait with an exponent": (receive("q", wait="1e9"), 400, "wait", False),
    "wait is no number": (receive("q", wait="NaN"), 400, "wait", False),
    "an unknown queue": (push("absent", "x"), 404, "absent", False),
    "an unknown state": (request("list-messages", "<qid>q</qid>", state="odd"), 400, "state", False),
    "a queue that exists": (new_queue("q"), 409, "already an existing queue", False),
    "a queue that is not empty": (request("delete-queue", "<qid>q</qid>"), 409, "not empty", False),
    "too long": (push("q", "x" * (9 << 20)), 413, "8388608", True),
    "too long and never ending": (b"<qs " + b" " * (9 << 20), 413, "8388608", True),
}  # fmt: skip


def test_bad_input(server: ServerProcess, wire: Wire) -> None:
    """Everything that a client can send wrong has its documented error, changes nothing, and hurts no other client."""
    wire.ask(push("q", "precious"), push("q", "also"))
    wire.ask(receive("q", visibility=3600))
    before = state(wire, server.root)
    for name, (sent, expected, says, closes) in BAD.items():
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


def test_half_a_document_and_silence(tmp_path: Path) -> None:
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


def test_half_a_document_and_the_end(server: ServerProcess, wire: Wire) -> None:
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

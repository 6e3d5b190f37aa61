"""The mistakes that a client can send to the queue server and to the bus alike, their errors, and what must stay as
it was."""

import re
from pathlib import Path

from support.documents import (
    NS,
    PING,
    delete,
    mids,
    new_queue,
    push,
    push_list,
    receive,
    request,
)
from support.serving import Wire


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
    "an unknown operation": (request("frobnicate"), 501, "frobnicate", False),
    "no operation": (f'<qs xmlns="{NS}"><qid>q</qid></qs>', 400, "'op'", False),
    "an empty operation": (f'<qs xmlns="{NS}"><op/></qs>', 400, "'op'", False),
    "two operations": (f'<qs xmlns="{NS}"><op><ping/><list-queues/></op></qs>', 400, "", False),
    "an unknown element": (request("ping", "<surprise/>"), 400, "surprise", False),
    "an element twice": (push("q", "x").replace("</qs>", "<qid>q</qid></qs>"), 400, "qid", False),
    "text beside elements": (PING.replace("</op>", "</op>stray"), 400, "", False),
    "an unknown attribute": (PING.replace("<op>", '<op colour="red">'), 400, "colour", False),
    "a long req": (request("ping", req="r" * 129), 400, "128", False),
    "an error": (
        f'<qs xmlns="{NS}" type="error"><error code="404" type="not-found">x</error></qs>', 400, "error", False
    ),
    "no payload": (request("push-message", "<qid>q</qid>"), 400, "payload", False),
    "an empty list": (request("push-message", "<qid>q</qid><messages/>"), 400, "payload", False),
    "a list of 1001": (push_list("q", *["x"] * 1001), 400, "1000", False),
    "a list of 1001 to delete": (
        request("delete-message", "<qid>q</qid><messages>" + "<mid>1</mid>" * 1001 + "</messages>"), 400, "1000", False
    ),
    "bad base64": (push("q", "x").replace("<payload>", '<payload encoding="base64">'), 400, "base64", False),
    "no mid": (request("get-message", "<qid>q</qid>"), 400, "mid", False),
    "a mid that is no number": (delete("q", "abc"), 404, "no message has the id 'abc'", False),
    "a negative mid": (delete("q", "-1"), 404, "'-1'", False),
    "a huge mid": (delete("q", "9" * 40), 404, "999", False),
    "an empty mid": (delete("q", " "), 404, "''", False),
    "a mid that is a path": (delete("q", "../q/1"), 404, "'../q/1'", False),
    "a mid that nobody gave": (delete("q", "9" * 18), 404, "message", False),
    "max 0": (receive("q", max=0), 400, "max", False),
    "a negative max": (receive("q", max=-1), 400, "max", False),
    "a huge max": (receive("q", max="9" * 40), 400, "18 digits", False),
    "a negative wait": (receive("q", wait=-1), 400, "wait", False),
    "a huge wait": (receive("q", wait="9" * 10), 400, "9 digits", False),
    "wait in hexadecimal": (receive("q", wait="0x10"), 400, "wait", False),
    "wait with an exponent": (receive("q", wait="1e9"), 400, "wait", False),
    "wait is no number": (receive("q", wait="NaN"), 400, "wait", False),
    "an unknown state": (request("list-messages", "<qid>q</qid>", state="odd"), 400, "state", False),
    "too long": (push("q", "x" * (9 << 20)), 413, "8388608", True),
    "faults without number": (request("ping", "<parts>" + "<part/>" * 9999 + "</parts>"), 400, "'number'", False),
    "claims without number": (request("ping", "<claims>" + "<claim/>" * 19_000 + "</claims>"), 400, "'claims'", False),
    "figures of a queue": (request("subscribe", '<queues><queue new="x">q</queue></queues>'), 400, "'new'", False),
    "a name of white space": (new_queue(" " * 8_000_000 + "a"), 400, "at most 4096", False),
    "a prefix without a namespace": ('<x:y><a xml:space="z"/></x:y>', 400, "not well-formed", True),
    "a namespace that is nearly ours": (PING.replace(".oclc.", "-oclc."), 400, "namespace", False),
    "a NUL in the namespace": (PING.replace(".oclc.", "\0oclc."), 400, "not well-formed", True),
    "what is no name, and nothing more": ("<1>", 400, "not a tag", True),
    "a byte of no UTF-8, and nothing more": (b"<qs\xff>", 400, "not a tag", True),
    "text of no UTF-8, and nothing more": (b"<qs>\xff", 400, "no XML in UTF-8", True),
    "too long and never ending": (b"<qs " + b" " * (9 << 20), 413, "8388608", True),
}  # fmt: skip


def state(wire: Wire, root: Path) -> tuple[list[str], str]:
    """Returns every name in the root directory except those of files that the journal's upkeep makes, and every message
    as a client sees it."""
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*") if not path.name.startswith("spare-"))
    listed = mids(wire.ask(request("list-messages", "<qid>q</qid>", state="all")))
    found = [
        re.sub(' resp="[^"]*"', "", wire.ask(request("get-message", f"<qid>q</qid><mid>{mid}</mid>", peek="yes")))
        for mid in listed
    ]
    return names, "".join(found)

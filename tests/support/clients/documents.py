"""Requests as documents: valid ones of each operation, the mistakes that a client can make, and readers of answers."""

import re
from pathlib import Path
from typing import TypeVar

from qs_schemas import Message, QueueStats, wire
from support.servers.processes import Wire

M = TypeVar("M", bound=Message)
NS = "http://purl.oclc.org/DEFUZE/qs"


def as_asked(message: M) -> M:
    """Returns the message without the fields that only an answer has: ids of a request are ignored, other such fields
    are refused."""
    if message.type != "request":
        return message
    named = {*message.selects, *(field for group in message.required for field in group)}
    for field in ("mid", "mids"):
        if hasattr(message, field) and field not in named:
            setattr(message, field, None if field == "mid" else [])
    for field in wire.ANSWERED:
        if hasattr(message, field):
            setattr(message, field, [] if isinstance(getattr(message, field), list) else None)
    if isinstance(message, QueueStats):
        message.queues = []
    return message


def request(op: str, body: str = "", *, req: str = "", **attributes: str | int | float) -> str:
    """Returns a request. body: what stands beside `op`; attributes: of `op` (`max_bytes` is `max-bytes`)."""
    written = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in attributes.items())
    correlation = f' req="{req}"' if req else ""
    return f'<qs xmlns="{NS}"{correlation}><op{written}><{op}/></op>{body}</qs>'


def push(qid: str, payload: str, *, req: str = "", **attributes: str | int | float) -> str:
    return request("push-message", f"<qid>{qid}</qid><payload>{payload}</payload>", req=req, **attributes)


def push_list(qid: str, *payloads: str, req: str = "") -> str:
    entries = "".join(f"<message><payload>{payload}</payload></message>" for payload in payloads)
    return request("push-message", f"<qid>{qid}</qid><messages>{entries}</messages>", req=req)


def _queues(qids: tuple[str, ...]) -> str:
    body = "".join(f"<queue>{qid}</queue>" for qid in qids)
    return f"<queues>{body}</queues>" if len(qids) > 1 else f"<qid>{qids[0]}</qid>"


def receive(*qids: str, req: str = "", **attributes: str | int | float) -> str:
    return request("receive-message", _queues(qids), req=req, **attributes)


def subscribe(*qids: str, req: str = "s", **attributes: str | int | float) -> str:
    return request("subscribe", _queues(qids), req=req, **attributes)


def unsubscribe(subscription: str = "s", *, req: str = "") -> str:
    return request("unsubscribe", req=req, subscription=subscription)


def delete(qid: str, mid: int | str, *, req: str = "") -> str:
    return request("delete-message", f"<qid>{qid}</qid><mid>{mid}</mid>", req=req)


def delete_list(qid: str, *mids: int | str, req: str = "") -> str:
    body = "".join(f"<mid>{mid}</mid>" for mid in mids)
    return request("delete-message", f"<qid>{qid}</qid><messages>{body}</messages>", req=req)


def release(qid: str, mid: int | str, *, req: str = "", **attributes: str | int | float) -> str:
    return request("release-message", f"<qid>{qid}</qid><mid>{mid}</mid>", req=req, **attributes)


def copy(qid: str, mid: int | str, *targets: str, req: str = "") -> str:
    into = "".join(f"<queue>{target}</queue>" for target in targets)
    return request("copy-message", f"<qid>{qid}</qid><mid>{mid}</mid><queues>{into}</queues>", req=req)


def new_queue(qid: str, options: str = "") -> str:
    return request("new-queue", f"<qid>{qid}</qid>{options}")


PING = request("ping")


def code(line: str) -> int:
    """Returns the code of an error; 0 for any other answer."""
    found = re.search(r'<error code="(\d+)"', line)
    return int(found[1]) if found else 0


def text(line: str) -> str:
    """Returns the text of an error."""
    found = re.search(r"<error[^>]*>(.*)</error>", line)
    return found[1] if found else ""


def mids(line: str) -> list[int]:
    """Returns the ids in an answer, in order, wherever they stand."""
    return [int(a or b) for a, b in re.findall(r'<mid[^>]*>(\d+)</mid>|<message [^>]*\bmid="(\d+)"', line)]


def payloads(line: str) -> list[str]:
    return re.findall(r"<payload>(.*?)</payload>", line)


def is_delivery(line: str) -> bool:
    """Tells whether a line that a subscriber has read is a delivery. For a subscriber that asks for no message
    itself."""
    return "<op><get-message/></op>" in line


def receives(line: str) -> int:
    """Returns how often the message has been received."""
    found = re.search(r'\breceives="(\d+)"', line)
    return int(found[1]) if found else -1


def req(line: str) -> str:
    found = re.search(r'<qs [^>]*\breq="([^"]*)"', line)
    return found[1] if found else ""


ONE = "<qid>{}</qid>"
MESSAGE = ONE + "<mid>1</mid>"
PAYLOADS = "<messages><message><payload>x</payload></message></messages>"
REQUESTS: dict[str, tuple[str, dict[str, str | int]]] = {
    "list-queues": ("", {}),
    "new-queue": (ONE + '<options dead-letter="{}" max-receives="3"/>', {}),
    "set-queue": (ONE + '<options dead-letter="{}" max-receives="3"/>', {}),
    "get-queue": (ONE, {}),
    "pause-queue": (ONE, {}),
    "resume-queue": (ONE, {}),
    "redrive-messages": (ONE + "<queues><queue>{}</queue></queues>", {}),
    "delete-queue": (ONE, {"force": "yes"}),
    "purge-queue": (ONE, {}),
    "queue-stats": (ONE, {}),
    "server-stats": ("", {}),
    "push-message": (ONE + "<payload>x</payload>", {}),
    "receive-message": (ONE, {}),
    "delete-message": (MESSAGE, {}),
    "release-message": (MESSAGE, {}),
    "reject-message": (MESSAGE, {}),
    "extend-message": (MESSAGE, {}),
    "subscribe": (ONE, {}),
    "unsubscribe": ("", {"subscription": "s"}),
    "copy-message": (MESSAGE + "<queues><queue>{}</queue></queues>", {}),
    "claim-messages": (ONE + "<consumer>c</consumer>", {"seq": 1}),
    "get-claim": (ONE + "<consumer>c</consumer>", {"seq": 1}),
    "ack-claim": (ONE + "<consumer>c</consumer>", {"seq": 1}),
    "release-claim": (ONE + "<consumer>c</consumer>", {"seq": 1}),
    "list-claims": (ONE, {}),
    "stage-messages": (ONE + "<producer>p</producer>" + PAYLOADS, {"batch": 0, "part": 0, "attempt": 0}),
    "publish-staged": (ONE + "<producer>p</producer>", {"batch": 0}),
    "list-messages": (ONE, {}),
    "get-message": (MESSAGE, {}),
    "authenticate": ("<token>nobody-has-this</token>", {}),
    "ping": ("", {}),
}
"""A request of each operation; {} stands for the queue."""


def document(op: str, qid: str) -> str:
    """Returns the request of an operation about a queue."""
    body, attributes = REQUESTS[op]
    return request(op, body.replace("{}", qid), **attributes)


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

"""Requests as documents, and what tests look for in the lines that answer them."""

import re
from typing import TypeVar

from qs_schemas import Message, QueueStats, wire

M = TypeVar("M", bound=Message)
NS = "http://purl.oclc.org/DEFUZE/qs"


def as_asked(message: M) -> M:
    """The message without what only an answer has: ids of a request are ignored, the rest is refused."""
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
    """A request. body: what stands beside `op`; attributes: of `op` (`max_bytes` is `max-bytes`)."""
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
    """Tells whether a line of a subscriber's that asks for no message itself is one that the server sent by itself."""
    return "<op><get-message/></op>" in line


def receives(line: str) -> int:
    """Returns how often the message has been received."""
    found = re.search(r'\breceives="(\d+)"', line)
    return int(found[1]) if found else -1


def req(line: str) -> str:
    found = re.search(r'<qs [^>]*\breq="([^"]*)"', line)
    return found[1] if found else ""

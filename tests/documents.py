"""Requests as documents, and what tests look for in the lines that answer them."""

import re

NS = "http://purl.oclc.org/DEFUZE/qs"


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


def receive(*qids: str, req: str = "", **attributes: str | int | float) -> str:
    body = "".join(f"<queue>{qid}</queue>" for qid in qids)
    body = f"<queues>{body}</queues>" if len(qids) > 1 else f"<qid>{qids[0]}</qid>"
    return request("receive-message", body, req=req, **attributes)


def delete(qid: str, mid: int | str, *, req: str = "") -> str:
    return request("delete-message", f"<qid>{qid}</qid><mid>{mid}</mid>", req=req)


def new_queue(qid: str, options: str = "") -> str:
    return request("new-queue", f"<qid>{qid}</qid>{options}")


PING = request("ping")


def code(line: str) -> int:
    """Of an error; 0 for any other answer."""
    found = re.search(r'<error code="(\d+)"', line)
    return int(found[1]) if found else 0


def text(line: str) -> str:
    """Of an error."""
    found = re.search(r"<error[^>]*>(.*)</error>", line)
    return found[1] if found else ""


def mids(line: str) -> list[int]:
    """Of an answer, in order, wherever they stand."""
    return [int(a or b) for a, b in re.findall(r'<mid[^>]*>(\d+)</mid>|<message [^>]*\bmid="(\d+)"', line)]


def payloads(line: str) -> list[str]:
    return re.findall(r"<payload>(.*?)</payload>", line)


def req(line: str) -> str:
    found = re.search(r'<qs [^>]*\breq="([^"]*)"', line)
    return found[1] if found else ""

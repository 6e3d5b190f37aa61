"""Access files for tests of a bus and its server, and connections of their principals."""

import hashlib
import json
import select
from pathlib import Path

from support.bus_calls import push_one
from support.documents import code, request
from support.serving import Listening, Wire
from support.tls_serving import TlsWire


def token_of(principal: str) -> str:
    """The token of a principal, the same in every file."""
    return f"qs_marked-token-of-{principal}"


def principal(name: str, *, certificates: tuple[str, ...] = (), **rights: object) -> str:
    """The section of one principal. rights: lists of patterns, or true."""
    hashed = "sha256:" + hashlib.sha256(token_of(name).encode()).hexdigest()
    lines = [f"[principals.{json.dumps(name)}]", f'tokens = ["{hashed}"]']
    if certificates:
        lines.append(f"certificates = {json.dumps(list(certificates))}")
    lines += [f"{key} = {json.dumps(value)}" for key, value in rights.items()]
    return "\n".join(lines) + "\n"


def anonymous(**rights: object) -> str:
    return "[anonymous]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in rights.items())


def write_access(path: Path, *sections: str) -> Path:
    """Replaces the file in one step, as an operator does it."""
    new = path.with_suffix(".new")
    new.write_text("\n".join(sections))
    new.chmod(0o600)
    new.rename(path)
    return path


def authenticate(token: str, *, req: str = "") -> str:
    return request("authenticate", f"<token>{token}</token>", req=req)


def known(process: Listening, name: str) -> Wire:
    """A connection that has authenticated as a principal."""
    wire = Wire(process)
    answer = wire.ask(authenticate(token_of(name)))
    assert code(answer) == 0, answer
    assert f"<principal>{name}</principal>" in answer
    return wire


def reload(process: Listening, number: int, times: int = 1) -> None:
    """Sends the signal, and waits until the files have been read again so often. The process logs that with -v."""
    process.process.send_signal(number)
    process.until_logged("after SIGHUP: the files have been read again", times)


def has_input(wire: Wire | TlsWire, seconds: float) -> bool:
    """Whether something has come within these seconds."""
    return bool(select.select([wire.socket], [], [], seconds)[0])


def until_silent(wire: Wire | TlsWire, producer: Wire, qid: str) -> None:
    """Pushes until a client that has sent nothing gets something: from then on the bus knows that it says nothing."""
    while not has_input(wire, 0.02):
        push_one(producer, qid)

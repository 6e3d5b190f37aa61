"""Connections of the principals of a bus and its server, and what they wait for."""

import re
import select

from support.access import authenticate
from support.bus_calls import push_one
from support.documents import code
from support.serving import Listening, Wire


def token_of(principal: str) -> str:
    """The token of a principal of `support.access`."""
    return f"{principal}-token"


def shows_no_token(log: str) -> bool:
    """Tells whether no token of `token_of` is in a log."""
    return re.search("[a-z]-token(?!-file)", log) is None


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


def has_input(wire: Wire, seconds: float) -> bool:
    """Tells whether something has come within these seconds."""
    return bool(select.select([wire.socket], [], [], seconds)[0])


def until_silent(wire: Wire, producer: Wire, qid: str) -> None:
    """Pushes until a client that has sent nothing gets something: from then on the bus knows that it says nothing."""
    while not has_input(wire, 0.02):
        push_one(producer, qid)

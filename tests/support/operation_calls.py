"""Answers of a server in memory, compared exactly but for their resp."""

import os
import re

from qs_storage.disk import Disk
from support.documents import NS
from support.memory_serving import Client


class FillableDisk(Disk):
    """A disk that can be full."""

    full = False

    def write(self, fd: int, data: bytes) -> None:
        if self.full:
            raise OSError(28, os.strerror(28))
        super().write(fd, data)


def response(op: str, body: str, req: str = "") -> str:
    """An answer, exactly, but for its resp."""
    correlation = f' req="{req}"' if req else ""
    return f'<qs xmlns="{NS}" type="response"{correlation} resp="…"><op><{op}/></op>{body}</qs>\r\n'


def plain(line: str) -> str:
    """The line without what is different each time."""
    return re.sub(' resp="[0-9a-f]{64}"', ' resp="…"', line)


async def exactly(client: Client, document: str, op: str, body: str) -> None:
    assert plain(await client.ask(document)) == response(op, body)

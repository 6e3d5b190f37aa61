"""Access files for tests, and connections that say who they are."""

import hashlib
import itertools
import json
import os
from collections.abc import Iterable
from pathlib import Path

from support.documents import request
from support.serving import Listening, Wire

RIGHTS = ("read", "write", "configure")
SUBSETS = [subset for count in range(4) for subset in itertools.combinations(RIGHTS, count)]
"""Every set of rights to queues."""


def hashed(token: str) -> str:
    """The token as the access file has it."""
    return "sha256:" + hashlib.sha256(token.encode()).hexdigest()


def section(name: str, **values: object) -> str:
    """A section of an access file. name: as between the brackets."""
    # JSON's texts and lists are TOML's, unless it writes characters as surrogates.
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
    return "\n".join([f"[{name}]", *lines, ""])


def principal(name: str, **values: object) -> str:
    """A section of a principal whose token is its name, with `-token` behind it."""
    return section(f'principals."{name}"', tokens=[hashed(f"{name}-token")], **values)


def write_access(path: Path, sections: Iterable[str]) -> Path:
    """Writes an access file that only its owner can read, whole or not at all."""
    new = path.with_suffix(".new")
    new.write_text("\n".join(sections), encoding="utf-8")
    new.chmod(0o600)
    os.replace(new, path)
    return path


def authenticate(token: str, *, req: str = "") -> str:
    return request("authenticate", f"<token>{token}</token>", req=req)


class Caller(Wire):
    """A connection to a server or a bus. token: to authenticate with, None to say nothing."""

    def __init__(self, server: Listening, token: str | None = None) -> None:
        super().__init__(server)
        self.greeting = "" if token is None else self.ask(authenticate(token))
        """The answer to `authenticate`."""

    def __enter__(self) -> "Caller":
        return self

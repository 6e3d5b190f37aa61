"""Access files for tests, connections that authenticate, and secrets that are easy to find."""

import hashlib
import itertools
import json
import os
from collections.abc import Iterable
from pathlib import Path

from support.clients.documents import request
from support.servers.processes import Listening, Wire

RIGHTS = ("read", "write", "configure")
SUBSETS = [subset for count in range(4) for subset in itertools.combinations(RIGHTS, count)]
"""Every set of rights to queues."""


def hashed(token: str) -> str:
    """Returns the token's hash as the access file lists it."""
    return "sha256:" + hashlib.sha256(token.encode()).hexdigest()


def section(name: str, **values: object) -> str:
    """Returns a section of an access file. name: as between the brackets."""
    # JSON's texts and lists are TOML's, unless it writes characters as surrogates.
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
    return "\n".join([f"[{name}]", *lines, ""])


def principal(name: str, **values: object) -> str:
    """Returns a section of a principal whose token is its name, with `-token` behind it."""
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
    """A connection to a server or a bus. token: the client authenticates with this token; None: it does not
    authenticate."""

    def __init__(self, server: Listening, token: str | None = None) -> None:
        super().__init__(server)
        self.greeting = "" if token is None else self.ask(authenticate(token))
        """The answer to `authenticate`."""

    def __enter__(self) -> "Caller":
        return self


TOKEN = "qs_" + "MARKEDtokenMARKEDtoken" + "0" * 21
"""A token, as `qs token` makes them."""

OTHER_TOKEN = "qs_" + "MARKEDotherMARKEDother" + "1" * 21
"""A second token of the same owner."""

WRONG_TOKEN = "qs_" + "MARKEDwrongMARKEDwrong" + "2" * 21
"""A token that no access file lists."""


def digest(token: str) -> str:
    """Returns the token as an access file lists it."""
    return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"


def write_secret(path: Path, text: str) -> Path:
    """Writes a file that only its owner can read."""
    path.write_text(text)
    path.chmod(0o600)
    return path


def token_files(folder: Path) -> dict[str, str]:
    """Writes a file for each of the tokens. Returns the files by the names that the tokens have here."""
    tokens = {"token": TOKEN, "other": OTHER_TOKEN, "wrong": WRONG_TOKEN}
    return {name: str(write_secret(folder / f"{name}.token", f"{each}\n")) for name, each in tokens.items()}


def access_file(path: Path, *queues: str) -> Path:
    """Returns an access file in which one principal owns both tokens, and has all rights to the queues."""
    patterns = list(queues)
    rights = "".join(f"{right} = {patterns!r}\n" for right in ("read", "write", "configure"))
    return write_secret(path, f"[principals.owner]\ntokens = {[digest(TOKEN), digest(OTHER_TOKEN)]!r}\n{rights}")


def marks(*keys: Path) -> list[str]:
    """Returns what must be found nowhere: the tokens, their hashes, and the lines of these keys."""
    tokens = [TOKEN, OTHER_TOKEN, WRONG_TOKEN]
    hashes = [digest(token).partition(":")[2] for token in tokens]
    lines = [line for key in keys for line in key.read_text().splitlines() if not line.startswith("-----")]
    return [*(token[3:25] for token in tokens), *hashes, *lines]


def leaks(told: Iterable[tuple[str, str | bytes]], sought: Iterable[str]) -> list[str]:
    """Returns where a mark is found: the name of the output, and the lines around the mark. told: outputs by their
    names."""
    sought = list(sought)
    found = []
    for name, text in told:
        shown = text.decode(errors="replace") if isinstance(text, bytes) else text
        for mark in sought:
            at = shown.find(mark)
            if at >= 0:
                found.append(f"{name}: …{shown[max(at - 300, 0) : at + len(mark) + 100]}…")
    return found


def files_below(folder: Path, but: Iterable[Path] = ()) -> list[tuple[str, bytes]]:
    """Returns all files of a folder with their content, except the files in `but`."""
    left_out = set(but)
    return [(str(each), each.read_bytes()) for each in folder.rglob("*") if each.is_file() and each not in left_out]

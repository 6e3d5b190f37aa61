"""Secrets that are easy to find: a token and a private key with a mark, and the search for them."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

TOKEN = "qs_" + "MARKEDtokenMARKEDtoken" + "0" * 21
"""A token, as `qs token` makes them."""

OTHER_TOKEN = "qs_" + "MARKEDotherMARKEDother" + "1" * 21
"""Another one of the same owner."""

WRONG_TOKEN = "qs_" + "MARKEDwrongMARKEDwrong" + "2" * 21
"""A token that no access file lists."""


def digest(token: str) -> str:
    """The token as an access file lists it."""
    return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"


def write_secret(path: Path, text: str) -> Path:
    """Writes a file that only its owner can read."""
    path.write_text(text)
    path.chmod(0o600)
    return path


def token_files(folder: Path) -> dict[str, str]:
    """Files with each of the tokens, by the tokens' names here."""
    tokens = {"token": TOKEN, "other": OTHER_TOKEN, "wrong": WRONG_TOKEN}
    return {name: str(write_secret(folder / f"{name}.token", f"{each}\n")) for name, each in tokens.items()}


def access_file(path: Path, *queues: str) -> Path:
    """An access file in which one principal owns both tokens, and has all rights to the queues."""
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
    """Returns where a mark is found: the name of the output, and the lines around it. told: outputs by their names."""
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
    """All files of a folder with their content, but for these."""
    left_out = set(but)
    return [(str(each), each.read_bytes()) for each in folder.rglob("*") if each.is_file() and each not in left_out]

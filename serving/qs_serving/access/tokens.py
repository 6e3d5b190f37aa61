"""Tokens: 32 random bytes as text, of which only the SHA-256 is kept."""

import hashlib
import hmac
from collections.abc import Mapping

from qs_schemas.limits import TOKEN


def digest(token: str) -> bytes:
    """Returns the SHA-256 of a token's UTF-8 bytes."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def owner_of(token: str, known: Mapping[bytes, str]) -> tuple[bytes, str] | None:
    """Returns the digest of a token and whose it is, None if it is nobody's. known: digest -> owner. Takes the same
    time whatever is wrong with the token: every digest is compared, and each comparison reads all of it."""
    own = digest(token if 0 < len(token) <= TOKEN else "")
    found = None
    for each, name in known.items():
        if hmac.compare_digest(own, each):
            found = each, name
    return found if 0 < len(token) <= TOKEN else None

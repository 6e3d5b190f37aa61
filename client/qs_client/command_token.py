"""`qs token`: makes a token."""

from argparse import Namespace

from .command_output import OK, Output


def new_token(_: Namespace, out: Output) -> int:
    """Prints a token of 32 random bytes, and the line of the access file: the SHA-256 of its UTF-8 bytes."""
    import hashlib  # noqa: PLC0415 - other subcommands start faster without these
    import secrets  # noqa: PLC0415

    token = f"qs_{secrets.token_urlsafe(32)}"
    digest = f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"
    out.line(f'{token}\ntokens = ["{digest}"]', {"token": token, "hash": digest})
    return OK

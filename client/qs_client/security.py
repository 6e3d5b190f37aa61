"""The security of a client's connections: TLS or not, and the token that says who the client is.

`ssl` is imported only when TLS is asked for: that takes longer than the rest of the package.
"""

import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from qs_schemas.limits import TOKEN

if TYPE_CHECKING:
    import ssl

    from .tls import TlsLayer


class Token:
    """A token that is shown nowhere. reveal: returns it, to send it.

    Ensures: it is in no repr, so in no traceback with values, no pickle and no error text, also not in that about
    itself. Two tokens of the same text are equal: connections and settings are compared by them.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        """text: 1 to 1024 characters without spaces or control characters. Raises ValueError or TypeError, without the
        text, for anything else."""
        if not isinstance(text, str):
            raise TypeError(f"token is text, not {type(text).__name__}")
        if not 0 < len(text) <= TOKEN:
            raise ValueError(f"a token has 1 to {TOKEN} characters, not {len(text)}")
        if " " in text or not text.isprintable():
            raise ValueError("a token has no spaces, line ends and control characters in it")
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Token) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "<token>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a token is not pickled: give it to the other process in its environment or a file")


def read_token(path: str | os.PathLike[str], warn: Callable[[str], None]) -> Token:
    """Reads a token from a file that holds nothing else but spaces and line ends around it. warn: gets a line when
    everybody on the machine can read the file.

    Raises OSError if it cannot be read; ValueError, with the file's name, if it does not hold a token.
    """
    with open(path, "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        # Enough for any token in UTF-8 and space around it: a wrong file, or a device, is not read to its end.
        data = file.read(4 * TOKEN + 1024).strip()
    if stat.S_ISREG(mode) and mode & stat.S_IROTH:  # the mode of a pipe, as of <(pass qs), says nothing
        warn(f"everybody on this machine can read the token in {path}: chmod 600 {path}")
    try:
        return Token(data.decode())
    except UnicodeDecodeError:
        raise ValueError(f"{path}: no token: it is not text in UTF-8") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


Tls: TypeAlias = "bool | str | os.PathLike[str] | ssl.SSLContext | None"
"""False or None: no TLS. True: TLS, with the CAs that the system trusts. A path: a file or a directory of CAs in PEM
format. Or a context."""


@dataclass(frozen=True, slots=True)
class Security:
    """Says how a connection begins. context: for TLS, None without TLS; token: for authentication, None without a
    token."""

    context: "ssl.SSLContext | None" = None
    token: Token | None = None

    def layer(self, host: str) -> "TlsLayer | None":
        """Returns the TLS session for a connection to this host, None without TLS. Raises TlsFailed if no certificate
        can be for the host."""
        if self.context is None:
            return None
        from .tls import TlsLayer  # noqa: PLC0415

        return TlsLayer(self.context, host)


PLAIN = Security()
"""Neither TLS nor a token."""


def with_tls(scheme: bool | None, asking: Sequence[str]) -> bool:
    """Tells whether a connection uses TLS. A setting that names a CA, a certificate or a key asks for TLS: otherwise a
    client with such a setting would send its token in the clear.

    scheme: the address's, True for qss://, False for qs://, None for none; asking: the names of the flags, variables or
    arguments that ask for TLS. Raises ValueError if the address says qs:// and something asks for TLS.
    """
    if scheme is False and asking:
        names = " and ".join(asking)
        raise ValueError(
            f"the address begins with qs://, which is without TLS, but {names} {'ask' if asking[1:] else 'asks'} for "
            f"TLS: write qss://, or leave {names} out"
        )
    return bool(scheme or asking)


def security(tls: Tls, token: str | Token | None) -> Security:
    """Checks a client's arguments for TLS and token, and returns its security.

    Raises OSError if a file of CAs cannot be read; ValueError if it holds no CA, or the token cannot be one; TypeError.
    """
    context = None
    if tls is not None and tls is not False:
        from .tls import client_context  # noqa: PLC0415

        context = client_context(tls)
    return Security(context, Token(token) if token is not None and not isinstance(token, Token) else token)

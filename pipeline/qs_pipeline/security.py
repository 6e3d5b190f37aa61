"""How the processes of a Spark job get at a queue server that wants TLS and a token.

The driver and the executors are processes on several machines. Spark hands them options, which it also shows in plans
and its UI and writes into event logs and checkpoints. So options hold names of files, and never what is in the files:
each process reads its own when it connects.
"""

import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qs_client import QueueClient
from qs_client.place import endpoint
from qs_client.security import Token, read_token

from .errors import UsageError

if TYPE_CHECKING:
    from ssl import SSLContext

log = logging.getLogger("qs_pipeline")


@dataclass(frozen=True, slots=True)
class Security:
    """TLS and a token, by names of files on the machine of each process that connects.

    tls: speak TLS, with the system's CAs or those of `ca`; ca: a PEM file, or a directory, of CAs to trust, which means
    TLS too; cert, key: PEM files of a client certificate; token_file: its one line is the token. Without token_file, a
    process takes the token from its own QS_TOKEN or QS_TOKEN_FILE; without ca, from QS_CA.
    """

    tls: bool = False
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    token_file: str | None = None

    def context(self) -> "SSLContext | None":
        """Returns the context for TLS, None for none. OSError and ValueError name a file that cannot be used."""
        if not (self.tls or self.ca or self.cert):
            return None
        from qs_client.tls_contexts import client_context, show_certificate  # noqa: PLC0415 - imports ssl

        context = client_context(self.ca or os.environ.get("QS_CA") or True)
        if self.cert is not None:
            show_certificate(context, self.cert, self.key)
        return context

    def token(self) -> "str | Token | None":
        """Returns the token, None for none. OSError and ValueError name a file that cannot be used."""
        if self.token_file is None and os.environ.get("QS_TOKEN"):
            return os.environ["QS_TOKEN"]
        path = self.token_file or os.environ.get("QS_TOKEN_FILE")
        return read_token(path, log.warning) if path else None


OPEN = Security()
"""No TLS, and no token but one of the environment."""


@dataclass(frozen=True, slots=True)
class QueueServer:
    """A queue server, and how to get at it."""

    host: str = "127.0.0.1"
    port: int = 9876
    security: Security = OPEN

    @property
    def endpoint(self) -> str:
        """HOST:PORT, for texts."""
        return endpoint(self.host, self.port)

    def options(self) -> dict[str, str]:
        """Returns the options of the data source that lead to this server."""
        security = self.security
        options = {"host": self.host, "port": str(self.port)}
        if security.tls:
            options["tls"] = "true"
        files = {"ca": security.ca, "cert": security.cert, "key": security.key, "tokenFile": security.token_file}
        return options | {name: path for name, path in files.items() if path is not None}

    def client(self, timeout: float | None = 30.0) -> QueueClient:
        """Returns a client of this server, which connects when it is first asked. Reads the files: UsageError when one
        cannot be read, or is not what it should be. timeout: seconds for one answer."""
        try:
            context, token = self.security.context(), self.security.token()
            return QueueClient(self.host, self.port, timeout=timeout, tls=context, token=token)
        except OSError as error:
            raise UsageError(f"{error.filename}: {error.strerror}") from error
        except ValueError as error:
            raise UsageError(str(error)) from error

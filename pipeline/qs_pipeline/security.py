"""Connects the processes of a Spark job to a queue server that requires TLS and a token.

The driver and the executors are processes on several machines. Spark hands them options, which it also shows in plans
and its UI and writes into event logs and checkpoints. So options hold names of files, and never what is in the files:
each process reads its own when it connects.
"""

import logging
from argparse import Namespace
from dataclasses import asdict, dataclass

from qs_client import QueueClient
from qs_client.place import endpoint
from qs_client.server_arguments import make_security
from qs_schemas.addresses import ServerAddress

from .errors import UsageError

log = logging.getLogger("qs_pipeline")


@dataclass(frozen=True, slots=True)
class Security:
    """TLS and a token, by names of files on the machine of each process that connects.

    tls: speak TLS, with the system's CAs; ca: a PEM file, or a directory, of CAs to trust instead, which means TLS too;
    cert, client_key: PEM files of a client certificate; token_file: holds the token; tls_insecure: do not verify the
    server, for tests. Without token_file, a process takes the token from its own QS_TOKEN or QS_TOKEN_FILE; without ca,
    the CAs from QS_CA.
    """

    tls: bool = False
    ca: str | None = None
    cert: str | None = None
    client_key: str | None = None
    token_file: str | None = None
    tls_insecure: bool = False


OPEN = Security()
"""No TLS, and no token except one of the environment."""


def security_of(arguments: Namespace, address: ServerAddress) -> Security:
    """Returns the security that the flags of `add_security` and the scheme of the address ask for."""
    given = {name: getattr(arguments, name, default) for name, default in asdict(OPEN).items()}
    return Security(**given | {"tls": given["tls"] or bool(address.tls)})


@dataclass(frozen=True, slots=True)
class QueueServer:
    """A queue server's address and security. Small and without secrets: Spark hands it to other processes."""

    host: str = "127.0.0.1"
    port: int = 9876
    security: Security = OPEN

    @property
    def endpoint(self) -> str:
        """Returns HOST:PORT, for texts."""
        return endpoint(self.host, self.port)

    def options(self) -> dict[str, str]:
        """Returns the options of the data source that lead to this server.

        They are names of files only, without a token: Spark shows options in plans and its UI, and writes them into
        event logs.
        """
        given = self.security
        files = {"ca": given.ca, "cert": given.cert, "key": given.client_key, "tokenFile": given.token_file}
        switches = {"tls": given.tls, "tlsInsecure": given.tls_insecure}
        return (
            {"host": self.host, "port": str(self.port)}
            | {name: "true" for name, on in switches.items() if on}
            | {name: path for name, path in files.items() if path is not None}
        )

    def client(self, timeout: float | None = 30.0) -> QueueClient:
        """Returns a client of this server, which connects at its first request. timeout: seconds for one answer. Reads
        the files. Raises UsageError, which names the file, when one cannot be used."""
        # The functions of the command qs: the same files are taken, and the same errors raised.
        try:
            given = make_security(Namespace(**asdict(self.security)), ServerAddress(self.host, self.port), log.warning)
            return QueueClient(self.host, self.port, timeout=timeout, tls=given.context, token=given.token)
        except OSError as error:
            raise UsageError(f"{error.filename}: {error.strerror}") from error
        except ValueError as error:
            raise UsageError(str(error)) from error

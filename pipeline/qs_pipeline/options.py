"""The options of the data source and their checks. Opens nothing.

Spark passes options as text, with names in any case. An unknown name is an error: a misspelt bound would not bound
anything.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from qs_client.security import with_tls
from qs_schemas.addresses import located
from qs_schemas.command_line import nearest

from .errors import BadOptionError
from .security import QueueServer, Security

BodyType = Literal["binary", "string"]
Mode = Literal["peek", "consume"]

FIRST_CONTACT = 5.0
"""Seconds, without retrySeconds, for which an unreachable server is tried at the start of a query: long enough for a
server that starts at the same time, short enough for a wrong address."""

RETRY = 60.0
"""Seconds, without retrySeconds, for which a server that has answered before is tried: enough for a restart."""


_HOST, _PORT = "127.0.0.1", 9876  # where queue-server.py listens without flags


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one use. None: not given.

    queue: the qid; consumer: whose claims are read; producer: whose messages are staged; max_messages, max_bytes: of
    one claim; partitions: tasks of one read; retry: seconds that a server may be away; txn_app, txn_version: which
    batch write this is; tls, ca, cert, client_key, token_file, tls_insecure: see `Security`.
    """

    queue: str
    host: str = _HOST
    port: int = _PORT
    consumer: str | None = None
    mode: Mode = "peek"
    max_messages: int | None = None
    max_bytes: int | None = None
    partitions: int | None = None
    fail_on_data_loss: bool = True
    body_type: BodyType = "binary"
    producer: str = "spark"
    txn_app: str | None = None
    txn_version: int | None = None
    retry: float | None = None
    tls: bool = False
    ca: str | None = None
    cert: str | None = None
    client_key: str | None = None
    token_file: str | None = None
    tls_insecure: bool = False

    @property
    def server(self) -> QueueServer:
        """Returns the queue server, with the security to connect to it."""
        security = Security(self.tls, self.ca, self.cert, self.client_key, self.token_file, self.tls_insecure)
        return QueueServer(self.host, self.port, security)

    @property
    def at_first(self) -> float:
        """Returns the seconds for which a server is tried that has not answered yet."""
        return FIRST_CONTACT if self.retry is None else self.retry

    @property
    def later(self) -> float:
        """Returns the seconds for which a server is tried that has answered before."""
        return RETRY if self.retry is None else self.retry


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError("is empty")
    return value.strip()


def _whole(least: int, most: int = 10**18 - 1) -> Callable[[str], int]:
    def whole(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            bound = f"of {least} or more" if most == 10**18 - 1 else f"from {least} to {most}"
            raise ValueError(f"is {value!r}, but must be a whole number {bound}")
        return number

    return whole


def _one_of(*words: str) -> Callable[[str], str]:
    def word(value: str) -> str:
        if value.strip().lower() not in words:
            raise ValueError(f"is {value!r}, but must be {' or '.join(words)}")
        return value.strip().lower()

    return word


def _boolean(value: str) -> bool:
    return _one_of("true", "false")(value) == "true"


def _seconds(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1
    if not (seconds >= 0 and math.isfinite(seconds)):
        raise ValueError(f"is {value!r}, but must be a number of seconds, 0 or more")
    return seconds


_OPTIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "queue": ("queue", _text),
    "host": ("host", _text),
    "port": ("port", _whole(1, 65535)),
    "consumer": ("consumer", _text),
    "mode": ("mode", _one_of("peek", "consume")),
    "maxMessagesPerTrigger": ("max_messages", _whole(1)),
    "maxBytesPerTrigger": ("max_bytes", _whole(1)),
    "numPartitions": ("partitions", _whole(1, 100_000)),
    "failOnDataLoss": ("fail_on_data_loss", _boolean),
    "bodyType": ("body_type", _one_of("binary", "string")),
    "producer": ("producer", _text),
    "txnAppId": ("txn_app", _text),
    "txnVersion": ("txn_version", _whole(0, 10**18 - 2)),  # the batch's number is one more, and has 18 digits at most
    "retrySeconds": ("retry", _seconds),
    "tls": ("tls", _boolean),
    "ca": ("ca", _text),
    "cert": ("cert", _text),
    "key": ("client_key", _text),
    "tokenFile": ("token_file", _text),
    "tlsInsecure": ("tls_insecure", _boolean),
}
"""Option name -> field, and the function that reads the value. The function's ValueError says what is wrong."""

# Spark takes the names of options in any case.
_BY_LOWER = {name.lower(): name for name in _OPTIONS}

_SPARK_OPTIONS = frozenset(("checkpointlocation", "queryname"))
"""Spark's own options of a stream's sink, which Spark passes on together with those of the data source."""


def parse_options(given: Mapping[str, str]) -> Options:
    """Checks the options. given: the options as Spark passes them. Raises BadOptionError, which says what is wrong and
    what is allowed."""
    values: dict[str, Any] = {}
    for key, value in given.items():
        name = _BY_LOWER.get(key.lower())
        if name is None:
            if key.lower() in _SPARK_OPTIONS:
                continue
            raise _unknown(key)
        field, read = _OPTIONS[name]
        try:
            values[field] = read(str(value))
        except ValueError as error:
            raise BadOptionError(f"the option {name} {error}") from None
    if "queue" not in values:
        raise BadOptionError("the option queue is missing: name one with .option('queue', NAME)")
    _locate(values)
    options = Options(**values)
    if (options.txn_app is None) != (options.txn_version is None):
        missing = "txnVersion" if options.txn_version is None else "txnAppId"
        raise BadOptionError(f"the option {missing} is missing: txnAppId and txnVersion go together")
    return options


def _locate(values: dict[str, Any]) -> None:
    """Reads the port and the scheme out of the host. Raises BadOptionError if the scheme contradicts the other
    options."""
    asking = [f"the option {name}" for name in ("tls", "ca", "cert", "tlsInsecure") if values.get(_OPTIONS[name][0])]
    try:
        address = located(values.get("host", _HOST), values.get("port"), _PORT)
        with_tls(address.tls, asking)
    except ValueError as error:
        raise BadOptionError(f"the option host: {error}") from None
    if address.tls:
        values["tls"] = True
    values.update(host=address.host, port=address.port)


def consumer_of(options: Options, who: str) -> str:
    """Returns the option consumer. Raises BadOptionError if the option is missing. who: the part that needs it, as in
    `a stream`."""
    if options.consumer is None:
        raise BadOptionError(
            f"the option consumer is missing: {who} needs a name of its own, under which the server keeps its claims; "
            "use the same name after a restart, and for nothing else on this queue"
        )
    return options.consumer


def _unknown(key: str) -> BadOptionError:
    if key.lower() == "path":
        return BadOptionError("a queue has no path: call load() or save() without one, and use .option('queue', NAME)")
    if key.lower() in ("token", "password"):
        return BadOptionError(
            f"there is no option {key!r} of qs, because Spark would show it in plans: name a file with tokenFile, or "
            "set QS_TOKEN or QS_TOKEN_FILE where the driver and the executors run"
        )
    near = nearest(key.lower(), _BY_LOWER)
    hint = f"did you mean {_BY_LOWER[near]}?" if near else f"there are {', '.join(_OPTIONS)}"
    return BadOptionError(f"there is no option {key!r} of qs: {hint}")

"""Calls SQS with boto3, and repeats calls that may succeed later. boto3, an extra that takes a second to import, is
imported at the first call: a server starts whether SQS can be reached or not."""

import importlib
import random
import re
import threading
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ...engine import RemoteError, StorageError

_CONNECTIONS = 100
"""Connections kept open: each long poll has its own."""
_ANY_REGION = "us-east-1"
"""For a named endpoint: requests are signed for some region."""
_BUSY = frozenset(
    {"RequestLimitExceeded", "TooManyRequestsException", "SlowDown", "ServiceUnavailable", "InternalError"}
)
_REFUSED = re.compile("AccessDenied|AccessKey|AuthFailure|Expired|OptInRequired|Signature|Token|UnrecognizedClient")
"""Parts of SQS's codes for credentials that it refuses."""


@dataclass(frozen=True, slots=True)
class CallPolicy:
    """Seconds. With the defaults a call fails after some 3 s of pauses, or after a minute without an answer."""

    attempts: int = 5
    """Calls, the first one included; at least 1."""
    pause: float = 0.25
    """Before the second attempt, doubled before each further one. Each is shortened at random, by half at most."""
    longest_pause: float = 5.0
    connect_timeout: float = 3.0
    read_timeout: float = 10.0
    """For an answer, in addition to the wait for a message."""
    longest_poll: int = 20
    """Whole seconds that SQS waits for a message; it allows 20."""
    leave: float = 1.0
    """Seconds that `close` waits for long polls without a receiver."""
    settle: float = 5.0
    """Seconds for queues with a message made visible less than that ago: SQS may have given it to such a poll."""


class CallError(RemoteError):
    """codes: SQS's words for the error; empty when SQS did not answer."""

    def __init__(self, text: str, codes: frozenset[str] = frozenset()) -> None:
        super().__init__(text)
        self.codes = codes


class SqsClient:
    """Several threads may use it."""

    def __init__(self, endpoint: str | None, region: str | None, policy: CallPolicy) -> None:
        """endpoint: a URL, None for Amazon's; region: None for the environment's. StorageError for a bad endpoint."""
        if endpoint is not None and not _is_url(endpoint):
            raise StorageError(f"the endpoint of SQS is a URL like http://127.0.0.1:9324; this is {endpoint!r}")
        self.endpoint = endpoint or "Amazon"
        self._url = endpoint
        self._region = region
        self.policy = policy
        self._closing = threading.Event()
        self._connecting = threading.Lock()
        self._boto: Any = None
        self._clients: list[Any] = []
        """For calls that are answered at once, and for long polls."""

    def connect(self) -> list[Any]:
        """Makes boto3's clients once, which sends nothing. RemoteError."""
        with self._connecting:  # which also keeps boto3's session to one thread
            if not self._clients:
                try:
                    boto3 = importlib.import_module("boto3")
                    self._boto = importlib.import_module("botocore.exceptions")
                except ModuleNotFoundError as error:
                    raise RemoteError(
                        f"the storage 'sqs' needs boto3, and there is no {error.name}: pip install 'qsbus[sqs]'"
                    ) from None
                self._clients = self._make_clients(boto3)
            return self._clients

    def _make_clients(self, boto3: Any) -> list[Any]:
        policy, boto = self.policy, self._boto
        try:
            session = boto3.session.Session(region_name=self._region)
            region = session.region_name or (_ANY_REGION if self._url else None)
            config = importlib.import_module("botocore.config").Config
            clients = [
                session.client(
                    "sqs",
                    region_name=region,
                    endpoint_url=self._url,
                    config=config(
                        connect_timeout=policy.connect_timeout,
                        read_timeout=wait + policy.read_timeout,
                        max_pool_connections=_CONNECTIONS,
                        retries={"total_max_attempts": 1},  # `call` repeats whatever boto3 raises, and can be stopped
                    ),
                )
                for wait in (0, policy.longest_poll)
            ]
        except boto.NoRegionError:
            raise CallError("SQS needs a region: set AWS_DEFAULT_REGION, or name an endpoint") from None
        except (boto.BotoCoreError, ValueError) as error:
            raise CallError(f"SQS at {self.endpoint} cannot be used: {error}") from None
        self.endpoint = str(clients[0].meta.endpoint_url)
        return clients

    def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """Does an operation of boto3, and repeats it while that may help. CallError; RemoteError without boto3."""
        short, long = self._clients or self.connect()
        client = long if parameters.get("WaitTimeSeconds") else short
        attempt, pause = 1, self.policy.pause
        while True:
            try:
                answer: dict[str, Any] = getattr(client, operation)(**parameters)
                return answer
            except (self._boto.ClientError, self._boto.BotoCoreError) as error:
                last = attempt >= self.policy.attempts or self._closing.is_set()
                if last or not self._may_pass(error):
                    raise self._failure(operation, error, attempt) from None
            self._closing.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
            attempt, pause = attempt + 1, min(2 * pause, self.policy.longest_pause)

    def _may_pass(self, error: Any) -> bool:
        """Tells whether the call may succeed later."""
        if not isinstance(error, self._boto.ClientError):
            return isinstance(error, self._boto.HTTPClientError | self._boto.ConnectionError)
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        codes = _codes(error)
        return status >= 500 or status == 429 or bool(codes & _BUSY) or any("Throttl" in code for code in codes)

    def _failure(self, operation: str, error: Exception, attempts: int) -> CallError:
        where = f"SQS at {self.endpoint}"
        tried = f"after {attempts} attempts" if attempts > 1 else "at the first attempt"
        if isinstance(error, self._boto.ClientError):
            codes, text = _codes(error), _text(error)
            if self._may_pass(error):
                return CallError(f"{where} could not do {operation}, {tried}: {text}; try again later", codes)
            if _REFUSED.search(" ".join(codes)):
                return CallError(
                    f"{where} does not accept the server's credentials for {operation}: {text}; renew them, or give "
                    "them the right to do this",
                    codes,
                )
            return CallError(f"{where} refused {operation}: {text}", codes)
        if isinstance(error, self._boto.NoCredentialsError | self._boto.PartialCredentialsError):
            return CallError(
                f"there are no credentials for {where}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY where the "
                f"server is started, or a profile with AWS_PROFILE ({error})"
            )
        if self._may_pass(error):
            return CallError(
                f"{where} does not answer, {tried}: {error}; is it running, is that its address, is the network there?"
            )
        return CallError(f"{where} cannot be asked to do {operation}: {error}")

    def close(self) -> None:
        """Ends the pauses between attempts, and repeats no call from now on."""
        self._closing.set()

    def disconnect(self) -> None:
        for client in self._clients:
            client.close()


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _codes(error: Any) -> frozenset[str]:
    """Returns SQS's words for an error, in both of its protocols."""
    described = error.response.get("Error", {})
    words = (str(described.get(key, "")) for key in ("Code", "QueryErrorCode"))
    return frozenset(word.rpartition(".")[2] for word in words if word)


def _text(error: Any) -> str:
    described = error.response.get("Error", {})
    code, message = described.get("Code", "no code"), str(described.get("Message", ""))[:500]
    return f"{code}: {message}" if message else str(code)

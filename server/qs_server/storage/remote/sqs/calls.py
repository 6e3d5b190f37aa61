"""Calls of SQS with boto3: repeated while that may help, and errors that say what to do.

The only module that needs boto3: `Connection` imports this module when the first call is made.
"""

import random
import threading
from typing import Any

import boto3  # type: ignore[import-untyped]
import botocore.exceptions as boto  # type: ignore[import-untyped]
from botocore.config import Config  # type: ignore[import-untyped]

from .errors import CallError
from .patience import Patience

_CONNECTIONS = 100
"""That are kept open: a long poll has one for itself."""
_ANY_REGION = "us-east-1"
"""For an endpoint that was named: requests have to be signed for some region."""
_BUSY = frozenset(
    {"RequestLimitExceeded", "TooManyRequestsException", "SlowDown", "ServiceUnavailable", "InternalError"}
)
_REFUSED = frozenset(
    {
        "AccessDenied",
        "AccessDeniedException",
        "AuthFailure",
        "ExpiredToken",
        "ExpiredTokenException",
        "IncompleteSignature",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "MissingAuthenticationToken",
        "OptInRequired",
        "RequestExpired",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)


class Calls:
    """Makes calls with boto3's clients, which several threads may share. A session of boto3 may not be shared, so
    `Connection` makes a Calls, and with it the session, under a lock."""

    def __init__(self, endpoint: str | None, region: str | None, patience: Patience) -> None:
        self.endpoint = endpoint or "Amazon"
        self._patience = patience
        self._closing = threading.Event()
        try:
            session = boto3.session.Session(region_name=region)
            region = session.region_name or (_ANY_REGION if endpoint else None)
            self._short, self._long = (
                session.client("sqs", region_name=region, endpoint_url=endpoint, config=self._config(wait))
                for wait in (0, patience.longest_poll)
            )
        except boto.NoRegionError:
            raise CallError("SQS needs a region: set AWS_DEFAULT_REGION, or name an endpoint") from None
        except (boto.BotoCoreError, ValueError) as error:
            raise CallError(f"SQS at {self.endpoint} cannot be used: {error}") from None
        self.endpoint = str(self._short.meta.endpoint_url)

    def _config(self, wait: int) -> Config:
        patience = self._patience
        return Config(
            connect_timeout=patience.connect_timeout,
            read_timeout=wait + patience.read_timeout,
            max_pool_connections=_CONNECTIONS,
            retries={"total_max_attempts": 1},  # `call` does it, for all that boto3 raises, and can be stopped
        )

    def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """Does one operation, named as in boto3, and returns its answer. Repeats a call while another attempt may
        succeed, up to `Patience.attempts` times, and then raises CallError."""
        client = self._long if parameters.get("WaitTimeSeconds") else self._short
        attempt, pause = 1, self._patience.pause
        while True:
            try:
                answer: dict[str, Any] = getattr(client, operation)(**parameters)
                return answer
            except (boto.ClientError, boto.BotoCoreError) as error:
                last = attempt >= self._patience.attempts or self._closing.is_set()
                if last or not _passes(error):
                    raise self._failure(operation, error, attempt) from None
            self._closing.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
            attempt, pause = attempt + 1, min(2 * pause, self._patience.longest_pause)

    def _failure(self, operation: str, error: Exception, attempts: int) -> CallError:
        where = f"SQS at {self.endpoint}"
        tried = f"after {attempts} attempts" if attempts > 1 else "at the first attempt"
        if isinstance(error, boto.ClientError):
            codes, text = _codes(error), _text(error)
            if _passes(error):
                return CallError(f"{where} could not do {operation}, {tried}: {text}; try again later", codes)
            if codes & _REFUSED:
                return CallError(
                    f"{where} does not accept the server's credentials for {operation}: {text}; renew them, or give "
                    "them the right to do this",
                    codes,
                )
            return CallError(f"{where} refused {operation}: {text}", codes)
        if isinstance(error, boto.NoCredentialsError | boto.PartialCredentialsError):
            return CallError(
                f"there are no credentials for {where}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY where the "
                f"server is started, or a profile with AWS_PROFILE ({error})"
            )
        if _passes(error):
            return CallError(
                f"{where} does not answer, {tried}: {error}; is it running, is that its address, is the network there?"
            )
        return CallError(f"{where} cannot be asked to do {operation}: {error}")

    def close(self) -> None:
        """Ends the pauses between attempts. A call that fails from now on is not repeated."""
        self._closing.set()

    def disconnect(self) -> None:
        """Closes the connections that no call uses."""
        self._short.close()
        self._long.close()


def _passes(error: Exception) -> bool:
    """Returns True if the same call may succeed a little later."""
    if not isinstance(error, boto.ClientError):
        return isinstance(error, boto.HTTPClientError | boto.ConnectionError)
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    codes = _codes(error)
    return status >= 500 or status == 429 or bool(codes & _BUSY) or any("Throttl" in code for code in codes)


def _codes(error: Any) -> frozenset[str]:
    """Returns the words that SQS has for an error, in both of its protocols."""
    described = error.response.get("Error", {})
    words = (str(described.get(key, "")) for key in ("Code", "QueryErrorCode"))
    return frozenset(word.rpartition(".")[2] for word in words if word)


def _text(error: Any) -> str:
    described = error.response.get("Error", {})
    code, message = described.get("Code", "no code"), str(described.get("Message", ""))[:500]
    return f"{code}: {message}" if message else str(code)

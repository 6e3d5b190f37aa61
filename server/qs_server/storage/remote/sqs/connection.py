"""Connects to SQS: imports boto3 and makes its clients when the first call needs them."""

import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ...engine import StorageError
from ..engine import RemoteError
from .patience import Patience

if TYPE_CHECKING:
    from .calls import Calls


class Connection:
    """Makes calls of SQS, and connects for the first one. To make a Connection sends nothing: a server starts whether
    SQS can be reached or not. May be used by several threads."""

    def __init__(self, endpoint: str | None, region: str | None, patience: Patience) -> None:
        """endpoint: a URL, None for Amazon's in the region; region: None for the environment's. Raises StorageError
        when the endpoint is no URL."""
        if endpoint is not None and not _is_url(endpoint):
            raise StorageError(f"the endpoint of SQS is a URL like http://127.0.0.1:9324; this is {endpoint!r}")
        self._endpoint = endpoint
        self._region = region
        self._patience = patience
        self._calls: Calls | None = None
        self._connecting = threading.Lock()

    @property
    def endpoint(self) -> str:
        """The name of the endpoint in errors: its URL, or Amazon."""
        return self._calls.endpoint if self._calls else self._endpoint or "Amazon"

    def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """Does one operation, named as in boto3, and returns its answer. Raises CallError when it has failed, and
        RemoteError when boto3 is missing."""
        return (self._calls or self._connect()).call(operation, **parameters)

    def _connect(self) -> "Calls":
        with self._connecting:
            if self._calls is None:
                try:
                    from .calls import Calls  # noqa: PLC0415 - boto3 is an extra, and takes a second to import
                except ModuleNotFoundError as error:
                    raise RemoteError(
                        f"the storage 'sqs' needs boto3, and there is no {error.name}: install it with "
                        "pip install 'qsbus[sqs]'"
                    ) from None
                self._calls = Calls(self._endpoint, self._region, self._patience)
            return self._calls

    def close(self) -> None:
        """Stops repeating failed calls."""
        if self._calls is not None:
            self._calls.close()

    def disconnect(self) -> None:
        """Closes the connections that no call uses."""
        if self._calls is not None:
            self._calls.disconnect()


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False

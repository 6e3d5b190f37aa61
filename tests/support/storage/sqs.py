"""An SQS endpoint on loopback for tests (moto's server as a process), a proxy that fails on demand, and an engine over
an endpoint."""

import contextlib
import functools
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3  # type: ignore[import-untyped]
import pytest

from qs_storage.engine import Clock, Draft, Message
from qs_storage.remote.sqs import CallPolicy, SqsEngine
from qs_storage.vsqs import micros
from support.storage.engines import LOTS

READY_WITHIN = 60
NO_METADATA = {
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
}
"""Variables that keep boto3 from looking for credentials anywhere else."""
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", **NO_METADATA}
_make_session = functools.cache(boto3.session.Session)  # making one takes 0.2 s
HASTY = CallPolicy(
    attempts=4, pause=0.001, longest_pause=0.002, connect_timeout=5.0, read_timeout=20.0, longest_poll=2, leave=0.02
)
"""A policy for tests: a failed request is repeated at once, and a poll that is left ends soon."""


def give_credentials(patch: pytest.MonkeyPatch) -> None:
    """Sets the credentials that boto3 needs for an endpoint of the tests."""
    for name, value in CREDENTIALS.items():
        patch.setenv(name, value)
    patch.delenv("AWS_PROFILE", raising=False)
    patch.setattr(boto3.session, "Session", _make_session)


class SqsServer:
    """`moto`'s server as a child process. It keeps everything in memory: after a new start it is empty."""

    def __init__(self, port: int = 0) -> None:
        self.host, self.port = "127.0.0.1", port
        self.start()

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def start(self) -> None:
        """Starts the server, or starts it again on the same port after it has ended."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", self.host, "-p", str(self.port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **CREDENTIALS, "PYTHONUNBUFFERED": "1"},
        )
        assert self.process.stderr is not None
        said = b""
        for line in self.process.stderr:
            said += line
            if ready := re.search(rb"Running on http://127\.0\.0\.1:(\d+)", line):
                self.port = int(ready.group(1))
                # Its log line for each request would fill the pipe.
                threading.Thread(target=self._drain, args=(self.process.stderr,), daemon=True).start()
                return
        self.stop()
        raise AssertionError(f"moto did not start: {said.decode()}")

    def _drain(self, stream: Any) -> None:
        with contextlib.suppress(ValueError), stream:
            for _ in stream:
                pass

    def stop(self, sig: int = signal.SIGKILL) -> None:
        """Ends the server at once."""
        if self.process.poll() is None:
            self.process.send_signal(sig)
        self.process.wait(READY_WITHIN)


@contextlib.contextmanager
def sqs_serving(port: int = 0) -> Iterator[SqsServer]:
    """Runs moto's server for the length of a with block. Its start takes some 2 s."""
    server = SqsServer(port)
    try:
        yield server
    finally:
        server.stop()


def sqs_engine(
    root: Path, endpoint: str | None, *, clock: Clock | None = None, policy: CallPolicy = HASTY, **named: Any
) -> SqsEngine:
    """Returns an engine with names at SQS of its own, unless a prefix is given. clock: without one, the engine uses the
    present time."""
    named.setdefault("prefix", f"{uuid.uuid4().hex[:8]}-")
    named.setdefault("region", "us-east-1")
    return SqsEngine(str(root), clock=clock or micros, endpoint=endpoint, policy=policy, **named)


class RefusedError(Exception):
    """A fault that answers in place of SQS."""

    def __init__(self, status: int, code: str, message: str = "as the test wants") -> None:
        self.status = status
        self.code = code
        self.message = message


Fault = Callable[[str, dict[str, Any]], None]
"""Is called with each operation (`SendMessage`) and its parameters. Raises RefusedError to answer with an error,
ConnectionError to hang up."""


class FaultySqs:
    """Stands before an SQS endpoint and passes requests on, one connection for each, unless a fault says otherwise."""

    def __init__(self, target: SqsServer) -> None:
        self.target = target
        self.calls: list[str] = []
        """Operations, in the order in which they came."""
        self.before: Fault | None = None
        """Is called before an operation is passed on: if it raises, SQS never sees the operation."""
        self.after: Fault | None = None
        """Is called after an operation: if it raises, SQS has done the operation, but the client does not learn
        that."""
        self.refuse: Callable[[dict[str, Any]], bool] | None = None
        """Tells whether an entry of a SendMessageBatch is refused. The others are passed on."""
        self.sources: dict[str, str] = {}
        """The ARN of the queue from which the messages of a dead-letter queue came, by the dead-letter queue's URL.
        moto does not tell it."""
        self._writing = threading.Lock()  # moto loses a message when it adds one while it removes another
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # an answer in one piece: two would wait for each other, 40 ms each time

            def do_POST(self) -> None:
                proxy.serve(self)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                pass  # the client has gone

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def serve(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers["Content-Length"]))
        operation = request.headers["X-Amz-Target"].partition(".")[2]
        self.calls.append(operation)
        parameters = json.loads(body)
        try:
            if self.before is not None:
                self.before(operation, parameters)
            failed = self._take_refused(operation, parameters)
            if failed:
                body = json.dumps(parameters).encode()
            status, answer = 200, b"{}"
            if parameters.get("Entries") != []:
                with contextlib.nullcontext() if operation == "ReceiveMessage" else self._writing:
                    status, answer = self._pass_on(request, body)
            source = self.sources.get(parameters.get("QueueUrl", ""))
            if source is not None and "DeadLetterQueueSourceArn" in parameters.get("MessageSystemAttributeNames", ()):
                found = json.loads(answer)
                for message in found.get("Messages", ()):
                    message["Attributes"]["DeadLetterQueueSourceArn"] = source
                answer = json.dumps(found).encode()
            if failed:
                answer = json.dumps({**json.loads(answer), "Failed": failed}).encode()
            if self.after is not None:
                self.after(operation, parameters)
        except ConnectionError:
            request.close_connection = True
            request.connection.shutdown(socket.SHUT_RDWR)
            return
        except RefusedError as refusal:
            status = refusal.status
            answer = json.dumps({"__type": f"com.amazonaws.sqs#{refusal.code}", "message": refusal.message}).encode()
        request.send_response(status)
        request.send_header("Content-Type", "application/x-amz-json-1.0")
        request.send_header("Content-Length", str(len(answer)))
        request.end_headers()
        request.wfile.write(answer)

    def _take_refused(self, operation: str, parameters: dict[str, Any]) -> list[dict[str, Any]]:
        """Takes the refused entries out of the parameters, and returns the answers to them."""
        if self.refuse is None or operation != "SendMessageBatch":
            return []
        refused = [entry for entry in parameters["Entries"] if self.refuse(entry)]
        parameters["Entries"] = [entry for entry in parameters["Entries"] if entry not in refused]
        return [
            {"Id": entry["Id"], "SenderFault": False, "Code": "InternalError", "Message": "no"} for entry in refused
        ]

    def _pass_on(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:
        with contextlib.closing(
            http.client.HTTPConnection(self.target.host, self.target.port, timeout=60)
        ) as connection:
            headers = {**request.headers, "Content-Length": str(len(body))}
            connection.request("POST", request.path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def failing(times: int, fault: Exception, *operations: str) -> Fault:
    """Returns a fault for the first `times` calls of these operations; without operations, of all."""
    left = [times]

    def fail(operation: str, _: dict[str, Any]) -> None:
        if left[0] and (not operations or operation in operations):
            left[0] -= 1
            raise fault

    return fail


LONG = 20
"""Seconds: only a failure waits that long."""


class LateClock:
    """A clock that is ahead of the present time, or behind it."""

    ahead = 0

    def __call__(self) -> int:
        return micros() + self.ahead


def url_of(engine: SqsEngine, qid: str = "q") -> str:
    return engine.queue(qid)._url or ""


def push(engine: SqsEngine, *payloads: bytes, qid: str = "q", delay: int = 0) -> list[int]:
    return engine.queue(qid).push([Draft(payload, delay) for payload in payloads])


def receive(
    engine: SqsEngine, *qids: str, count: int = 100, visibility: int | None = None, room: int = LOTS
) -> list[Message]:
    return engine.receive(qids or ["q"], count, visibility, room)


def wait(
    engine: SqsEngine, *qids: str, count: int = 100, seconds: float = LONG, stop: threading.Event | None = None
) -> list[Message]:
    return engine.receive(qids or ["q"], count, None, LOTS, wait=seconds, stop=stop)


def mids(messages: list[Message]) -> list[int]:
    return [message.mid for message in messages]


class Seen:
    """Tells when an operation reaches SQS."""

    def __init__(self, proxy: FaultySqs, wanted: str) -> None:
        self.polls = 0
        self.event = threading.Event()
        self._wanted = wanted
        proxy.before = self

    def __call__(self, operation: str, parameters: dict[str, Any]) -> None:
        self.polls += bool(parameters.get("WaitTimeSeconds"))
        if operation == self._wanted and (operation != "ReceiveMessage" or parameters.get("WaitTimeSeconds")):
            self.event.set()


def in_thread(call: Callable[[], list[Message]]) -> Callable[[], list[Message]]:
    """Runs a call in a thread. Returns a function that waits for its result."""
    found: list[list[Message]] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()

    def result() -> list[Message]:
        thread.join(LONG)
        [messages] = found
        return messages

    return result

"""Tests what the end of a session leaves on stderr."""

import socket

import pytest
from pyspark.accumulators import AccumulatorTCPServer, UpdateRequestHandler

from qs_pipeline.session import silence


def test_silence_hides_traceback_of_ended_connection(capsys: pytest.CaptureFixture[str]) -> None:
    """The JVM's connection to the accumulators of Spark's Python part may end before that is told of the stop."""
    with AccumulatorTCPServer(("127.0.0.1", 0), UpdateRequestHandler, "token") as server:
        silence(server)
        with socket.create_connection(server.server_address) as connection:
            connection.sendall(b"token")
        server.handle_request()
    assert capsys.readouterr().err == ""

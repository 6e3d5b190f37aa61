"""Spark shows and keeps no secrets: plans, the UI, the event log, checkpoints, logs, command lines."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.clients.access import OTHER_TOKEN, access_file, files_below, leaks, marks, token_files
from support.servers.processes import FAST, WITH_SUPPORT, serving
from support.servers.tls import authority, local

from qs_client import QueueClient
from qs_pipeline.errors import NoJavaError
from qs_pipeline.interpreters import find_java

CA = str(authority().cert)


@pytest.fixture
def java() -> None:
    """Skips the test, loudly, where Spark cannot run."""
    try:
        find_java()
    except NoJavaError as error:
        pytest.skip(f"SECRETS ARE NOT LOOKED FOR IN SPARK: {error}")


@pytest.mark.slow  # half a minute: a Spark of its own, with its UI and event log
@pytest.mark.timeout(300)
def test_spark_shows_and_keeps_no_secret(java: None, tmp_path: Path) -> None:
    """A program reads, writes and streams over TLS, with a token from a file and one from the environment, and fails in
    several ways. Everything that was printed, logged, shown in the UI or written has neither token nor key."""
    secrets, spark = tmp_path / "secrets", tmp_path / "spark"
    secrets.mkdir()
    spark.mkdir()
    tokens = token_files(secrets)
    access = access_file(secrets / "access.toml", "orders")
    certificate = local()
    tls = ("--tls-cert", str(certificate.cert), "--tls-key", str(certificate.key))
    with serving(tmp_path / "root", *FAST, "-vv", *tls, "--access", str(access)) as server:
        with QueueClient("localhost", server.port, tls=CA, token=OTHER_TOKEN) as client:
            client.new_queue("orders")
            client.push_many("orders", [b"one", b"two"])
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "support.spark.secrets",
                spark,
                str(server.port),
                CA,
                tokens["token"],
                tokens["wrong"],
            ],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
            env={**WITH_SUPPORT, "QS_TOKEN": OTHER_TOKEN},
        )
        told = [("stdout", done.stdout), ("stderr", done.stderr), ("log of the server", server.log())]
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("failed as it should") == 3
    kept = files_below(spark)
    names = " ".join(name for name, _ in kept)
    assert "/events/" in names
    assert "/checkpoint/" in names
    assert "UI environment" in done.stdout
    assert "Physical Plan" in done.stdout
    assert " DEBUG " in done.stderr
    assert leaks([*told, *kept], marks(certificate.key)) == []


@pytest.mark.long  # half a minute: Spark starts twice
@pytest.mark.timeout(300)
def test_archive_over_tls(java: None, tmp_path: Path) -> None:
    """`qs-pipeline` archives over TLS with a token of its environment; with a wrong one it says so, and shows
    nothing."""
    tokens = token_files(tmp_path)
    access = access_file(tmp_path / "access.toml", "orders")
    certificate = local()
    tls = ("--tls-cert", str(certificate.cert), "--tls-key", str(certificate.key))
    archive = tmp_path / "archive"
    command = [sys.executable, "-m", "qs_pipeline.command", "archive", "orders", "--to", str(archive), "-v"]
    told = []
    with serving(tmp_path / "root", *FAST, *tls, "--access", str(access)) as server:
        with QueueClient("localhost", server.port, tls=CA, token=OTHER_TOKEN) as client:
            client.new_queue("orders")
            client.push_many("orders", [b"one", b"two"])
        command += ["--server", f"qss://localhost:{server.port}", "--ca", CA]
        for code, more, variables in [
            (1, ["--token-file", tokens["wrong"]], {}),
            (1, [], {}),
            (2, ["--token-file", "/nowhere/token"], {}),
            (0, [], {"QS_TOKEN": OTHER_TOKEN}),
        ]:
            done = subprocess.run(
                [*command, *more], capture_output=True, text=True, timeout=240, check=False, env=os.environ | variables
            )
            assert done.returncode == code, done.stderr[-3000:]
            told += [(f"stdout of {more}", done.stdout), (f"stderr of {more}", done.stderr)]
        assert "archived 2 messages" in done.stdout
        with QueueClient("localhost", server.port, tls=CA, token=OTHER_TOKEN) as client:
            assert client.list_claims("orders") is not None
            assert client.stats("orders")[0].ready == 0
    assert leaks([*told, *files_below(archive)], marks(certificate.key)) == []

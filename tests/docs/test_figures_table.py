"""The tables of figures in docs/protocol.md name what the server and the bus answer, with its labels."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from support.bus_serving import bus_serving
from support.certificates import authority
from support.serving import FAST, PROJECT, serving
from support.tls_serving import tls_flags

from qs_client import Figure, QueueClient

SECTION = (PROJECT / "docs" / "protocol.md").read_text(encoding="utf-8").partition("\n#### Figures\n")[2]
TABLES = re.split(
    r"\nOf (?:the|each) [^\n]*:\n",
    SECTION.partition("\n## ")[0],
)
BOTH, SERVER, BUS, CONNECTION = (
    {
        name: set(re.findall(r"`(\w+)`", labels))
        for names, labels in re.findall(r"^\| (`[^|]*`) \| ([^|]*)\|", table, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", names)
    }
    for table in TABLES[1:]
)


DAY = 86_400


def answered(figures: Iterable[Figure]) -> dict[str, set[str]]:
    """The labels of each figure, by its name."""
    found: dict[str, set[str]] = {}
    for figure in figures:
        assert found.setdefault(figure.name, set(figure.labels)) == set(figure.labels), figure
    return found


def test_of_the_server_and_the_bus(tmp_path: Path) -> None:
    """Server and bus answer exactly the figures of the page; those of each connection only on request."""
    with serving(tmp_path / "root", *FAST) as server, bus_serving(server) as bus:
        for process, own in ((server, SERVER), (bus, BUS)):
            with QueueClient("127.0.0.1", process.port) as client:
                client.server_stats()  # its own duration is known from the second time on
                expected = {**BOTH, **own}
                del expected["tls_certificate_expiry_time_seconds"]
                assert answered(client.server_stats()) == expected
                assert answered(client.server_stats(connections=True)) == {**expected, **CONNECTION}


def test_with_tls(tmp_path: Path) -> None:
    """With TLS there is the end of the certificate too: a year from when the tests have made it."""
    with (
        serving(tmp_path / "root", *FAST, *tls_flags()) as server,
        QueueClient("127.0.0.1", server.port, tls=str(authority().cert)) as client,
    ):
        client.server_stats()
        figures = client.server_stats()
    assert answered(figures) == {**BOTH, **SERVER}
    values = {figure.name: figure.value for figure in figures}
    assert values["tls_certificate_expiry_time_seconds"] - values["start_time_seconds"] == pytest.approx(365 * DAY, DAY)

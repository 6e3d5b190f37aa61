"""Pushes that survive a power loss, beside the least that a file for each message costs."""

from pathlib import Path
from statistics import median

from bare_files import BareFiles
from load import Client, document, push_document, rate, rate_of_many
from processes import queue_server
from table import Row

_SIZE = 1024
_CLIENTS = (1, 8, 32)


def measure(folder: Path, quick: bool) -> list[Row]:
    """durable pushes by 1, 8 and 32 clients against a loop of create, fsync, rename and fsync of the directory"""
    rounds, seconds = (3, 0.5) if quick else (7, 1.5)
    push = push_document("q", _SIZE)
    bare: list[float] = []
    rates: dict[int, list[float]] = {count: [] for count in _CLIENTS}
    with (
        queue_server(folder / "root", "--durability", "always") as server,
        BareFiles(folder / "bare", _SIZE, sync=True) as files,
    ):
        clients = [Client(server.address) for _ in range(max(_CLIENTS))]
        clients[0].lines(document(b"new-queue", b"<qid>q</qid>"))
        for measured in range(rounds + 1):
            figures = [rate(seconds, files.store), *(rate_of_many(clients[:n], push, seconds) for n in _CLIENTS)]
            if measured:  # the first round warms up
                bare.append(figures[0])
                for count, figure in zip(_CLIENTS, figures[1:], strict=True):
                    rates[count].append(figure)
        for client in clients:
            client.close()
    return [
        Row(
            f"durable pushes, {count} client{'s'[: count > 1]} / create, fsync, rename, fsync",
            f"{median(a / b for a, b in zip(rates[count], bare, strict=True)):.2f}",
            "",
            f"{median(rates[count]):,.0f}/s to {median(bare):,.0f}/s",
        )
        for count in _CLIENTS
    ]

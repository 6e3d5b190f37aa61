"""One client, messages of 1 KiB, nothing synced: what the server adds to a round trip, and what pipelining gains."""

from pathlib import Path
from statistics import median

from bare_files import BareFiles
from load import Client, document, push_document, rate
from processes import echo_server, queue_server
from table import Row, ratio_row

_SIZE = 1024
_PIPELINE = 32


def measure(folder: Path, quick: bool) -> list[Row]:
    """pushes against the round trips of a bare trio echo server, and pipelined against one by one"""
    rounds, seconds = (3, 0.4) if quick else (9, 1.0)
    root = folder / "root"  # where the file system puts one directory it puts the other
    push = push_document("q", _SIZE)
    single: list[float] = []
    echoes: list[float] = []
    pipelined: list[float] = []
    files: list[float] = []
    with (
        queue_server(root, "--durability", "none") as server,
        echo_server(folder) as echo,
        Client(server.address) as client,
        Client(echo.address) as other,
        BareFiles(root / ".bare", _SIZE, sync=False) as bare,
    ):
        client.lines(document(b"new-queue", b"<qid>q</qid>"))
        for measured in range(rounds + 1):
            figures = (
                rate(seconds, lambda: client.lines(push)),
                rate(seconds, lambda: other.same(push)),
                rate(seconds, lambda: client.lines(push * _PIPELINE, _PIPELINE), _PIPELINE),
                rate(seconds, bare.store),
            )
            if measured:  # the first round warms up
                for kept, figure in zip((single, echoes, pipelined, files), figures, strict=True):
                    kept.append(figure)
    return [
        ratio_row("push, one client, one at a time / bare trio echo", single, echoes, 0.3),
        ratio_row(f"push, one client, pipelined by {_PIPELINE} / one at a time", pipelined, single, 3),
        Row("a file created, written, renamed, without a server", f"{median(files):,.0f}/s"),
    ]

"""Servers of queues of files that share a root, and end as a kill ends them."""

from pathlib import Path

from qs_storage.disk import Disk
from qs_storage.engine import Durability
from support.engines import Bench, always, files_engine


class FileServers:
    """The servers of a test, in the order of their starts."""

    def __init__(self) -> None:
        self._benches: list[Bench] = []

    def start(self, root: Path, disk: Disk) -> Bench:
        """Starts a server on a root, which is made if it is missing, beside those that run."""
        root.mkdir(exist_ok=True)
        bench = Bench(files_engine(Durability.ALWAYS, always(disk))(root))
        self._benches.append(bench)
        return bench

    def kill(self, *, but: int = 0) -> None:
        """Ends the servers as a kill does, except for the first ones. but: how many these are."""
        while len(self._benches) > but:
            self._benches.pop().engine._watch.close()  # type: ignore[attr-defined]

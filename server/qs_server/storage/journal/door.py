"""The directory of a queue of the log: whether it is still there."""

from ..disk import Disk


class Door:
    """One directory."""

    def __init__(self, path: str, disk: Disk) -> None:
        self.path = path
        self._disk = disk
        self._identity = self._look_up()

    def _look_up(self) -> tuple[int, int]:
        status = self._disk.lstat(self.path)
        return status.st_dev, status.st_ino

    def in_place(self) -> bool:
        """Whether the directory is still the one that was opened."""
        try:
            return self._look_up() == self._identity
        except FileNotFoundError:
            return False

"""Lets the engine look when other processes have changed its files, and when its own changes have been reported."""

from qs_serving.hub import Hub

from .committer import Committer


class Changes:
    """Reads an engine's descriptor, in the hub's sweeps: whoever asks for something after another process has changed
    it is answered with the truth, as the report of it is there in the same sweep at the latest."""

    def __init__(self, descriptor: int, hub: Hub, committer: Committer) -> None:
        """Watches it from now on."""
        self.watched = False
        self._descriptor = descriptor
        self._hub = hub
        self._committer = committer
        hub.first = self
        self.watch()

    def fileno(self) -> int:
        return self._descriptor

    def watch(self) -> None:
        """Watches the descriptor again, after the batch in which the engine has read its reports."""
        if not self.watched:
            self._hub.watch(self)

    def ready(self) -> int:
        """Lets the engine read its reports (from Hub)."""
        if not self._committer.notice():
            self._committer.batch_done = self.watch
            self._hub.drop(self)
        return 0

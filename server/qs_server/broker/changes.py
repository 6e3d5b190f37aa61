"""Lets the engine read its inotify events, which report changes of its files by any process."""

from qs_serving.hub import Hub

from .committer import Committer


class Changes:
    """Watches the engine's descriptor in the hub's poll cycles, before all clients: a request is answered after all
    changes by other processes that came before it."""

    def __init__(self, descriptor: int, hub: Hub, committer: Committer) -> None:
        """Begins to watch. descriptor: the engine's for events."""
        self.watched = False
        self._descriptor = descriptor
        self._hub = hub
        self._committer = committer
        hub.first = self
        self.watch()

    def fileno(self) -> int:
        return self._descriptor

    def watch(self) -> None:
        """Watches the descriptor again, once the engine has read the events."""
        if not self.watched:
            self._hub.watch(self)

    def ready(self) -> int:
        """Has the engine read its events (called by Hub)."""
        if not self._committer.notice():
            self._committer.batch_done = self.watch
            self._hub.drop(self)
        return 0

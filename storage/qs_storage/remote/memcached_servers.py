"""Connections to the memcached servers, which key is at which server, and the texts of their errors.

pymemcache's rendezvous hashing gives each key one server, also while that server is down: if the keys moved to another
server, two writers could each swap a page of their own.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pymemcache import Client
from pymemcache.client.rendezvous import RendezvousHash
from pymemcache.exceptions import MemcacheUnexpectedCloseError

from ..engine import QueueFullError, RemoteError

CONNECT_TIMEOUT = 2.0
CALL_TIMEOUT = 5.0
"""Seconds for a connection to be made, and for each answer."""
_IDLE = 64
"""Connections a server that are kept for the next call."""
_BATCH = 200
"""Keys a call."""
_ROOM_TRIES = 20
_ROOM_WAIT = 0.01
"""Seconds between tries to use the reserve: another server may be using it."""
_CLOSED = (MemcacheUnexpectedCloseError, ConnectionResetError, BrokenPipeError)


class UnsureError(RemoteError):
    """A change got no answer: it may have been done, or may still be done."""


class NoRoomError(QueueFullError):
    """memcached has no memory left for an item of that size."""


class MemcachedServer:
    """One memcached server. Several threads may use it; each call has its own connection.

    Ensures that a call is repeated only if it may be done twice. Any other call raises UnsureError when its answer is
    lost, because it may have been done or not."""

    def __init__(self, host: str, port: int) -> None:
        self.address = (host, port)
        self.name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._closed = False
        self._free: list[Any] = []  # list.pop and list.append need no lock

    def call(self, method: str, *args: Any, again: bool, **named: Any) -> Any:
        """Calls a method of pymemcache's Client. again: True if the call may be done twice, so that it can be repeated
        on a closed connection. RemoteError, NoRoomError; UnsureError unless again."""
        # One repetition, for a connection that memcached has closed while it was idle.
        tries = 2 if again else 1
        while True:
            tries -= 1
            client = self._take()
            try:
                result = getattr(client, method)(*args, **named)
            except Exception as error:
                client.close()
                # A restart closes all connections at once, and only their use shows it.
                if isinstance(error, _CLOSED):
                    self._close_free()  # what was opened before the same restart
                    if tries:
                        continue
                raise self._translated(error, sure=again) from None
            except BaseException:
                client.close()
                raise
            if len(self._free) < _IDLE and not self._closed:
                self._free.append(client)
            else:
                client.close()
            return result

    def _take(self) -> Any:
        try:
            return self._free.pop()  # the one used last: it is the least likely to have been closed
        except IndexError:
            return Client(
                self.address,
                connect_timeout=CONNECT_TIMEOUT,
                timeout=CALL_TIMEOUT,
                no_delay=True,
                default_noreply=False,
            )

    def _translated(self, error: Exception, *, sure: bool) -> Exception:
        what = f"memcached at {self.name}"
        text = str(error.args[0] if error.args else error)
        # memcached names no code: the text is all there is.
        if "out of memory" in text:
            return NoRoomError(f"{what} has no room left: receive and delete messages, or give it more memory (-m)")
        if "too large" in text:
            return RemoteError(f"{what} takes no items as large as needed: start it with -I 1m or more")
        kind = RemoteError if sure else UnsureError
        if isinstance(error, TimeoutError):
            return kind(f"{what} does not answer within {CALL_TIMEOUT:g} seconds: see what keeps it, and try again")
        if isinstance(error, OSError | MemcacheUnexpectedCloseError):
            reason = getattr(error, "strerror", None) or text or "it closed the connection"
            return kind(f"{what} cannot be used: {reason}: start it, or correct its address, and try again")
        return kind(f"{what} answers what is not understood ({text}): see whether it is a memcached")

    def _close_free(self) -> None:
        while self._free:
            try:
                self._free.pop().close()
            except IndexError:  # another thread took it
                return

    def close(self) -> None:
        self._closed = True
        self._close_free()


class MemcachedServers:
    """All memcached servers, as one map of keys.

    Ensures that a key is always at the same server, also while that server is down: if the keys moved to another
    server, two writers could each swap a page of their own. Methods raise RemoteError; those that store also
    NoRoomError."""

    def __init__(self, addresses: Sequence[tuple[str, int]], namespace: str) -> None:
        """namespace: the beginning of the reserves' keys. RemoteError without addresses."""
        if not addresses:
            raise RemoteError("no memcached server is named: give at least one as HOST:PORT")
        self._servers = {server.name: server for server in (MemcachedServer(host, port) for host, port in addresses)}
        self._namespace = namespace
        self._ring = RendezvousHash(sorted(self._servers))

    def describe(self) -> str:
        return ", ".join(self._servers)

    def _at(self, key: str) -> MemcachedServer:
        if len(self._servers) == 1:
            return next(iter(self._servers.values()))
        return self._servers[self._ring.get_node(key)]

    def _parts(self, keys: Iterable[str]) -> list[tuple[MemcachedServer, list[str]]]:
        """Returns the keys by server, in order, at most _BATCH a part."""
        by_server: dict[str, list[str]] = {}
        for key in keys:
            by_server.setdefault(self._at(key).name, []).append(key)
        return [
            (self._servers[name], found[start : start + _BATCH])
            for name, found in by_server.items()
            for start in range(0, len(found), _BATCH)
        ]

    def get(self, keys: Iterable[str]) -> dict[str, bytes]:
        """Returns the items that exist, by key."""
        return self._get("get_many", keys)

    def gets(self, keys: Iterable[str]) -> dict[str, tuple[bytes, bytes]]:
        """Returns each item with its token for `cas`. The first key is read first."""
        return self._get("gets_many", keys)

    def _get(self, method: str, keys: Iterable[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for server, part in self._parts(keys):
            found.update(server.call(method, part, again=True))
        return found

    def set_many(self, items: Mapping[str, bytes], expire: int = 0) -> None:
        """Stores items, and replaces existing ones. expire: seconds, 0 for never."""
        for server, part in self._parts(items):
            server.call("set_many", {key: items[key] for key in part}, expire, again=True)

    def add(self, key: str, value: bytes, expire: int = 0) -> bool:
        """Stores an item unless the key has one. Returns False also if the item was stored and the answer was lost."""
        return bool(self._at(key).call("add", key, value, expire, again=True))

    def cas(self, key: str, value: bytes, token: bytes, expire: int = 0) -> bool:
        """Replaces an item. Returns False if the item has changed since its token was read. expire: seconds, 0 for
        never, -1 to delete. UnsureError."""
        return bool(self._at(key).call("cas", key, value, token, expire, again=False))

    def cas_in_reserve(self, key: str, value: bytes, token: bytes, expire: int = 0) -> bool:
        """Calls `cas`, and gives up a reserve for a moment if memcached has no memory left. memcached needs memory for
        the new item before it frees the old one, so an item of each size is kept in reserve."""
        for attempt in range(_ROOM_TRIES):
            try:
                if attempt:
                    self._at(key).call("delete", self._reserve(key, value)[0], again=True)
                done = self.cas(key, value, token, expire)
            except NoRoomError:
                time.sleep(_ROOM_WAIT if attempt else 0)
                continue
            if attempt:
                self.keep_reserve(key, value)
            return done
        return self.cas(key, value, token, expire)

    def keep_reserve(self, key: str, value: bytes) -> None:
        """Adds a reserve for such a value at the key's server, if there is none and memory for one."""
        name, size = self._reserve(key, value)
        try:
            self._at(key).call("add", name, bytes(size), again=True)
        except NoRoomError:
            return

    def _reserve(self, key: str, value: bytes) -> tuple[str, int]:
        """Returns the key and the value's size of a reserve that is as long as the item."""
        total = len(key) + len(value)
        name = f"{self._namespace}:reserve:{total}"
        return name, max(total - len(name), 0)

    def delete(self, keys: Iterable[str]) -> None:
        """Removes items, if they are there."""
        for server, part in self._parts(keys):
            server.call("delete_many", part, again=True)

    def count(self, key: str, by: int) -> int | None:
        """Adds to a number, which stays at least 0. Returns the new number, None if the key has none."""
        method = "incr" if by >= 0 else "decr"
        result = self._at(key).call(method, key, abs(by), again=False)
        return None if result is None else int(result)

    def close(self) -> None:
        for server in self._servers.values():
            server.close()

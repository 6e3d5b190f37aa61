"""Writes messages to files of the layout vsqs, with their counts, windows and reasons. Overwrites nothing."""

import os
from collections.abc import Iterable

from qs_storage.disk import Disk
from qs_storage.engine import StorageError
from qs_storage.files.attributes import Attributes, Stored, store_for
from qs_storage.names import NEW, message_name, parse_message

from ..meter import Meter

_AT_ONCE = 200
"""Files that are synced together."""


class MessageFiles:
    def __init__(self, directory: str, disk: Disk) -> None:
        """directory: exists. OSError."""
        self._directory = directory
        self._disk = disk
        self._attributes = store_for(directory, disk, sync=True)
        self._there: dict[int, str] = {}
        for name in disk.files_in(directory):
            found = parse_message(os.fsencode(name))
            if found is not None and found[1] != NEW:
                self._there[found[0]] = name

    def write(self, messages: Iterable[Stored], meter: Meter) -> int:
        """Writes files durably, unless they are there with the same content. Returns how many. StorageError for
        other content; OSError. After an interruption, call it again with the same messages."""
        count = 0
        written: list[tuple[int, Stored]] = []
        try:
            for message in messages:
                if not self._is_there(message):
                    written.append((self._begin(message), message))
                    count += 1
                if len(written) >= _AT_ONCE:
                    self._finish(written)
                meter.add(len(message.payload))
                meter.tick()
            self._finish(written)
        finally:
            for descriptor, _ in written:
                self._disk.close(descriptor)
        self._disk.sync_directory(self._directory)
        return count

    def _is_there(self, message: Stored) -> bool:
        name = self._there.get(message.mid)
        if name is None:
            return False
        path = f"{self._directory}/{name}"
        with open(self._disk.open_file(path, os.O_RDONLY), "rb") as file:
            if os.fstat(file.fileno()).st_size == len(message.payload) and file.read() == message.payload:
                return True
        raise StorageError(f"{path} is there already, and is another message: it is not overwritten")

    def _temporary(self, message: Stored) -> str:
        return f"{self._directory}/.{message.mid}.tmp"

    def _begin(self, message: Stored) -> int:
        flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY
        descriptor = self._disk.open_file(self._temporary(message), flags)
        try:
            self._disk.write(descriptor, message.payload)
            if message.attributes != Attributes():
                self._attributes.write(self._temporary(message), message.mid, message.attributes, or_fail=True)
            if message.reason:
                self._attributes.reasons.write(self._temporary(message), message.mid, message.reason, or_fail=True)
            self._disk.begin_writing(descriptor)
        except BaseException:
            self._disk.close(descriptor)
            raise
        return descriptor

    def _finish(self, written: list[tuple[int, Stored]]) -> None:
        for descriptor, _ in written:
            self._disk.fsync(descriptor)
        while written:
            descriptor, message = written.pop()
            self._disk.close(descriptor)
            name = message_name(message.mid, message.expiry)
            self._disk.rename(self._temporary(message), f"{self._directory}/{name}")

"""Messages as files in the layout of vsqs: the id is the name, the payload the content. Nothing is overwritten."""

import contextlib
import errno
import os
from collections.abc import Iterable

_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS})


class OtherFileError(OSError):
    """A file of that name exists with other content."""


class VsqsFiles:
    """Writes messages into a directory. Two writers of the same messages do not harm each other."""

    def __init__(self, directory: str) -> None:
        """Creates the directory if it is missing; its parent must exist. OSError."""
        self._directory = directory
        if not os.path.isdir(directory):
            os.mkdir(directory)
            _sync(os.path.dirname(os.path.abspath(directory)))

    def write(self, messages: Iterable[tuple[int, bytes, int]]) -> int:
        """Writes files durably; a file that exists with the same content counts as written.

        messages: id, payload and count of receives. Returns how many files are new. Raises OtherFileError when one
        exists with other content, and OSError; then some of the files may exist.
        """
        written: dict[str, int] = {}
        try:
            for mid, payload, receives in messages:
                path = self._path(str(mid))
                if not _is_there(path, payload):
                    written[path] = self._write(mid, payload, receives)
            for descriptor in written.values():
                os.fsync(descriptor)
            for path in written:
                _name(_temporary(path), path)
            _sync(self._directory)
        except BaseException:
            for path in written:
                with contextlib.suppress(OSError):
                    os.unlink(_temporary(path))
            raise
        finally:
            for descriptor in written.values():
                os.close(descriptor)
        return len(written)

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)

    def _write(self, mid: int, payload: bytes, receives: int) -> int:
        """Writes a temporary file and returns its descriptor. Leaves no file behind when that fails."""
        temporary = _temporary(self._path(str(mid)))
        descriptor = os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o666)
        try:
            rest = memoryview(payload)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            if receives:
                with contextlib.suppress(OSError):  # not every file system has attributes
                    os.setxattr(descriptor, "user.qs.receives", b"%d" % receives)
            # Starts writing now, so that the syncs of many files wait together.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        except BaseException:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        return descriptor


def _temporary(path: str) -> str:
    directory, name = os.path.split(path)
    return os.path.join(directory, f".{name}.tmp")


def _is_there(path: str, payload: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == len(payload) and file.read() == payload:
                return True
    except FileNotFoundError:
        return False
    raise _other(path)


def _other(path: str) -> OtherFileError:
    return OtherFileError(f"{path} exists with other content, and is not overwritten")


def _name(temporary: str, path: str) -> None:
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise _other(path) from None
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(path):
            raise _other(path) from None
        os.rename(temporary, path)
    else:
        os.unlink(temporary)


def _sync(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""File operations of the jobs, on a directory of this machine or of any file system that Hadoop knows.

Paths are relative to that directory, with `/` between names. `replace`, `move` and `sync` are durable when they return:
synced on a local disk, elsewhere as far as the file system promises.
"""

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from .errors import PipelineError, UsageError


class Files(Protocol):
    """A directory. Every method may raise PipelineError, or OSError with the file's name."""

    def uri(self, path: str) -> str:
        """Returns the URI under which Spark writes to the path."""

    def local(self, path: str) -> str | None:
        """Returns the path on this machine, None for a directory elsewhere."""

    def names(self, path: str) -> list[str]:
        """Returns the sorted names in a directory, without checksum files. Empty when there is no directory."""

    def exists(self, path: str) -> bool: ...

    def read(self, path: str) -> bytes | None:
        """Returns the content of a file, None for a missing one."""

    def replace(self, path: str, data: bytes) -> None:
        """Creates or replaces a file at once, and creates the directories above it."""

    def move(self, moves: Iterable[tuple[str, str]]) -> None:
        """Renames files, each at once and in order, and creates missing directories."""

    def remove(self, path: str) -> None:
        """Removes a file, or a directory with its content, if it exists."""

    def sync(self, paths: Iterable[str]) -> None:
        """Makes files and their names durable."""

    def lock(self, path: str, what: str) -> "contextlib.AbstractContextManager[None]":
        """Holds a lock that only one process at a time can hold. Raises UsageError, which says that `what` is already
        running, if another process holds it."""


def open_files(spark: SparkSession, directory: str) -> Files:
    """Returns the files of a directory: a path of this machine, or a URI that Hadoop knows (`hdfs://…`)."""
    java: Any = spark._jvm
    # Hadoop decides what the directory is on: a path without a scheme may be of a cluster's default file system.
    path = java.org.apache.hadoop.fs.Path(directory)
    system = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    if system.getUri().getScheme() == "file":
        return LocalFiles(path.toUri().getPath() if directory.startswith("file:") else directory)
    return HadoopFiles(java, system, path)


@contextlib.contextmanager
def file_errors() -> Iterator[None]:
    """Turns errors of files in the block into errors of the pipeline that name the file."""
    try:
        yield
    except ConnectionError:  # of the JVM or the server, not of a file
        raise
    except NotADirectoryError as error:
        raise UsageError(f"{error.filename} cannot exist, as its directory is a file") from error
    except OSError as error:
        raise PipelineError(f"{error.filename or 'the disk'}: {error.strerror or error}") from error


class LocalFiles:
    """A directory of this machine.

    Ensures that what it writes, renames and makes is durable when the call returns: it syncs the file, its directory,
    and each directory above that it has made, because a name is in the directory and not in the file.
    """

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)

    def _path(self, path: str) -> str:
        return os.path.join(self.root, path)

    def uri(self, path: str) -> str:
        return f"file:{self._path(path)}"

    def local(self, path: str) -> str | None:
        return self._path(path)

    def names(self, path: str) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self._path(path)) if not name.endswith(".crc"))
        except FileNotFoundError:
            return []

    def exists(self, path: str) -> bool:
        return os.path.exists(self._path(path))

    def read(self, path: str) -> bytes | None:
        try:
            with open(self._path(path), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def replace(self, path: str, data: bytes) -> None:
        place = self._path(path)
        self._make(os.path.dirname(place))
        temporary = os.path.join(os.path.dirname(place), f".{os.path.basename(place)}.tmp")
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, place)
        _sync(os.path.dirname(place))

    def move(self, moves: Iterable[tuple[str, str]]) -> None:
        changed: dict[str, None] = {}
        for old, new in moves:
            target = self._path(new)
            self._make(os.path.dirname(target))
            os.rename(self._path(old), target)
            changed[os.path.dirname(target)] = None
        for directory in changed:  # once each, after all: a sync takes longer than many renames
            _sync(directory)

    def remove(self, path: str) -> None:
        place = self._path(path)
        try:
            if os.path.isdir(place) and not os.path.islink(place):
                shutil.rmtree(place)
            else:
                os.unlink(place)
        except FileNotFoundError:
            pass

    def sync(self, paths: Iterable[str]) -> None:
        directories: dict[str, None] = {}
        for path in paths:
            place = self._path(path)
            _sync(place)
            directories[os.path.dirname(place)] = None
        for directory in directories:
            _sync(directory)

    @contextlib.contextmanager
    def lock(self, path: str, what: str) -> Iterator[None]:
        place = self._path(path)
        self._make(os.path.dirname(place))
        handle = os.open(place, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(f"{what} is already running in {self.root}: wait for its end, or stop it") from None
            except OSError as error:
                if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):  # a network file system without locks
                    raise
            yield
        finally:
            os.close(handle)

    def _make(self, directory: str) -> None:
        """Makes a directory and those above it, each durable before what is inside."""
        if os.path.isdir(directory):
            return
        above = os.path.dirname(directory)
        self._make(above)
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory)
        _sync(above)


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class HadoopFiles:
    """A directory of any file system that Hadoop knows, through the JVM. It has no lock: run each job only once at a
    time."""

    def __init__(self, java: Any, system: Any, root: Any) -> None:
        self._java = java
        self._system = system
        self._root = system.makeQualified(root)

    def _path(self, path: str) -> Any:
        return self._java.org.apache.hadoop.fs.Path(self._root, path) if path else self._root

    def uri(self, path: str) -> str:
        return str(self._path(path).toString())

    def local(self, path: str) -> str | None:
        return None

    def names(self, path: str) -> list[str]:
        place = self._path(path)
        if not self._system.exists(place):
            return []
        found = (str(status.getPath().getName()) for status in self._system.listStatus(place))
        return sorted(name for name in found if not name.endswith(".crc"))

    def exists(self, path: str) -> bool:
        return bool(self._system.exists(self._path(path)))

    def read(self, path: str) -> bytes | None:
        place = self._path(path)
        if not self._system.exists(place):
            return None
        stream = self._system.open(place)
        try:
            return bytes(self._java.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def replace(self, path: str, data: bytes) -> None:
        place = self._path(path)
        temporary = self._java.org.apache.hadoop.fs.Path(place.getParent(), f".{place.getName()}.tmp")
        stream = self._system.create(temporary, True)
        try:
            stream.write(data)
            if stream.hasCapability("hsync"):
                stream.hsync()
        finally:
            stream.close()
        # FileSystem.rename does not replace a file. FileContext does, if a Java array of an inner class says so.
        rename = self._java.java.lang.Class.forName("org.apache.hadoop.fs.Options$Rename")
        overwrite = self._java.java.lang.reflect.Array.newInstance(rename, 1)
        overwrite[0] = rename.getField("OVERWRITE").get(None)
        context = self._java.org.apache.hadoop.fs.FileContext.getFileContext(
            self._system.getUri(), self._system.getConf()
        )
        context.rename(temporary, place, overwrite)

    def move(self, moves: Iterable[tuple[str, str]]) -> None:
        for old, new in moves:
            target = self._path(new)
            self._system.mkdirs(target.getParent())
            try:
                renamed = self._system.rename(self._path(old), target)
            except Py4JError:  # some file systems raise instead
                renamed = False
            if not renamed:
                raise PipelineError(
                    f"{self.uri(old)} cannot be renamed to {self.uri(new)}: check that both are writable"
                )

    def remove(self, path: str) -> None:
        self._system.delete(self._path(path), True)

    def sync(self, paths: Iterable[str]) -> None:
        """Does nothing: Hadoop stores a file when it is closed."""

    @contextlib.contextmanager
    def lock(self, path: str, what: str) -> Iterator[None]:
        yield

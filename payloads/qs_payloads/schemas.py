"""The schemas of a directory, by their names."""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Collection
from pathlib import Path

from .compiling import Compiled, compile_source
from .faults import NoSuchSchemaError, PayloadFault, SchemaError, shortened
from .process import COMPILING, DiedError, Process
from .sources import SUFFIXES, Source, read_source

QUICK = 16 * 1024
"""The most bytes of a payload that is checked where it is wanted."""
_SLOW = 0.02
"""Seconds of processor time after which a check shows that its schema is not quick: many times what such a check takes,
as a busy machine may take several times as long."""
LONGEST_NAME = 100
"""The most characters of a schema's name."""
_log = logging.getLogger(__name__)


class PayloadSchema:
    """A schema of a directory. For any number of threads."""

    def __init__(self, name: str, source: Source, *, plain: bool = False) -> None:
        """Holds a source that is known to compile. name: of the schema, as queues have it; plain: True if it can be
        compiled here in good time, and checks short payloads quickly."""
        self.name = name
        self.file = source.main
        self.source = source
        self._is_quick = plain
        self._lock = threading.Lock()
        self._compiled: Compiled | None = None

    def __repr__(self) -> str:
        return f"PayloadSchema({self.name!r}, {self.file!r})"

    def is_quick(self, size: int) -> bool:
        """Tells whether the check of a payload of so many bytes takes at most a millisecond or so in any thread. What
        is not quick belongs into a `Checker`."""
        return size <= QUICK and self._is_quick

    def compile(self) -> None:
        """Compiles the schema in this process, once; otherwise its first check does. Raises SchemaError."""
        with self._lock:
            self._compile()

    def _compile(self) -> Compiled:
        if self._compiled is None:
            self._compiled = compile_source(self.source)
        return self._compiled

    def fault(self, payload: bytes) -> PayloadFault | None:
        """Checks a payload in this thread. Returns the first thing that is wrong with it, or None."""
        with self._lock:  # the log of errors belongs to the schema
            compiled = self._compile()
            # The time of this thread: others may have had the processor meanwhile.
            start = time.thread_time()
            fault = compiled.fault(payload)
            if time.thread_time() - start > _SLOW and self.is_quick(len(payload)):
                self._is_quick = False
                _log.warning("schema %s takes long to check a short payload: its checks leave the loop now", self.file)
        return fault


class Schemas:
    """The schemas of a directory: its files that end with .xsd or .json. Those of folders in it are for references."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """Reads no file: `reload` does. directory: the only one from which files are read."""
        self.directory = Path(directory)
        self._by_file: dict[str, PayloadSchema] = {}
        self._unusable: frozenset[str] = frozenset()
        """The files that are there, and that never could be used."""

    @property
    def names(self) -> list[str]:
        """The names of all schemas, in order: the name of the file without its suffix, or with it if both kinds have
        the name."""
        return sorted(schema.name for schema in self._by_file.values())

    def get(self, name: str) -> PayloadSchema:
        """Returns the schema of a name, which is that of a file with or without its suffix.

        Raises NoSuchSchemaError, also for a name that an XSD and a JSON Schema have, and a name that is none.
        """
        by_file, unusable = self._by_file, self._unusable
        try:
            return by_file[_file_of(name, by_file)]
        except NoSuchSchemaError as error:
            for file in unusable.intersection((name, *(name + suffix for suffix in SUFFIXES))):
                raise NoSuchSchemaError(f"{file} cannot be used: the log of the server says why") from error
            raise

    def reload(self) -> list[str]:
        """Reads the directory again; the first time too. Returns a text for each file that does not compile, which
        keeps its earlier version if it has one. Raises OSError if the directory cannot be read: then all is as before.

        Blocks: each file may take as long as `process.COMPILING`, in a process of its own.
        """
        files = _schema_files(self.directory)
        texts: list[str] = []
        found: dict[str, PayloadSchema] = {}
        with contextlib.ExitStack() as processes:
            compiler = _Compiler(processes)
            for file in files:
                earlier = self._by_file.get(file)
                try:
                    found[file] = _loaded(self.directory, file, _name_of(file, files), earlier, compiler)
                except SchemaError as error:
                    texts.append(str(error))
                    if earlier is not None:
                        found[file] = earlier
        self._by_file, self._unusable = found, frozenset(files).difference(found)
        return texts


def _loaded(
    directory: Path, file: str, name: str, earlier: PayloadSchema | None, compiler: "_Compiler"
) -> PayloadSchema:
    """Reads and compiles a file. Returns the earlier schema if nothing has changed. Raises SchemaError."""
    if len(name) > LONGEST_NAME or not name.isprintable():
        raise SchemaError(
            f"{shortened(repr(file))}: a schema has a name of at most {LONGEST_NAME} printable characters"
        )
    source = read_source(directory, file)
    if earlier is not None and (earlier.name, earlier.source.digest) == (name, source.digest):
        return earlier
    schema = PayloadSchema(name, source, plain=compiler.compile(source))
    if schema.is_quick(0):
        schema.compile()
    return schema


class _Compiler:
    """Compiles schemas first in another process, where a hostile one can be stopped."""

    def __init__(self, processes: contextlib.ExitStack) -> None:
        """Starts nothing. processes: closes what is started."""
        self._processes = processes
        self._process: Process | None = None

    def compile(self, source: Source) -> bool:
        """Returns True if the schema is plain, and compiles so fast that it may be compiled here too. Raises
        SchemaError."""
        if self._process is None or not self._process.is_usable:
            self._process = self._processes.enter_context(contextlib.closing(Process()))
        try:
            return self._process.compile(source, COMPILING)
        except DiedError as error:
            self._process = None
            raise SchemaError(f"{source.main}: does not compile {error}") from None


def find_schema(directory: str | os.PathLike[str], name: str) -> PayloadSchema:
    """Reads one schema of a directory, and compiles nothing. name: as `Schemas.get` takes it.

    Raises NoSuchSchemaError, SchemaError, OSError.
    """
    files = _schema_files(directory)
    if not files:
        where = os.path.abspath(directory)
        raise NoSuchSchemaError(f"there is no schema {shortened(repr(name), 120)}: the directory {where} has none")
    file = _file_of(name, files)
    return PayloadSchema(name, read_source(Path(directory), file))


def _schema_files(directory: str | os.PathLike[str]) -> list[str]:
    """Returns the names of the files of schemas of a directory, in order. Hidden ones are an editor's."""
    with os.scandir(directory) as entries:
        return sorted(e.name for e in entries if e.name.endswith(SUFFIXES) and not e.name.startswith("."))


def _name_of(file: str, files: Collection[str]) -> str:
    """Returns the name of a schema: that of its file, without the suffix unless a file of the other kind is beside
    it."""
    stem = os.path.splitext(file)[0]
    return stem if sum(f"{stem}{suffix}" in files for suffix in SUFFIXES) == 1 else file


def _file_of(name: str, files: Collection[str]) -> str:
    """Returns the file of a schema, of those that are there. Raises NoSuchSchemaError."""
    if name in files:
        return name
    found = [f"{name}{suffix}" for suffix in SUFFIXES if f"{name}{suffix}" in files]
    if len(found) == 1:
        return found[0]
    if found:
        raise NoSuchSchemaError(f"{' and '.join(found)} are both there: name one of them")
    there = ", ".join(_name_of(file, files) for file in files) or "none"
    raise NoSuchSchemaError(f"there is no schema {shortened(repr(name), 120)}; there are: {there}")

"""The schemas of a directory, by their names."""

import contextlib
import logging
import os
import threading
import time
from pathlib import Path

from .compiling import Compiled, compile_source
from .faults import NoSuchSchemaError, PayloadFault, SchemaError, shortened
from .process import DiedError, Process
from .sources import SUFFIXES, Source, read_source

QUICK = 16 * 1024
"""The most bytes of a payload that is checked where it is wanted."""
_SLOW = 0.005
"""Seconds of processor time after which a check shows that its schema is not quick."""
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

    @property
    def names(self) -> list[str]:
        """The names of all schemas, in order: the name of the file without its suffix, or with it if both kinds have
        the name."""
        return sorted(schema.name for schema in self._by_file.values())

    def get(self, name: str) -> PayloadSchema:
        """Returns the schema of a name, which is that of a file with or without its suffix.

        Raises NoSuchSchemaError, also for a name that an XSD and a JSON Schema have, and a name that is none.
        """
        by_file = self._by_file
        if name in by_file:
            return by_file[name]
        found = [by_file[f"{name}{suffix}"] for suffix in SUFFIXES if f"{name}{suffix}" in by_file]
        if len(found) == 1:
            return found[0]
        if found:
            raise NoSuchSchemaError(f"{' and '.join(schema.file for schema in found)} are both there: name one of them")
        there = ", ".join(self.names) or "none"
        raise NoSuchSchemaError(f"there is no schema {name[:100]!r}; there are: {there}")

    def reload(self) -> list[str]:
        """Reads the directory again; the first time too. Returns a text for each file that does not compile, which
        keeps its earlier version if it has one. Raises OSError if the directory cannot be read: then all is as before.

        Blocks: each file may take as long as `process.COMPILING`, in a process of its own.
        """
        with os.scandir(self.directory) as entries:
            files = sorted(entry.name for entry in entries if entry.name.endswith(SUFFIXES))
        texts: list[str] = []
        found: dict[str, PayloadSchema] = {}
        with contextlib.ExitStack() as processes:
            compiler = _Compiler(processes)
            for file in files:
                if file.startswith("."):  # an editor's
                    continue
                earlier = self._by_file.get(file)
                stem, suffix = os.path.splitext(file)
                both = any(f"{stem}{other}" in files for other in SUFFIXES if other != suffix)
                try:
                    found[file] = _loaded(self.directory, file, file if both else stem, earlier, compiler)
                except SchemaError as error:
                    texts.append(str(error))
                    if earlier is not None:
                        found[file] = earlier
        self._by_file = found
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
            return self._process.compile(source)
        except DiedError as error:
            self._process = None
            raise SchemaError(f"{source.main}: does not compile {error}") from None


def read_schema(path: str | os.PathLike[str]) -> PayloadSchema:
    """Reads a schema from a file; others that it refers to have to be in the folder of the file, or below. Compiles it
    here. Raises SchemaError."""
    whole = Path(path)
    if whole.suffix not in SUFFIXES:
        raise SchemaError(f"{whole}: the name of a schema ends with {' or '.join(SUFFIXES)}")
    schema = PayloadSchema(whole.stem, read_source(whole.parent, whole.name))
    schema.compile()
    return schema

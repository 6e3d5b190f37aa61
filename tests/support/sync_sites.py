"""Finds every call in the storage's source that makes something durable, and which of them a sync came from.

A call is known by its file, its function and what it calls. A sync belongs to all calls on the way to it: the fdatasync
in `write_last` is one place, and each call of `write_last` is another, as each may be needed for itself.
"""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType

import qs_storage

_HOME = Path(next(iter(qs_storage.__path__)))
_SYNCS = frozenset(
    {
        "fsync",
        "fdatasync",
        "_syncfs",
        "sync",
        "_sync",
        "before",
        "sync_file",
        "sync_directory",
        "sync_file_system",
        "sync_content",
        "_sync_message",
        "_sync_last",
        "_sync_above",
        "_make_durable",
    }
)
"""The functions that make something durable, beside those that take an argument `sync`."""
_PASS_IT_ON = frozenset({"__init__", "store_for", "lease_store_for", "in_sidecars"})
"""The functions that take an argument `sync` and make nothing durable themselves; nor does any class."""
_NAMES = frozenset({"rename", "link"})
"""The functions that give a file that was written its durable name."""
_FLAGS = frozenset({"O_DSYNC", "O_SYNC"})


class _Finder(ast.NodeVisitor):
    """Collects the places of one file. found: lines (first, last), and the name of the place."""

    def __init__(self, path: str, tree: ast.Module) -> None:
        self._path = path
        self._within: list[str] = []
        self._flags = {
            target.id
            for node in tree.body
            if isinstance(node, ast.Assign) and any(_is_flag(part) for part in ast.walk(node.value))
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        self.found: list[tuple[int, int, str]] = []
        self._count: dict[str, int] = {}
        self.visit(tree)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._go_into(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._go_into(node)

    def _go_into(self, node: ast.ClassDef | ast.FunctionDef) -> None:
        self._within.append(node.name)
        self.generic_visit(node)
        self._within.pop()

    def visit_Call(self, node: ast.Call) -> None:
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called == "before" and ast.unparse(node.func) != "self.before":
            called = ""
        what = called if called in _SYNCS or (called in _NAMES and _is_of_disk(node.func)) else ""
        asked = [keyword.value for keyword in node.keywords if keyword.arg == "sync"]
        if asked and ast.unparse(asked[0]) != "False" and called not in _PASS_IT_ON:
            what = "" if called.lstrip("_")[:1].isupper() else called
        if any(_is_flag(arg) or (isinstance(arg, ast.Name) and arg.id in self._flags) for arg in node.args):
            what = f"{called} O_DSYNC"
        if what:
            name = f"{self._path} {'.'.join(self._within)}: {what}"
            number = self._count[name] = self._count.get(name, 0) + 1
            self.found.append((node.lineno, node.end_lineno or 0, name if number == 1 else f"{name} {number}"))
        self.generic_visit(node)


def _is_of_disk(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and ast.unparse(node.value).rpartition(".")[2].strip("_") == "disk"


def _is_flag(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in _FLAGS


@cache
def _by_file() -> dict[str, list[tuple[int, int, str]]]:
    found = {}
    for path in sorted(_HOME.rglob("*.py")):
        if path.name != "disk.py" and path.parent != _HOME / "tools":
            found[str(path)] = _Finder(str(path.relative_to(_HOME)), ast.parse(path.read_text())).found
    return found


def all_places() -> list[str]:
    """The places of all calls in the storage, in the order of its files. Those of the commands in `tools` are left
    out: a command that a power loss has ended is given again, and test_convert_power_loss.py plays that."""
    return [name for places in _by_file().values() for _, _, name in places]


def places_on_the_way() -> tuple[str, ...]:
    """The places that are being called just now, the innermost first."""
    return tuple(_places_of(sys._getframe(1)))


def _places_of(frame: FrameType | None) -> Iterator[str]:
    files = _by_file()
    while frame is not None:
        for first, last, name in files.get(frame.f_code.co_filename, ()):
            if first <= frame.f_lineno <= last:
                yield name
        frame = frame.f_back

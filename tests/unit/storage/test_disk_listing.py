"""Names read straight from the kernel, against what `os.scandir` says of the same directory."""

import ctypes
import os
import struct
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from qs_storage import disk as disk_module
from qs_storage.disk import Disk, each_file, file_blocks, of_one_length

REGULAR, FOLDER, LINK, UNKNOWN = 8, 4, 10, 0
NOTHING = -1
"""No descriptor: of entries that need none."""


def entry(name: bytes, kind: int = REGULAR, rest: bytes = b"\xff") -> bytes:
    """A struct linux_dirent64. rest: a byte of what is behind the name, which the kernel does not clear."""
    length = -(-(20 + len(name)) // 8) * 8
    header = struct.pack("=QqHB", 2**63 + 5, -1, length, kind)
    return (header + name + b"\0").ljust(length, rest)


@pytest.fixture(params=["getdents64", "scandir"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "scandir":
        monkeypatch.setattr(disk_module, "_getdents64", None)


@pytest.mark.usefixtures("way")
def test_only_regular_files(tmp_path: Path) -> None:
    """Only regular files are listed, no links, directories or pipes, also if all names are of one length; odd bytes are
    kept."""
    for name in (b"1111", b"2222", b".abc", b"a", b"long" * 60, b"caf\xe9", b"new\n"):
        Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), name))).touch()
    (tmp_path / "3333").symlink_to("1111")
    (tmp_path / "4444").symlink_to("nowhere")
    (tmp_path / "5555").mkdir()
    os.mkfifo(tmp_path / "6666")
    expected = [b".abc", b"1111", b"2222", b"a", b"caf\xe9", b"long" * 60, b"new\n"]
    assert sorted(chain.from_iterable(file_blocks(str(tmp_path)))) == expected
    assert sorted(Disk().files_in(str(tmp_path))) == sorted(map(os.fsdecode, expected))


@pytest.mark.usefixtures("way")
def test_many_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each name is there once, and no more of them at a time than asked for."""
    monkeypatch.setattr(disk_module, "_SIZES", (128, 400))
    monkeypatch.setattr(disk_module, "_COUNT", 10)
    names = {b"%d" % number for number in range(10**15, 10**15 + 50)}
    for name in names:
        (tmp_path / name.decode()).touch()
    blocks = list(file_blocks(str(tmp_path)))
    assert sorted(chain.from_iterable(blocks)) == sorted(names)
    assert max(map(len, blocks)) <= 10
    assert len(blocks) >= 5


def test_a_short_directory_needs_no_large_buffer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The buffer for many names, a MB that has to be cleared, is made only once the first one was half full."""
    made: list[int] = []
    create = ctypes.create_string_buffer
    monkeypatch.setattr(ctypes, "create_string_buffer", lambda size: made.append(size) or create(size))
    (tmp_path / "1111").touch()
    assert list(chain.from_iterable(file_blocks(str(tmp_path)))) == [b"1111"]
    assert made == [disk_module._SIZES[0]]
    for number in range(1000):
        (tmp_path / f"{number:020d}").touch()
    assert len(list(chain.from_iterable(file_blocks(str(tmp_path))))) == 1001
    assert made == [disk_module._SIZES[0], *disk_module._SIZES]


@pytest.mark.usefixtures("way")
def test_errors(tmp_path: Path) -> None:
    """Errors name the directory."""
    (tmp_path / "file").touch()
    for name, kind in (("none", FileNotFoundError), ("file", NotADirectoryError)):
        with pytest.raises(kind) as caught:
            list(file_blocks(str(tmp_path / name)))
        assert caught.value.filename == str(tmp_path / name)


def test_error_while_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the kernel in the middle is raised, and the descriptor is closed."""
    folder: list[int] = []

    def fail(descriptor: int, *_: object) -> int:
        folder.append(descriptor)
        ctypes.set_errno(5)
        return -1

    monkeypatch.setattr(disk_module, "_getdents64", fail)
    with pytest.raises(OSError, match="Input/output error") as caught:
        list(file_blocks(str(tmp_path)))
    assert caught.value.filename == str(tmp_path)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(folder[0])


def test_file_system_without_types(tmp_path: Path) -> None:
    """Where a directory does not say what its entries are, each is asked; one that has gone is left out."""
    (tmp_path / "1111").touch()
    (tmp_path / "2222").mkdir()
    (tmp_path / "3333").symlink_to("1111")
    entries = b"".join(entry(name, UNKNOWN) for name in (b"1111", b"2222", b"3333", b"4444"))
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        assert of_one_length(entries) is None
        assert list(each_file(entries, folder)) == [b"1111"]
    finally:
        os.close(folder)


NAMES = st.binary(min_size=1, max_size=40).map(lambda name: name.replace(b"\0", b"1"))
KINDS = st.sampled_from([REGULAR, REGULAR, REGULAR, FOLDER, LINK])


def lists() -> Iterator[st.SearchStrategy[list[tuple[bytes, int, bytes]]]]:
    """Strategies for entries with names of any length, and of two lengths only."""
    for names, kinds in ((NAMES, KINDS), (st.sampled_from([b"1" * 16, b"2" * 16, b"3" * 15]), st.just(REGULAR))):
        rest = st.sampled_from([b"\0", b"\xff", b"1"])
        yield st.lists(st.tuples(names, kinds, rest), min_size=1, max_size=8)


@given(st.one_of(*lists()))
@settings(deadline=None, derandomize=True)
def test_columns(made: list[tuple[bytes, int, bytes]]) -> None:
    """Read by columns or one by one: the same, whatever is behind the names."""
    entries = b"".join(entry(*one) for one in made)
    expected = [name for name, kind, _ in made if kind == REGULAR]
    alike = len({len(name) for name, _, _ in made}) == 1 and len(expected) == len(made)
    assert list(each_file(entries, NOTHING)) == expected
    assert of_one_length(entries) == (expected if alike else None)

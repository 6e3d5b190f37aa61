"""The names of the regular files in a directory, in blocks."""

import os
from itertools import chain
from pathlib import Path

import pytest

from qs_storage import disk as disk_module
from qs_storage.disk import Disk


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
    assert sorted(chain.from_iterable(Disk().file_blocks_in(str(tmp_path)))) == expected
    assert sorted(Disk().files_in(str(tmp_path))) == sorted(map(os.fsdecode, expected))


def test_many_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each name is there once, and no more of them at a time than asked for."""
    monkeypatch.setattr(disk_module, "_BLOCK", 10)
    names = {b"%d" % number for number in range(10**15, 10**15 + 50)}
    for name in names:
        (tmp_path / name.decode()).touch()
    blocks = list(Disk().file_blocks_in(str(tmp_path)))
    assert sorted(chain.from_iterable(blocks)) == sorted(names)
    assert max(map(len, blocks)) <= 10
    assert len(blocks) >= 5


def test_errors(tmp_path: Path) -> None:
    """Errors name the directory."""
    (tmp_path / "file").touch()
    for name, kind in (("none", FileNotFoundError), ("file", NotADirectoryError)):
        with pytest.raises(kind) as caught:
            list(Disk().file_blocks_in(str(tmp_path / name)))
        assert caught.value.filename == str(tmp_path / name)

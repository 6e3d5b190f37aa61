"""Tests what `qs export` keeps with a file beside the payload, on file systems with and without attributes."""

import errno
import os
from pathlib import Path

import pytest

from qs_client.command_export import Exported, VsqsFiles
from qs_client.command_labels import Labels, read

FULL = Labels({"traceparent": "00-1", "b": "\xe9 \U0001f34e"}, 9, "acme \xe9")


def exported(directory: Path, labels: Labels) -> list[str]:
    """Writes a message with labels. Returns the names in the directory."""
    assert VsqsFiles(str(directory)).write([Exported(5, b"x", 2, labels)]) == 1
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture(params=["attributes", "no attributes", "no room for attributes"])
def directory(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory on a file system that has attributes or has none, or has too little room for most."""
    setxattr = os.setxattr

    def refused(file: int, name: str, value: bytes) -> None:
        if request.param == "no attributes":
            raise OSError(errno.ENOTSUP, "no attributes")
        if len(value) > 4:
            raise OSError(errno.ENOSPC, "no room")
        setxattr(file, name, value)

    if request.param != "attributes":
        monkeypatch.setattr(os, "setxattr", refused)
    return tmp_path


@pytest.mark.parametrize(
    "labels",
    [FULL, Labels({}, 3), Labels({}, None, "g"), Labels({"a": ""}), Labels({}), Labels({"a": "\xe9" * 4000}, 1)],
)
def test_labels_are_kept(directory: Path, labels: Labels) -> None:
    """Headers, priority and group are read again as they were written, wherever the file system has room for them."""
    exported(directory, labels)
    assert read(str(directory / "5")) == labels
    assert (directory / "5").read_bytes() == b"x"


def test_labels_without_attributes_are_hidden_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system without attributes each label is in a hidden file; a message without labels has none."""

    def refused(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "no attributes")

    monkeypatch.setattr(os, "setxattr", refused)
    assert exported(tmp_path, FULL) == [".5.group", ".5.headers", ".5.priority", "5"]
    (tmp_path / "other").mkdir()
    assert exported(tmp_path / "other", Labels({})) == ["5"]


def test_headers_are_where_queues_of_files_have_them(tmp_path: Path) -> None:
    """The attribute has short headers, or the number of bytes of the hidden file that has long ones."""
    exported(tmp_path, Labels({"a": "b"}))
    assert os.getxattr(tmp_path / "5", "user.qs.headers") == b'[["a","b"]]'
    (tmp_path / "other").mkdir()
    assert exported(tmp_path / "other", Labels({"a": "b" * 5000})) == [".5.headers", "5"]
    size = (tmp_path / "other" / ".5.headers").stat().st_size
    assert os.getxattr(tmp_path / "other" / "5", "user.qs.headers") == b"%d" % size


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("headers", b"{"), ("headers", b'{"a": 5}'), ("headers", b'[["a", 5], ["qs-mine", "x"]]'), ("headers", b"[5]"),
        ("headers", b"7"), ("headers", b"\xff"), ("priority", b"10"), ("priority", b"x"), ("priority", b"\xb2"),
    ],
)  # fmt: skip
def test_labels_of_other_programs(tmp_path: Path, name: str, content: bytes) -> None:
    """The reader leaves out what another program has written in their place, and what only a server gives."""
    (tmp_path / "5").write_bytes(b"x")
    os.setxattr(tmp_path / "5", f"user.qs.{name}", content)
    assert read(str(tmp_path / "5")) == Labels({})


def test_labels_of_other_files(tmp_path: Path) -> None:
    """A file that is not named like a message has none, whatever its attributes are."""
    (tmp_path / "invoice.xml").write_bytes(b"x")
    os.setxattr(tmp_path / "invoice.xml", "user.qs.priority", b"9")
    assert read(str(tmp_path / "invoice.xml")) == Labels({})
    assert read("-") == Labels({})

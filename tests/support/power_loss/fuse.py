"""A real file system (FUSE) that keeps unsynced data in memory, and can lose it: for power losses of whole processes.

    python -m support.power_loss.fuse MOUNTPOINT SOURCE   (in tests/)

mounts the content of the directory SOURCE, as durable, and prints `mounted`. A line `lose HOW TARGET` on stdin unmounts
the file system, writes what a power loss leaves into the directory TARGET, and ends the program. HOW is `nothing`,
`everything` or a seed.

A played FileSystem answers the kernel, so a real server has the disk that recorded runs have. The kernel's protocol
(fuse.h, version 7.31) is spoken here, so nothing has to be installed. Without /dev/fuse or the right to mount, the
program says why and ends with code 77.
"""

import contextlib
import ctypes
import errno
import os
import select
import stat
import struct
import sys
import time
from collections.abc import Callable

from support.power_loss.file_system import FileSystem, lay_out, pick_up, power_loss
from support.power_loss.nodes import Directory, File, Node

# From fuse.h of Linux. Numbers of requests are in `FuseServer.handlers`.
_WRITE = 128 * 1024
"""Bytes of the largest write: the kernel sends 4 KiB at a time unless it is asked for big writes."""
_IN = struct.Struct("=IIQQIIIHH")
_OUT = struct.Struct("=IiQ")
_INIT_OUT = struct.Struct("=IIIIHHIIHH8I")
_ATTR = struct.Struct("=6Q10I")
_READ = struct.Struct("=QQIIQII")
_MAJOR, _MINOR = 7, 31
_BIG_WRITES = 1 << 5
_SIZE_IS_SET = 1 << 3
_DATA_ONLY = 1


class FuseError(OSError):
    """A request fails with this error number, which the kernel is given."""


class FuseServer:
    """Answers requests from a FileSystem. Node 1 of the protocol is the root; the protocol's number of any other node
    is the node's own number plus 1."""

    def __init__(self, fd: int, file_system: FileSystem) -> None:
        self.fd = fd
        self.file_system = file_system
        self.nodes: dict[int, Node] = {}
        self.modified: dict[int, float] = {}
        self.modes: dict[int, int] = {}
        self.handlers: dict[int, Callable[[int, bytes], bytes | None]] = {
            1: self.look_up,
            2: self.forget,
            3: self.get_attributes,
            4: self.set_attributes,
            9: self.make_directory,
            10: self.unlink,
            11: self.remove_directory,
            12: lambda node, data: self.rename(node, data, 8),
            13: self.link,
            14: self.open,
            15: self.read,
            16: self.write,
            17: lambda node, data: struct.pack(
                "=5Q10I", 1 << 30, 1 << 29, 1 << 29, 1 << 20, 1 << 20, 4096, 255, 4096, *[0] * 7
            ),
            18: lambda node, data: b"",
            20: self.sync,
            21: self.set_extended,
            22: self.get_extended,
            24: self.remove_extended,
            25: lambda node, data: b"",
            26: self.init,
            27: self.open,
            28: self.read_directory,
            29: lambda node, data: b"",
            30: self.sync,
            35: self.create,
            42: self.forget,
            45: lambda node, data: self.rename(node, data, 16),
            50: self.sync_all,
        }

    def serve_one(self) -> bool:
        """Answers one request. Returns False when the file system has been unmounted."""
        try:
            request = os.read(self.fd, _WRITE + 4096)
        except OSError as error:
            if error.errno == errno.ENODEV:
                return False
            if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                return True
            raise
        _, operation, unique, number, *_ = _IN.unpack_from(request)
        handler = self.handlers.get(operation)
        code, answer = 0, None
        try:
            if handler is None:
                raise FuseError(errno.ENOSYS, "")
            answer = handler(number, request[_IN.size :])
        except (FuseError, FileNotFoundError) as error:
            code, answer = error.errno or errno.ENOENT, b""
        if answer is not None:
            with contextlib.suppress(FileNotFoundError):  # the process that asked has been killed
                os.write(self.fd, _OUT.pack(_OUT.size + len(answer), -code, unique) + answer)
        return True

    # -- nodes

    def node(self, number: int) -> Node:
        return self.file_system.root if number == 1 else self.nodes[number]

    def directory(self, number: int) -> Directory:
        node = self.node(number)
        if not isinstance(node, Directory):
            raise FuseError(errno.ENOTDIR, "")
        return node

    def file(self, number: int) -> File:
        node = self.node(number)
        if not isinstance(node, File):
            raise FuseError(errno.EISDIR, "")
        return node

    def child(self, number: int, name: str) -> Node:
        entries = self.directory(number).entries
        if name not in entries:
            raise FuseError(errno.ENOENT, "")
        return entries[name]

    def touch(self, node: Node) -> None:
        self.modified[node.number] = time.time()
        self.file_system.touched(node)

    def attributes(self, node: Node) -> bytes:
        size = node.pages.size if isinstance(node, File) else 4096
        kind = stat.S_IFREG | 0o644 if isinstance(node, File) else stat.S_IFDIR | 0o755
        kind = stat.S_IFMT(kind) | self.modes.get(node.number, stat.S_IMODE(kind))
        modified = self.modified.setdefault(node.number, time.time())
        seconds, nanoseconds = int(modified), int(modified % 1 * 1e9)
        times = (seconds,) * 3 + (nanoseconds,) * 3
        return _ATTR.pack(
            node.number + 1, size, (size + 511) // 512, *times, kind, 1, os.getuid(), os.getgid(), 0, 4096, 0
        )

    def entry(self, node: Node) -> bytes:
        self.nodes[node.number + 1] = node
        return struct.pack("=4Q2I", node.number + 1, 0, 0, 0, 0, 0) + self.attributes(node)

    # -- requests: a number of a node, and what follows the header

    def init(self, number: int, data: bytes) -> bytes:
        flags = struct.unpack_from("=IIII", data)[3] & _BIG_WRITES
        return _INIT_OUT.pack(_MAJOR, _MINOR, _WRITE, flags, 12, 9, _WRITE, 1, 32, 0, *[0] * 8)

    def forget(self, number: int, data: bytes) -> None:
        """Does nothing: nodes are few, and all are kept."""

    def look_up(self, number: int, data: bytes) -> bytes:
        return self.entry(self.child(number, _names(data)[0]))

    def get_attributes(self, number: int, data: bytes) -> bytes:
        return bytes(16) + self.attributes(self.node(number))

    def set_attributes(self, number: int, data: bytes) -> bytes:
        node = self.node(number)
        valid, _, _, size, *_ = struct.unpack_from("=IIQQ", data)
        if valid & _SIZE_IS_SET:
            self.touch(node)
            self.file(number).resize(size)
        if valid & 1:
            self.modes[node.number] = stat.S_IMODE(struct.unpack_from("=I", data, 68)[0])
        return bytes(16) + self.attributes(node)

    def make(self, number: int, name: str, kind: type[File] | type[Directory], mode: int) -> Node:
        parent = self.directory(number)
        if name in parent.entries:
            raise FuseError(errno.EEXIST, "")
        node = self.file_system.new(kind)
        self.modes[node.number] = stat.S_IMODE(mode)
        self.touch(node)
        self.touch(parent)
        self.file_system.set_name(parent, name, node)
        return node

    def make_directory(self, number: int, data: bytes) -> bytes:
        return self.entry(self.make(number, _names(data[8:])[0], Directory, struct.unpack_from("=I", data)[0]))

    def create(self, number: int, data: bytes) -> bytes:
        _, mode = struct.unpack_from("=II", data)
        return self.entry(self.make(number, _names(data[16:])[0], File, mode)) + bytes(16)

    def unlink(self, number: int, data: bytes) -> bytes:
        name = _names(data)[0]
        self.child(number, name)
        self.touch(self.directory(number))
        self.file_system.set_name(self.directory(number), name, None)
        return b""

    def remove_directory(self, number: int, data: bytes) -> bytes:
        _must_be_empty(self.child(number, _names(data)[0]))
        return self.unlink(number, data)

    def rename(self, number: int, data: bytes, header: int) -> bytes:
        target = self.directory(struct.unpack_from("=Q", data)[0])
        if header == 16 and struct.unpack_from("=I", data, 8)[0]:
            raise FuseError(errno.EINVAL, "")  # to exchange, or not to replace
        old, new = _names(data[header:])[:2]
        self.child(number, old)
        if new in target.entries:
            _must_be_empty(target.entries[new])
        self.touch(self.directory(number))
        self.touch(target)
        self.file_system.rename_in(self.directory(number), old, target, new)
        return b""

    def link(self, number: int, data: bytes) -> bytes:
        node, name = self.node(struct.unpack_from("=Q", data)[0]), _names(data[8:])[0]
        if name in self.directory(number).entries:
            raise FuseError(errno.EEXIST, "")
        self.touch(self.directory(number))
        self.file_system.set_name(self.directory(number), name, node)
        return self.entry(node)

    def open(self, number: int, data: bytes) -> bytes:
        self.node(number)
        return bytes(16)

    def read(self, number: int, data: bytes) -> bytes:
        _, offset, size, *_ = _READ.unpack_from(data)
        return self.file(number).pages.read(offset, size)

    def write(self, number: int, data: bytes) -> bytes:
        _, offset, size, _, _, flags, _ = _READ.unpack_from(data)
        written = data[_READ.size : _READ.size + size]
        node = self.file(number)
        self.touch(node)
        node.write(offset, written)
        if flags & os.O_DSYNC:
            node.sync_range(offset, written)
        return struct.pack("=II", size, 0)

    def sync(self, number: int, data: bytes) -> bytes:
        _, flags, _ = struct.unpack_from("=QII", data)
        self.file_system.sync(self.node(number), data_only=bool(flags & _DATA_ONLY))
        return b""

    def sync_all(self, number: int, data: bytes) -> bytes:
        self.file_system.sync_all()
        return b""

    def read_directory(self, number: int, data: bytes) -> bytes:
        _, offset, size, *_ = _READ.unpack_from(data)
        found = b""
        for place, (name, node) in enumerate(self.directory(number).entries.items()):
            encoded = os.fsencode(name)
            kind = stat.S_IFREG if isinstance(node, File) else stat.S_IFDIR
            one = struct.pack("=QQII", node.number + 1, place + 1, len(encoded), kind >> 12) + encoded
            one += bytes(-len(one) % 8)
            if place >= offset and len(found) + len(one) <= size:
                found += one
            elif place >= offset:
                break
        return found

    # -- extended attributes

    def set_extended(self, number: int, data: bytes) -> bytes:
        size, _ = struct.unpack_from("=II", data)
        name, _, value = data[8:].partition(b"\0")
        node = self.node(number)
        self.file_system.touched(node)
        node.set_attribute(self.file_system.number(), os.fsdecode(name), value[:size])
        return b""

    def get_extended(self, number: int, data: bytes) -> bytes:
        size, _ = struct.unpack_from("=II", data)
        value = self.node(number).attributes.get(_names(data[8:])[0])
        if value is None:
            raise FuseError(errno.ENODATA, "")
        if size and len(value) > size:
            raise FuseError(errno.ERANGE, "")
        return value if size else struct.pack("=II", len(value), 0)

    def remove_extended(self, number: int, data: bytes) -> bytes:
        node, name = self.node(number), _names(data)[0]
        if name not in node.attributes:
            raise FuseError(errno.ENODATA, "")
        self.file_system.touched(node)
        node.set_attribute(self.file_system.number(), name, None)
        return b""


def _names(data: bytes) -> list[str]:
    return [os.fsdecode(name) for name in data.split(b"\0")]


def _must_be_empty(node: Node) -> None:
    if isinstance(node, Directory) and node.entries:
        raise FuseError(errno.ENOTEMPTY, "")


UNUSABLE = 77
_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


def mount(mountpoint: str) -> int:
    """Mounts the file system. Returns the descriptor from which the kernel's requests are read. Raises OSError."""
    fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={fd},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},default_permissions"
    flags = 2 | 4  # nosuid, nodev
    if _libc.mount(b"qs-power-loss", os.fsencode(mountpoint), b"fuse.qs-power-loss", flags, options.encode()) != 0:
        code = ctypes.get_errno()
        os.close(fd)
        raise OSError(code, os.strerror(code), "mount")
    return fd


def unmount(mountpoint: str) -> bool:
    """Unmounts at once, though it may be in use. Returns whether something was mounted."""
    return bool(_libc.umount2(os.fsencode(mountpoint), _DETACH) == 0)


def main(mountpoint: str, source: str) -> int:
    try:
        fd = mount(mountpoint)
    except OSError as error:
        print(f"no FUSE here: {error}", flush=True)
        return UNUSABLE
    system = FuseServer(fd, pick_up(source))
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.register(0, select.POLLIN)
    print("mounted", flush=True)
    try:
        while True:
            ready = dict(poll.poll())
            if fd in ready and not system.serve_one():
                return 0
            if 0 in ready:
                line = os.read(0, 4096).decode().split()
                if line:
                    unmount(mountpoint)
                    lay_out(power_loss(system.file_system, line[1]), line[2])
                return 0
    finally:
        unmount(mountpoint)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

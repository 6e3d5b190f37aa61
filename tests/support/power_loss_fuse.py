"""A real file system (FUSE) that keeps in memory what was not synced, and can lose it: for whole processes.

    python -m support.power_loss_fuse MOUNTPOINT SOURCE   (in tests/)

mounts the contents of the directory SOURCE, as durable, and prints `mounted`. A line `lose HOW TARGET` on stdin
unmounts it, writes what a power loss leaves into the directory TARGET, and ends. It speaks the kernel's protocol itself
(fuse.h, version 7.31), so nothing has to be installed; it needs /dev/fuse and the right to mount, else it says why and
ends with code 77.
"""

import ctypes
import os
import select
import sys

from support.power_loss import lay_out, pick_up, power_loss
from support.power_loss_requests import FileSystem

UNUSABLE = 77
_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


def mount(mountpoint: str) -> int:
    """The descriptor that the kernel's requests come from. OSError."""
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
    system = FileSystem(fd, pick_up(source))
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
                    lay_out(power_loss(system.world, line[1]), line[2])
                return 0
    finally:
        unmount(mountpoint)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

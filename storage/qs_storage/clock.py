"""The time of a queue server: the wall clock's at the first start, and from then on a time that no step moves.

Windows, delays, keys, retention and ids go by this time. Ensures:

1. The time never goes back, and never jumps, whatever the wall clock does.
2. The time runs at most 2 % faster or slower than real time, so that every duration is right within 2 %.
3. When the time and the wall clock differ, the time approaches the wall clock at that rate. The server's log says when
   this begins and ends.
4. The time goes on over a restart. Until the machine boots again, a restart counts the time in between, even if the
   wall clock was set meanwhile. After a boot, only the wall clock knows how long that took: then the time is the wall
   clock's, but not earlier than before the boot.

Assumes that the kernel's clock since boot is right. There is no timer: reading the time compares it with the wall
clock, once a second at most, so that an idle server stays idle.
"""

import logging
import os
import re
import time
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import NamedTuple
from zlib import crc32

from .disk import Disk
from .engine import SECOND, Clock, wall_clock
from .names import MAX_MID

_logger = logging.getLogger(__name__)
NAME = ".clock"
"""The file in the root that keeps the time over a restart."""
_RATE = 50
"""One in so many microseconds is gained or lost while the two clocks differ: 2 %."""
_STEP = 1 * SECOND
"""The wall clock was set if it moves by more than this against the clock since boot. Less is left alone: a clock that
is kept right by small corrections should not fill the log."""
_LOOK_EVERY = 1 * SECOND
_INTERRUPTED = SECOND // 100
"""A look that takes longer was interrupted between the two clocks, and says nothing about them."""
_SIZE = 160
"""Bytes of the file. It is overwritten in place, so that a full disk does not matter."""
_CONTENT = re.compile(rb"(qs-clock 1 (\S+) (-?\d{1,20}) (-?\d{1,20}) (-?\d{1,20}) (\d{1,18})) ([0-9a-f]{8}) *\n")
"""The last word is the checksum of the others: one wrong bit could move the time by years, and retention would remove
all messages."""
_LONGEST_UP = 20 * 365 * 86_400 * SECOND
"""A clock by which the machine booted earlier counts from the Epoch: a program such as libfaketime shows a false time.
Then the name of the boot tells nothing."""
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


steady_clock = partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)
"""Returns nanoseconds since the machine booted, the time that it was suspended included. A partial: each request reads
it, and a function in Python would double the cost."""


def boot_id() -> str:
    """Returns a name of this boot of the machine, `unknown` if the system does not say."""
    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            return file.read().strip() or "unknown"
    except OSError:
        return "unknown"


class _Course(NamedTuple):
    """Says how the server's time follows the steady clock. since: the steady time at which the course began; offset:
    the server's time minus the steady time at that moment; target: the wall clock minus the steady clock, which the
    offset approaches."""

    since: int
    offset: int
    target: int

    def offset_at(self, steady: int) -> int:
        # Computed from the beginning of the course, not step by step: however often it is read, the time is the same.
        most = (steady - self.since) // _RATE
        return max(min(self.target, self.offset + most), self.offset - most)


class ServerClock:
    """The server's time. Its method `now` is the `Clock` of everything else in the server.

    Keeps the four promises of this module. May be read in any thread. Never waits, and starts no thread."""

    __slots__ = (
        "_boot",
        "_course",
        "_disk",
        "_fails",
        "_fd",
        "_look_at",
        "_looking",
        "_offset",
        "_path",
        "_steady",
        "_wall",
    )

    def __init__(
        self,
        root: str,
        disk: Disk,
        wall: Clock = wall_clock,
        steady: Callable[[], int] = steady_clock,
        boot: str | None = None,
    ) -> None:
        """root: an existing directory, whose file `.clock` keeps the time over a restart; wall, steady: the clocks to
        go by, in microseconds since the Epoch and nanoseconds since the boot; boot: the same text as long as `steady`
        counts on, None to ask the system. Never raises: if the file cannot be used, the time starts from the wall
        clock."""
        self._path = f"{root}/{NAME}"
        self._disk = disk
        self._wall = wall
        self._steady = steady
        self._boot = boot_id() if boot is None else boot
        # Several threads read the time; one of them looks at the wall clock, and the others go on.
        self._looking = Lock()
        self._fd = -1
        self._fails = False  # a write has failed, which is said once
        now = steady() // 1000
        target = wall() - now
        self._course = self._restored(now, target) or _Course(now, target, target)
        self._offset: int | None = None  # None while the clocks differ: then each call computes it
        self._look_at = 0
        if abs(self._course.offset_at(now) - target) > _STEP:
            self._approach(now, target)
        self._look(now)

    def now(self) -> int:
        """Returns microseconds since the Epoch, in any thread. This is a method because each request reads the time,
        and Python calls a method three times as fast as an object with `__call__`."""
        steady = self._steady() // 1000
        if steady >= self._look_at:
            self._look(steady)
        offset = self._offset
        return steady + (self._course.offset_at(steady) if offset is None else offset)

    def close(self) -> None:
        """Writes the time for the next start. The clock can still be read."""
        self._look(self._steady() // 1000)
        with self._looking:
            self._give_up()

    def _look(self, steady: int) -> None:
        """Compares the wall clock with the course, and writes the time to the file. Does nothing while another thread
        does so."""
        if not self._looking.acquire(blocking=False):
            return
        try:
            self._look_at = steady + _LOOK_EVERY
            before = self._steady() // 1000
            target = self._wall() - before
            # The two clocks were not read at the same moment: the next call looks again.
            if self._steady() // 1000 - before > _INTERRUPTED:
                self._look_at = 0
            elif abs(target - self._course.target) > _STEP:
                self._approach(before, target)
            elif self._offset is None and self._course.offset_at(before) == self._course.target:
                self._offset = self._course.target
                if self._course.offset != self._offset:
                    _logger.warning("the server's time and the wall clock agree again")
            self._write(before)
        finally:
            self._looking.release()

    def _approach(self, steady: int, target: int) -> None:
        """Begins a course from the present time to another target, and logs that."""
        offset = self._course.offset_at(steady)
        self._course = _Course(steady, offset, target)
        self._offset = None
        ahead = target - offset
        _logger.warning(
            "the wall clock is %s %s the server's time: it was set, or the machine stood still. Windows, delays, keys "
            "and retention go by the server's time, which does not jump: it runs 2 %% %s until both agree, in %s",
            _span(abs(ahead)),
            "ahead of" if ahead > 0 else "behind",
            "faster" if ahead > 0 else "slower",
            _span(abs(ahead) * _RATE),
        )

    # -- the file -------------------------------------------------------------------------------------------------

    def _restored(self, steady: int, target: int) -> _Course | None:
        """Opens the file. Returns the course of the server that used it last, None without a valid one."""
        try:
            self._fd = self._disk.open_file(self._path, os.O_CREAT | os.O_RDWR, 0o600)
            content = self._disk.read(self._fd, _SIZE)
        except OSError as error:
            self._complain(error)
            return None
        if not content.strip(b"\0"):
            return None  # a new file, or what a power loss has left of it
        found = _CONTENT.fullmatch(content)
        if found is None or crc32(found[1]) != int(found[7], 16):
            _logger.warning("%s is damaged, and is made again: the server's time is the wall clock's now", self._path)
            return None
        _, boot, *numbers, _ = found.groups()
        course, seen = _Course(*map(int, numbers[:3])), int(numbers[3])
        same_boot = boot.decode("ascii", "replace") == self._boot != "unknown" and steady < _LONGEST_UP
        if same_boot and course.since <= steady:
            # The machine has not booted since: its clock has counted the time that no server ran.
            now = steady + course.offset_at(steady)
            if seen <= now < MAX_MID:
                return course
        # Another boot: the wall clock knows, but the time must not go back.
        return _Course(steady, max(seen - steady, target), target)

    def _write(self, steady: int) -> None:
        if self._fd < 0:
            return
        course = self._course
        text = f"qs-clock 1 {self._boot} {' '.join(map(str, course))} {steady + course.offset_at(steady)}"
        text = f"{text} {crc32(text.encode()):08x}"
        try:
            self._disk.pwrite(self._fd, text.ljust(_SIZE - 1).encode() + b"\n", 0)
        except OSError as error:  # a new file on a full disk, for example: it is tried again
            if not self._fails:
                self._fails = True
                self._complain(error)

    def _complain(self, error: OSError) -> None:
        _logger.warning(
            "the server's time cannot be kept in %s (%s): after a restart it is the wall clock's", self._path, error
        )

    def _give_up(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._disk.close(fd)


def _span(micros: int) -> str:
    seconds = micros / SECOND
    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} seconds"

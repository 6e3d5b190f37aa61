"""The machine: its description, the use of processor and disk, and how many connections fit.

Everything is read from /proc and /sys, which costs a measurement next to nothing.
"""

import contextlib
import os
import platform
import re
import resource
from dataclasses import dataclass
from pathlib import Path

from qs_schemas.interpreter import interpreter

_TICK = os.sysconf("SC_CLK_TCK")
_HIGHEST = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)

_SPARE = 200


def tree(pid: int) -> list[int]:
    """Returns the process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if fields:
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def _stat(pid: int) -> list[str]:
    """Returns the fields of /proc/PID/stat from the state on, none for a process that has gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def cpu_seconds(pids: list[int]) -> float:
    """Returns the user and system time of these processes, until now."""
    total = 0
    for pid in pids:
        fields = _stat(pid)
        if fields:
            total += int(fields[11]) + int(fields[12])
    return total / _TICK


def all_cpu_seconds() -> float:
    """Returns the time that all processes and the kernel have used on all cores until now."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _, _, hardware, software = map(int, fields[:7])
    return (user + nice + system + hardware + software) / _TICK


def highest_bytes(pids: list[int]) -> int:
    """Returns the peak of resident memory of each process, added up."""
    total = 0
    for pid in pids:
        try:
            found = _HIGHEST.search(Path(f"/proc/{pid}/status").read_text())
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += int(found[1]) * 1024 if found else 0
    return total


@dataclass(frozen=True)
class Disk:
    """The block device of a folder, if the system tells it."""

    stat: Path | None

    @classmethod
    def of(cls, folder: Path) -> "Disk":
        device = folder.stat().st_dev
        stat = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
        return cls(stat if stat.exists() else None)

    def busy_seconds(self) -> float:
        """Returns the time for which the device has been busy until now; 0 when the system does not tell it.

        Flushes are counted apart, in the last field, and several at once several times: so a share of time can be more
        than one.
        """
        if self.stat is None:
            return 0.0
        fields = self.stat.read_text().split()
        return (int(fields[9]) + int(fields[16] if len(fields) > 16 else 0)) / 1000


def memory_bytes() -> int:
    """Returns the machine's memory in bytes."""
    found = re.search(r"^MemTotal:\s+(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def _file_system(folder: Path) -> str:
    """Returns the type of the file system that the folder is on: the mount with the longest prefix."""
    real = folder.resolve()
    best = ("", "?")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount, kind, *_ = line.split(" ")
        if real.is_relative_to(mount) and len(mount) >= len(best[0]):
            best = (mount, kind)
    return best[1]


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def machine_line(folder: Path) -> str:
    """Returns cores, processor, kernel, file system of the folder, and the interpreter, with whether it is a PGO
    build."""
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores ({_processor()}), Linux {platform.release()}, {_file_system(folder)}, {interpreter()}"


def room_for(connections: int) -> int:
    """Raises the limit of open files as far as the system allows. Returns how many of the connections fit, with some
    files beside them."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < connections + _SPARE:
        with contextlib.suppress(ValueError, OSError):  # only root may
            resource.setrlimit(resource.RLIMIT_NOFILE, (connections + _SPARE, connections + _SPARE))
            return connections
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return min(connections, most - _SPARE)

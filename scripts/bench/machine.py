"""Describes the machine that the figures were measured on, in a line."""

import os
import platform
from pathlib import Path


def _file_system(folder: Path) -> str:
    """The type of the file system that the folder is on: the mount with the longest prefix."""
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
    """Cores, processor, kernel, file system of the folder, Python."""
    cores = len(os.sched_getaffinity(0))
    return (
        f"{cores} cores ({_processor()}), Linux {platform.release()}, {_file_system(folder)}, "
        f"Python {platform.python_version()}"
    )

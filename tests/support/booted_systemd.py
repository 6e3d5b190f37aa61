"""Runs the units of packaging/ with this checkout in a systemd of its own, in namespaces. Needs root on Linux.

It is process 1 there, with its own file systems, host name and control groups, and only the given units. Its mounts
over /etc, /opt, /srv and /var/lib are gone with it. It may not change the kernel's settings.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.changes import until
from support.serving import PROJECT

_SYSTEMD = "/lib/systemd/systemd"
_WITHIN = 90
"""Seconds that the script may take."""
_CGROUPS = [Path("/sys/fs/cgroup", name) for name in ("systemd", "unified", "")]
_TARGETS = ("sysinit", "basic", "shutdown", "network", "sockets", "multi-user", "umount")
"""Units that others depend on by themselves. Here they are empty."""
_PACKAGES = ("schemas", "serving", "storage", "server", "client", "bus", "web")
_COMMANDS = {
    "queue-server.py": "qs_server.main.queue_server",
    "queue-bus.py": "qs_bus.command",
    "queue-web.py": "qs_web.command",
    "qs": "qs_client.command",
}
_BOOT = """
set -e
ip link set lo up
umount -R /sys/fs/cgroup
mount -t tmpfs tmpfs /run
mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys
mount -t tmpfs tmpfs "$FOLDER/over"
for name in etc opt srv var/lib; do
    mkdir -p "$FOLDER/over/$name/upper" "$FOLDER/over/$name/work"
    over="$FOLDER/over/$name"
    mount -t overlay overlay -o "lowerdir=/$name,upperdir=$over/upper,workdir=$over/work" "/$name"
done
mkdir -p /opt/python /opt/source /opt/site /opt/qs/.venv/bin /etc/qs
mount --bind "$PYTHON" /opt/python
mount --bind "$SOURCE" /opt/source
mount --bind "$SITE" /opt/site
cp "$FOLDER"/bin/* /opt/qs/.venv/bin/
cp "$SOURCE"/packaging/*.toml /etc/qs/
grep -q '^qs:' /etc/passwd || echo 'qs:x:977:977:qs:/var/lib/qs:/usr/sbin/nologin' >> /etc/passwd
grep -q '^qs:' /etc/group || echo 'qs:x:977:' >> /etc/group
exec env -i container=qs-test PATH="/opt/qs/.venv/bin:$PATH" PYTHONPATH="$PYTHONPATH" \\
    SYSTEMD_UNIT_PATH="$FOLDER/units" SYSTEMD_LOG_TARGET=console \\
    SYSTEMD_PROC_CMDLINE=systemd.unified_cgroup_hierarchy=1 \\
    "$SYSTEMD" --system --unit=script.target --show-status=0
"""


def _prepare(folder: Path, script: str, drop_in: str) -> str:
    """Writes units, commands and the script. Returns the search path of modules."""
    for name in ("over", "bin", "units"):
        (folder / name).mkdir()
    units = folder / "units"
    paths = ":".join(["/opt/site", *(f"/opt/source/{name}" for name in _PACKAGES)])
    for name in _TARGETS:
        (units / f"{name}.target").write_text("[Unit]\nDefaultDependencies=no\n")
    (units / "script.target").write_text("[Unit]\nDefaultDependencies=no\nAllowIsolate=yes\nWants=script.service\n")
    command = f"/bin/bash -c 'bash {folder}/script; touch {folder}/ended'"
    run = f"Type=oneshot\nExecStart={command}\nPassEnvironment=PATH PYTHONPATH\n"
    output = f"StandardOutput=file:{folder}/output\nStandardError=file:{folder}/output\n"
    (units / "script.service").write_text(f"[Unit]\nDefaultDependencies=no\n[Service]\n{run}{output}")
    (folder / "script").write_text(script)
    for unit in (PROJECT / "packaging" / "systemd").glob("qs-*.s*"):
        shutil.copy(unit, units)
        if unit.suffix == ".service":
            (units / f"{unit.name}.d").mkdir()
            log = f"StandardOutput=append:{folder}/{unit.stem}.log\nStandardError=append:{folder}/{unit.stem}.log\n"
            (units / f"{unit.name}.d" / "test.conf").write_text(
                f"[Service]\nEnvironment=PYTHONPATH={paths} LD_LIBRARY_PATH=/opt/python/lib\n{log}{drop_in}"
            )
    python = f"/opt/python/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    for name, module in _COMMANDS.items():
        command = folder / "bin" / name
        command.write_text(f"#!{python}\nimport sys\nfrom {module} import main\nsys.exit(main())\n")
        command.chmod(0o755)
    return paths


@contextlib.contextmanager
def _control_groups() -> Iterator[list[Path]]:
    """Groups of their own, below those of this process; gone afterwards."""
    made = [parent / f"qs-test-{os.getpid()}" for parent in _CGROUPS if (parent / "cgroup.procs").exists()]
    try:
        for group in made:
            group.mkdir()
        yield made
    finally:
        for group in made:
            for directory, _, _ in os.walk(group, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(directory)


def _end(boot: "subprocess.Popen[bytes]") -> None:
    """Kills process 1 of the namespace, and with it all others. unshare returns when they are gone."""
    children = Path(f"/proc/{boot.pid}/task/{boot.pid}/children")
    for pid in children.read_text().split() if boot.poll() is None else ():
        os.kill(int(pid), signal.SIGKILL)
    try:
        boot.wait(10)
    finally:
        boot.kill()
        boot.wait()


def run_in_systemd(folder: Path, script: str, drop_in: str = "") -> str:
    """Boots systemd, runs a bash script in it as root, and ends it. What the script printed. drop_in: lines for the
    section [Service] of each unit of packaging/. Skips the test, with the reason, where that cannot be done."""
    if os.geteuid() != 0 or not Path(_SYSTEMD).exists() or shutil.which("unshare") is None:
        pytest.skip("NOT TESTED in a real systemd: that needs root, systemd and unshare")
    paths = _prepare(folder, script, drop_in)
    environ = {
        **os.environ,
        "FOLDER": str(folder),
        "SYSTEMD": _SYSTEMD,
        "PYTHON": sys.base_prefix,
        "SOURCE": str(PROJECT),
        "SITE": str(Path(pytest.__file__).parent.parent),
        "PYTHONPATH": paths,
    }
    unshare = "exec unshare -fpmuiCn --kill-child --mount-proc --propagation private bash -c"
    with _control_groups() as groups, (folder / "boot.log").open("wb") as log:
        enter = " && ".join(f"echo $$ > {group}/cgroup.procs" for group in groups) or "true"
        boot = subprocess.Popen(
            # It ends with the tests, however these end.
            ["setpriv", "--pdeathsig", "KILL", "bash", "-c", f'{enter} && {unshare} "$1"', "boot", _BOOT],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            until(lambda: (folder / "ended").exists() or boot.poll() is not None, folder, within=_WITHIN)
        finally:
            _end(boot)
    if not (folder / "output").exists():
        pytest.skip(f"NOT TESTED in a real systemd: it does not start here: {(folder / 'boot.log').read_text()[-500:]}")
    return (folder / "output").read_text()

"""The units of packaging/ in a real systemd: sandbox, sockets, reload, restart and watchdog. Takes some 60 s.

The systemd is one of its own, in namespaces, which needs root. It is process 1 there, with its own file systems, host
name and control groups, and only the given units. Its mounts over /etc, /opt, /srv and /var/lib are gone with it. It
may not change the kernel's settings.
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
from support.servers.processes import PROJECT

from qs_testing.programs import until

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


STORAGES = ("journal", "files", "dirq", "dirq-simple")
SCRIPT = f"""
show() {{ systemctl show -P "$1" "$2"; }}
systemctl start qs-server.socket qs-bus.socket qs-server qs-bus || exit
echo "started"
echo "status: $(show StatusText qs-server); $(show StatusText qs-bus)"
for name in qs-server qs-bus; do
    grep -E '^(Seccomp|NoNewPrivs|CapEff|Uid):' /proc/$(show MainPID $name)/status | tr '\t\n' '  '; echo
done
for storage in {" ".join(STORAGES)}; do
    qs new q-$storage --storage $storage && qs push q-$storage "through $storage" >/dev/null &&
        qs receive q-$storage --delete
done
qs push --create orders 'by the bus' >/dev/null; timeout 20 qs tail orders --max 1
systemctl start qs-web && exec 3<>/dev/tcp/127.0.0.1/9880
printf 'GET / HTTP/1.1\\r\\nHost: localhost:9880\\r\\n\\r\\n' >&3
IFS= read -r line <&3; echo "the page: $line"
systemctl reload qs-server && echo "reloaded: $(show StatusText qs-server)"
for number in $(seq 12); do qs push orders "$number" >/dev/null || echo "not pushed: $number"; done & pushes=$!
systemctl restart qs-server && echo "restarted"
wait $pushes
kill -STOP $(show MainPID qs-server)
qs --timeout 60 push orders 'stood still' >/dev/null && echo "answered again, starts: $(show NRestarts qs-server)"
systemctl stop qs-server.socket qs-server && echo "stopped: $(show Result qs-server) $(show ExecMainStatus qs-server)"
"""


@pytest.mark.long  # 40 s: a whole systemd is started, several times
def test_the_units(tmp_path: Path) -> None:
    """The sandboxed services start, serve every storage, reload, restart without a refusal, and are started again by
    the watchdog when they stand still."""
    said = run_in_systemd(tmp_path, SCRIPT, "WatchdogSec=6\n").splitlines()
    rights = [line.split() for line in said if line.startswith("Uid:")]
    assert "Traceback" not in (tmp_path / "qs-server.log").read_text()
    assert [line for line in said if not line.startswith("Uid:")] == [
        "started",
        "status: listening on 127.0.0.1:9876; listening on 127.0.0.1:9878",
        *(f"through {storage}" for storage in STORAGES),
        "by the bus",
        "the page: HTTP/1.1 200 ",
        "reloaded: listening on 127.0.0.1:9876",
        "restarted",
        "answered again, starts: 1",
        "stopped: success 0",
    ]
    assert len(rights) == 2
    for line in rights:
        assert line[1] != "0"
        assert line[line.index("CapEff:") + 1] == "0" * 16
        assert line[line.index("NoNewPrivs:") + 1] == "1"
        assert line[line.index("Seccomp:") + 1] == "2"


WORKER = r"""
show() { systemctl show -P "$1" qs-worker@letters; }
within() { for try in $(seq 600); do "$@" 2>/dev/null && return; sleep 0.1; done; echo "never: $*"; }
read=/var/lib/private/qs-worker/letters/read
mkdir -p /etc/qs/workers /srv/qs/letters
printf '%s\n' QUEUES=letters FUNCTION=letters:read 'OPTIONS=--processes 2 -v' > /etc/qs/workers/letters.env
code() { echo "import os
def read(message):
    with open(os.environ['STATE_DIRECTORY'] + '/read', 'a') as file:
        file.write(f'$1 {message.text}\n')" > /srv/qs/letters/letters.py; }
code old
systemctl start qs-server.socket qs-server && qs new letters && systemctl start qs-worker@letters || exit
grep -E '^(Seccomp|NoNewPrivs|CapEff|Uid):' /proc/$(show MainPID)/status | tr '\t\n' '  '; echo
qs push letters one >/dev/null; within grep -q one $read
code new
systemctl reload qs-worker@letters; within grep -q reloaded "$FOLDER/qs-worker@.log"
qs push letters two >/dev/null; within grep -q two $read
cat $read
systemctl stop qs-worker@letters && echo "stopped: $(show Result) $(show ExecMainStatus)"
printf '%s\n' QUEUES=letters FUNCTION=letters:none > /etc/qs/workers/letters.env
systemctl start qs-worker@letters; within systemctl is-failed -q qs-worker@letters
echo "wrong: $(show ExecMainStatus), starts: $(show NRestarts)"
"""


@pytest.mark.long  # 30 s: a whole systemd is started
def test_sandboxed_worker_reloads_and_stops(tmp_path: Path) -> None:
    """A sandboxed worker of a user of its own does jobs, loads new code at a reload, stops gracefully, and is not
    started again if its function does not exist."""
    rights, *said = run_in_systemd(tmp_path, WORKER.replace("$FOLDER", str(tmp_path))).splitlines()
    log = (tmp_path / "qs-worker@.log").read_text()
    assert said == ["old one", "new two", "stopped: success 0", "wrong: 2, starts: 0"], log
    assert "Traceback" not in log
    words = rights.split()
    assert words[1] != "0"
    assert words[words.index("CapEff:") + 1] == "0" * 16
    assert words[words.index("NoNewPrivs:") + 1] == "1"
    assert words[words.index("Seccomp:") + 1] == "2"

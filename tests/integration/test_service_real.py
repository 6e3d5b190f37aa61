"""The units of packaging/ in a real systemd: sandbox, sockets, reload, restart and watchdog. Takes some 60 s."""

from pathlib import Path

import pytest
from support.booted_systemd import run_in_systemd

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
def test_the_worker(tmp_path: Path) -> None:
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

"""`qs work` as real processes: jobs, processes that are killed, stops, reloads."""

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.servers.processes import ServerProcess

from qs_client import QueueClient, command
from qs_testing.programs import READY_WITHIN, until

FUNCTIONS = """\
import os, pathlib, signal, subprocess, time

def note(text):
    with open("notes", "a") as notes:
        notes.write(text + "\\n")

def pack(order):
    note(f"packed {order['fruit']}")

def end(message):
    if message.text == "killed" and message.receives == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    note(f"try {message.receives} of {message.text}")
    if message.text == "left":
        raise SystemExit(5)

def headed(message):
    note(f"{message.text} {message.priority} {message.group} {message.headers}")

def gated(message):
    # Waits until somebody opens the FIFO "gate" for writing.
    note(f"begin {message.text}")
    open("gate").close()
    note(f"end {message.text}")

def first_gated(message):
    # The gate may still be open when the second one begins, so that one must not wait for it.
    if message.text == "1":
        gated(message)
    else:
        note(f"end {message.text}")

def endless(message):
    child = subprocess.Popen(["sleep", "1000"])
    note(f"child {child.pid}")
    child.wait()

class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError

def failing(message):
    note(f"{time.monotonic()}")
    raise ValueError

def raising(message):
    raise KeyboardInterrupt if message.text == "interrupt" else Unprintable

def forking(message):
    child = os.fork()
    if child == 0 and message.text == "waits":
        time.sleep(1000)
    if child == 0:
        return
    if message.text == "waits":
        os.kill(child, signal.SIGTERM)
    note(f"{message.text} {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}")
"""

# Where tests run in the background, a child begins with Ctrl-C ignored.
_MAIN = """
import signal, sys
from qs_client.command import main
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main())
"""
_TAKE_TERMINAL = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"


class Work:
    """`qs work` in a folder of its own, where functions.py is. log: what it writes to stderr; notes: the lines of what
    the functions note."""

    def __init__(self, server: ServerProcess, folder: Path) -> None:
        self.folder = folder
        self._environ = {**os.environ, "QS_SERVER": f"{server.host}:{server.port}"}
        (folder / "functions.py").write_text(FUNCTIONS)
        os.mkfifo(folder / "gate")
        self._log = folder / "log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *words: str, terminal: int | None = None) -> None:
        """terminal: a descriptor of what is to be its terminal, with its output; None for none."""
        command = [sys.executable, "-c", f"{_TAKE_TERMINAL if terminal else ''}{_MAIN}", "work", *words]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self._environ,
                stdin=terminal,
                stderr=terminal or log,
                start_new_session=True,
            )

    def signal(self, *numbers: int) -> None:
        assert self.process is not None
        for number in numbers:
            self.process.send_signal(number)

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(READY_WITHIN)

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def notes(self) -> list[str]:
        notes = self.folder / "notes"
        return notes.read_text().splitlines() if notes.exists() else []

    def until(self, condition: Callable[[], object]) -> None:
        until(condition, self.folder)

    def open_gate(self) -> None:
        with (self.folder / "gate").open("w"):
            pass

    def close(self) -> None:
        """Ends what is left after a failure."""
        if self.process is not None and self.process.poll() is None:
            self.signal(signal.SIGTERM)
            self.signal(signal.SIGINT)
            self.wait()


@pytest.fixture
def work(shared_server: ServerProcess, tmp_path: Path) -> Iterator[Work]:
    made = Work(shared_server, tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def client(shared_server: ServerProcess) -> Iterator[QueueClient]:
    with QueueClient(shared_server.host, shared_server.port) as made:
        yield made


def left(client: QueueClient, qid: str) -> list[int]:
    """Returns how often each message that is left has been received."""
    return [client.peek(qid, mid).receives or 0 for mid in client.list_messages(qid, state="ready")]


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_jobs(work: Work, client: QueueClient) -> None:
    """Each message is a job: done, or given back until it is a dead letter. -v shows a line for each, SIGTERM ends all
    with a summary and 0."""
    client.new_queue("fruit", max_receives=2, dead_letter="bad-fruit")
    client.push_many("fruit", ['{"fruit": "apples"}', '{"number": 3}', '{"fruit": "figs"}'])
    work.start("fruit", "functions:pack", "--json", "--processes", "2", "-v")
    work.until(lambda: work.log.count(" done\n") == 2 and work.log.count(" failed: KeyError: 'fruit'") == 2)
    work.signal(signal.SIGTERM)
    assert work.wait() == 0
    assert sorted(work.notes) == ["packed apples", "packed figs"]
    assert left(client, "bad-fruit") == [0]
    lines = work.log.splitlines()
    jobs = [line for line in lines if re.fullmatch(r"qs: fruit \d+: try [12], \d\.\d{3} s, .*", line)]
    assert len(jobs) == 4
    assert sum(line.endswith("failed: KeyError: 'fruit' (functions.py line 8)") for line in jobs) == 2
    summary = r"qs: 2 done, 2 failed, 0 taken away, 0 given back, 0 processes replaced, in \d+\.\d s"
    assert re.fullmatch(summary, lines[-1])
    assert len(lines) == 5


def test_jobs_with_headers(work: Work, client: QueueClient) -> None:
    """The function gets priority, group and headers with the message, the highest priority first."""
    client.new_queue("headed")
    client.push("headed", "plain")
    client.push("headed", "full", priority=9, group="acme", headers={"traceparent": "00-1"})
    work.start("headed", "functions:headed")
    work.until(lambda: len(work.notes) == 2)
    work.signal(signal.SIGTERM)
    assert work.wait() == 0
    assert work.notes == ["full 9 acme {'traceparent': '00-1'}", "plain None None {}"]


def test_jobs_that_fail(work: Work, client: QueueClient) -> None:
    """Jobs of several queues. A message that is not JSON is rejected, and the log says so; without a dead-letter queue
    it comes again, and the log says that too. With -vv the traceback of a job that failed is shown, from its function
    on."""
    client.new_queue("words")
    client.new_queue("traces", max_receives=1, dead_letter="dead")
    client.push("traces", "{}")
    client.push("words", "apples")  # and this one comes again and again
    work.start("traces", "words", "functions:pack", "--json", "-vv", "--processes", "2")
    work.until(lambda: work.log.count(" rejected: ") > 1 and "\nKeyError: 'fruit'\n" in work.log)
    work.signal(signal.SIGTERM)
    assert work.wait() == 0
    assert re.search(r"^qs: words \d+: try 1, \d\.\d{3} s, rejected: the message is no JSON: ", work.log, re.M)
    assert re.search(r"^qs: message \d+ of 'words' could not be rejected, so it comes again: \d+ ", work.log, re.M)
    assert re.findall(r'^  File ".*/(.*)"', work.log, re.M) == ["functions.py"]


def test_work_sends_reason_of_failure(work: Work, client: QueueClient) -> None:
    """A dead letter has the reason of its last failure; a message that is not JSON is one at once."""
    client.new_queue("tries", max_receives=2, dead_letter="tried", backoff=0.05)
    client.push_many("tries", ['{"number": 3}', "apples"])
    work.start("tries", "functions:pack", "--json")
    while (client.stats("tries")[0].dead or 0) < 2:
        pass  # each round is a request; the test's time-out ends it
    work.signal(signal.SIGTERM)
    assert work.wait() == 0
    letters = {letter.text: letter for letter in client.receive("tried", max=2)}
    tried, rejected = letters['{"number": 3}'], letters["apples"]
    assert (tried.dead_receives, tried.dead_reason, tried.reason) == (2, "receives", "KeyError: 'fruit'")
    assert (rejected.dead_receives, rejected.dead_reason) == (1, "rejected")
    assert (rejected.reason or "").startswith("the message is no JSON: ")


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["none", "functions:pack"], 1, "404 not-found: … (to create a queue: qs new none)"),
        (["fruit-4", "no_such:pack"], 2, "cannot import 'no_such': there is no module 'no_such' in …, and none is …"),
        (["fruit-4", "functions:pack", "-s", "127.0.0.1:1"], 1, "no queue server at 127.0.0.1:1 …"),
    ],
)
def test_start_that_fails(
    work: Work,
    client: QueueClient,
    words: list[str],
    code: int,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A start that cannot work says so once, for all processes, and ends."""
    client.new_queue("fruit-4", exist_ok=True)
    monkeypatch.chdir(work.folder)
    monkeypatch.setenv("QS_SERVER", f"{client.host}:{client.port}")
    assert command.main(["work", *words, "--processes", "2"]) == code
    said = capfd.readouterr().err
    assert re.fullmatch(re.escape(f"qs: {told}\n").replace("…", ".*"), said), said


def test_process_that_is_killed(work: Work, client: QueueClient) -> None:
    """A process that is killed is replaced; its message comes again at once, as its next try. A job that ends the
    interpreter fails, and its process goes on."""
    client.new_queue("deaths", max_receives=2, dead_letter="dead")
    client.push_many("deaths", ["killed", "left"])
    work.start("deaths", "functions:end")
    work.until(lambda: "try 2 of left" in work.notes and "failed: SystemExit: 5 (functions.py line " in work.log)
    while (client.stats("deaths")[0].dead or 0) < 1:
        pass  # each round is a request; the test's time-out ends it
    work.signal(signal.SIGINT)
    assert work.wait() == 0
    assert work.notes == ["try 2 of killed", "try 1 of left", "try 2 of left"]
    assert re.search(r"^qs: process \d+ was ended by SIGKILL; another one starts in 0\.[0-2] s$", work.log, re.M)
    assert "1 done, 2 failed, 0 taken away, 0 given back, 1 processes replaced" in work.log


def test_forks_of_jobs(work: Work, client: QueueClient) -> None:
    """A child that a job forks ends at SIGTERM, as those of multiprocessing have to, and the worker goes on; one that
    comes back from the function is not a second worker."""
    client.new_queue("forks")
    client.push_many("forks", ["returns", "waits", "waits", "returns"])
    work.start("forks", "functions:forking")
    work.until(lambda: len(work.notes) == 4)
    work.signal(signal.SIGTERM)
    assert work.wait() == 0
    assert work.notes == ["returns 0", "waits -15", "waits -15", "returns 0"]
    assert "4 done, 0 failed, 0 taken away, 0 given back, 0 processes replaced" in work.log


def test_whatever_a_job_raises(work: Work, client: QueueClient) -> None:
    """Neither an exception without a text nor a KeyboardInterrupt ends the process."""
    client.new_queue("raises", dead_letter="raises-failed", max_receives=1)
    client.push_many("raises", ["interrupt", "unprintable"])
    work.start("raises", "functions:raising")
    work.until(lambda: work.log.count("failed: ") == 2)
    work.signal(signal.SIGTERM)
    assert work.wait() == 0
    assert "failed: KeyboardInterrupt (functions.py" in work.log
    assert "failed: Unprintable: (its text cannot be had) (functions.py" in work.log
    assert "0 processes replaced" in work.log


def test_job_that_fails_for_ever(work: Work, client: QueueClient) -> None:
    """A job that fails again and again, in a queue without a back-off, does not spin."""
    client.new_queue("forever")
    client.push("forever", "x")
    work.start("forever", "functions:failing")
    work.until(lambda: len(work.notes) == 7)
    work.signal(signal.SIGTERM)
    assert work.wait() == 0
    tries = [float(note) for note in work.notes]
    assert tries[6] - tries[3] >= 0.1 + 0.2 + 0.4


def test_graceful_stop(work: Work, client: QueueClient) -> None:
    """The running job is finished; messages that were sent ahead go back, and that is not a try."""
    client.new_queue("gates")
    client.push_many("gates", ["1", "2", "3"])
    work.start("gates", "functions:gated", "--prefetch", "3")
    work.until(lambda: work.notes)
    work.signal(signal.SIGTERM)
    while left(client, "gates") != [0, 0]:
        pass  # each round is a request; the test's time-out ends it
    work.open_gate()
    assert work.wait() == 0
    assert work.notes == ["begin 1", "end 1"]
    assert "1 done, 0 failed" in work.log


@pytest.mark.parametrize("ack", ["behind", "wait"])
def test_job_whose_message_is_gone(work: Work, client: QueueClient, ack: str) -> None:
    """A message that somebody else has deleted while its job ran is counted as taken away, also if the worker learns it
    after it has taken the next one."""
    qid = f"gone-{ack}"
    client.new_queue(qid)
    mid = client.push(qid, "1")
    client.push(qid, "2")
    work.start(qid, "functions:first_gated", "--ack", ack)
    work.until(lambda: work.notes)
    client.delete(qid, mid)
    work.open_gate()
    work.until(lambda: work.notes[-1] == "end 2")
    work.signal(signal.SIGTERM)
    assert work.wait() == 0
    assert work.log.count(f"message {mid} of {qid!r} was taken away") == 1
    assert "1 done, 0 failed, 1 taken away, 0 given back" in work.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_with_acknowledgements_behind(work: Work, client: QueueClient, number: int) -> None:
    """When a stop comes in the middle of many short jobs, exactly what was done is deleted, and what was sent ahead
    goes back untried."""
    qid = f"many-{number}"
    client.new_queue(qid)
    client.push_many(qid, [b'{"fruit": %d}' % each for each in range(3000)])
    work.start(qid, "functions:pack", "--json", "--prefetch", "100")
    work.until(lambda: len(work.notes) > 300)
    work.signal(number)
    assert work.wait() == 0
    done = len(work.notes)
    assert f"{done} done, 0 failed, 0 taken away, 0 given back" in work.log
    [figures] = client.stats(qid)
    assert (figures.deleted, figures.ready, figures.in_flight) == (done, 3000 - done, 0)
    assert set(left(client, qid)) <= {0}


def test_grace_that_is_over(work: Work, client: QueueClient) -> None:
    """A job that takes longer than the grace is given back uncounted, and ends with the programs that it started."""
    client.new_queue("graces")
    client.push("graces", "x")
    work.start("graces", "functions:endless", "--grace", "0.1")
    work.until(lambda: work.notes)
    work.signal(signal.SIGTERM)
    assert work.wait() == 0
    assert left(client, "graces") == [0]
    assert not alive(int(work.notes[0].split()[1]))
    assert re.search(r"^qs: graces \d+: given back, as it was not done 0\.1 s later$", work.log, re.M)
    assert "0 done, 0 failed, 0 taken away, 1 given back" in work.log


def test_second_signal(work: Work, client: QueueClient) -> None:
    """A second signal ends jobs at once, with the programs that they started; the messages come again as the next
    try."""
    client.new_queue("seconds")
    client.push("seconds", "x")
    work.start("seconds", "functions:endless")
    work.until(lambda: work.notes)
    work.signal(signal.SIGINT, signal.SIGTERM)
    assert work.wait() in (128 + signal.SIGINT, 128 + signal.SIGTERM)  # pending signals have no order
    while left(client, "seconds") != [1]:
        pass  # each round is a request; the test's time-out ends it
    assert not alive(int(work.notes[0].split()[1]))


def test_sighup_replaces_work_processes(work: Work, client: QueueClient) -> None:
    """SIGHUP replaces the processes by new ones, which run the new code, while the old ones finish their jobs; code
    that cannot be imported changes nothing."""
    client.new_queue("reloads")
    client.push("reloads", "old")
    work.start("reloads", "functions:gated")
    work.until(lambda: work.notes)
    functions = work.folder / "functions.py"
    functions.write_text(FUNCTIONS + "\ndef gated(message): note(f'new code: {message.text}')\n")
    work.signal(signal.SIGHUP)
    work.until(lambda: "reloaded: all processes run the new code" in work.log)
    client.push("reloads", "first")
    work.until(lambda: len(work.notes) == 2)
    work.open_gate()
    work.until(lambda: len(work.notes) == 3)
    functions.write_text("def gated(:\n")
    work.signal(signal.SIGHUP)
    work.until(lambda: "not reloaded" in work.log)
    client.push("reloads", "second")
    work.until(lambda: len(work.notes) == 4)
    work.signal(signal.SIGTERM)
    assert work.wait() == 0
    assert work.notes == ["begin old", "new code: first", "end old", "new code: second"]
    assert re.search(
        r"^qs: not reloaded: cannot import 'functions': SyntaxError: .*; the other processes", work.log, re.M
    )
    assert "3 done, 0 failed, 0 taken away, 0 given back, 1 processes replaced" in work.log


def test_reload_while_another_one_hangs(work: Work, client: QueueClient) -> None:
    """A SIGHUP while the last one's new code does not come to an end of its import loads the code again; what hangs
    takes no message."""
    client.new_queue("rereloads")
    work.start("rereloads", "functions:gated")
    while not client.stats("rereloads")[0].subscribers:
        pass  # each round is a request; the test's time-out ends it
    functions = work.folder / "functions.py"
    functions.write_text(FUNCTIONS + "\nnote('hangs')\ntime.sleep(1000)\n")
    work.signal(signal.SIGHUP)
    work.until(lambda: work.notes)
    functions.write_text(FUNCTIONS + "\ndef gated(message): note(f'new code: {message.text}')\n")
    work.signal(signal.SIGHUP)
    work.until(lambda: "reloaded: all processes run the new code" in work.log)
    client.push("rereloads", "x")
    work.until(lambda: len(work.notes) == 2)
    work.signal(signal.SIGTERM, signal.SIGINT)  # the second one ends what hangs
    assert work.wait() in (128 + signal.SIGINT, 128 + signal.SIGTERM)
    assert work.notes == ["hangs", "new code: x"]


def test_terminal_that_is_closed(work: Work, client: QueueClient) -> None:
    """When its terminal is closed, which sends SIGHUP too, it stops gracefully; nobody is left to read what it says."""
    client.new_queue("terminals")
    client.push("terminals", "1")
    ours, theirs = pty.openpty()
    try:
        work.start("terminals", "functions:gated", "-v", terminal=theirs)
        work.until(lambda: work.notes)
    finally:
        os.close(theirs)
        os.close(ours)
    while client.stats("terminals")[0].subscribers:
        pass  # each round is a request; the test's time-out ends it
    work.open_gate()
    assert work.wait() == 0
    assert work.notes == ["begin 1", "end 1"]
    assert left(client, "terminals") == []


def test_killed_itself(work: Work, client: QueueClient) -> None:
    """When `qs work` itself is killed, its processes finish their jobs and end: none is left behind."""
    client.new_queue("orphans")
    client.push_many("orphans", ["1"])
    work.start("orphans", "functions:gated")
    work.until(lambda: work.notes)
    client.push("orphans", "2")
    work.signal(signal.SIGKILL)
    assert work.wait() == -signal.SIGKILL
    while client.stats("orphans")[0].subscribers:
        pass  # each round is a request; the test's time-out ends it
    work.open_gate()
    work.until(lambda: len(work.notes) == 2)
    assert work.notes == ["begin 1", "end 1"]
    assert left(client, "orphans") == [0]

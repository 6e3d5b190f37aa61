"""Runs the commands that the pages show: console blocks in a real bash, with real servers behind them."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, NamedTuple

from support.servers.processes import PROJECT

PORT, BUS_PORT, WEB_PORT = "9876", "9878", "9880"
"""The ports that pages show. The tests put free ones in their place."""

_FENCE = re.compile(
    r'^```(?P<language>[^\n ]*)(?: title="(?P<title>[^"\n]*)")?\n(?P<body>.*?)^```$', re.MULTILINE | re.DOTALL
)
_STARTS_SERVER = re.compile(
    r"(\./scripts/run|queue-(server|bus|web)\.py)(?!.*(--help|--version|--check|--migrate|-h\b))"
)
_SCRIPTS = {"./scripts/run": "start.py"}
_LISTENING = re.compile(r"listening on \S*:(\d+)\b")
_RELOAD = "sudo systemctl reload "
_HERE_DOCUMENT = re.compile(r"<<'?(\w+)'?$")
_MARK = "\x1e"
NOT_FOR_CONSOLE = ("scripts/test", "git clone", "pip install", "uv ", "apt-get", "apt ", "docker ")


class Block(NamedTuple):
    """A fenced block of a page. line: the number of its first line, for messages; title: as in `python
    title="worker.py"`, "" without a title."""

    language: str
    body: str
    line: int
    title: str = ""


class Step(NamedTuple):
    """A command of a console block, and the output that the page shows. goes_on: the command has a terminal of its own,
    and runs while the page goes on."""

    command: str
    expected: str
    line: int
    goes_on: bool = False


def blocks(page: str, language: str) -> list[Block]:
    """Returns the fenced blocks of the page that are marked with this language."""
    return [
        Block(language, found["body"], page.count("\n", 0, found.start("body")) + 1, found["title"] or "")
        for found in _FENCE.finditer(page)
        if found["language"].strip() == language
    ]


def steps(block: Block) -> list[Step]:
    """Returns the commands of a console block. One that ends with a backslash goes on in the next line, one that
    ends with `<<END` up to the line END. The commands of a block with a title, and `qs tail`, have a terminal of
    their own."""
    found: list[Step] = []
    continued = False
    ends_with: str | None = None
    for number, line in enumerate(block.body.splitlines(), block.line):
        if continued or ends_with is not None:
            last = found[-1]
            found[-1] = last._replace(command=f"{last.command}\n{line}")
            continued = line.endswith("\\") and ends_with is None
            ends_with = None if line == ends_with else ends_with
        elif line.startswith("$ "):
            found.append(Step(line[2:], "", number, bool(block.title) or line.startswith("$ qs tail ")))
            continued = line.endswith("\\")
            here = _HERE_DOCUMENT.search(line)
            ends_with = here[1] if here else None
        elif found:
            last = found[-1]
            found[-1] = last._replace(expected=f"{last.expected}{line}\n")
        else:
            raise AssertionError(f"line {number}: a console block begins with a line '$ command', not with {line!r}")
    return found


def matches(expected: str, printed: str) -> bool:
    """Tells whether an output is what the page shows, where `…` stands for anything, and a line `…` for any number of
    lines."""
    pattern = re.escape(expected.rstrip("\n")).replace("…", ".*?")
    return re.fullmatch(pattern, printed.rstrip("\n"), re.DOTALL) is not None


class Console:
    """One bash, which runs one command after the other in a folder, as a reader of the page would.

    `./scripts/run`, `queue-server.py`, `queue-bus.py` and `queue-web.py` are started in the background, on free ports
    that stand for 9876, 9878 and 9880 in every command and every output; `qs` learns of the ports from QS_SERVER and
    QS_BUS. scripts/run itself is not run, because it may install packages. `sudo systemctl reload` sends SIGHUP to all
    of them. `qs tail`, and the commands of a console block with a title, go on in the background, as in a terminal of
    their own; `compare_tails` compares their output in the end. `write` writes the programs that a page shows with the
    name of a file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.bus_port, self.web_port = PORT, BUS_PORT, WEB_PORT
        self._tails: list[tuple[Step, subprocess.Popen[str]]] = []
        self._servers: list[subprocess.Popen[str]] = []
        self._log = (folder.parent / f"{folder.name}.server.log").open("a")
        path = os.pathsep.join([str(Path(sys.executable).parent), str(PROJECT / "scripts"), os.environ["PATH"]])
        self._environment = {**os.environ, "PATH": path, "LC_ALL": "C.UTF-8", "PYTHONUNBUFFERED": "1"}
        for name in ("QS_SERVER", "QS_BUS"):
            self._environment.pop(name, None)
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            cwd=folder,
            env=self._environment,
            start_new_session=True,
        )

    def point_to(self, port: int) -> None:
        """Makes the commands from now on use the server on this port."""
        self.port = str(port)
        self._tell("QS_SERVER", port)

    def _tell(self, name: str, port: int) -> None:
        self._environment[name] = f"127.0.0.1:{port}"
        self._say(f"export {name}=127.0.0.1:{port}")

    def run(self, step: Step) -> str:
        """Returns what the command prints, with the port that pages show."""
        for word in NOT_FOR_CONSOLE:
            if word in step.command:
                raise AssertionError(
                    f"line {step.line}: console blocks are run by the tests, and these do not run {word.strip()!r}; "
                    "show it in a block marked sh"
                )
        if _STARTS_SERVER.match(step.command):
            return self._start_server(step.command)
        if step.goes_on:
            return self._start_tail(step)
        if step.command.startswith(_RELOAD):
            tails = [tail for _, tail in self._tails]
            for server in self._servers:
                if server not in tails:
                    server.send_signal(signal.SIGHUP)
            return ""
        return self._show(self._say(self._hide(step.command)))

    def write(self, program: Block) -> None:
        """Writes a block whose title is the name of a file, as a reader does."""
        (self.folder / program.title).write_text(self._hide(program.body), encoding="utf-8")

    def _hide(self, text: str) -> str:
        for shown, real in ((BUS_PORT, self.bus_port), (WEB_PORT, self.web_port), (PORT, self.port)):
            text = re.sub(rf"\b{shown}\b", real, text)
        return text

    def _show(self, text: str) -> str:
        for shown, real in ((BUS_PORT, self.bus_port), (WEB_PORT, self.web_port), (PORT, self.port)):
            text = re.sub(rf"\b{real}\b", shown, text)
        return text

    def _say(self, command: str) -> str:
        """Runs a command in the shell itself, so that `cd` and `exec` last. The command has no stdin, because the shell
        reads its commands from there."""
        bash = self._bash
        assert bash.stdin is not None
        assert bash.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            bash.stdin.write(f"{{ {command}\n}} </dev/null\nprintf '{_MARK}%s\\n' $?\n")
            bash.stdin.flush()
        printed = _read_to_mark(bash.stdout)
        assert printed is not None, f"bash ended at: {command}"
        return printed

    def _start_server(self, command: str) -> str:
        program, *words = shlex.split(self._hide(command.removesuffix("&").replace("\\\n", " ")))
        while "--port" in words:
            at = words.index("--port")
            assert words[at + 1] in {self.port, self.web_port}, (
                f"show port {PORT} or {WEB_PORT}, which the tests replace: {command}"
            )
            del words[at : at + 2]
        server = subprocess.Popen(
            [sys.executable, str(PROJECT / "scripts" / _SCRIPTS.get(program, program)), *words, "--port", "0"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=self.folder,
            env=self._environment,
        )
        self._servers.append(server)
        assert server.stdout is not None
        printed, port = self._listening(command, server.stdout)
        if program == "queue-web.py":
            self.web_port = port
            return self._show(printed)
        if program != "queue-bus.py":
            self.point_to(int(port))
        if program == "./scripts/run":
            line, port = self._listening(command, server.stdout)
            printed += line
        if program != "queue-server.py":
            self.bus_port = port
            self._tell("QS_BUS", int(port))
        if program == "./scripts/run":
            line = ""
            while not line.startswith("Ctrl-C"):
                line = server.stdout.readline()
                assert line, f"{command}: says no more than {printed!r}"
                printed += line
                if ready := _LISTENING.match(line):
                    self.web_port = ready[1]
        return self._show(printed)

    def _listening(self, command: str, stdout: IO[str]) -> tuple[str, str]:
        """Returns the next line of the output, and the port in that line."""
        line = stdout.readline()
        ready = _LISTENING.match(line)
        assert ready is not None, f"{command}: the server printed {line!r}; its log: {self._log.name}"
        return line, ready[1]

    def _start_tail(self, step: Step) -> str:
        tail = subprocess.Popen(
            ["bash", "-c", f"exec {self._hide(step.command)}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            env=self._environment,
        )
        self._servers.append(tail)
        self._tails.append((step, tail))
        return step.expected

    def compare_tails(self) -> None:
        """Asserts that each command that goes on has printed what the page shows, or prints it soon."""
        for step, tail in self._tails:
            assert tail.stdout is not None
            printed = "".join(tail.stdout.readline() for _ in step.expected.splitlines())
            assert matches(step.expected, printed), f"line {step.line}: $ {step.command}\nit printed:\n{printed}"

    def close(self) -> None:
        """Ends all processes that were started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._bash.pid, signal.SIGKILL)
        for process in [self._bash, *self._servers]:
            if process.poll() is None:
                process.terminate()
            try:
                process.wait(30)
            finally:
                process.kill()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()
        self._log.close()


def _read_to_mark(stream: IO[str]) -> str | None:
    """Returns the output up to the mark that follows each command; None when the stream ends first."""
    printed = ""
    for line in stream:
        before, mark, _ = line.partition(_MARK)
        printed += before
        if mark:
            return printed
    return None

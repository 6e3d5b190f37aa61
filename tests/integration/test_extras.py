"""Without extras: the clients and `qs` need lxml and anyio alone, and everything else says in one line what to type."""

import subprocess
import sys

import pytest
from support.servers.processes import ServerProcess

BASE = ("anyio", "idna", "lxml", "sniffio", "typing_extensions", "_typeshed")
"""The packages of an installation without extras, and what they need or look for themselves."""
HIDDEN = f"""
import runpy, sys
class Hide:
    def find_spec(name, path=None, target=None):
        first = name.partition(".")[0]
        if first not in sys.stdlib_module_names and not first.startswith("qs_") and first not in {BASE}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hide)
"""
"""Hides all other packages that are installed here."""
SERVER = "trio is not installed: pip install 'qsbus[server]'"
COMMANDS = {
    "queue-server.py": ("qs_server.main.queue_server", SERVER),
    "queue-bus.py": ("qs_bus.command", SERVER),
    "queue-web.py": ("qs_web.command", "trio is not installed: pip install 'qsbus[web]'"),
}
"""Commands that need an extra: the module, and what they say without it."""
WORK = """
import asyncio
import qs_client
from qs_client import AsyncQueueClient, QueueClient
for name in qs_client.__all__:
    getattr(qs_client, name)
host, port = sys.argv[1], int(sys.argv[2])
with QueueClient(host, port) as client:
    client.new_queue("bare", exist_ok=True)
    client.push("bare", "two apples")
async def receive():
    async with AsyncQueueClient(host, port) as client:
        [delivery] = await client.receive("bare", wait=10)
        await client.delete(delivery)
        return delivery.text
print(asyncio.run(receive()))
"""


def run(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a Python that finds the packages of an installation without extras."""
    return subprocess.run(
        [sys.executable, "-c", HIDDEN + code, *words], capture_output=True, text=True, check=False, timeout=60
    )


def run_module(module: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs a module as `python -m` does."""
    return run(f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)", *words)


def test_clients_work_without_extras(shared_server: ServerProcess) -> None:
    """Both clients work, the async one on asyncio, and every name of the package is there."""
    done = run(WORK, shared_server.host, str(shared_server.port))
    assert (done.returncode, done.stdout, done.stderr) == (0, "two apples\n", "")


def test_command_works_without_extras(shared_server: ServerProcess) -> None:
    """`qs` shows its help, and works; what makes TAB complete needs an extra, which the error names."""
    address = f"{shared_server.host}:{shared_server.port}"
    done = run_module("qs_client.command", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: qs ")
    done = run_module("qs_client.command", "push", "-s", address, "--create", "command", "two apples")
    assert (done.returncode, done.stderr) == (0, "")
    done = run_module("qs_client.command", "--print-completion", "bash")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "qs: shtab is not installed: pip install 'qsbus[completion]'\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_without_its_extra(command: str) -> None:
    """Its help is shown, and a wrong flag is answered; otherwise it ends with 2 and the line to type, which comes as
    one line without a traceback."""
    module, says = COMMANDS[command]
    done = run_module(module, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: {command} ")
    assert "did you mean --port?" in run_module(module, "--porrt", "0").stderr
    for words in ((), ("--check",)):
        done = run_module(module, "--port", "0", *words)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{command}: {says}\n")


@pytest.mark.parametrize("module", ["qs_server.main.queue_journal", "qs_server.main.qs_dir"])
def test_the_tools(module: str) -> None:
    """The tools for directories need no extra."""
    done = run_module(module, "--help")
    assert (done.returncode, done.stderr) == (0, "")


def test_as_a_library() -> None:
    """The server and the bus cannot be imported, and the error says what to type. The queues of directories can."""
    for module in ("qs_server.main.server", "qs_bus.bus"):
        done = run(f"import {module}")
        assert done.returncode == 1
        assert done.stderr.endswith(f"NotInstalledError: {SERVER}\n")
    done = run(
        "try:\n    import qs_server.main.server\nexcept ImportError as error:\n    print(error.name)\n"
        "import qs_storage.vsqs, qs_storage.dirq"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "trio\n", "")


def test_a_fault_of_qs_itself() -> None:
    """A module of qs that is missing is not taken for a package of an extra."""
    done = run(
        "from qs_schemas.extras import importing\nwith importing('server', 'queue-bus.py'):\n    import qs_bus.nothing"
    )
    assert (done.returncode, "No module named 'qs_bus.nothing'" in done.stderr) == (1, True)

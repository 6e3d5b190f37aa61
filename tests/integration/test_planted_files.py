"""Links, pipes and second names that the server's user plants in the root directory: nothing outside is read or changed
through them, and an error names them. What is made is its owner's alone."""

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.clients.documents import push, request
from support.servers.processes import COMMAND, FAST, Wire, serving

SCRIPTS = Path(COMMAND[1]).parent
JOURNAL = [sys.executable, str(SCRIPTS / "queue-journal.py")]
DIR = [sys.executable, "-m", "qs_server.main.qs_dir"]
VICTIM = b"a file of root\n"
SOMEBODY = 12345
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can act as another user")


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root directory of a server that has stopped, with a message in each of two queues."""
    root = tmp_path_factory.mktemp("used") / "root"
    with serving(root, *FAST) as server, Wire(server) as wire:
        wire.ask(request("new-queue", "<qid>orders</qid>"), push("orders", "x"))
        wire.ask(request("new-queue", "<qid>files</qid><options storage='files'/>"), push("files", "y"))
    return root


@pytest.fixture
def root(used: Path, tmp_path: Path) -> Path:
    shutil.copytree(used, tmp_path / "root")
    (tmp_path / "victim").write_bytes(VICTIM)
    (tmp_path / "elsewhere").mkdir()
    return tmp_path / "root"


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


def _check(root: Path) -> subprocess.CompletedProcess[str]:
    return run(*JOURNAL, "check", "--root", root)


def _repair(root: Path) -> subprocess.CompletedProcess[str]:
    return run(*JOURNAL, "repair", "--root", root)


def _export(root: Path) -> subprocess.CompletedProcess[str]:
    return run(*JOURNAL, "export", "--root", root, "--to", root.parent / "exported")


def _backup(root: Path) -> subprocess.CompletedProcess[str]:
    return run(*JOURNAL, "backup", "--root", root, "--to", root.parent / "backup")


def _convert(root: Path) -> subprocess.CompletedProcess[str]:
    return run(*JOURNAL, "convert", "--root", root, "orders", "--to", "files")


def _serve(root: Path) -> subprocess.CompletedProcess[str]:
    return run(*COMMAND, "--root", root, "--port", "0")


def _ls(root: Path) -> subprocess.CompletedProcess[str]:
    return run(*DIR, "ls", root / "files")


def _sink(root: Path) -> subprocess.CompletedProcess[str]:
    return run(*DIR, "sink", "--count", "1", "--print", root / "files")


def _link(path: Path, victim: Path) -> None:
    path.symlink_to(victim)


def _pipe(path: Path, victim: Path) -> None:
    os.mkfifo(path)


TOOLS = {
    ".journal/lock": (_check, _repair, _export, _convert, _serve, _sink),
    ".journal/checkpoint": (_check, _repair, _backup),
    "orders/.queue.toml": (_export, _backup, _convert, _serve),
    "files/.queue.toml": (_backup, _serve, _ls, _sink),
}
CASES = [
    pytest.param(name, tool, plant, id=f"{tool.__name__[1:]} {name} {plant.__name__[1:]}")
    for name, tools in TOOLS.items()
    for tool in tools
    for plant in (_link, _pipe)
]


@pytest.mark.parametrize(("name", "tool", "plant"), CASES)
def test_planted_files(
    root: Path,
    name: str,
    tool: Callable[[Path], subprocess.CompletedProcess[str]],
    plant: Callable[[Path, Path], None],
) -> None:
    """A link or a pipe in place of a file of the server is not followed and not waited for: an error names it."""
    (root / name).unlink()
    plant(root / name, root.parent / "victim")
    done = tool(root)
    assert done.returncode == 1, done
    assert str(root / name) in done.stderr
    assert "was not made by the server" in done.stderr
    assert "Traceback" not in done.stderr
    assert (root.parent / "victim").read_bytes() == VICTIM
    assert VICTIM.decode().strip() not in done.stdout + done.stderr


@pytest.mark.parametrize("plant", [_link, _pipe])
def test_a_planted_checkpoint(root: Path, plant: Callable[[Path, Path], None]) -> None:
    """Where a checkpoint is not needed, a link or a pipe in its place is a warning that names it."""
    path = root / ".journal/checkpoint"
    path.unlink()
    plant(path, root.parent / "victim")
    done = _export(root)
    assert (done.returncode, str(path) in done.stderr) == (0, True), done
    with serving(root, *FAST) as server:
        assert f"{path} is ignored" in server.log()
    assert (root.parent / "victim").read_bytes() == VICTIM


@pytest.mark.parametrize("tool", [_check, _repair, _export, _backup, _convert, _serve, _sink])
def test_a_link_for_the_journal(root: Path, tool: Callable[[Path], subprocess.CompletedProcess[str]]) -> None:
    """A link in place of the directory of the journal is an error that names it; nothing is made where it leads."""
    shutil.move(root / ".journal", root.parent / "moved")
    (root / ".journal").symlink_to(root.parent / "elsewhere")
    done = tool(root)
    assert (done.returncode, str(root / ".journal") in done.stderr) == (1, True), done
    assert list((root.parent / "elsewhere").iterdir()) == []


def test_a_link_for_a_temporary_file(root: Path) -> None:
    """A name that the server writes to before a rename is taken away, not written through."""
    victim = root.parent / "victim"
    for name in ("orders/.queue.toml.tmp", ".journal/checkpoint.tmp", ".journal/next", ".journal/spare"):
        (root / name).unlink(missing_ok=True)
        (root / name).symlink_to(victim)
    with serving(root, *FAST) as server, Wire(server) as wire:
        assert 'code="' not in wire.ask(request("set-queue", "<qid>orders</qid><options visibility='5'/>"))
        assert 'code="' not in wire.ask(push("orders", "z"))
    assert victim.read_bytes() == VICTIM
    assert not (root / "orders/.queue.toml").is_symlink()


# -- started by root, in a directory of another user ------------------------------------------------------------------


def give_away(path: Path) -> None:
    for each in [path, *path.rglob("*")]:
        os.lchown(each, SOMEBODY, SOMEBODY)


@pytest.fixture
def given(root: Path) -> Path:
    """The root directory as one of another user, who can reach it."""
    give_away(root)
    for parent in root.parents[:-1]:
        if parent.stat().st_uid == 0 and not parent.stat().st_mode & stat.S_IXOTH:
            parent.chmod(0o711)
    return root


@as_root
def test_the_server_does_not_serve_it(given: Path) -> None:
    """`root` does not serve the directory of another user, and says both ways out; --check says the same."""
    for more in ((), ("--check",)):
        done = run(*COMMAND, "--root", given, "--port", "0", *more)
        assert done.returncode == 1
        assert f"belongs to the user {SOMEBODY}" in done.stderr


@as_root
@pytest.mark.parametrize("tool", [_repair, _convert, _ls, _sink])
def test_tools_make_nothing_of_roots(given: Path, tool: Callable[[Path], subprocess.CompletedProcess[str]]) -> None:
    """A file that root's tool makes belongs to the owner of the directory, whose server has to read it."""
    (given / ".journal/lock").unlink()
    (given / ".journal/checkpoint").unlink()
    assert tool(given).returncode == 0
    assert {each.lstat().st_uid for each in [given, *given.rglob("*")]} == {SOMEBODY}


@as_root
@pytest.mark.parametrize("tool", [_check, _repair, _convert, _ls])
def test_tools_have_no_rights_of_roots(given: Path, tool: Callable[[Path], subprocess.CompletedProcess[str]]) -> None:
    """A tool of root's reads nothing that the owner of the directory could not read, whatever leads there."""
    secret = given.parent / "secret"
    secret.mkdir(0o700)
    for name in (".journal", "files"):
        shutil.move(given / name, secret / name)
        (given / name).symlink_to(secret / name)
        os.lchown(given / name, SOMEBODY, SOMEBODY)
    done = tool(given)
    assert done.returncode == 1, done
    assert "Traceback" not in done.stderr


@as_root
def test_a_second_name(given: Path) -> None:
    """A second name of a file of root's, made by the owner of the directory, is not written to and not copied."""
    victim = given.parent / "victim"
    (given / "orders/.queue.toml").unlink()
    os.link(victim, given / "orders/.queue.toml")
    done = _backup(given)
    assert (done.returncode, str(given / "orders/.queue.toml") in done.stderr) == (1, True), done
    assert not (given.parent / "backup").exists()


# -- modes ------------------------------------------------------------------------------------------------------------


def modes(root: Path, kind: Callable[[int], bool]) -> set[int]:
    return {each.lstat().st_mode & 0o777 for each in root.rglob("*") if kind(each.lstat().st_mode)}


@pytest.mark.parametrize(
    ("flags", "directories", "files"),
    [((), 0o700, {0o600}), (("--umask", "007"), 0o770, {0o600, 0o660}), (("--umask", "022"), 0o755, {0o600, 0o644})],
)
@pytest.mark.parametrize("inherited", [0o000, 0o027])
def test_modes(tmp_path: Path, flags: tuple[str, ...], directories: int, files: set[int], inherited: int) -> None:
    """Files that the server makes are its user's alone, whatever umask it inherits, or as open as --umask says."""
    root = tmp_path / "root"
    before = os.umask(inherited)
    try:
        with serving(root, *FAST, *flags, "--history", str(root.parent / "history")) as server, Wire(server) as wire:
            for storage in ("journal", "files", "dirq", "dirq-simple"):
                wire.ask(request("new-queue", f"<qid>{storage}</qid><options storage='{storage}'/>"))
                assert 'code="' not in wire.ask(push(storage, "x"))
    finally:
        os.umask(before)
    assert stat.S_IMODE(root.stat().st_mode) == directories
    assert modes(root, stat.S_ISDIR) == {directories}
    assert modes(root, stat.S_ISREG) == files
    assert modes(tmp_path / "history", stat.S_ISREG) == {max(files)}


def test_a_root_that_is_there(tmp_path: Path) -> None:
    """A directory that exists keeps its mode."""
    root = tmp_path / "root"
    root.mkdir()
    root.chmod(0o755)
    with serving(root, *FAST):
        assert stat.S_IMODE(root.stat().st_mode) == 0o755


@pytest.mark.parametrize("umask", ["700", "8", "77", "0o77", "", "x"])
def test_what_is_no_umask(umask: str) -> None:
    """A mode that would lock the server out of its own files, or is none, is wrong usage."""
    done = run(*COMMAND, "--umask", umask)
    assert (done.returncode, "argument --umask: " in done.stderr) == (2, True)

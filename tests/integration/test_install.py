"""The wheel and the sdist: they build, and in a clean environment every command runs without the checkout, or says what
to type."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from support.servers.processes import PROJECT

PYPROJECT = tomllib.loads((PROJECT / "pyproject.toml").read_text())
COMMANDS = sorted(PYPROJECT["project"]["scripts"])
PAGES = sorted(f"share/man/man1/{command}.1" for command in COMMANDS)
FILES = ("qs_schemas/qs.xsd", "qs_schemas/py.typed", "qs_client/py.typed", "qs_web/templates/base.html")


class Environment:
    """A new virtual environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=120)

    def run(self, program: str, *words: object, **options: object) -> subprocess.CompletedProcess[str]:
        """Runs an installed program, as a user without a checkout does."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "QS_"))}
        variables["PATH"] = f"{self.folder / 'bin'}:{variables['PATH']}"
        command = [str(self.folder / "bin" / program), *map(str, words)]
        defaults = {"capture_output": True, "text": True, "timeout": 300, "env": variables, "cwd": self.folder}
        return subprocess.run(command, check=False, **{**defaults, **options})  # type: ignore[call-overload,no-any-return]

    def pip(self, *words: object) -> None:
        """Runs pip, which has to succeed."""
        done = self.run("python", "-m", "pip", "-q", "--disable-pip-version-check", *words)
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module", name="building")
def _building(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with what builds qs, from the registry, and nothing else."""
    environment = Environment(tmp_path_factory.mktemp("building"))
    wanted = PYPROJECT["build-system"]["requires"]
    done = environment.run("python", "-m", "pip", "-q", "--retries", "1", "--timeout", "20", "install", *wanted)
    if done.returncode != 0:
        pytest.skip(f"NOT TESTED: pip cannot install {wanted}: is there no network? {done.stderr[-300:]}")
    return environment


@pytest.fixture(scope="module", name="built")
def _built(building: Environment, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel, the sdist, and the wheel that is built from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    done = building.run("python", "-m", "hatchling", "build", "-d", folder, cwd=PROJECT)
    assert done.returncode == 0, done.stderr
    [wheel], [sdist] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    again = folder / "again"
    building.pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", again, sdist)
    return {"wheel": wheel, "sdist": sdist, "from sdist": next(again.glob("*.whl"))}


@pytest.mark.long  # 2 min for all, with a network: wheel, sdist and two environments are made
def test_the_wheel_is_complete(built: dict[str, Path]) -> None:
    """The wheel has every module and data file of the packages, the man pages and nothing else, built from the checkout
    or from the sdist. Takes about 40 s with what it needs, from a registry nearby."""
    names = {kind: sorted(zipfile.ZipFile(built[kind]).namelist()) for kind in ("wheel", "from sdist")}
    assert names["wheel"] == names["from sdist"]
    assert not set(FILES) - set(names["wheel"])
    assert [name.partition(".data/data/")[2] for name in names["wheel"] if ".data/" in name] == PAGES
    packages = [Path(each) for each in PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]
    modules = {
        str(path.relative_to(PROJECT / package.parent))
        for package in packages
        for path in (PROJECT / package).rglob("*.py")
    }
    assert {name for name in names["wheel"] if name.endswith(".py")} == modules


@pytest.mark.long  # 2 min for all, with a network: wheel, sdist and two environments are made
def test_an_editable_installation(building: Environment) -> None:
    """An editable installation runs the checkout's code, and has the man pages. Takes about 5 s."""
    building.pip("install", "--no-deps", "--no-build-isolation", "--no-index", "--editable", PROJECT)
    assert [page for page in PAGES if not (building.folder / page).is_file()] == []
    assert building.run("qs", "--version").returncode == 0


@pytest.mark.long  # 2 min for all, with a network: wheel, sdist and two environments are made
def test_the_commands_run(built: dict[str, Path], tmp_path: Path) -> None:
    """With nothing but the wheel and what it needs, the clients are there, and each command shows its help and its
    version; the server and the page say what to type. When that has been typed for the server, a message goes through
    it. Takes about 40 s."""
    fresh = Environment(tmp_path / "environment")
    before = installed(fresh)
    fresh.pip("install", built["from sdist"])
    assert installed(fresh) - before <= {"qsbus", "lxml", "anyio", "idna", "sniffio", "typing_extensions"}
    fresh.pip("check")
    clients = fresh.run("python", "-c", "import qs_client\nfor name in qs_client.__all__: getattr(qs_client, name)")
    assert (clients.returncode, clients.stderr) == (0, "")
    assert [page for page in PAGES if not (fresh.folder / page).is_file()] == []
    for command in COMMANDS:
        done = fresh.run(command, "--help")
        assert (done.returncode, done.stderr) == (0, ""), command
        assert done.stdout.startswith(f"usage: {command} ")
        assert f" {PYPROJECT['project']['version']} (CPython " in fresh.run(command, "--version").stdout
    for command, extra in (("queue-web.py", "web"), ("queue-bus.py", "server"), ("queue-server.py", "server")):
        done = fresh.run(command)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"{command}: trio is not installed: pip install 'qsbus[{extra}]'\n"
    line = shlex.split(done.stderr.rpartition(": ")[2])
    assert line[0] == "pip"
    fresh.pip(*line[1:])
    assert installed(fresh) >= {"trio", "shtab"}
    assert fresh.run("queue-web.py").stderr.endswith(" is not installed: pip install 'qsbus[web]'\n")
    script = (
        'queue-server.py --port 0 >listening & server=$!; trap "kill $server" EXIT\n'
        "until grep -q listening listening 2>/dev/null; do read -r -t 0.1 <> <(:) || true; kill -0 $server; done\n"
        'export QS_SERVER=$(sed "s/.* //" listening)\n'
        "qs new orders && qs push orders 'two apples' && qs receive orders --delete"
    )
    done = subprocess.run(
        ["bash", "-ec", script], capture_output=True, text=True, timeout=100, cwd=fresh.folder,
        env={**os.environ, "PATH": f"{fresh.folder / 'bin'}:{os.environ['PATH']}"}, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"\d+\ntwo apples\n", done.stdout)


def installed(environment: Environment) -> set[str]:
    """Returns the names of the packages that are installed."""
    done = environment.run("python", "-m", "pip", "--disable-pip-version-check", "list", "--format", "freeze")
    return {line.partition("==")[0].lower() for line in done.stdout.splitlines()}

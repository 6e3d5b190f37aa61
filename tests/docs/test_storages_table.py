"""The table of docs/storage.md says of each storage what its engine says."""

import re

import pytest
from support.serving import PROJECT

from qs_server.main.opening import ENGINES, Storages
from qs_storage.engine import KEYS_IN, Engine, Feature, NoKeysError
from qs_storage.remote.memcached import MemcachedEngine
from qs_storage.remote.sqs import SqsEngine

PAGE = PROJECT.joinpath("docs", "storage.md").read_text(encoding="utf-8")
STORAGES: dict[str, type[Engine]] = {**ENGINES, "memcached": MemcachedEngine, "sqs": SqsEngine}
REFUSED = {
    Feature.KEY,
    Feature.CAPACITY,
    Feature.GET,
    Feature.LIST,
    Feature.COPY,
    Feature.CLAIM,
    Feature.SET,
    Feature.PAUSE,
    Feature.DEAD,
    Feature.REDRIVE,
    Feature.REASON,
    Feature.BACKOFF,
    Feature.RETENTION,
}
"""What a client can ask for: the answer is 501. That these are refused is shown with the contract."""


def rows() -> dict[str, list[str]]:
    """The table of the section, by the first cell of each row: the others."""
    section = PAGE.split("\n## What each storage cannot do\n")[1].split("\n## ")[0]
    lines = [re.split(r" *\| *", line.strip())[1:-1] for line in section.splitlines() if line.startswith("|")]
    assert set(lines[1]) == {"---"}
    del lines[1]
    assert len({first for first, *_ in lines}) == len(lines)
    return {first: others for first, *others in lines}


def word(engine: type[Engine], feature: Feature) -> str:
    """Returns how the page says whether an engine can: for one that keeps nothing, there is mostly nothing to say."""
    if feature not in engine.cannot:
        return "yes" if Feature.KEEP not in engine.cannot else "-"
    return "501" if feature in REFUSED else "no"


def test_columns() -> None:
    """A column for each storage that the server offers, by its name."""
    assert list(STORAGES) == list(Storages())
    assert all(engine.name == name for name, engine in STORAGES.items())
    assert rows()[""] == [f"`{name}`" for name in STORAGES]


def test_rows() -> None:
    """A row for each feature, in the order in which they are declared."""
    assert list(rows())[1:] == [feature.value for feature in Feature]


@pytest.mark.parametrize("feature", Feature)
def test_cells(feature: Feature) -> None:
    """The table says of each storage exactly what it lacks."""
    assert rows()[feature.value] == [word(engine, feature) for engine in STORAGES.values()]


def test_storages_with_keys() -> None:
    """The error for a key names the storages that keep keys, as the engines declare it."""
    keeping = {name for name, engine in STORAGES.items() if not {Feature.KEY, Feature.KEEP} & set(engine.cannot)}
    assert set(KEYS_IN) == keeping
    assert all(repr(name) in str(NoKeysError("files")) for name in keeping)

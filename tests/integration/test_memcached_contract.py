"""The contract of every engine, held by the `memcached` engine over a real memcached; and what of it is not for it.

The tests are those of tests/contract/test_engine.py, run with another bench.
"""

import importlib.util
import inspect
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from engines import Bench
from memcached_serving import Memcached, engine_on, needs_memcached

from qs_server.storage.engine import Engine

pytestmark = needs_memcached

NOT_FOR_IT = {
    "test_next_expiry": "windows end at the other server: nothing is to be expired here",
    "test_next_expiry_after_reopening": "the same",
    "test_expire": "the same",
    "test_arrivals": "who waits does so inside receive_within",
    "test_arrivals_at_the_start": "the same",
    "test_push_invisible_until_flush": "a push is visible when it returns",
}
PARTLY = {
    "test_push_delay": "next_expiry",
    "test_receive": "next_expiry",
    "test_release": "take_arrivals",
    "test_release_with_delay": "next_expiry",
    "test_extend": "next_expiry",
    "test_extend_to_shorter": "next_expiry",
    "test_copy": "take_arrivals",
}
"""Tests that also ask what no remote engine tells. They run with an engine that says what they expect of that."""


def _contract() -> ModuleType:
    path = Path(__file__).parent.parent / "contract" / "test_engine.py"
    spec = importlib.util.spec_from_file_location("contract_of_engines", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CONTRACT = _contract()
TESTS = {name: test for name, test in vars(CONTRACT).items() if name.startswith("test_")}


@pytest.fixture(scope="module")
def memcached() -> Iterator[Memcached]:
    with Memcached() as server:
        yield server


@pytest.fixture
def bench(memcached: Memcached, tmp_path: Path) -> Iterator[Bench]:
    namespace = uuid.uuid4().hex

    def make(clock: Callable[[], int]) -> Engine:
        return engine_on(memcached, root=tmp_path, clock=clock, namespace=namespace)

    bench = Bench(make)
    yield bench
    bench.engine.close()


class Agreeing:
    """Equal to whatever a remote engine does not tell."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def _arguments(test: Callable[..., None]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each set of a test's parameters, as pytest would make them, with its name."""
    sets: list[tuple[str, dict[str, Any]]] = [("", {})]
    for mark in getattr(test, "pytestmark", []):
        if mark.name == "parametrize":
            names = [name.strip() for name in mark.args[0].split(",")]
            rows = [(f"-{number}", row) for number, row in enumerate(mark.args[1])]
            sets = [
                (label + suffix, given | dict(zip(names, [row] if len(names) == 1 else row, strict=True)))
                for label, given in sets
                for suffix, row in rows
            ]
    yield from sets


CASES = [
    pytest.param(name, given, id=f"{name.removeprefix('test_')}{label}")
    for name, test in TESTS.items()
    if name not in NOT_FOR_IT
    for label, given in _arguments(test)
]


@pytest.mark.parametrize(("name", "given"), CASES)
def test_contract(bench: Bench, monkeypatch: pytest.MonkeyPatch, name: str, given: dict[str, Any]) -> None:
    """What every engine does."""
    if name in PARTLY:
        monkeypatch.setattr(type(bench.engine), PARTLY[name], lambda self: Agreeing())
    TESTS[name](bench, **given)


@pytest.mark.parametrize("name", [*NOT_FOR_IT, *PARTLY])
def test_named_tests_are_there(name: str) -> None:
    """What is left out, or run in part, is still in the contract."""
    assert "bench" in inspect.signature(TESTS[name]).parameters

"""The function of `qs work`: how it is found, which ones are refused, what it is called with."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qs_client import GetMessage, Reject
from qs_client.work_function import FAILED, WRONG, UnusableError, calling, described, load, own_frames

MODULE = """\
import functools
calls = []
def make(message): calls.append(message)
class Shop:
    @staticmethod
    def pack(message): calls.append(message)
partial = functools.partial(make)
size = 3
async def later(message): pass
def lazy(message): yield
async def many(message): yield
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A current directory with modules, which no other test gets to see."""
    (tmp_path / "shop_of_test.py").write_text(MODULE)
    (tmp_path / "failing_of_test.py").write_text("import os\nos.environ['NO_SUCH_VARIABLE']\n")
    (tmp_path / "ending_of_test.py").write_text("raise SystemExit(4)\n")
    (tmp_path / "needing_of_test.py").write_text("import no_such_package\n")
    (tmp_path / "wrong_of_test.py").write_text("def make(:\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["make", "Shop.pack", "partial"])
def test_load_functions(name: str) -> None:
    """Any callable of a module in the current directory will do."""
    load(f"shop_of_test:{name}")("hello")
    assert sys.modules["shop_of_test"].calls == ["hello"]


@pytest.mark.parametrize(
    ("name", "code", "text"),
    [
        ("no_such_module:make", WRONG, "there is no module 'no_such_module' in /"),
        ("shop_of_test.more:make", WRONG, "there is no module 'shop_of_test.more' in /"),
        ("shop_of_test:none", WRONG, "there is no function 'none' in /"),
        ("shop_of_test:Shop.none", WRONG, "there is no function 'Shop.none' in /"),
        ("shop_of_test:size", WRONG, "is no function: it is int 3"),
        ("shop_of_test:later", WRONG, "is async, and 'qs work' calls plain functions"),
        ("shop_of_test:many", WRONG, "is async, and 'qs work' calls plain functions"),
        ("shop_of_test:lazy", WRONG, "is a generator: calling it does none of its work"),
        ("failing_of_test:make", FAILED, "KeyError: 'NO_SUCH_VARIABLE' (failing_of_test.py line 2)"),
        ("ending_of_test:make", FAILED, "SystemExit: 4 (ending_of_test.py line 1)"),
        ("needing_of_test:make", FAILED, "No module named 'no_such_package' (needing_of_test.py line 1)"),
        ("wrong_of_test:make", FAILED, "SyntaxError: "),
    ],
)
def test_load_what_cannot_be_called(name: str, code: int, text: str) -> None:
    """One line says what is wrong and where. The exit code tells a wrong name, which stays wrong, from a module that
    fails, which may do so for what is not there yet."""
    with pytest.raises(UnusableError) as refused:
        load(name)
    assert text in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.code == code


def called_with(payload: bytes, **kind: bool) -> object:
    calls: list[object] = []
    message = GetMessage("q", 5, payload=payload)
    calling(calls.append, **{"as_json": False, "as_xml": False, **kind})(message)
    return "the message" if calls[0] is message else calls[0]


def test_calling_decodes_messages() -> None:
    """The function is called with the message, or with its JSON, or with the root element of its XML."""
    assert called_with(b"{}") == "the message"
    assert called_with('{"fruit": "Äpfel"}'.encode(), as_json=True) == {"fruit": "Äpfel"}
    order = called_with('<?xml version="1.0" encoding="iso-8859-1"?><o n="2">\xc4</o>'.encode("latin-1"), as_xml=True)
    assert (order.tag, order.get("n"), order.text) == ("o", "2", "Ä")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("payload", "kind", "text"),
    [
        (b"{", "as_json", "the message is no JSON: "),
        (b"\xff", "as_json", "the message is no JSON: "),
        (b"[" * 100_000, "as_json", "the message is no JSON: "),
        (b"", "as_xml", "the message is no XML: "),
        (b"<a><b></a>", "as_xml", "the message is no XML: "),
    ],
)
def test_calling_rejects_what_cannot_be_decoded(payload: bytes, kind: str, text: str) -> None:
    """A message that is not JSON or XML never will be, so it is not tried again."""
    with pytest.raises(Reject, match=text):
        called_with(payload, **{kind: True})


def test_calling_with_xml_expands_no_entities() -> None:
    """A payload can neither read files nor grow."""
    order = called_with(b'<!DOCTYPE o [<!ENTITY e SYSTEM "file:///etc/passwd">]><o>&e;</o>', as_xml=True)
    assert "".join(order.itertext()) == "&e;"  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["shop_of_test:later", "shop_of_test:lazy"])
def test_calling_refuses_coroutines_and_generators(name: str) -> None:
    """A function that returns a coroutine or a generator has done nothing, so the job fails."""
    load("shop_of_test:make")
    function: Callable[[object], object] = getattr(sys.modules["shop_of_test"], name.partition(":")[2])
    with pytest.raises(TypeError, match="has done no work"):
        calling(function, as_json=False, as_xml=False)(GetMessage("q", 5))


def test_described_names_the_place_of_an_error() -> None:
    """The place of the failure is told with file and line, on one line, and tracebacks begin with the function."""
    with pytest.raises(ValueError, match="no") as caught:
        calling(lambda _: int("no\nnumber"), as_json=False, as_xml=False)(GetMessage("q", 5))
    told = described(caught.value)
    assert told.startswith(
        "ValueError: invalid literal for int() with base 10: 'no\\nnumber' (test_work_function.py li"
    )
    error = caught.value.with_traceback(caught.value.__traceback__.tb_next)  # type: ignore[union-attr]
    frames = own_frames(error)
    assert frames is not None
    assert frames.tb_frame.f_code.co_filename == __file__

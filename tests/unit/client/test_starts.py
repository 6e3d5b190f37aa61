"""Tests what `qs` imports: a short command starts fast, because it leaves out what it does not need."""

import subprocess
import sys

import pytest

HEAVY = ("lxml", "ssl", "asyncio", "anyio", "trio", "logging", "email")
WITHOUT_SERVER = (*HEAVY, "dataclasses", "socket", "qs_schemas.messages", "qs_client.client")


@pytest.mark.parametrize(
    ("words", "code", "left_out"),
    [
        (["--help"], 0, WITHOUT_SERVER),
        (["help"], 0, HEAVY),
        (["pussh"], 2, WITHOUT_SERVER),
        (["push", "--help"], 0, WITHOUT_SERVER),
        (["--print-completion", "bash"], 0, ("lxml", "qs_schemas.messages")),
        (["-s", "127.0.0.1:1", "push", "orders", "two apples"], 1, HEAVY),
    ],
)
def test_what_is_left_out(words: list[str], code: int, left_out: tuple[str, ...]) -> None:
    """A command does not import these modules."""
    program = (
        "import sys\nfrom qs_client.command import main\n"
        f"try:\n    code = main({words!r})\nexcept SystemExit as end:\n    code = end.code\n"
        f"sys.stderr.write('imported: ' + ' '.join(set({left_out!r}) & set(sys.modules)))\nsys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code, done.stderr
    assert done.stderr.rpartition("imported: ")[2] == ""

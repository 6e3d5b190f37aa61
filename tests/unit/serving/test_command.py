"""The flags that the server and the bus have in common: what may be given."""

import pytest

from qs_bus.command import read_options as bus_options
from qs_server.main.qs_dir import main as directory
from qs_server.main.queue_server import read_options as server_options


@pytest.mark.parametrize("read", [server_options, bus_options])
@pytest.mark.parametrize("flag", ["--grace", "--linger", "--document-time"])
def test_flags_for_seconds_are_bounded(read: object, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A time that nobody can wait for is a wrong flag, and names it."""
    for seconds in ("1e9", "1e300", "inf", "nan", "-1", "soon"):
        with pytest.raises(SystemExit) as ended:
            read([flag, seconds])  # type: ignore[operator]
        assert ended.value.code == 2
        assert f"argument {flag}: " in capsys.readouterr().err


@pytest.mark.parametrize("address", ["[::1", "http://x:9", "host:", ":1", "host:70000", "[host]:1"])
def test_flag_memcached_refuses_wrong_addresses(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Text that is not a host and port is a wrong flag."""
    with pytest.raises(SystemExit):
        server_options(["--memcached", f"127.0.0.1:1,{address}"])
    assert "is no HOST[:PORT]" in capsys.readouterr().err


def test_flag_memcached_takes_addresses() -> None:
    """An IPv6 address stands in brackets."""
    options, _ = server_options(["--memcached", "[::1]:1,localhost:2, 10.0.0.1"])
    assert options.engines == {"memcached": {"servers": (("::1", 1), ("localhost", 2), ("10.0.0.1", 11211))}}


def test_flags_for_numbers_say_what_is_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the flag and the text, also for a number that no machine needs."""
    for text, says in (("1GB", "'1GB' is not a whole number"), ("9" * 400, f"{'9' * 400} is more than {10**15}")):
        with pytest.raises(SystemExit, match="2"):
            server_options(["--cache", text])
        assert capsys.readouterr().err.endswith(f"argument --cache: {says}\n")


def test_help_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Paragraphs of a description are wrapped; examples stay as they are."""
    monkeypatch.setenv("COLUMNS", "60")
    for words in (["pump"], ["purge"]):
        with pytest.raises(SystemExit, match="0"):
            directory([*words, "--help"])
        assert all(len(line) < 60 for line in capsys.readouterr().out.splitlines())
    with pytest.raises(SystemExit, match="0"):
        directory(["--help"])
    assert (
        "\n  qs-dir sink spool --print --wait 0           print what is there, and remove it\n"
        in capsys.readouterr().out
    )

"""The runner of console blocks itself: what it takes, and that it notices what is not as the page shows."""

from collections.abc import Callable
from pathlib import Path

import pytest

TOUR = """\
```console
$ ./scripts/run
listening on 127.0.0.1:9876 …
listening on 127.0.0.1:9878 …
…
```

In a second terminal:

```console
$ qs new orders
…
$ qs push orders hello
…
$ ls qs-data/orders
…
$ qs receive orders
hello
$ exec 3<>/dev/tcp/127.0.0.1/9876; printf '%s' \\
'<qs xmlns="http://purl.oclc.org/DEFUZE/qs"><op><ping/></op></qs>' >&3; read -r line <&3; echo "$line"
<qs xmlns="http://purl.oclc.org/DEFUZE/qs" type="response" resp="…"><op name="qs-server"><ping/></op></qs>
```
"""


@pytest.fixture
def page(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "page.md"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_a_tour(page: Callable[[str], Path], run_console_blocks: Callable[..., int]) -> None:
    """A server that a block starts serves the later blocks, on a port that stands for the one shown."""
    assert run_console_blocks(page(TOUR)) == 6


def test_one_shell(page: Callable[[str], Path], run_console_blocks: Callable[..., int]) -> None:
    """Folder and variables last from one command to the next; an error's text is output; `…` matches several lines."""
    text = "$ mkdir a && cd a && x=1\n$ basename $PWD; echo $x\na\n1\n$ seq 5\n1\n…\n5\n$ cat none\ncat: none: …\n"
    assert run_console_blocks(page(f"```console\n{text}```\n")) == 4


def test_after_a_sleep(page: Callable[[str], Path], run_console_blocks: Callable[..., int]) -> None:
    """After a `sleep`, the next command is repeated until it prints what the page shows, however long that takes."""
    text = "$ n=0\n$ sleep 3600\n$ echo $((n+=1))\n3\n$ echo $n\n3\n"
    assert run_console_blocks(page(f"```console\n{text}```\n")) == 4


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ("$ echo one\ntwo\n", "line 2: $ echo one"),
        ("$ echo one\n", "it printed: one"),
        ("$ exit 3\n", "bash ended at: exit 3"),
        ("no command\n", "begins with a line '$ command'"),
        ("$ ./scripts/test\n", "show it in a block marked sh"),
        ("$ ./scripts/run --port 1\n", "show port 9876"),
        ("$ ./scripts/run --root /dev/null\nlistening on 127.0.0.1:9876\n", "the server printed ''"),
        ("$ ./scripts/run\nlistening on 127.0.0.1:1\n", "listening on 127.0.0.1:9876"),
    ],
)
def test_what_is_noticed(
    page: Callable[[str], Path], run_console_blocks: Callable[..., int], block: str, told: str
) -> None:
    """Output that differs from the page, and blocks that cannot be run, fail with a text that says why."""
    with pytest.raises(AssertionError) as failure:
        run_console_blocks(page(f"```console\n{block}```\n"))
    assert told in " ".join(str(failure.value).split())

"""The access file: what it may contain, and the errors of a wrong one."""

from pathlib import Path

import pytest
from support.clients.access import hashed, principal, section, write_access

from qs_serving.access.access import AccessFileError, AccessTable, read_access_file
from qs_serving.access.principal import Right


def read(path: Path, *sections: str) -> AccessTable:
    table, warnings = read_access_file(str(write_access(path / "access.toml", sections)))
    assert warnings == []
    return table


def test_read_access_file_reads_everything(tmp_path: Path) -> None:
    """Principals, their rights, tokens and certificates, and the rights of anonymous clients are read."""
    table = read(
        tmp_path,
        principal("billing", certificates=["billing.example.org"], read=["orders*"], write=["i"], configure=["b-*"]),
        principal("prometheus", monitor=True),
        principal("ops", admin=True),
        section("anonymous", read=["public-*"]),
    )
    assert list(table.principals) == ["billing", "prometheus", "ops"]
    assert len(table.tokens) == 3
    assert table.certificates == {"billing.example.org": "billing"}
    billing, monitor, ops = table.principals.values()
    assert billing.may(Right.READ, "orders-1")
    assert not billing.may(Right.WRITE, "orders-1")
    assert billing.may_see("i")
    assert not billing.may_see("public-1")
    assert monitor.may(Right.STATS, "any")
    assert not monitor.may_see("any")
    assert all(ops.may(right, "any") for right in Right)
    assert table.anonymous is not None
    assert table.anonymous.may(Right.READ, "public-1")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[users.a]", "'users'"),
        ("[principals.a]\nreads = []", "'reads'"),
        ("[principals]\na = 1", "principals.a has to be a table"),
        ("principals = []", "principals has to be a table"),
        ("[anonymous]\ntokens = []", "'tokens'"),
        ("[anonymous]\nadmin = true", "'admin'"),
        ('[principals.a]\nread = "orders"', "read has to be a list"),
        ('[principals.a]\nread = [""]', "none of them empty"),
        ("[principals.a]\nread = [1]", "read has to be a list"),
        ("[principals.a]\nadmin = 1", "admin has to be true or false"),
        ('[principals.a]\ntokens = ["plain-SECRET"]', "`qs token` makes one"),
        ('[principals.a]\ntokens = ["sha256:5ec7e7"]', "64 hex digits"),
        ('[principals.""]\n', "1 to 200 characters"),
        ('[principals."a\\n"]\n', "no control characters"),
        (f"[principals.{'a' * 201}]\n", "1 to 200 characters"),
        ('[principals."a\\uFFFF"]\n', "no control characters"),
        ("[principals.a", "is not TOML: look at end of document"),
        (f"x = {'[' * 5000}{']' * 5000}", "too deep"),
        (f"x = {'1' * 5000}", "too long"),
        (f"[{'SECRET' * 8}]", "a key of 48 characters, which is unknown"),
        (f"[principals.a]\n{'SECRET' * 8} = 1", "a key of 48 characters, which is unknown"),
        (f"[principals.{'SECRET' * 8}]\n" * 2, "is not TOML: look at line 2"),
        (f"[principals.{'SECRET' * 40}]\n", "1 to 200 characters"),
    ],
)
def test_read_access_file_says_what_is_wrong(tmp_path: Path, text: str, what: str) -> None:
    """One line says where and what, and shows no token."""
    with pytest.raises(AccessFileError) as raised:
        read(tmp_path, text)
    said = str(raised.value)
    assert what in said
    assert said.startswith(str(tmp_path / "access.toml"))
    assert "\n" not in said
    assert "SECRET" not in said.removeprefix(str(tmp_path))
    assert "5ec7e7" not in said


@pytest.mark.parametrize("key", ["tokens", "certificates"])
def test_read_access_file_refuses_shared_credentials(tmp_path: Path, key: str) -> None:
    """A token or certificate name of two principals is an error: nobody could say who the client is."""
    same = [hashed("x")]
    with pytest.raises(AccessFileError, match=r"principals\.b has a (token|certificate) that 'a' has too") as raised:
        read(tmp_path, section("principals.a", **{key: same}), section("principals.b", **{key: same}))
    assert same[0] not in str(raised.value)


def test_read_access_file_refuses_unreadable_files(tmp_path: Path) -> None:
    """A file that cannot be used is refused with a text that says what is wrong, and where."""
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(AccessFileError, match=f"cannot read --access {path}"):
            read_access_file(str(path))
    (tmp_path / "latin").write_bytes(b"\xff")
    with pytest.raises(AccessFileError, match="UTF-8"):
        read_access_file(str(tmp_path / "latin"))


@pytest.mark.parametrize(("mode", "what"), [(0o604, "read by everybody"), (0o606, "changed by everybody")])
def test_read_access_file_warns_of_permissions(tmp_path: Path, mode: int, what: str) -> None:
    """A file with tokens that others may read is used, and the log says so."""
    path = write_access(tmp_path / "access.toml", [principal("a", read=["a"])])
    path.chmod(mode)
    assert what in read_access_file(str(path))[1][0]


def test_read_access_file_warns_if_nobody_is_let_in(tmp_path: Path) -> None:
    """A file without a principal that anybody could be is used, and the log says so."""
    path = write_access(tmp_path / "access.toml", [section("principals.a", read=["a"])])
    assert "lets nobody in" in read_access_file(str(path))[1][0]

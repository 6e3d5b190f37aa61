"""Compares the principal and rights of a connection with a model of five lines, over random access files."""

import fnmatch
import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clients.access import principal, section, write_access

from qs_schemas import CopyMessage, Message, Ping
from qs_serving.access.access import Access, AccessTable
from qs_serving.access.caller import Caller, NotAllowedError
from qs_serving.access.principal import Right

PATTERN = st.text(st.sampled_from("ab*?"), min_size=1, max_size=3)
NAME = st.text(st.sampled_from("ab"), min_size=1, max_size=3)
LISTS = dict.fromkeys(("read", "write", "configure"), st.lists(PATTERN, max_size=2))
RIGHTS = st.fixed_dictionaries({}, optional=LISTS)
PRINCIPAL = st.fixed_dictionaries({"admin": st.booleans(), "monitor": st.booleans()}, optional=LISTS)
REQUEST = st.dictionaries(st.sampled_from(["qid", "queues"]), st.sampled_from(list(Right)), max_size=2)


def model(section: dict[str, Any], rights: dict[str, Right], request: Message) -> bool:
    """Tells whether a principal may make a request."""
    for right, qid in ((right, qid) for field, right in rights.items() for qid in named(request, field)):
        lists = [
            pattern for word in right.value.split(" or ") if word != "monitor" for pattern in section.get(word, [])
        ]
        known = section.get("admin") or ("monitor" in right.value and section.get("monitor"))
        if not known and not any(fnmatch.fnmatchcase(qid, pattern) for pattern in lists):
            return False
    return True


def named(request: Message, field: str) -> list[str]:
    value = getattr(request, field)
    return [value] if isinstance(value, str) else value


def caller_of(table: AccessTable, token: str | None, certificate: tuple[str, ...] = ()) -> Caller:
    notes = SimpleNamespace(note=lambda peer: None)
    caller = Caller(cast(Access, SimpleNamespace(table=table, failures=notes)), "peer", certificate)
    if token is not None:
        caller.authenticate(token)
    return caller


def code(caller: Caller, rights: dict[str, Right] | None, request: Message) -> int:
    try:
        caller.check(rights, request)
    except NotAllowedError as error:
        return error.error.code
    return 0


@given(st.lists(PRINCIPAL, min_size=1, max_size=3), st.none() | RIGHTS, REQUEST, NAME, st.lists(NAME, max_size=3))
def test_check_allows_what_the_file_says(
    principals: list[dict[str, Any]],
    anonymous: dict[str, Any] | None,
    rights: dict[str, Right],
    qid: str,
    queues: list[str],
) -> None:
    """A random request of any principal of a random file, or of any other client, is allowed by `check` if and only if
    the model allows it; otherwise it is refused with 403, or 401 before authentication."""
    content: dict[str, Any] = {"principals": {}}
    for number, each in enumerate(principals):
        token = "sha256:" + hashlib.sha256(f"t{number}".encode()).hexdigest()
        content["principals"][f"p{number}"] = {**each, "tokens": [token]}
    if anonymous is not None:
        content["anonymous"] = anonymous
    table = AccessTable("access.toml", content)
    request = CopyMessage(qid, 1, queues)
    for number, each in enumerate(principals):
        assert code(caller_of(table, f"t{number}"), rights, request) == (0 if model(each, rights, request) else 403)
    expected = 0 if anonymous is not None and model(anonymous, rights, request) else 401
    assert code(caller_of(table, None), rights, request) == expected
    assert code(caller_of(table, None), None, request) == 0


@pytest.fixture
def access(tmp_path: Path) -> Access:
    sections = [
        principal("first", certificates=["b.example", "a.example"], read=["*"]),
        principal("second", certificates=["c.example"], write=["*"]),
        section("anonymous", read=["public"]),
    ]
    return Access(str(write_access(tmp_path / "access.toml", sections)))


@pytest.mark.parametrize(
    ("names", "expected"),
    [(("a.example",), "first"), (("c.example", "a.example"), "first"), (("c.example",), "second"), (("x",), None)],
)
def test_principal_of_a_certificate(access: Access, names: tuple[str, ...], expected: str | None) -> None:
    """A certificate's principal is that of the first of its names that the file lists; other certificates are
    anonymous."""
    found = Caller(access, "peer", names).principal
    assert found is not None
    assert found.name == expected
    assert (found is access.table.anonymous) is (expected is None)


def test_check_of_an_unlisted_certificate(access: Access) -> None:
    """The owner of a certificate that nobody lists is told which names were looked for, whatever characters they
    have."""
    caller = Caller(access, "peer", ("x.example", "y\x01"))
    with pytest.raises(NotAllowedError) as caught:
        caller.check({"qid": Right.READ}, CopyMessage("private"))
    assert caught.value.error.code == 401
    assert "no principal has a name of your certificate ('x.example', 'y\\x01')" in str(caught.value)


def test_authenticate_replaces_a_certificate(access: Access) -> None:
    """A token makes the client another principal than its certificate did, and a wrong one nobody."""
    caller = Caller(access, "peer", ("c.example",))
    assert caller.authenticate("first-token") == "first"
    with pytest.raises(NotAllowedError):
        caller.authenticate("wrong")
    assert caller.principal is None
    assert code(caller, {}, Ping()) == 401


def test_check_follows_a_file_that_is_read_again(access: Access) -> None:
    """After a reload, the principal of each connection is looked up anew; a name that has moved to another principal
    makes it that one."""
    token, certificate = Caller(access, "peer"), Caller(access, "peer", ("c.example",))
    token.authenticate("first-token")
    write_access(Path(access.path), [principal("first", certificates=["c.example"], configure=["*"])])
    access.reload()
    assert token.may(Right.CONFIGURE, "q")
    assert certificate.may(Right.CONFIGURE, "q")
    write_access(Path(access.path), [principal("other")])
    access.reload()
    assert token.principal is certificate.principal is None


def test_check_shows_nothing_secret(access: Access) -> None:
    """Refusals name the missing right and the queue, and nothing of a token."""
    caller = Caller(access, "peer")
    caller.authenticate("first-token")
    assert "token" not in repr(caller) + repr(access) + repr(access.table)

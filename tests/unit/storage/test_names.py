"""Names on disk: queues as directories, messages as files."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from qs_storage.engine import BadQueueNameError
from qs_storage.names import MAX_MID, NEW, directory_of, message_name, parse_message, qid_of, ready_among


@pytest.mark.parametrize(
    ("qid", "directory"),
    [
        ("orders", "orders"),
        ("A-z_0.9", "A-z_0.9"),
        (".", "%2E"),
        ("..", "%2E."),
        (".queue.toml", "%2Equeue.toml"),
        ("a/b", "a%2Fb"),
        ("~", "%7E"),
        ("a b%", "a%20b%25"),
        ("ü", "%C3%BC"),
        ("🐟", "%F0%9F%90%9F"),
        ("q.new", "q.new"),
    ],
)
def test_directory(qid: str, directory: str) -> None:
    """Every byte outside A-Za-z0-9_-. and a leading dot is percent-encoded."""
    assert directory_of(qid) == directory
    assert qid_of(directory) == qid


@given(st.text(min_size=1, max_size=60))
@settings(deadline=None, derandomize=True)
def test_name_leads_back_from_directory(qid: str) -> None:
    """A name is refused, or its directory is safe, and leads back to it."""
    try:
        directory = directory_of(qid)
    except BadQueueNameError:
        return
    assert len(directory) <= 255
    assert not set(directory) & set("/\0")
    assert not directory.startswith(".")
    assert qid_of(directory) == qid


@given(st.text(st.characters(exclude_characters="/\0"), max_size=30) | st.text("%2Eeab.", max_size=9))
@settings(deadline=None, derandomize=True)
def test_only_canonical_directories(directory: str) -> None:
    """Any directory is that of no queue, or the one that its queue gets; odd bytes are no error."""
    qid = qid_of(directory)
    assert qid is None or directory_of(qid) == directory


@pytest.mark.parametrize("directory", ["%2e", "%41", "..", ".x", "", "ü", "%FF", "a b", "%", "%2", "x\udcff", "a~"])
def test_directories_of_nobody(directory: str) -> None:
    """A directory that no name would get, or that is not text, holds no queue."""
    assert qid_of(directory) is None


def test_length() -> None:
    """A name has 200 characters at most, and its directory 255 bytes."""
    assert directory_of("a" * 200) == "a" * 200
    assert len(directory_of("é" * 42 + "aaa")) == 255
    for qid in ("", "a" * 201, "é" * 43):
        with pytest.raises(BadQueueNameError):
            directory_of(qid)


@pytest.mark.parametrize("character", ["\0", "\n", "\x7f", "\x9f", "\ud800", "\ufffe"])
def test_characters(character: str) -> None:
    """Names have no characters that XML or a log line cannot carry."""
    with pytest.raises(BadQueueNameError):
        directory_of(f"a{character}b")


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        (b"0", (0, 0)),
        (b"12", (12, 0)),
        (b"12.34", (12, 34)),
        (b"12.new", (12, NEW)),
        (b"%d" % MAX_MID, (MAX_MID, 0)),
    ],
)
def test_message(name: bytes, parsed: tuple[int, int]) -> None:
    """The id and the state of a message are its file's name."""
    assert parse_message(name) == parsed


@pytest.mark.parametrize(
    "name",
    [b"", b"-1", b"+1", b"01", b"1.02", b"1.0", b"1.", b".1", b"1.2.3", b"1.2.0", b"1_0", b"1\n", b"1.NEW", b"x",
     b"1" * 19, b"1." + b"1" * 19, "\u0661".encode(), b".queue.toml"],
)  # fmt: skip
def test_no_message(name: bytes) -> None:
    """A name that would be written otherwise than it was read is not a message."""
    assert parse_message(name) is None


@given(mid=st.integers(0, MAX_MID), expiry=st.integers(0, MAX_MID))
@settings(deadline=None, derandomize=True)
def test_message_round_trip(mid: int, expiry: int) -> None:
    """Every id and state has one name."""
    assert parse_message(message_name(mid, expiry).encode()) == (mid, expiry)


@given(
    st.lists(
        st.integers(0, 10**18 + 5).map(str)
        | st.from_regex("[0-9]{1,20}|[1-9][0-9]{3}|[0-9_.+new]{1,6}", fullmatch=True)
    )
)
@settings(deadline=None, derandomize=True)
def test_ready_among(names: list[str]) -> None:
    """The sure names are ready messages; with those that turn out to be among the rest, they are all."""
    encoded = [name.encode() for name in names]
    sure, rest = ready_among(encoded)
    parsed = [parse_message(name) for name in encoded]
    others = [mid for mid, expiry in filter(None, map(parse_message, rest)) if not expiry]
    assert sure == sorted(sure)
    assert sorted(sure + others) == sorted(found[0] for found in parsed if found is not None and not found[1])
    assert len(sure) + len(rest) == len(names)


def test_most_need_no_parsing() -> None:
    """Ids of one length are all known at once, also beside files that are none or are hidden."""
    mids = [b"1700000000000002", b"1700000000000001", b"1700000000000001"]
    ready = sorted(map(int, mids))
    assert ready_among(mids) == (ready, [])
    assert ready_among([b".queue.toml", *mids, b"12.new"]) == (ready, [b".queue.toml", b"12.new"])
    assert ready_among([*mids, b"0170000000000000"]) == ([], [*mids, b"0170000000000000"])
    assert ready_among([]) == ([], [])

"""The small parts of the page: amounts, links, hosts, sessions, notices, and the look-up of figures."""

import re
from importlib import resources

import pytest

from qs_client import Figure
from qs_client.security import Token
from qs_web import amounts
from qs_web.guard import AllowedHosts
from qs_web.rendering import notice
from qs_web.server_page import FigureTable
from qs_web.services import Links, Sessions


@pytest.mark.parametrize(("shown", "wanted"), [
    (amounts.count(1234567), "1,234,567"), (amounts.count(None), amounts.NONE), (amounts.rate(0), "0"),
    (amounts.rate(0.01), "<0.1"), (amounts.rate(3.14159), "3.1"), (amounts.rate(3400), "3,400"),
    (amounts.size(512), "512 B"), (amounts.size(1536), "1.5 KiB"), (amounts.size(8 << 20), "8.0 MiB"),
    (amounts.size(5 << 40), "5.0 TiB"), (amounts.span(0), "0 s"), (amounts.span(0.44), "0.4 s"),
    (amounts.span(42), "42 s"), (amounts.span(303), "5 min 3 s"), (amounts.span(3600), "1 h"),
    (amounts.span(187_200), "2 d 4 h"), (amounts.seconds(0.00012), "0.12 ms"), (amounts.seconds(2.5), "2.5 s"),
    (amounts.moment(0), "1970-01-01 00:00:00 UTC"), (amounts.moment(10**30), amounts.NONE),
    (amounts.ahead(None, 5.0), "now"), (amounts.ahead(5_000_000, 5.0), "now"),
    (amounts.ahead(65_000_000, 5.0), "in 1 min"),
    (amounts.moment(None), amounts.NONE), (amounts.plain(60.0), "60"), (amounts.plain(0.5), "0.5"),
    (amounts.plain(None), ""),
])  # fmt: skip
def test_amounts_are_as_people_read_them(shown: str, wanted: str) -> None:
    """Numbers as people read them."""
    assert shown == wanted


def test_links_quote_names_and_stay_local() -> None:
    """Names of queues are quoted in the query; None leaves a name out."""
    links = Links("/ops")
    assert links("") == "/ops/"
    assert links("queue", q="a/b &c", after=None, page=2) == "/ops/queue?q=a%2Fb+%26c&page=2"
    assert links.is_local("/ops/queue?q=a")
    for address in ("/", "/opsx/", "//evil/ops/", "https://evil/ops/", "/ops/\\evil", "/ops/\nx", ""):
        assert not links.is_local(address)


@pytest.mark.parametrize(("host", "asked", "allowed"), [
    ("127.0.0.1", "localhost:1", True), ("127.0.0.1", "127.0.0.1", True), ("127.0.0.2", "localhost", True),
    ("::1", "[::1]:9880", True), ("127.0.0.1", "10.0.0.1", False), ("127.0.0.1", "evil.example", False),
    ("10.0.0.1", "10.0.0.1:80", True), ("10.0.0.1", "localhost", False), ("0.0.0.0", "10.0.0.9", True),
    ("0.0.0.0", "evil.example", False), ("::", "[2001:db8::1]:9880", True), ("ops.example", "OPS.example:1", True),
    ("127.0.0.1", "named.example", True), ("127.0.0.1", "port.example:1", True), ("127.0.0.1", "port.example:2", False),
    ("127.0.0.1", "", False), ("0.0.0.0", "", False), ("0.0.0.0", "[::1", False),
])  # fmt: skip
def test_allowed_hosts_are_those_listened_on_and_named(host: str, asked: str, *, allowed: bool) -> None:
    """The page answers to the names on which it listens, and to those of --allow-host."""
    assert AllowedHosts(host, ["named.example", "port.example:1"]).allows(asked) == allowed


def test_sessions_end_and_are_bounded() -> None:
    """A session is found by its id alone, ends after 12 hours, and is one of at most a thousand."""
    now = [0.0]
    sessions = Sessions(lambda: now[0])
    name = sessions.begin(Token("t"), "ops")
    found = sessions.find(name)
    assert found is not None
    assert (found.token, found.principal) == (Token("t"), "ops")
    assert sessions.find("other") is None
    assert sessions.find(None) is None
    now[0] = 12 * 3600
    assert sessions.find(name) is None
    names = [sessions.begin(Token("t"), str(number)) for number in range(1500)]
    assert len(set(names)) == 1500
    assert len(sessions) == 1000
    assert sessions.find(names[0]) is None
    sessions.end(names[-1])
    assert sessions.find(names[-1]) is None


def test_notice_is_made_of_key_and_number() -> None:
    """A notice is made of a key and a number, never of what an address says."""
    assert notice("deleted", "1") == "Deleted 1 message."
    assert notice("deleted", "1200") == "Deleted 1,200 messages."
    assert notice("deleted", "<b>") == "Deleted 1 message."
    assert notice("<script>", "1") == ""


def histogram(name: str, counts: dict[str, float], total: float, **labels: str) -> list[Figure]:
    found = [Figure(f"{name}_bucket", count, {**labels, "le": bound}) for bound, count in counts.items()]
    return [*found, Figure(f"{name}_sum", total, labels), Figure(f"{name}_count", counts["+Inf"], labels)]


def test_distributions_have_quantiles_between_bounds() -> None:
    """The median and p99 lie between the bounds that they are known to be between."""
    figures = [
        *histogram("took", {"0.001": 50, "0.01": 99, "0.1": 100, "+Inf": 100}, 0.5, operation="push"),
        *histogram("took", {"0.001": 0, "0.01": 0, "0.1": 0, "+Inf": 3}, 9, operation="slow"),
        *histogram("took", {"0.001": 0, "+Inf": 0}, 0, operation="never"),
    ]
    table = FigureTable(figures)
    found = table.distributions("took", "operation")
    assert list(found) == ["push", "slow", "never"]
    push = found["push"]
    assert (push.count, push.mean, push.median) == (100, 0.005, 0.001)
    assert push.p99 is not None
    assert abs(push.p99 - 0.01) < 1e-12
    assert found["slow"].p99 == 0.1
    assert found["never"].mean is None
    assert table.value("missing") is None
    assert table.sums_by("took_count", "operation") == {"never": 0, "push": 100, "slow": 3}
    assert table.distribution("missing") is None


def test_assets_are_small_and_name_no_host() -> None:
    """The script has less than 5 kB, and neither it nor the style sheet names another host."""
    files = resources.files("qs_web") / "static"
    assert len((files / "page.js").read_bytes()) < 5000
    for name in ("page.js", "page.css"):
        text = (files / name).read_text(encoding="utf-8")
        assert "//" not in re.sub("^ *// .*$", "", text, flags=re.MULTILINE)
        assert "url(" not in text

"""The job `report`: its figures, from a record made by hand, a random one and a real server's; and what it refuses.

Each report takes some seconds of Spark; there are three, shared by the tests that look at them.
"""

import csv
import html
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pytest
from pyspark.sql import SparkSession
from support.clients.documents import delete, mids, new_queue, push, push_list, receive, release, request
from support.clients.scripted_server import answering, scripted
from support.servers.processes import FAST, PROJECT, Wire, serving
from support.spark.report import HOUR, START, in_files, line, percentile, random_record, tell, write_lines

from qs_client import Figure, ServerStats
from qs_pipeline.errors import PipelineError, UsageError
from qs_pipeline.report import ReportSummary, report
from qs_pipeline.security import QueueServer

pytestmark = pytest.mark.slow  # half a minute in all
HOSTILE = "<script>alert(1)</script> \"$x$\", '=1'"
BEGIN = datetime(2025, 11, 21, 10, tzinfo=UTC)


class Made(NamedTuple):
    """A report that was made."""

    folder: Path
    summary: ReportSummary
    said: list[str]

    def query(self, name: str, columns: str, more: str = "") -> list[tuple[Any, ...]]:
        """Queries a table as another program reads its Parquet."""
        with duckdb.connect() as database:
            return database.execute(
                f"select {columns} from read_parquet('{self.folder / name}.parquet/*.parquet') {more}"
            ).fetchall()

    def csv(self, name: str) -> list[dict[str, str]]:
        with (self.folder / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))


def make(spark: SparkSession, history: Path, to: Path, **more: Any) -> Made:
    said: list[str] = []
    return Made(to, report(spark, str(history), str(to), progress=said.append, **more), said)


def at(seconds: float) -> str:
    return (BEGIN + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


ONE = [
    line(0, "pushed", "a", 1, 0, 100),
    line(10, "received", "a", 1, 1),
    line(15, "extended", "a", 1, 1),
    line(40, "expired", "a", 1, 1),
    line(100, "received", "a", 1, 2),
    line(102, "deleted", "a", 1, 2),
    line(300, "received", "a", 3, 5),  # pushed before the record began, and received four times
    line(330, "released", "a", 3, 5),
    line(1800, "pushed", "a", 2, 0, 50),
    line(3600, "deleted", "a", 2, 1),  # the order of lines is not that of Spark's rows: one time, one batch
    line(3600, "received", "a", 2, 1),
    line(3930, "received", "a", 3, 6),
    line(3931, "deleted", "a", 3, 6),
]
OTHER = [
    line(600, "pushed", HOSTILE, 4, 0),
    line(1200, "pushed", HOSTILE, 5, 0, None),
    line(1500, "pushed", HOSTILE, 6, 0),
    line(1560, "received", HOSTILE, 6, 1),
    line(3000, "deleted", HOSTILE, 5, 0),  # by purge-queue
    line(4200, "deleted", HOSTILE, 6, None, None),  # with its queue
]
FAILING = [
    line(0, "pushed", "poison", 20, 0),
    line(10, "received", "poison", 20, 1),
    line(40, "expired", "poison", 20, 1),
    line(50, "received", "poison", 20, 2),
    line(80, "dead", "poison", 20, 2),
    line(80, "pushed", "failed", 80, 0),  # in its dead-letter queue it is another message
    line(90, "pushed", "poison", 90, 0),
    line(190, "retired", "poison", 90, 0),
    line(280, "redriven", "failed", 80, 0),
    line(280, "pushed", "poison", 280, 0),
    line(300, "received", "poison", 280, 1),
    line(301, "deleted", "poison", 280, 1),
    line(400, "received", "failed", 70, 1),  # dead before the record began
    line(430, "retired", "failed", 70, 1),  # as its window ended
]
BROKEN = [
    '{"time":1763719200000000,"event":"pus',
    '{"other":"log"}',
    "no JSON",
    '{"time":1763719200000000,"event":"claimed","queue":"a","mid":7,"size":1,"receives":0,"peer":""}',
    '{"time":9999999999999999999,"event":"pushed","queue":"a","mid":8,"size":1,"receives":0,"peer":""}',
    '{"time":-1,"event":"pushed","queue":"a","mid":9,"size":1,"receives":0,"peer":""}',
]


@pytest.fixture(scope="module")
def by_hand(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Two servers' files, with lines that are broken, files that are not finished, and others."""
    folder = tmp_path_factory.mktemp("by [hand] *") / "100% {a,b}"
    folder.mkdir()
    write_lines(folder / "history-20251121T100000.000000Z-00000001.jsonl", [*ONE, *BROKEN])
    write_lines(folder / "history-20251121T100500.000000Z-00000002.jsonl", OTHER)
    write_lines(folder / ".history-20251121T120000.000000Z-00000001.jsonl", [line(9000, "pushed", "a", 10, 0)])
    write_lines(folder / "other.jsonl", [line(9000, "pushed", "a", 11, 0)])
    to = tmp_path_factory.mktemp("out") / "100% out"
    to.mkdir()  # empty is as good as missing
    return make(spark, folder, to)


def test_report_returns_summary(by_hand: Made) -> None:
    """The summary, also in a file; and what was going on meanwhile."""
    page = str(by_hand.folder / "index.html")
    end = BEGIN + timedelta(seconds=4200)
    assert by_hand.summary == ReportSummary(page, 2, len(ONE) + len(OTHER), len(BROKEN), 2, BEGIN, end)
    told = json.loads((by_hand.folder / "report.json").read_text())
    assert told["kind"] == "qs-pipeline report"
    assert (told["events"], told["unreadable"], told["begin"], told["end"]) == (19, 6, at(0), at(4200))
    assert by_hand.said[0] == "reading the history"
    assert "computing the tables" in by_hand.said


def test_report_per_hour(by_hand: Made) -> None:
    """Counts, depths and times of each queue and hour, read by another program."""
    counts = "pushed, received, redelivered, released, expired, extended, deleted, pushed_bytes, depth"
    assert by_hand.query("per_hour", f"queue, epoch_us(hour), {counts}", "order by queue desc, hour") == [
        ("a", START, 2, 3, 2, 1, 1, 1, 1, 150, 2),
        ("a", START + HOUR, 0, 2, 1, 0, 0, 0, 2, 0, 0),
        (HOSTILE, START, 3, 1, 0, 0, 0, 0, 1, 20, 2),
        (HOSTILE, START + HOUR, 0, 0, 0, 0, 0, 0, 1, 0, 1),
    ]
    times = ", ".join(f"{kind}_{rank}" for kind in ("waiting", "handling") for rank in ("count", "p50", "p99", "max"))
    assert by_hand.query("per_hour", times, "order by queue desc, hour") == [
        (2, 10, 60, 60, 1, 2, 2, 2),
        (2, 1800, 3600, 3600, 2, 0, 1, 1),
        (1, 60, 60, 60, 0, None, None, None),
        (0, None, None, None, 0, None, None, None),
    ]


def test_report_queues_and_depths(by_hand: Made) -> None:
    """The whole record of a queue; and its depth over time, which begins with what was there before."""
    rows = {row["queue"]: row for row in by_hand.csv("queues")}
    assert rows["a"]["first"] == at(0)
    assert rows["a"]["last"] == at(3931)
    assert {name: row["at_start"] for name, row in rows.items()} == {"a": "1", HOSTILE: "0"}
    assert {name: row["depth"] for name, row in rows.items()} == {"a": "0", HOSTILE: "1"}
    assert rows["a"]["waiting_p95"] == "3600"
    depths = [(row["time"], row["depth"]) for row in by_hand.csv("depth") if row["queue"] == "a"]
    assert depths == [
        (at(0), "1"), (at(10), "2"), (at(20), "2"), (at(50), "2"), (at(110), "1"), (at(310), "1"), (at(340), "1"),
        (at(1810), "2"), (at(3610), "1"), (at(3940), "0"),
    ]  # fmt: skip


def test_report_lists_of_messages(by_hand: Made) -> None:
    """The messages received most often, and those that waited longest, with how that ended."""
    assert [(row["mid"], row["receives"], row["pushed"], row["state"]) for row in by_hand.csv("top_received")] == [
        ("3", "6", "", "deleted"),
        ("1", "2", at(0), "deleted"),
    ]
    assert [
        (row["queue"], row["mid"], row["waited"], row["begin"], row["end"], row["ended_by"])
        for row in by_hand.csv("waited_longest")
    ] == [
        (HOSTILE, "4", "3600", at(600), at(4200), "nothing"),
        ("a", "3", "3600", at(330), at(3930), "received"),
        (HOSTILE, "5", "1800", at(1200), at(3000), "deleted"),
        ("a", "2", "1800", at(1800), at(3600), "received"),
        (HOSTILE, "6", "60", at(1500), at(1560), "received"),
        ("a", "1", "60", at(40), at(100), "received"),
    ]


def test_report_page_names_what_was_left_out(by_hand: Made) -> None:
    """The page says what was left out and where, shows every plot, and takes no queue's name for markup."""
    page = (by_hand.folder / "index.html").read_text(encoding="utf-8")
    assert "6 lines of the history are no events, and left out" in page
    assert "history-20251121T100000.000000Z-00000001.jsonl (6)" in page
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    plots = sorted(path.name for path in (by_hand.folder / "plots").iterdir())
    assert plots == ["depth.png", "handling.png", "redeliveries.png", "throughput.png", "waiting.png"]
    assert page.count("data:image/png;base64,") == len(plots)


def test_every_column_is_documented(by_hand: Made) -> None:
    """`docs/report.md` has a row for each table, and for each column of it, and for no other."""
    text = (PROJECT / "docs" / "report.md").read_text(encoding="utf-8")
    tables = ("per_hour", "queues", "depth", "top_received", "waited_longest")
    for names in (tables[:2], tables[2:3], tables[3:]):
        section = text.partition(f"\n### {', '.join(names)}\n")[2].partition("\n\nWith")[0].partition("\n### ")[0]
        told = set(re.findall("`([a-z0-9_]+)`", "".join(re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE))))
        told |= {"first", "last"} if "queues" in names else set()
        assert told == {column for name in names for column in by_hand.csv(name)[0]}
    assert all(f"| `{name}` |" in text for name in tables)


def test_report_leaves_no_temporary_file(by_hand: Made) -> None:
    """No temporary file remains, and every file that the page names exists."""
    assert sorted(path.name for path in by_hand.folder.parent.iterdir()) == ["100% out"]
    assert not [path for path in by_hand.folder.iterdir() if path.name.startswith(".")]
    named = re.findall(r'<a href="([^"]+)"', (by_hand.folder / "index.html").read_text(encoding="utf-8"))
    assert len(named) == 7
    assert all((by_hand.folder / name).exists() for name in named)


@pytest.fixture(scope="module")
def failing(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("failing")
    (folder / "history").mkdir()
    write_lines(folder / "history" / "history-20251121T100000.000000Z-00000001.jsonl", FAILING)
    with scripted(answering(ServerStats(OF_THE_BUS))) as bus:
        return make(spark, folder / "history", folder / "out", bus=QueueServer(bus.host, bus.port))


OF_THE_BUS = [
    Figure("start_time_seconds", BEGIN.timestamp(), {}),
    Figure("deliveries_total", 5, {}),
    Figure("condition_let_through_total", 5, {"queue": "poison", "where": HOSTILE}),
    Figure("condition_kept_back_total", 15, {"queue": "poison", "where": HOSTILE}),
]


def test_report_has_conditions_of_bus(failing: Made, by_hand: Made) -> None:
    """A report that asked a bus has a table of what its conditions let through and kept back; another has not."""
    assert failing.query("conditions", "*") == [("poison", HOSTILE, 5, 15)]
    page = (failing.folder / "index.html").read_text(encoding="utf-8")
    section = page.partition("<h2>Conditions of the bus</h2>")[2].partition("</section>")[0]
    cells = re.findall(r"<td[^>]*>(?:<bdi>)?([^<]*)", section)
    assert cells == ["poison", html.escape(HOSTILE), "5", "15", "25 %"]
    assert '<a href="conditions.csv">' in page
    other = (by_hand.folder / "index.html").read_text(encoding="utf-8")
    assert "Conditions of the bus" not in other
    assert not list(by_hand.folder.glob("conditions*"))


def test_report_counts_dead_letters(failing: Made) -> None:
    """Dead, redriven and retired messages are counted by the queue that they left, and are no longer in it."""
    columns = "queue, pushed, received, deleted, dead, redriven, retired, at_start, depth, handling_count"
    assert failing.query("queues", columns, "order by queue") == [
        ("failed", 1, 1, 0, 0, 1, 1, 1, 0, 0),
        ("poison", 3, 3, 1, 1, 0, 1, 0, 0, 1),
    ]
    depths = [(row["time"], row["depth"]) for row in failing.csv("depth") if row["queue"] == "failed"]
    assert (depths[0], depths[-1][1]) == ((at(0), "1"), "0")
    assert failing.csv("top_received")[0]["state"] == "dead"
    waited = {(row["queue"], row["mid"]): (row["waited"], row["ended_by"]) for row in failing.csv("waited_longest")}
    assert waited["failed", "80"] == ("200", "redriven")
    assert waited["poison", "90"] == ("100", "retired")


def test_report_page_of_dead_letters(failing: Made, by_hand: Made) -> None:
    """The page says how many there are, and which queues they come from; without any it says that, too."""
    page = (failing.folder / "index.html").read_text(encoding="utf-8")
    assert "<dt>Dead letters</dt><dd>1</dd><dd><bdi>most in poison: 1</bdi></dd>" in page
    assert "<dt>Retired</dt><dd>2</dd>" in page
    section = page.partition("<h2>Dead letters</h2>")[2].partition("</section>")[0]
    cells = re.findall(r"<td[^>]*>(?:<bdi>)?([^<]*)", section)
    assert cells == ["poison", "1", "33 %", "0", "1", "0", "failed", "0", "0 %", "1", "1", "0"]
    other = (by_hand.folder / "index.html").read_text(encoding="utf-8")
    assert "No message was moved to a dead-letter queue or back" in other
    assert "<dt>Dead letters</dt>" not in other


@pytest.fixture(scope="module")
def at_random(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("random")
    history = folder / "history"
    history.mkdir()
    assert len(list(in_files(RANDOM, history, 3))) == 3
    return make(spark, history, folder / "out", top=50)


RANDOM = random_record(3000, seed=7)


@pytest.mark.long  # ten seconds, on two cores
def test_report_agrees_with_plain_python(at_random: Made) -> None:
    """Hour by hour it says what a program says that goes through the events one after the other."""
    told = tell(RANDOM)
    names = ("pushed", "received", "redelivered", "released", "expired", "extended", "deleted")
    ranks = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
    columns = [*names, "depth", *(f"{kind}_{rank}" for kind in ("waiting", "handling") for rank in ranks)]
    found = at_random.query("per_hour", f"queue, epoch_us(hour), {', '.join(columns)}")
    assert {(queue, hour) for queue, hour, *_ in found} == told.hours.keys()
    for queue, hour, *values in found:
        figures = told.hours[queue, hour]
        expected = [figures.counts[name] for name in names]
        expected.append(told.depth(queue, hour + HOUR, RANDOM))
        for times in (figures.waiting, figures.handling):
            expected += [percentile(times, rank) for rank in ranks.values()]  # type: ignore[misc]
        assert dict(zip(columns, values, strict=True)) == dict(zip(columns, expected, strict=True)), (queue, hour)
    assert any(figures.counts["redelivered"] and len(figures.handling) > 20 for figures in told.hours.values())
    assert sum(told.at_start.values()) > 100


@pytest.mark.long  # ten seconds, on two cores
def test_report_lists_agree_with_plain_python(at_random: Made) -> None:
    """Each list has the first fifty, each message once."""
    told = tell(RANDOM)
    longest: dict[tuple[str, int], int] = {}
    for wait, queue, mid, _ in told.waits:
        longest[queue, mid] = max(wait, longest.get((queue, mid), 0))
    waited = at_random.query("waited_longest", "queue, mid, round(waited * 1000000)::bigint, ended_by")
    assert [wait for *_, wait, _ in waited] == sorted(longest.values(), reverse=True)[:50]
    assert all((wait, queue, mid, by) in told.waits for queue, mid, wait, by in waited)
    assert len({row[:2] for row in waited}) == 50
    received = at_random.query("top_received", "queue, mid, receives")
    assert [times for *_, times in received] == sorted(told.receives.values(), reverse=True)[:50]
    assert all(told.receives[queue, mid] == times for queue, mid, times in received)
    assert len(at_random.csv("depth")) <= 3 * 501
    depths = at_random.query("depth", "queue, epoch_us(time), depth")
    assert all(depth == told.depth(queue, time, RANDOM) for queue, time, depth in depths)


@pytest.mark.long  # ten seconds, on two cores
def test_report_of_real_history(spark: SparkSession, tmp_path: Path) -> None:
    """A server's real record is reported completely, and no line is left out. An earlier report is replaced."""
    history, to = tmp_path / "history", tmp_path / "out"
    with serving(tmp_path / "root", *FAST, "--history", str(history)) as server, Wire(server) as wire:
        for queue in ("q", "é$"):
            wire.ask(new_queue(queue))
        [first] = mids(wire.ask(push("q", "12345")))
        wire.ask(push_list("é$", "1", "22"))
        wire.ask(receive("q"))
        wire.ask(release("q", first))
        wire.ask(receive("q", wait=20))
        wire.ask(delete("q", first))
    to.mkdir()
    (to / "report.json").write_text('{"kind": "qs-pipeline report"}')
    (to / "old").touch()
    made = make(spark, history, to, top=1)
    assert (made.summary.events, made.summary.unreadable, made.summary.queues) == (7, 0, 2)
    assert not (to / "old").exists()
    columns = "queue, pushed, received, redelivered, released, deleted, depth, waiting_count, handling_count"
    assert made.query("queues", columns) == [("q", 1, 2, 1, 1, 1, 0, 2, 1), ("é$", 2, 0, 0, 0, 0, 2, 0, 0)]
    [(mid, receives, state)] = made.query("top_received", "mid, receives, state")
    assert (mid, receives, state) == (first, 2, "deleted")


@pytest.mark.long  # ten seconds, on two cores
def test_report_of_real_history_with_dead_letters(spark: SparkSession, tmp_path: Path) -> None:
    """A server's real record of messages that died, were moved back and grew too old is counted by the queues that they
    left."""
    history, to = tmp_path / "history", tmp_path / "out"
    with serving(tmp_path / "root", *FAST, "--history", str(history)) as server, Wire(server) as wire:
        wire.ask(new_queue("jobs", "<options dead-letter='failed' max-receives='1'/>"))
        for payload in ("1", "2", "3"):
            [mid] = mids(wire.ask(push("jobs", payload)))
            wire.ask(receive("jobs"))
            wire.ask(release("jobs", mid))
        wire.ask(request("redrive-messages", "<qid>failed</qid>", max=2))
        [mid] = mids(wire.ask(receive("jobs")))
        wire.ask(delete("jobs", mid))
        wire.ask(request("set-queue", "<qid>failed</qid><options retention='0.001'/>"))
        server.until(lambda: 'retired="1"' in wire.ask(request("queue-stats", "<qid>failed</qid>")))
    made = make(spark, history, to)
    columns = "queue, pushed, received, deleted, dead, redriven, retired, depth"
    assert made.query("queues", columns, "order by queue") == [
        ("failed", 3, 0, 0, 0, 2, 1, 0),
        ("jobs", 5, 4, 1, 3, 0, 0, 1),
    ]
    page = (to / "index.html").read_text(encoding="utf-8")
    assert "<dt>Dead letters</dt><dd>3</dd><dd><bdi>most in jobs: 3</bdi></dd>" in page
    assert "<dt>Retired</dt><dd>1</dd>" in page


def refusals(tmp_path: Path) -> Iterator[tuple[Path, Path, str]]:
    out = tmp_path / "out"
    good = tmp_path / "good"
    good.mkdir()
    write_lines(good / "history-1.jsonl", [line(0, "pushed", "q", 1, 0)])
    yield tmp_path / "none", out, f"there is no directory {tmp_path / 'none'}"
    yield good / "history-1.jsonl", out, "history-1.jsonl is a file"
    empty = tmp_path / "empty"
    empty.mkdir()
    yield empty, out, "no finished history file (history-*.jsonl) in"
    (empty / ".history-2.jsonl").touch()
    yield empty, out, "one is being written"
    full = tmp_path / "full"
    full.mkdir()
    (full / "report.json").write_text('{"kind": "other"}')
    yield good, full, f"{full} is neither empty nor an earlier report"
    yield good, good / "history-1.jsonl", "is a file: name a directory for the report"


@pytest.mark.long  # seconds, on two cores
def test_report_refuses_input_and_target(spark: SparkSession, tmp_path: Path) -> None:
    """Unreadable input and an occupied target are refused with one line, and nothing is changed."""
    for history, to, told in refusals(tmp_path):
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(UsageError) as refused:
            report(spark, history, to)
        assert told in str(refused.value)
        assert sorted(tmp_path.rglob("*")) == before
    for top in (0, 1001):
        with pytest.raises(UsageError, match="1 to 1,000 messages"):
            report(spark, tmp_path / "good", tmp_path / "out", top=top)
    with pytest.raises(UsageError, match="is not a path of this machine"):
        report(spark, tmp_path / "good", "s3://bucket/report")


@pytest.mark.long  # seconds, on two cores
def test_report_of_history_without_events(spark: SparkSession, tmp_path: Path) -> None:
    """Files without a single event, or that Spark cannot read, end it: nothing is written, nothing left."""
    history, to = tmp_path / "history", tmp_path / "out"
    history.mkdir()
    write_lines(history / "history-1.jsonl", ["no JSON"])
    with pytest.raises(UsageError, match="none of its 1 lines is of a server"):
        report(spark, history, to)
    (history / "history-2.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(PipelineError):
        report(spark, history, to)
    assert [path.name for path in tmp_path.iterdir()] == ["history"]

"""Metrics: what Prometheus gets, from whom, and how much of it."""

import re
from pathlib import Path

import httpx
import pytest
from support.servers.figures import needs_prometheus, needs_promtool, prometheus, promtool
from support.servers.processes import FAST, ServerProcess, serving
from support.servers.web import visitor, web_serving

from qs_client import QueueClient

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def client_of(server: ServerProcess) -> QueueClient:
    return QueueClient(server.host, server.port)


def values(text: str) -> dict[str, float]:
    """The samples of an exposition, by name and labels as they are written."""
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


def test_the_text_format(browser: httpx.Client, shared_server: ServerProcess, qid: str) -> None:
    """The figures of the server with a prefix, and sums over all queues."""
    with client_of(shared_server) as client:
        before = values(browser.get("/metrics").text)
        client.push(qid, b"x")
        answer = browser.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    after = values(answer.text)
    assert after["qs_up"] == 1
    pushes = 'qs_requests_total{code="200",operation="push-message"}'
    assert after[pushes] == before.get(pushes, 0) + 1
    assert after["qs_messages_pushed_total"] == before["qs_messages_pushed_total"] + 1
    durations = 'qs_request_duration_seconds_bucket{le="+Inf",operation="push-message"}'
    assert after[durations] == after[pushes]
    assert after["qs_queues"] >= 1
    assert after["qs_messages_ready"] >= 1
    assert not re.search(r'\bqueue="', answer.text), "the names of queues are in /metrics/queues only"
    assert "peer=" not in answer.text, "there must not be a series for each client"


def test_openmetrics(browser: httpx.Client) -> None:
    """OpenMetrics is answered on request."""
    answer = browser.get("/metrics", headers={"accept": OPENMETRICS})
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert answer.text.endswith("# EOF\n")


@pytest.mark.parametrize("version", ["abc", "1.x.0", "", ";;="])
def test_a_format_that_there_is_not(browser: httpx.Client, version: str) -> None:
    """A version that nobody can have meant is still answered."""
    answer = browser.get("/metrics", headers={"accept": f"application/openmetrics-text; version={version}"})
    assert answer.status_code == 200
    assert "qs_up 1.0" in answer.text


@pytest.mark.parametrize("path", ["/metrics", "/metrics/queues"])
def test_a_token_that_nobody_needs(browser: httpx.Client, path: str) -> None:
    """A server without an access file takes no token; the page says so, and not that the server is down."""
    answer = browser.get(path, headers={"authorization": "Bearer token"})
    assert answer.status_code == 501
    assert answer.text.startswith("this server has no access file")


@needs_promtool
def test_promtool_finds_nothing_wrong(browser: httpx.Client, qid: str) -> None:
    """Names, units and help are as Prometheus wants them."""
    promtool("check", "metrics", given=browser.get("/metrics").text)
    promtool("check", "metrics", given=browser.get("/metrics/queues").text)


def test_each_queue(browser: httpx.Client, shared_server: ServerProcess, qid: str) -> None:
    """The queues that an expression matches as a whole, with what is known of them."""
    with client_of(shared_server) as client:
        client.push(qid, b"x", delay=1000)
        client.push(qid, b"y")
        client.pause(qid)
    found = values(browser.get("/metrics/queues", params={"queue": re.escape(qid)}).text)
    assert found[f'qs_queue_messages{{queue="{qid}",state="ready"}}'] == 1
    assert found[f'qs_queue_messages{{queue="{qid}",state="delayed"}}'] == 1
    assert found[f'qs_queue_paused{{queue="{qid}"}}'] == 1
    assert found[f'qs_queue_limited{{queue="{qid}"}}'] == 0
    assert found[f'qs_queue_messages_pushed_total{{queue="{qid}"}}'] == 2
    assert found[f'qs_queue_oldest_ready_timestamp_seconds{{queue="{qid}"}}'] > 1e9
    assert {label for name in found for label in re.findall(r'queue="(.*?)"', name)} == {qid}
    assert not values(browser.get("/metrics/queues", params={"queue": qid[:-1]}).text)


def test_a_limited_queue(browser: httpx.Client, shared_server: ServerProcess, qid: str) -> None:
    """A queue whose options keep back what waits is told apart from one that is paused."""
    with client_of(shared_server) as client:
        client.push_many(qid, ["x", "y"])
        client.set_queue(qid, max_in_flight=1)
        client.receive(qid)
    found = values(browser.get("/metrics/queues", params={"queue": re.escape(qid)}).text)
    assert (found[f'qs_queue_limited{{queue="{qid}"}}'], found[f'qs_queue_paused{{queue="{qid}"}}']) == (1, 0)


def test_a_queue_with_a_hostile_name(browser: httpx.Client, shared_server: ServerProcess) -> None:
    """A name is a label's value, whatever is in it."""
    with client_of(shared_server) as client:
        client.new_queue('a"b\\c{}<script>')
    text = browser.get("/metrics/queues", params={"queue": ".*script.*"}).text
    assert 'qs_queue_paused{queue="a\\"b\\\\c{}<script>"} 0.0' in text


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("(", "?queue= is not a regular expression: missing )"),
        ("(a|a)+[bc]", "takes too long"),
        ("a" * 257, "more than 256 characters"),
        ("(?:" * 36 + "a" + "){9}" * 36, "repeats a part more than 1000 times"),
        ("(?x)" + "(?:" * 20 + "a" + "){ 9 }" * 20, "repeats a part more than 1000 times"),
        (r"(?:\\{99}){99}", "repeats a part more than 1000 times"),
    ],
)
def test_bad_patterns(browser: httpx.Client, shared_server: ServerProcess, qid: str, pattern: str, text: str) -> None:
    """A pattern that is wrong, or that would take for ever, is refused with a line."""
    with client_of(shared_server) as client:
        client.new_queue(f"{'a' * 100}{len(pattern)}")
    answer = browser.get("/metrics/queues", params={"queue": pattern})
    assert answer.status_code == 400
    assert text in answer.text


def test_too_many_queues(tmp_path: Path) -> None:
    """An answer has at most 1000 queues."""
    with serving(tmp_path / "root", *FAST) as server, web_serving(tmp_path, server) as web, visitor(web) as browser:
        with client_of(server) as client:
            for number in range(1001):
                client.new_queue(f"q{number}")
        answer = browser.get("/metrics/queues")
        assert (answer.status_code, answer.text) == (
            400,
            "1001 queues match, and at most 1000 are shown: narrow ?queue=REGEX\n",
        )
        assert browser.get("/metrics/queues", params={"queue": "q1.*"}).status_code == 200


def test_the_server_is_gone(tmp_path: Path) -> None:
    """A scrape says so, and the checks do."""
    with serving(tmp_path / "root", *FAST) as server, web_serving(tmp_path, server) as web, visitor(web) as browser:
        assert browser.get("/readyz").status_code == 200
        server.kill()
        assert values(browser.get("/metrics").text) == {"qs_up": 0}
        assert browser.get("/metrics/queues").status_code == 503
        ready = browser.get("/readyz")
        assert ready.status_code == 503
        assert ready.text.startswith("failed: server: ")
        assert browser.get("/livez").text == "ok: the page answers\n"


def test_all_is_well(browser: httpx.Client) -> None:
    """Each check says what it found."""
    lines = browser.get("/readyz").text.splitlines()
    assert [line.rpartition(": ")[0] for line in lines] == ["ok: server", "ok: journal", "ok: disk"]


@pytest.mark.slow  # 10 seconds
@needs_prometheus
def test_prometheus_scrapes_and_reports(tmp_path: Path) -> None:
    """Prometheus, as it is configured in packaging, reports that a message went to the dead-letter queue."""
    with (
        serving(tmp_path / "root", *FAST) as server,
        web_serving(tmp_path, server) as web,
        client_of(server) as client,
        prometheus(tmp_path, f"{web.host}:{web.port}") as alerts,
    ):
        client.new_queue("orders", dead_letter="orders-dead", max_receives=1)
        client.push("orders", b"poison")
        alerts.fired("Scraped")
        message = client.receive("orders")[0]
        client.release(message)
        fired = alerts.fired("QsDeadLetters")
    assert fired["labels"]["severity"] == "warning"
    assert fired["annotations"]["summary"]

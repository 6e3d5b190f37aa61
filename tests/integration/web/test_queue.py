"""The page of one queue, and of one message: nothing is received by looking, and payloads are never HTML."""

import html
import json
import re

import httpx
import pytest

from qs_client import QueueClient, Reject


def facts(page: str) -> dict[str, str]:
    """The names and values of all lists of figures on a page."""
    pairs = re.findall(r"<dt>(.*?)</dt><dd[^>]*>(.*?)</dd>", page, re.DOTALL)
    return {name: html.unescape(re.sub(r"<[^>]*>", "", value)).strip() for name, value in pairs}


def payload_of(page: str) -> str:
    """The payload as the page of a message shows it."""
    (shown,) = re.findall(r'<pre class="payload-view"[^>]*>(.*?)</pre>', page, re.DOTALL)
    return html.unescape(shown)


def reason_of(browser: httpx.Client, qid: str, mid: int) -> str:
    """The last reason as the page of a message shows it."""
    page = browser.get("/message", params={"q": qid, "id": mid}).text
    (shown,) = re.findall(r'<pre[^>]* aria-label="Last reason">(.*?)</pre>', page, re.DOTALL)
    return html.unescape(shown)


def ids(page: str) -> list[int]:
    return [int(mid) for mid in re.findall(r'<tr data-key="(\d+)">', page)]


def test_figures(browser: httpx.Client, client: QueueClient, qid: str) -> None:
    """The page has the counts by state, the size, and what was done since the start."""
    client.push_many(qid, ["a", "bb", "ccc"])
    client.delete(client.receive(qid)[0])
    client.receive(qid)
    shown = facts(browser.get("/queue", params={"q": qid}).text)
    assert {key: shown[key] for key in ("Ready", "In flight", "Delayed", "Pushed", "Deleted", "Storage")} == {
        "Ready": "1", "In flight": "1", "Delayed": "0", "Pushed": "3", "Deleted": "1", "Storage": "journal",
    }  # fmt: skip


def test_messages_by_state(browser: httpx.Client, client: QueueClient, qid: str) -> None:
    """Each state has its messages, and looking at them receives none."""
    mids = client.push_many(qid, ["one", "two", "three"])
    delayed = client.push(qid, "later", delay=3600)
    taken = client.receive(qid, max=2)
    client.release(taken[1])

    def shown(state: str) -> list[int]:
        return ids(browser.get("/queue", params={"q": qid, "state": state}).text)

    for _ in range(2):
        assert shown("all") == [*mids, delayed]
        assert shown("ready") == mids[1:]
        assert shown("new") == [*mids[2:], delayed]
        assert shown("in-flight") == mids[:1]
        assert shown("delayed") == [delayed]
    assert [message.mid for message in client.receive(qid, max=10)] == mids[1:]


def test_pages_of_messages(browser: httpx.Client, client: QueueClient, qid: str) -> None:
    """25 messages on a page; the next one begins after the last id."""
    mids = client.push_many(qid, [str(number) for number in range(60)])
    found: list[int] = []
    after = None
    for _ in range(3):
        page = browser.get("/queue", params={"q": qid, "after": after} if after else {"q": qid}).text
        found += ids(page)
        after = found[-1]
    assert found == mids
    assert 'rel="next"' not in page
    assert 'rel="next"' in browser.get("/queue", params={"q": qid}).text


@pytest.mark.parametrize("payload", [
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "</pre><script>alert(1)</script>",
    '<a xmlns="http://www.w3.org/1999/xhtml"><script>alert(1)</script></a>', '{"a": "<script>alert(1)</script>"}',
    "javascript:alert(1)", "\"><script>alert(1)</script>", "<!--<script>alert(1)</script>",
    "]]><script>alert(1)</script>",
])  # fmt: skip
def test_payloads_are_never_html(browser: httpx.Client, client: QueueClient, qid: str, payload: str) -> None:
    """A payload that is HTML is shown as the text that it is, in the table, on its page, and as a file."""
    mid = client.push(qid, payload)
    for page in (
        browser.get("/queue", params={"q": qid}),
        *(browser.get("/message", params={"q": qid, "id": mid, "view": view}) for view in ("pretty", "text", "hex")),
    ):
        assert page.status_code == 200
        assert "<script>alert" not in page.text
        assert "<img src=x" not in page.text
        assert page.text.count("<script") == 1  # the page's own
    saved = browser.get("/payload", params={"q": qid, "id": mid})
    assert saved.content == payload.encode()
    assert saved.headers["content-type"] == "application/octet-stream"
    assert saved.headers["content-disposition"] == f'attachment; filename="{mid}.bin"'
    assert saved.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in saved.headers["content-security-policy"]


def test_json_is_indented(browser: httpx.Client, client: QueueClient, qid: str) -> None:
    """JSON has one member a line; numbers and strings stay as they were written."""
    mid = client.push(qid, '{"a": 1.0e5, "b": [1, {}, []], "b": "\\u00e9"}')
    shown = payload_of(browser.get("/message", params={"q": qid, "id": mid}).text)
    assert shown == '{\n  "a": 1.0e5,\n  "b": [\n    1,\n    {},\n    []\n  ],\n  "b": "\\u00e9"\n}'
    assert json.loads(shown)


def test_xml_is_indented(browser: httpx.Client, client: QueueClient, qid: str) -> None:
    """XML has one element a line. A document type is not read: such a payload is shown as it is."""
    mid = client.push(qid, "<order><item>1</item><item>2</item></order>")
    shown = payload_of(browser.get("/message", params={"q": qid, "id": mid}).text)
    assert shown == "<order>\n  <item>1</item>\n  <item>2</item>\n</order>"
    bomb = '<!DOCTYPE a [<!ENTITY b "boom"><!ENTITY c SYSTEM "file:///etc/passwd">]><a>&b;&c;</a>'
    mid = client.push(qid, bomb)
    assert payload_of(browser.get("/message", params={"q": qid, "id": mid}).text) == bomb


def test_headers_and_what_orders_a_message(browser: httpx.Client, client: QueueClient, qid: str) -> None:
    """The page of a message has its headers in their order, its priority, group and end, all of them escaped. A plain
    message has none of this."""
    headers = {"traceparent": "00-4bf92f35-00f067aa-01", "note": "<script>alert(1)</script>\u202e"}
    mid = client.push(qid, "x", priority=7, group="<b>", expires=3600, headers=headers)
    page = browser.get("/message", params={"q": qid, "id": mid}).text
    shown = facts(page)
    assert (shown["Priority"], shown["Group"], shown["traceparent"]) == ("7", "<b>", headers["traceparent"])
    assert shown["note"] == "<script>alert(1)</script>\ufffd"
    assert page.index("<dt>traceparent") < page.index("<dt>note")
    assert shown["Expires"].endswith(" UTC")
    assert page.count("<script") == 1
    assert "<b>" not in page
    plain = client.push(qid, "x")
    page = browser.get("/message", params={"q": qid, "id": plain}).text
    assert "Headers</h2>" not in page
    assert not {"Priority", "Group", "Expires"} & set(facts(page))


def test_content_type(browser: httpx.Client, client: QueueClient, qid: str) -> None:
    """A content type decides how a payload is shown, and makes nothing HTML: an image is a size and a file to save,
    which has the safe type that every file has."""
    page = "<html><script>alert(1)</script></html>"
    mid = client.push(qid, page, headers={"Content-Type": "text/html"})
    answer = browser.get("/message", params={"q": qid, "id": mid}).text
    assert payload_of(answer) == page
    assert answer.count("<script") == 1
    mid = client.push(qid, page, headers={"content-type": "image/svg+xml"})
    answer = browser.get("/message", params={"q": qid, "id": mid, "view": "text"}).text
    assert "An image of 38 B, says its content type: save it to see it." in answer
    assert 'class="payload-view"' not in answer
    saved = browser.get("/payload", params={"q": qid, "id": mid})
    assert saved.headers["content-type"] == "application/octet-stream"
    assert "sandbox" in saved.headers["content-security-policy"]


def test_why_nothing_comes_out(browser: httpx.Client, client: QueueClient, qid: str) -> None:
    """The page says in a word why no message can be had; and nothing if one can be had."""

    def reason() -> str:
        (heading,) = re.findall(r"<h1>.*?</h1>", browser.get("/queue", params={"q": qid}).text)
        return "".join(re.findall(r'<span class="badge[^>]*>(.*?)</span>', heading))

    assert reason() == "empty"
    mid = client.push(qid, "later", delay=3600)
    assert reason() == "delayed"
    client.delete_many(qid, [mid])
    client.push_many(qid, ["a", "b"])
    assert reason() == ""
    client.set_queue(qid, max_in_flight=1)
    client.receive(qid)
    assert reason() == "limited by max-in-flight"
    client.pause(qid)
    assert reason() == "paused"
    client.resume(qid)
    client.set_queue(qid, max_in_flight=None)
    client.receive(qid)
    assert reason() == "in flight"


def test_binary_is_hexadecimal(browser: httpx.Client, client: QueueClient, qid: str) -> None:
    """Bytes that are no text are shown in hexadecimal, 4 KiB at a time."""
    mid = client.push(qid, bytes(range(256)) * 32)
    page = browser.get("/message", params={"q": qid, "id": mid})
    assert payload_of(page.text).startswith("00000000  00 01 02 03 04 05 06 07  08 09 0a 0b")
    assert "Next 4 KiB" in page.text
    rest = browser.get("/message", params={"q": qid, "id": mid, "view": "hex", "offset": 4096}).text
    assert payload_of(rest).startswith("00001000  00 01 02")
    assert "Next 4 KiB" not in rest


def test_a_large_payload(browser: httpx.Client, client: QueueClient, qid: str) -> None:
    """The page shows the beginning of a payload of megabytes; all of it can be saved. The table of messages has one
    of them, and is asked for less often."""
    large = "0123456789" * 400_000
    mids = client.push_many(qid, [large, large, "small"])
    page = browser.get("/message", params={"q": qid, "id": mids[0]})
    assert len(page.content) < 400_000
    assert "more characters are not shown" in page.text
    assert browser.get("/payload", params={"q": qid, "id": mids[0]}).content == large.encode()
    table = browser.get("/queue", params={"q": qid})
    assert len(table.content) < 50_000
    assert ids(table.text) == mids
    assert table.text.count("3.8 MiB</td>") == 1
    assert table.text.count("not shown here") == 2
    assert 'data-live="10000"' in table.text
    assert 'data-live="2000"' in browser.get("/queue", params={"q": qid, "after": mids[1]}).text


def test_in_flight_and_dead_letters(browser: httpx.Client, client: QueueClient, qid: str) -> None:
    """A message in flight has its payload and the end of its window. A dead letter shows where it came from."""
    dead = f"{qid}-dead"
    client.set_queue(qid, dead_letter=dead, max_receives=1)
    old = client.push(qid, "tried once")
    taken = client.receive(qid)[0]
    page = browser.get("/message", params={"q": qid, "id": old}).text
    assert payload_of(page) == "tried once"
    assert browser.get("/payload", params={"q": qid, "id": old}).content == b"tried once"
    assert facts(page)["Receives"] == "1"
    assert facts(page)["Visible"].endswith(" UTC")
    client.release(taken)
    (mid,) = client.list_messages(dead, state="all")
    shown = facts(browser.get("/message", params={"q": dead, "id": mid}).text)
    wanted = {"Came from": qid, "Its id there": str(old), "Receives there": "1", "Because of": "too many receives"}
    assert {name: shown[name] for name in wanted} == wanted
    assert "Move back" in browser.get("/queue", params={"q": dead}).text


def test_the_reason_of_a_failed_job(browser: httpx.Client, client: QueueClient, qid: str) -> None:
    """The reason that the `handling` of a worker sent stands beside the message in the list and on its own page,
    while it waits for the next try and when it is a dead letter, which says too whether it was rejected."""
    dead = f"{qid}-dead"
    client.set_queue(qid, dead_letter=dead, max_receives=2, backoff=600)
    failed = client.push(qid, "some pears")
    with pytest.raises(ValueError, match="not a number"), client.handling(client.receive(qid)[0]):
        raise ValueError("<b>some</b> is not a number")
    page = browser.get("/queue", params={"q": qid, "state": "delayed"}).text
    assert ids(page) == [failed]
    assert "<bdi>ValueError: &lt;b&gt;some&lt;/b&gt; is not a number</bdi>" in page
    assert reason_of(browser, qid, failed) == "ValueError: <b>some</b> is not a number"
    rejected = client.push(qid, "no fruit")
    with client.handling(client.receive(qid)[0]):
        raise Reject("no such fruit")
    client.set_queue(qid, max_receives=1)
    client.push(qid, "more pears")
    with pytest.raises(KeyError), client.handling(client.receive(qid)[0]):
        raise KeyError("more")
    letters = browser.get("/queue", params={"q": dead}).text
    assert "rejected: <bdi>no such fruit</bdi>" in letters
    assert "too many receives: <bdi>KeyError: &#39;more&#39;</bdi>" in letters
    by_origin = {client.peek(dead, mid).dead_mid: mid for mid in ids(letters)}
    assert reason_of(browser, dead, by_origin[rejected]) == "no such fruit"


def test_running_and_scheduled_messages(browser: httpx.Client, client: QueueClient, qid: str) -> None:
    """The tabs of messages in flight and of delayed ones have their payloads, and when each is visible again."""
    client.push_many(qid, ["<running>", "ready"])
    client.push(qid, "<scheduled>", delay=3600)
    client.receive(qid)
    for state, payload in (("in-flight", "&lt;running&gt;"), ("delayed", "&lt;scheduled&gt;")):
        page = browser.get("/queue", params={"q": qid, "state": state}).text
        assert re.findall(r"<code><bdi>(.*?)</bdi>", page) == [payload]
        assert '<th scope="col" class="wide">Visible</th>' in page
        assert len(re.findall(r'<td class="wide time" title="[\d-]+ [\d:]+ UTC">in \d+ [^<]*</td>', page)) == 1
    ready = browser.get("/queue", params={"q": qid, "state": "ready"}).text
    assert '<th scope="col" class="wide">Visible</th>' not in ready


def test_one_request_for_a_page(browser: httpx.Client, client: QueueClient, qid: str) -> None:
    """Looking at a page of 25 messages takes the server one list of ids and one get-message, as few as for one."""

    def asked() -> dict[str, float]:
        figures = client.server_stats()
        return {
            each.labels["operation"]: each.value
            for each in figures
            if each.name == "requests_total" and each.labels["code"] == "200"
        }

    client.push_many(qid, [str(number) for number in range(30)])
    client.receive(qid, max=3)
    browser.get("/queue", params={"q": qid})
    before = asked()
    page = browser.get("/queue", params={"q": qid}).text
    after = asked()
    assert len(ids(page)) == 25
    assert {op: count - before.get(op, 0) for op, count in after.items() if count != before.get(op, 0)} == {
        "queue-stats": 1, "list-messages": 1, "get-message": 1, "get-queue": 1, "server-stats": 1,
    }  # fmt: skip


def test_messages_of_a_claim(browser: httpx.Client, client: QueueClient, qid: str) -> None:
    """A message that a claim holds is in the table, and its page says why there is no payload."""
    mid = client.push(qid, "claimed")
    client.claim_messages(qid, "reader", 1)
    page = browser.get("/queue", params={"q": qid}).text
    assert ids(page) == [mid]
    assert "not shown here, as a claim holds it" in page
    one = browser.get("/message", params={"q": qid, "id": mid})
    assert "The payload is not shown while a claim holds the message." in one.text
    assert 'value="release"' not in one.text
    assert browser.get("/payload", params={"q": qid, "id": mid}).status_code == 409


@pytest.mark.parametrize(("taken", "delayed", "label"), [
    (0, 0, None), (1, 0, "Release"), (0, 1, "Make visible now"), (1, 1, "Release or make visible"),
])  # fmt: skip
def test_what_can_be_released(
    browser: httpx.Client, client: QueueClient, qid: str, taken: int, delayed: int, label: str | None
) -> None:
    """Only what is hidden has a button that makes it visible: not a message that is ready."""
    mids = client.push_many(qid, ["a", "b"])
    if taken:
        client.receive(qid)
    if delayed:
        mids.append(client.push(qid, "c", delay=3600))

    def labels(page: str) -> list[str]:
        return re.findall(r'value="release"[^>]*>(.*?)<', page)

    assert labels(browser.get("/queue", params={"q": qid}).text) == ([label] if label else [])
    each = [labels(browser.get("/message", params={"q": qid, "id": mid}).text) for mid in mids]
    assert each == [["Release"] * taken, [], *[["Make visible now"]] * delayed]


@pytest.mark.parametrize(("address", "status"), [
    ("/queue", 400), ("/queue?q=missing", 404), ("/message?q=missing&id=1", 404), ("/message?q=x&id=abc", 400),
    ("/message?q=x", 400), ("/queue?q=%01", 400), ("/queue?q=" + "x" * 300, 400), ("/nothing", 404),
    ("/payload?q=missing&id=1", 404), ("/static/../app.py", 404), ("/static/%2e%2e%2fapp.py", 404),
    ("/queue?q=%ff%fe", 404), ("/bus", 404),
])  # fmt: skip
def test_addresses_of_nothing(browser: httpx.Client, address: str, status: int) -> None:
    """An address of nothing gets a page that says so, with an error status."""
    answer = browser.get(address)
    assert answer.status_code == status, answer.text
    assert "Traceback" not in answer.text

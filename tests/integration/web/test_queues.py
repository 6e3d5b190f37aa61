"""The page of all queues: what it shows, its filter, order and pages, and what its forms do to several queues."""

import html
import re
import time
from collections.abc import Callable
from itertools import chain
from urllib.parse import urlencode

import httpx
import pytest
from support.clients.documents import receive, subscribe
from support.servers.processes import FAST, ServerProcess, Wire, serving
from support.servers.web import visitor, web_serving

from qs_bus.feeds import DurableName
from qs_bus.queue_names import counts_queue_of, queue_of
from qs_client import QueueClient
from qs_web.amounts import NONE
from qs_web.queue_list import PAGE

Look = Callable[..., str]


def names(page: str) -> list[str]:
    """The queues in the table, from top to bottom."""
    return [html.unescape(name) for name in re.findall(r'<tr data-key="([^"]*)">', page)]


def row_of(page: str, qid: str) -> list[str]:
    """The text of the cells of a queue."""
    (row,) = re.findall(rf'<tr data-key="{re.escape(html.escape(qid))}">(.*?)</tr>', page, re.DOTALL)
    cells = re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL)
    return [" ".join(re.sub(r"<[^>]*>", " ", cell).split()) for cell in cells]


def test_a_queue_in_the_table(look: Look, client: QueueClient, qid: str) -> None:
    """A row has the numbers of messages by state, and the age of the head."""
    client.push_many(qid, ["a", "b", "c"])
    client.push(qid, "later", delay=3600)
    client.receive(qid)
    cells = row_of(look(filter=qid), qid)
    assert cells[1:5] == [qid, "2", "1", "1"]
    assert cells[5:7] == [NONE, "0"]  # dead letters, consumers
    assert cells[7].endswith(" s")


def test_dead_letters_that_wait(look: Look, client: QueueClient, qid: str) -> None:
    """A queue has the number of messages that are in its dead-letter queue now, not of those that were moved there
    since the start; two queues may share one, and the sum counts it once."""
    dead = f"{qid}-failed"
    other = f"{qid}-other"
    client.new_queue(other, dead_letter=dead, max_receives=1)
    client.set_queue(qid, dead_letter=dead, max_receives=1)
    assert row_of(look(filter=qid), qid)[5] == "0"  # there is no such queue yet
    before = letters_in_all(look())
    client.push_many(qid, ["a", "b", "c"])
    for message in client.receive(qid, max=3):
        client.release(message)
    client.delete(client.receive(dead)[0])
    page = look(filter=qid)
    assert [row_of(page, name)[5] for name in (qid, other, dead)] == ["2", "2", NONE]
    assert f'<a href="/queue?q={dead}" title="in {dead}" class="bad">2</a>' in page
    assert letters_in_all(page) == before + 2
    assert names(look(filter=qid, only="dead")) == [qid, other]
    assert names(look(filter=qid, sort="-dead"))[-1] == dead
    client.purge(dead)
    assert row_of(look(filter=qid), qid)[5] == "0"
    assert names(look(filter=qid, only="dead")) == []


def letters_in_all(page: str) -> int:
    """Returns how many dead letters wait on the server."""
    (number,) = re.findall(r"<dt>Dead letters</dt><dd>([\d,]+)</dd>", page)
    return int(number.replace(",", ""))


def test_consumers(look: Look, client: QueueClient, shared_server: ServerProcess, qid: str) -> None:
    """The column of consumers has the subscriptions of a queue and the receives that wait for it."""
    with Wire(shared_server) as subscriber, Wire(shared_server) as receiver:
        subscriber.ask(subscribe(qid))
        receiver.send(receive(qid, wait=30))
        end = time.monotonic() + 20
        while client.stats(qid)[0].waiting != 1:
            assert time.monotonic() < end
        page = look(filter=qid)
        assert row_of(page, qid)[6] == "2"
        assert 'title="1 subscribed, 1 waiting"' in page
    client.new_queue(f"{qid}-idle")
    assert names(look(filter=qid, sort="consumers"))[0] in {f"{qid}-idle", qid}


def test_queues_of_the_bus(look: Look, client: QueueClient, qid: str) -> None:
    """The queues that a bus keeps for durable names and for itself have a table of their own: open while they are few,
    else folded, with the first of them, and all of them on pages of their own."""
    kept = [queue_of(DurableName(qid, "billing", "ann")), queue_of(DurableName(qid, "audit")), counts_queue_of(qid, 1)]
    for name in kept:
        client.new_queue(name)
    page = look(filter=qid)
    main, _, bus = page.partition('<h2 id="bus">Queues of the bus</h2>')
    assert (names(main), names(bus)) == ([qid], sorted(kept))
    assert "<details class" not in bus
    for number in range(PAGE):
        client.new_queue(queue_of(DurableName(qid, f"name-{number}")))
    main, _, bus = look(filter=qid).partition("<summary>Queues of the bus (53)</summary>")
    assert (names(main), len(names(bus))) == ([qid], PAGE)
    (link,) = re.findall(r'<a href="([^"]*)">all of them</a>', bus)
    assert html.unescape(link) == f"/?sort=name&filter={qid}&only=bus"
    assert len(names(look(filter=qid, only="bus", page="2"))) == 3
    for name in client.queues():
        if qid in name:
            client.delete_queue(name, force=True)


def test_filter_and_kinds(look: Look, client: QueueClient, qid: str) -> None:
    """The filter takes part of a name, whatever its case; the kinds leave out queues that are not asked for."""
    for name in ("Apples", "apples-dead", "pears"):
        client.new_queue(f"{qid}-{name}")
    client.push(f"{qid}-apples-dead", "x")
    client.pause(f"{qid}-pears")

    def asked(**query: str) -> list[str]:
        return [name.removeprefix(f"{qid}-") for name in names(look(**query))]

    assert asked(filter=f"{qid}-APPLES") == ["Apples", "apples-dead"]
    assert asked(filter=f"{qid}-", only="messages") == ["apples-dead"]
    assert asked(filter=f"{qid}-", only="paused") == ["pears"]
    assert asked(filter=f"{qid}-", only="no-such-kind") == ["Apples", "apples-dead", "pears"]
    client.set_queue(f"{qid}-Apples", max_in_flight=1)
    client.push_many(f"{qid}-Apples", ["x", "y"])
    assert asked(filter=f"{qid}-", only="limited") == []
    client.receive(f"{qid}-Apples")
    assert asked(filter=f"{qid}-", only="limited") == ["Apples"]
    reasons = dict(re.findall(rf"<bdi>{qid}-(\S+)</bdi></a>(?: <span [^>]*>(.*?)</span>)?", look(filter=f"{qid}-")))
    assert reasons == {"Apples": "limited by max-in-flight", "apples-dead": "", "pears": "paused"}


def test_order(look: Look, client: QueueClient, qid: str) -> None:
    """Each column sorts, up and down; the head of the table says so to screen readers."""
    for number, name in enumerate(("b", "a", "c")):
        client.new_queue(f"{qid}-{name}")
        client.push_many(f"{qid}-{name}", ["x"] * (number + 1))

    def order(sort: str) -> str:
        return "".join(name[-1] for name in names(look(filter=f"{qid}-", sort=sort)))

    assert [order("name"), order("-name"), order("ready"), order("-ready")] == ["abc", "cba", "bac", "cab"]
    for column in ("in-flight", "delayed", "dead", "oldest", "in", "out", "storage", "nonsense"):
        assert sorted(order(column)) == ["a", "b", "c"]
    assert 'aria-sort="descending"><a href="/?sort=ready' in look(sort="-ready")


def test_pages(look: Look, client: QueueClient, qid: str) -> None:
    """50 queues on a page. A page that there is not shows the last."""
    wanted = [f"{qid}-{number:03d}" for number in range(120)]
    for name in wanted:
        client.new_queue(name)
    found = [names(look(filter=f"{qid}-", page=str(number))) for number in (1, 2, 3)]
    assert [len(page) for page in found] == [50, 50, 20]
    assert list(chain(*found)) == wanted
    assert names(look(filter=f"{qid}-", page="99999999999999999999")) == found[0]
    assert names(look(filter=f"{qid}-", page="77")) == found[2]


NAMES = ["<script>alert(1)</script>", "a/b", "..", "a&b=c#d?", "Ä é 漢 🍎", '"', "'", "%2e%2f", "\u202eevil"]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_names(look: Look, browser: httpx.Client, client: QueueClient, name: str) -> None:
    """Any name that the protocol allows is shown as text, and its link leads to its page."""
    client.new_queue(name, exist_ok=True)
    page = look(filter=name)
    assert "<script>alert" not in page
    links = dict(zip(names(page), re.findall(r'class="name"><a href="([^"]*)"', page), strict=True))
    answer = browser.get(html.unescape(links[name]))
    assert answer.status_code == 200
    assert f"<h1><bdi>{html.escape(name, quote=False)}" in answer.text.replace("&#39;", "'").replace("&#34;", '"')
    assert "<script>alert" not in answer.text


def test_several_at_once(browser: httpx.Client, client: QueueClient, qid: str) -> None:
    """The checked queues are paused and resumed; the next page says how many."""
    chosen = [qid, f"{qid}-2"]
    client.new_queue(chosen[1])
    answer = browser.post("/queues", data={"do": "pause", "q": chosen})
    assert answer.status_code == 303
    assert "Paused 2 queues." in browser.get(answer.headers["location"]).text
    assert [client.stats(each)[0].paused for each in chosen] == [True, True]
    browser.post("/queues", data={"do": "resume", "q": chosen})
    assert [client.stats(each)[0].paused for each in chosen] == [False, False]


def test_nothing_checked(browser: httpx.Client) -> None:
    """Without a checked queue nothing is done, and the page says so."""
    answer = browser.post("/queues", data={"do": "pause"})
    assert "Nothing was selected." in browser.get(answer.headers["location"]).text
    assert browser.post("/queues", data={"do": "explode", "q": "a"}).status_code == 400


def test_new_queue(browser: httpx.Client, client: QueueClient) -> None:
    """A queue is made, and its page shown. One that is there already is the server's 409."""
    answer = browser.post("/new", data={"q": "made here", "storage": ""})
    assert answer.headers["location"] == "/queue?" + urlencode({"q": "made here", "done": "created"})
    assert "made here" in client.queues()
    again = browser.post("/new", data={"q": "made here"})
    assert again.status_code == 409
    assert "already an existing queue" in again.text
    assert browser.post("/new", data={"q": ""}).status_code == 400


def test_delete_queues(browser: httpx.Client, client: QueueClient, qid: str) -> None:
    """Deleting asks first, with the number of messages, and deletes nothing before the answer."""
    chosen = [qid, f"{qid}-2"]
    client.new_queue(chosen[1])
    client.push_many(qid, ["a"] * 3)
    asked = browser.post("/queues", data={"do": "delete", "q": chosen})
    assert asked.status_code == 200
    assert "Delete 2 queues?" in asked.text
    assert "the queues and 3 messages for good" in asked.text
    assert set(chosen) <= set(client.queues())
    answer = browser.post("/queues", data={"do": "delete", "q": chosen, "sure": "yes"})
    assert "Deleted 2 queues." in browser.get(answer.headers["location"]).text
    assert not set(chosen) & set(client.queues())


def test_no_queues(tmp_path_factory: pytest.TempPathFactory) -> None:
    """An empty server says how a queue is made."""
    folder = tmp_path_factory.mktemp("empty")
    with serving(folder / "root", *FAST) as server, web_serving(folder, server) as web, visitor(web) as browser:
        page = browser.get("/").text
        assert "There are no queues yet" in page

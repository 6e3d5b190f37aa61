"""The page of all queues: what it shows, its filter, order and pages, and what its forms do to several queues."""

import html
import re
from collections.abc import Callable
from itertools import chain
from urllib.parse import urlencode

import httpx
import pytest
from support.serving import FAST, serving
from support.web_serving import visitor, web_serving

from qs_client import QueueClient

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
    assert cells[6].endswith(" s")


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

"""The page follows the queues by itself: while messages flow, while somebody works with it, and when the server goes
and comes back."""

import re
import time
from pathlib import Path
from urllib.parse import quote

import pytest
from support.servers.processes import FAST, serving
from support.servers.web import Chromium, WebProcess, chromium, web_serving

from qs_client import QueueClient

pytestmark = pytest.mark.slow  # some 30 s in all: the page asks every 2 s


def tile(window: Chromium, name: str) -> str:
    for each in window.all(".tile"):
        label, _, value = each.text.partition("\n")
        if label == name:
            return value
    raise LookupError(f"no tile {name!r}")


def test_counts_follow(window: Chromium, client: QueueClient, qid: str) -> None:
    """New messages are on the page without a click."""
    window.open(f"/queue?q={quote(qid)}")
    assert tile(window, "Ready") == "0"
    client.push_many(qid, ["a"] * 3)
    window.until(lambda: tile(window, "Ready") == "3" and len(window.all("tbody tr")) == 3)
    client.push_many(qid, ["a"] * 1234)
    window.until(lambda: tile(window, "Ready") == "1,237")


def test_a_notice_stays(window: Chromium, client: QueueClient, qid: str) -> None:
    """The notice of an action is there after updates, so that no button moves under the mouse; a reload ends it."""
    window.open(f"/queue?q={quote(qid)}")
    window.press("Pause")
    window.until_text("Paused 1 queue.")
    client.push(qid, "a")
    window.until(lambda: tile(window, "Ready") == "1")
    window.until_text("Paused 1 queue.", ".notice")
    window.driver.refresh()
    assert window.all(".notice") == []


def test_rates_follow(window: Chromium, client: QueueClient, qid: str) -> None:
    """While messages flow, the table has their rates, and the chart is drawn."""
    window.open(f"/?filter={quote(qid)}")

    def moving() -> bool:
        client.push_many(qid, ["a"] * 20)
        rate = window.all("tbody td.number")[6].text
        drawn = window.one(".spark path.in").get_attribute("d")
        return bool(re.search("[1-9]", rate) and drawn)

    window.until(moving)


def test_work_is_not_disturbed(window: Chromium, client: QueueClient, qid: str) -> None:
    """Scroll, focus, selection, check boxes and what is typed stay while the page changes around them."""
    mids = client.push_many(qid, [f"payload {number}" for number in range(20)])
    window.resize(1280, 500)
    window.open(f"/queue?q={quote(qid)}")
    window.one(f'input[value="{mids[5]}"]').click()
    window.one(f'input[value="{mids[7]}"]').click()
    window.fill("#payload", "half a sentence")
    window.run("""
        const link = document.querySelector(`tr[data-key="${arguments[0]}"] a`);
        getSelection().selectAllChildren(link);
        document.getElementById("payload").focus({preventScroll: true});
        scrollTo(0, 600);
    """, str(mids[9]))  # fmt: skip
    before = window.run("return scrollY")
    client.delete_many(qid, mids[:3])
    client.push(qid, "one more")
    window.until(lambda: tile(window, "Ready") == "18" and len(window.all("tbody tr")) == 18)
    checked = [box.get_attribute("value") for box in window.all("tbody input:checked")]
    assert checked == [str(mids[5]), str(mids[7])]
    assert window.run("return document.activeElement.id") == "payload"
    assert window.run("return document.activeElement.value") == "half a sentence"
    assert str(window.run("return getSelection().toString()")) == str(mids[9])
    assert window.run("return scrollY") == before
    window.resize(1280, 900)


def test_the_button_stops_it(window: Chromium, client: QueueClient, qid: str) -> None:
    """A button stops the updates, also on the next page, and resumes them."""
    window.open(f"/queue?q={quote(qid)}")
    window.press("Pause updates")
    window.open(f"/queue?q={quote(qid)}")
    assert window.text("#live") == "Resume updates"
    client.push(qid, "a")
    window.run("window.asked = 0; const old = fetch; window.fetch = (...a) => { window.asked++; return old(...a); }")
    window.run("document.dispatchEvent(new Event('visibilitychange'))")
    assert (window.run("return window.asked"), tile(window, "Ready")) == (0, "0")
    window.press("Resume updates")
    window.until(lambda: tile(window, "Ready") == "1")
    assert window.run("return window.asked") == 1


def test_a_hidden_tab_asks_nothing(window: Chromium, qid: str) -> None:
    """While the tab is hidden nothing is asked; when it is shown again, at once."""
    window.open(f"/queue?q={quote(qid)}")
    window.run("""
        window.asked = 0;
        const old = fetch;
        window.fetch = (...a) => { window.asked++; return old(...a); };
        Object.defineProperty(document, "hidden", {get: () => window.away, configurable: true});
        window.away = true;
        document.dispatchEvent(new Event("visibilitychange"));
    """)
    assert window.run("return window.asked") == 0
    window.run("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")
    assert window.run("return window.asked") == 1


def test_a_queue_that_goes(window: Chromium, client: QueueClient, qid: str) -> None:
    """When the queue is deleted elsewhere, the page says that there is none."""
    window.open(f"/queue?q={quote(qid)}")
    client.delete_queue(qid)
    window.until_text("That did not work")


def test_the_server_goes_and_comes_back(tmp_path: Path) -> None:
    """The page says within some seconds that the server is gone, keeps what it showed, and goes on by itself. A page
    that is opened meanwhile does so too."""
    with serving(tmp_path / "root", *FAST) as server, web_serving(tmp_path, server) as web:
        with QueueClient(server.host, server.port) as client:
            client.new_queue("q")
        with chromium(web.url) as window, chromium(web.url) as other:
            window.open("/queue?q=q")
            server.kill()
            begun = time.monotonic()
            window.until(lambda: window.text("#trouble") != "")
            assert time.monotonic() - begun < 6
            assert f"127.0.0.1:{server.port}" in window.text("#trouble")
            assert "Push a message" in window.text()
            other.open("/")
            other.until_text("The queue server cannot be asked now")
            server.start()
            window.until(lambda: not window.all("#trouble")[0].text)
            other.until_text("New queue")


def test_the_page_itself_goes_and_comes_back(window: Chromium, web: WebProcess, qid: str) -> None:
    """When queue-web.py is gone the page says so, and goes on when it is back."""
    window.open(f"/queue?q={quote(qid)}")
    web.kill()
    window.until_text("The page does not answer.", "#trouble")
    web.start()
    window.until(lambda: not window.all("#trouble")[0].text)


def test_a_message_that_is_given_back(window: Chromium, client: QueueClient, qid: str) -> None:
    """When a held message is visible again, what is for held ones goes from its page, and its payload stays."""
    client.set_queue(qid, dead_letter=f"{qid}-dead", max_receives=2)
    mid = client.push(qid, "some pears")
    taken = client.receive(qid)[0]
    window.open("/")
    window.errors()  # those of the page of the test before
    window.open(f"/message?q={quote(qid)}&id={mid}")
    window.fill("#why", "typed")
    before = window.text(".facts")
    client.extend(taken, visibility=3000)
    window.until(lambda: window.text(".facts") != before)
    assert window.one("#why").get_attribute("value") == "typed"
    assert "Release" in window.text()
    client.release(taken)
    window.until(lambda: "Reject" not in window.text() and "Release" not in window.text())
    assert window.text(".payload-view") == "some pears"
    assert client.receive(qid)[0].mid == mid
    window.until_text("Reject")
    assert window.errors() == []

"""Why a message was given back, rejected or given up, and what the page asks for to reject one, or to set a back-off:
with a server that answers what the test says."""

import html
import queue
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.clients.scripted_server import Conversation, Parallel
from support.servers.web import visitor, web_serving

from qs_client import Delivery, GetQueue, ListMessages, Message, QueueInfo, QueueOptions, QueueStats
from qs_schemas import GetMessage, RejectMessage, SetQueue

EVIL = "<img src=x onerror=alert(1)>"
LONG = f"ValueError: {EVIL} " + "no such fruit " * 60 + "THE END"
HELD = Delivery(11, b"some pears", None, 1, 5, 7_000_000, status="in-flight", reason=LONG)
LETTERS = [
    Delivery(21, b"x", None, 0, 5, dead_from="jobs", dead_mid=1, dead_receives=2, dead_at=6, dead_reason="receives",
             status="ready", reason="KeyError: 'pears'"),
    Delivery(22, b"y", None, 0, 5, dead_from="jobs", dead_mid=2, dead_receives=1, dead_at=6, dead_reason="rejected",
             status="ready", reason="no \u202efruit"),
]  # fmt: skip
INFO = {
    "jobs": QueueInfo("jobs", ready=0, in_flight=1, delayed=0, dead_letter="failed"),
    "failed": QueueInfo("failed", ready=2, in_flight=0, delayed=0),
}
MESSAGES = {"jobs": [HELD], "failed": LETTERS}


def answer_to(request: Message) -> Message | None:
    """Returns the answer, None for one that has nothing but the kind of the request."""
    qid = getattr(request, "qid", None) or ""
    match request:
        case QueueStats():
            return QueueStats(qid or None, queues=[INFO[qid]] if qid else list(INFO.values()))
        case ListMessages():
            return ListMessages(qid, mids=[message.mid for message in MESSAGES[qid]])
        case GetMessage():
            return GetMessage(qid, messages=[each for each in MESSAGES[qid] if each.mid in request.mids])
        case GetQueue():
            return GetQueue(qid, QueueOptions("journal", dead_letter="failed", max_receives=2, backoff=5))
    return None


@pytest.fixture(scope="module")
def seen() -> "queue.SimpleQueue[Message]":
    """Returns what the server was asked to change."""
    return queue.SimpleQueue()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory, seen: "queue.SimpleQueue[Message]") -> Iterator[httpx.Client]:
    """A browser that looks at the page of the server that this file makes up."""

    def script(conversation: Conversation) -> None:
        while (request := conversation.read()) is not None:
            if isinstance(request, (RejectMessage, SetQueue)):
                seen.put(request)
            conversation.answer(request, answer_to(request))

    folder: Path = tmp_path_factory.mktemp("reasons")
    with Parallel(script) as server, web_serving(folder, server) as web, visitor(web) as client:
        yield client


def test_the_reason_in_the_table(browser: httpx.Client) -> None:
    """The table has the beginning of the last reason as text, and why each dead letter is one."""
    page = browser.get("/queue", params={"q": "jobs"}).text
    assert '<th scope="col" class="why">Why</th>' in page
    assert f"<bdi>ValueError: {html.escape(EVIL)} no such" in page
    assert EVIL not in page
    assert "THE END" not in page
    letters = browser.get("/queue", params={"q": "failed"}).text
    assert "too many receives: <bdi>KeyError: &#39;pears&#39;</bdi>" in letters
    assert "rejected: <bdi>no \ufffdfruit</bdi>" in letters


def test_the_reason_of_one_message(browser: httpx.Client) -> None:
    """The page of a message has the whole of its last reason, as text."""
    page = browser.get("/message", params={"q": "jobs", "id": 11}).text
    assert f'aria-label="Last reason">{html.escape(LONG)}</pre>' in page
    assert EVIL not in page
    letter = browser.get("/message", params={"q": "failed", "id": 22}).text
    assert "<dt>Because of</dt><dd>rejected</dd>" in letter
    assert 'aria-label="Last reason">no \ufffdfruit</pre>' in letter


def test_reject(browser: httpx.Client, seen: "queue.SimpleQueue[Message]") -> None:
    """A held message of a queue with a dead-letter queue can be rejected, with a reason; others have no such form."""
    page = browser.get("/message", params={"q": "jobs", "id": 11}).text
    assert "it goes to <bdi>failed</bdi>" in page
    assert 'value="reject"' not in browser.get("/message", params={"q": "failed", "id": 22}).text
    form = {"do": "reject", "id": "11", "reason": " hopeless "}
    answer = browser.post("/messages", params={"q": "jobs"}, data=form)
    assert "Rejected 1 message: it is a dead letter now." in browser.get(answer.headers["location"]).text
    request = seen.get(timeout=20)
    assert isinstance(request, RejectMessage)
    assert (request.qid, request.mid, request.reason) == ("jobs", 11, "hopeless")
    too_long = browser.post("/messages", params={"q": "jobs"}, data={**form, "reason": "é" * 600})
    assert too_long.status_code == 400
    assert "at most 1024" in too_long.text
    assert seen.empty()


def test_backoff(browser: httpx.Client, seen: "queue.SimpleQueue[Message]") -> None:
    """The form of a queue's options has its back-off, and changes what the visitor has changed."""
    page = browser.get("/queue", params={"q": "jobs"}).text
    assert 'name="backoff" value="5"' in page
    form = {"backoff": "", "was-backoff": "5", "backoff_max": "60", "was-backoff_max": ""}
    assert browser.post("/options", params={"q": "jobs"}, data=form).status_code == 303
    request = seen.get(timeout=20)
    assert isinstance(request, SetQueue)
    assert request.options == QueueOptions(backoff_max=60, removed=frozenset({"backoff"}))
    wrong = browser.post("/options", params={"q": "jobs"}, data={"backoff_max": "soon"})
    assert "Backoff-max is &#39;soon&#39;, not a number." in wrong.text

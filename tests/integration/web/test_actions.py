"""Tests what the forms of a queue and of its messages do, and that what destroys asks first."""

import re

import httpx
import pytest

from qs_client import QueueClient


def note(browser: httpx.Client, answer: httpx.Response) -> str:
    """Returns what the page after an action says."""
    assert answer.status_code == 303, answer.text
    page = browser.get(answer.headers["location"])
    assert page.status_code == 200
    return "".join(re.findall(r'<p class="notice"[^>]*>(.*?)</p>', page.text))


def test_push(browser: httpx.Client, client: QueueClient, qid: str) -> None:
    """A payload is pushed as it was typed, with delay and key. Line ends are those of the text."""
    form = {"payload": "a\r\nb + ä & <c>", "delay": "", "key": "once"}
    for _ in range(2):
        assert note(browser, browser.post("/push", params={"q": qid}, data=form)) == "Pushed 1 message."
    (message,) = client.receive(qid, max=10)
    assert message.text == "a\nb + ä & <c>"
    browser.post("/push", params={"q": qid}, data={"payload": "later", "delay": "3600"})
    assert client.stats(qid)[0].delayed == 1


def test_push_with_attributes(browser: httpx.Client, client: QueueClient, qid: str) -> None:
    """The form takes headers, one a line, as well as priority, group and end."""
    headers = "content-type: text/plain; charset=utf-8\r\n\r\n traceparent:00-ab: \r\nempty:"
    form = {"payload": "x", "priority": "7", "group": "g", "expires": "3600", "headers": headers}
    assert note(browser, browser.post("/push", params={"q": qid}, data=form)) == "Pushed 1 message."
    (message,) = client.receive(qid)
    assert (message.priority, message.group, message.expires_at is not None) == (7, "g", True)
    assert list(message.headers.items()) == [
        ("content-type", "text/plain; charset=utf-8"), ("traceparent", "00-ab:"), ("empty", "")
    ]  # fmt: skip


def test_push_of_what_waits(browser: httpx.Client, client: QueueClient, qid: str) -> None:
    """A key counts for some minutes, or for as long as its message is in the queue."""
    for unique, ids in (("", 1), ("yes", 2)):
        found = set()
        for _ in range(2):
            form = {"payload": "x", "key": f"report{unique}", "unique": unique}
            assert note(browser, browser.post("/push", params={"q": qid}, data=form)) == "Pushed 1 message."
            for message in client.receive(qid, max=10):
                found.add(message.mid)
                client.delete(message)
        assert len(found) == ids


@pytest.mark.parametrize("form", [
    {"delay": "soon"}, {"delay": "-1"}, {"delay": "nan"}, {"key": "k" * 5000}, {"unique": "yes"}, {"priority": "10"},
    {"priority": "high"},
    {"expires": "0"}, {"group": "g" * 129}, {"headers": "no colon"}, {"headers": "a: 1\nA: 2"}, {"headers": "qs-a: 1"},
    {"headers": "a b: 1"}, {"headers": "a: " + "x" * 9000},
])  # fmt: skip
def test_wrong_pushes(browser: httpx.Client, client: QueueClient, qid: str, form: dict[str, str]) -> None:
    """A push that is refused is explained, and nothing is stored."""
    answer = browser.post("/push", params={"q": qid}, data={"payload": "x", **form})
    assert answer.status_code == 400
    assert client.stats(qid)[0].ready == 0


def test_purge(browser: httpx.Client, client: QueueClient, qid: str) -> None:
    """A purge asks with the number of messages, and removes them after that."""
    client.push_many(qid, ["x"] * 7)
    form = {"do": "purge", "q": qid, "back": "queue"}
    asked = browser.post("/queues", data=form)
    assert f"Purge {qid}?" in asked.text
    assert "Remove 7 messages" in asked.text
    assert client.stats(qid)[0].ready == 7
    assert note(browser, browser.post("/queues", data={**form, "sure": "yes"})) == "Purged: 7 messages removed."
    assert client.stats(qid)[0].ready == 0


@pytest.mark.parametrize("do", ["purge", "delete"])
def test_more_than_a_thousand(browser: httpx.Client, client: QueueClient, qid: str, do: str) -> None:
    """To purge more than 1,000 messages the queue's name has to be typed, and a wrong one changes nothing."""
    client.push_many(qid, ["x"] * 1001)
    form = {"do": do, "q": qid, "back": "queue"}
    assert (
        f"Type <strong><bdi>{qid}</bdi></strong> to confirm (1,001 messages)" in browser.post("/queues", data=form).text
    )
    for typed in ({}, {"typed-0": ""}, {"typed-0": qid[:-1]}):
        refused = browser.post("/queues", data={**form, "sure": "yes", **typed})
        assert refused.status_code == 409
        assert "Nothing was changed." in refused.text
        assert client.stats(qid)[0].ready == 1001
    note(browser, browser.post("/queues", data={**form, "sure": "yes", "typed-0": qid}))
    assert [info.ready for info in client.stats() if info.qid == qid] == ([0] if do == "purge" else [])


def test_the_count_is_that_of_the_moment(browser: httpx.Client, client: QueueClient, qid: str) -> None:
    """A queue that has grown past 1,000 since the question is not purged without its name."""
    client.push(qid, "x")
    browser.post("/queues", data={"do": "purge", "q": qid})
    client.push_many(qid, ["x"] * 1000)
    assert browser.post("/queues", data={"do": "purge", "q": qid, "sure": "yes"}).status_code == 409
    assert client.stats(qid)[0].ready == 1001


def test_delete_messages(browser: httpx.Client, client: QueueClient, qid: str) -> None:
    """The checked messages are deleted after a question with their number; the next page is where one was."""
    mids = client.push_many(qid, ["a", "b", "c"])
    form = {"do": "delete", "id": [str(mid) for mid in mids[:2]], "state": "ready", "after": ""}
    asked = browser.post("/messages", params={"q": qid}, data=form)
    assert "This removes 2 messages for good." in asked.text
    assert client.stats(qid)[0].ready == 3
    answer = browser.post("/messages", params={"q": qid}, data={**form, "sure": "yes"})
    assert "state=ready" in answer.headers["location"]
    assert note(browser, answer) == "Deleted 2 messages."
    assert list(client.list_messages(qid, state="all")) == mids[2:]


def test_release_messages(browser: httpx.Client, client: QueueClient, qid: str) -> None:
    """Messages in flight and delayed ones are visible at once. Those that are gone or ready do not count."""
    mids = client.push_many(qid, ["a", "b", "c"])
    client.receive(qid, max=2)
    form = {"do": "release", "id": [*map(str, mids), "1"]}
    said = note(browser, browser.post("/messages", params={"q": qid}, data=form))
    assert said in {"Released 2 messages.", "Released 3 messages."}
    assert client.stats(qid)[0].ready == 3


@pytest.mark.parametrize("which", ["some", "all", "elsewhere"])
def test_redrive(browser: httpx.Client, client: QueueClient, qid: str, which: str) -> None:
    """Dead letters go back: those that are checked, all of them, or to another queue."""
    dead = f"{qid}-dead"
    client.set_queue(qid, dead_letter=dead, max_receives=1)
    client.push_many(qid, ["a", "b", "c"])
    for message in client.receive(qid, max=3):
        client.release(message)
    mids = list(client.list_messages(dead, state="all"))
    if which == "some":
        form = {"do": "redrive", "id": [str(mid) for mid in mids[:2]]}
        said = note(browser, browser.post("/messages", params={"q": dead}, data=form))
        assert (said, client.stats(qid)[0].ready) == ("Moved 2 messages back.", 2)
    elif which == "all":
        asked = browser.post("/redrive", params={"q": dead}, data={"to": ""})
        assert f"{dead} holds 3 messages. Its dead letters go back to where they came from" in asked.text
        assert client.stats(qid)[0].ready == 0
        said = note(browser, browser.post("/redrive", params={"q": dead}, data={"to": "", "sure": "yes"}))
        assert (said, client.stats(qid)[0].ready) == ("Moved 3 messages back.", 3)
    else:
        client.new_queue(f"{qid}-other")
        form = {"to": f"{qid}-other", "sure": "yes"}
        note(browser, browser.post("/redrive", params={"q": dead}, data=form))
        assert client.stats(f"{qid}-other")[0].ready == 3
        gone = browser.post("/redrive", params={"q": dead}, data={"to": "nowhere at all", "sure": "yes"})
        assert gone.status_code in {303, 404}


def make_letters(client: QueueClient, qid: str, dead: str, payloads: list[str]) -> None:
    """Makes dead letters of a queue."""
    before = sum(info.ready or 0 for info in client.stats() if info.qid == dead)
    client.push_many(qid, payloads)
    while found := client.receive(qid, max=1000):  # as many as fit in one document
        for message in found:
            client.release(message)
    assert client.stats(dead)[0].ready == before + len(payloads)


def test_move_all_back_to_one_queue(browser: httpx.Client, client: QueueClient, qid: str) -> None:
    """A queue whose dead letters wait gets its own back, with as many requests as that takes, and not those of another
    queue that shares the dead-letter queue."""
    dead, other = f"{qid}-dead", f"{qid}-other"
    client.set_queue(qid, dead_letter=dead, max_receives=1)
    client.new_queue(other, dead_letter=dead, max_receives=1)
    shown = browser.get("/queue", params={"q": qid}).text
    assert "Move all back" not in shown
    for name in (other, qid, other):
        make_letters(client, name, dead, [name] * 700)
    shown = browser.get("/queue", params={"q": qid}).text
    assert '<dt>Dead letters</dt><dd><a href="/queue?q=' + dead + '">2,100</a></dd>' in shown
    assert f'<form method="post" action="/redrive?q={dead}" class="stack">\n<input type="hidden" name="of"' in shown
    asked = browser.post("/redrive", params={"q": dead}, data={"of": qid})
    assert f"Move the dead letters of {qid} back?" in asked.text
    assert f"{dead} holds 2,100 messages. Those that came from {qid} go back" in asked.text
    answer = browser.post("/redrive", params={"q": dead}, data={"of": qid, "sure": "yes"})
    assert answer.headers["location"].startswith(f"/queue?q={qid}&")
    assert note(browser, answer) == "Moved 700 messages back."
    assert [client.stats(name)[0].ready for name in (qid, other, dead)] == [700, 0, 1400]
    assert {message.text for message in client.receive(qid, max=700)} == {qid}


def test_large_letters_move_back(browser: httpx.Client, client: QueueClient, qid: str) -> None:
    """Letters that do not fit into one transaction, or one document, all go back."""
    dead = f"{qid}-dead"
    client.set_queue(qid, dead_letter=dead, max_receives=1)
    for form in ({"of": qid}, {"to": ""}):
        make_letters(client, qid, dead, ["x" * 3_000_000] * 5)
        answer = browser.post("/redrive", params={"q": dead}, data={**form, "sure": "yes"})
        assert note(browser, answer) == "Moved 5 messages back."
        assert [client.stats(name)[0].ready for name in (qid, dead)] == [5, 0]
        client.purge(qid)


def test_options(browser: httpx.Client, client: QueueClient, qid: str) -> None:
    """Options are changed, and an empty field removes one."""
    form = {"visibility": "45", "capacity": "1000", "retention": "", "dead_letter": f"{qid}-dead", "max_receives": "3"}
    assert note(browser, browser.post("/options", params={"q": qid}, data=form)) == "Changed 4 options."
    now = client.queue_options(qid)
    assert (now.visibility, now.capacity, now.dead_letter, now.max_receives) == (45, 1000, f"{qid}-dead", 3)
    page = browser.get("/queue", params={"q": qid}).text
    assert 'name="capacity" value="1000"' in page
    note(browser, browser.post("/options", params={"q": qid}, data={**form, "capacity": ""}))
    assert client.queue_options(qid).capacity is None
    wrong = browser.post("/options", params={"q": qid}, data={**form, "capacity": "many"})
    assert wrong.status_code == 400
    assert "Capacity is &#39;many&#39;, not a whole number." in wrong.text
    cycle = browser.post("/options", params={"q": qid}, data={**form, "dead_letter": qid})
    assert cycle.status_code == 409


def test_options_of_pace(browser: httpx.Client, client: QueueClient, qid: str) -> None:
    """The form shows and sets what orders and limits a queue. An empty field removes one."""

    def shown() -> dict[str, str]:
        page = browser.get("/queue", params={"q": qid}).text
        return dict(re.findall(r'name="was-(max_in_flight|rate|group_in_flight|fair)" value="(.*?)"', page))

    assert shown() == dict.fromkeys(("max_in_flight", "rate", "group_in_flight", "fair"), "")
    form = {"max_in_flight": "5", "rate": "0.5", "group_in_flight": "2", "fair": "yes"}
    assert note(browser, browser.post("/options", params={"q": qid}, data=form)) == "Changed 4 options."
    now = client.queue_options(qid)
    assert (now.max_in_flight, now.rate, now.group_in_flight, now.fair) == (5, 0.5, 2, True)
    assert shown() == form
    assert '<option value="yes" selected>' in browser.get("/queue", params={"q": qid}).text
    browser.post("/options", params={"q": qid}, data={"rate": "", "fair": ""})
    assert shown() == {**form, "rate": "", "fair": ""}
    wrong = browser.post("/options", params={"q": qid}, data={"fair": "perhaps"})
    assert wrong.status_code == 400
    assert "Fair is &#39;perhaps&#39;, not yes or no." in wrong.text


def test_options_of_two_visitors(browser: httpx.Client, client: QueueClient, qid: str) -> None:
    """A form changes what its visitor has changed, not back what somebody else has changed since it was shown."""
    client.set_queue(qid, visibility=5, capacity=7)
    shown = browser.get("/queue", params={"q": qid}).text
    names = "visibility|capacity|retention|max_receives|dead_letter|backoff|backoff_max"
    form = dict(re.findall(rf'name="((?:was-)?(?:{names}))" value="(.*?)"', shown))
    assert len(form) == 14
    client.set_queue(qid, capacity=8)
    browser.post("/options", params={"q": qid}, data={**form, "visibility": "6"})
    now = client.queue_options(qid)
    assert (now.visibility, now.capacity) == (6, 8)
    browser.post("/options", params={"q": qid}, data={"visibility": "9"})
    now = client.queue_options(qid)
    assert (now.visibility, now.capacity) == (9, 8)


def test_a_queue_that_is_gone(browser: httpx.Client) -> None:
    """Actions on a queue that is not there answer the server's text, with its status."""
    for path, form in (
        ("/push", {"payload": "x"}), ("/options", {"capacity": "1"}), ("/redrive", {"to": ""}),
        ("/messages", {"do": "redrive", "id": "1"}),
    ):  # fmt: skip
        assert browser.post(path, params={"q": "gone"}, data=form).status_code == 404
    for do in ("pause", "resume", "purge", "delete"):
        assert browser.post("/queues", data={"do": do, "q": "gone"}).status_code == 404


def test_a_get_changes_nothing(browser: httpx.Client, qid: str) -> None:
    """The addresses of actions answer POST only."""
    for path in ("/queues", "/new", "/push", "/options", "/redrive", "/messages", "/sign-out"):
        assert browser.get(path, params={"q": qid}).status_code == 405

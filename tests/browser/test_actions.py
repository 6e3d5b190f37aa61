"""Every action of the page, in a real browser: what is clicked, what is asked, and what has become of the queue."""

from urllib.parse import quote

import pytest
from support.servers.web import Chromium

from qs_client import QueueClient

pytestmark = pytest.mark.slow  # some 15 s in all: a browser starts


@pytest.fixture(autouse=True)
def no_complaints(window: Chromium) -> None:
    """Forgets what the browser has said of the test before."""
    window.errors()


def queue_page(window: Chromium, qid: str) -> None:
    window.open(f"/queue?q={quote(qid)}")


def ready(client: QueueClient, qid: str) -> int | None:
    return client.stats(qid)[0].ready


def test_make_and_delete_a_queue(window: Chromium, client: QueueClient) -> None:
    """A queue is made on the first page, and deleted on its own, after a question."""
    window.open("/")
    window.press("New queue")
    window.fill("#new-name", "made in a browser")
    window.press("Create")
    window.until_text("Created the queue.")
    assert "made in a browser" in client.queues()
    window.press("Delete queue…")
    window.until_text("Delete made in a browser?")
    window.press("Cancel")
    window.until_text("Push a message")
    window.press("Delete queue…")
    window.press("Delete made in a browser")
    window.until_text("Deleted 1 queue.")
    assert "made in a browser" not in client.queues()
    assert window.errors() == []


def test_push(window: Chromium, client: QueueClient, qid: str) -> None:
    """A payload with line ends and marks is pushed as it was typed."""
    queue_page(window, qid)
    window.fill("#payload", "two apples\n<b>& one pear</b>")
    window.press("Push")
    window.until_text("Pushed 1 message.")
    assert client.receive_one(qid).text == "two apples\n<b>& one pear</b>"  # type: ignore[union-attr]
    assert "done=" not in window.driver.current_url


def test_pause_and_resume(window: Chromium, client: QueueClient, qid: str) -> None:
    """The button pauses the queue, and is then the one that resumes it."""
    queue_page(window, qid)
    window.press("Pause")
    window.until_text("Paused 1 queue.")
    assert client.stats(qid)[0].paused
    window.press("Resume")
    window.until_text("Resumed 1 queue.")
    assert not client.stats(qid)[0].paused


def test_purge_a_large_queue(window: Chromium, client: QueueClient, qid: str) -> None:
    """More than 1,000 messages are purged after the name of the queue has been typed."""
    client.push_many(qid, ["x"] * 1001)
    queue_page(window, qid)
    window.press("Purge…")
    window.until_text("This removes 1,001 messages for good")
    window.press("Remove 1,001 messages")  # the browser asks for the name
    assert ready(client, qid) == 1001
    window.fill("#typed-0", "something else")
    window.press("Remove 1,001 messages")
    window.until_text("A name that was typed is not the queue's.")
    assert ready(client, qid) == 1001
    window.fill("#typed-0", qid)
    window.press("Remove 1,001 messages")
    window.until_text("Purged: 1,001 messages removed.")
    assert ready(client, qid) == 0


def test_delete_and_release_messages(window: Chromium, client: QueueClient, qid: str) -> None:
    """Check boxes choose messages: one is released, two are deleted after a question."""
    mids = client.push_many(qid, ["a", "b", "c"])
    client.receive(qid)
    queue_page(window, qid)
    window.one(f'input[value="{mids[0]}"]').click()
    window.press("Release")
    window.until_text("Released 1 message.")
    assert ready(client, qid) == 3
    for mid in mids[1:]:
        window.one(f'input[value="{mid}"]').click()
    window.press("Delete…")
    window.until_text("This removes 2 messages for good.")
    window.press("Delete 2 messages")
    window.until_text("Deleted 2 messages.")
    assert list(client.list_messages(qid, state="all")) == mids[:1]


def test_redrive(window: Chromium, client: QueueClient, qid: str) -> None:
    """Dead letters go back: the one on its page, those that are checked, and all of them."""
    dead = f"{qid}-dead"
    client.set_queue(qid, dead_letter=dead, max_receives=1)
    client.push_many(qid, ["a", "b", "c", "d"])
    for message in client.receive(qid, max=4):
        client.release(message)
    queue_page(window, dead)
    window.one("tbody th a").click()
    window.until_text("Came from")
    window.press("Move back")
    window.until_text("Moved 1 message back.")
    window.one("tbody input[type=checkbox]").click()
    window.press("Move back")
    window.until_text("Moved 1 message back.")
    window.press("Move all back…")
    window.until_text(f"Move the dead letters of {dead} back?")
    window.press("Move back")
    window.until_text("Moved 2 messages back.")
    assert ready(client, qid) == 4


def test_move_all_back(window: Chromium, client: QueueClient, qid: str) -> None:
    """The queue whose dead letters wait has a button that moves them back, after a question."""
    client.set_queue(qid, dead_letter=f"{qid}-dead", max_receives=1)
    client.push_many(qid, ["a", "b"])
    queue_page(window, qid)
    for message in client.receive(qid, max=2):
        client.release(message)
    window.press("Move all back…")  # comes with the next update of the page
    window.until_text(f"Move the dead letters of {qid} back?")
    window.press("Cancel")
    window.press("Move all back…")
    window.press("Move back")
    window.until_text("Moved 2 messages back.")
    assert ready(client, qid) == 2


def test_options(window: Chromium, client: QueueClient, qid: str) -> None:
    """An option is changed, and a wrong one is refused in words."""
    queue_page(window, qid)
    window.fill("#capacity", "7")
    window.press("Change options")
    window.until_text("Changed the options.")
    assert client.queue_options(qid).capacity == 7
    window.fill("#visibility", "soon")
    window.press("Change options")
    window.until_text("Visibility is 'soon', not a number.")


def test_several_queues(window: Chromium, client: QueueClient, qid: str) -> None:
    """The box in the head of the table checks all queues on the page; then one button acts on them."""
    client.new_queue(f"{qid}-2")
    window.open("/?filter=" + quote(qid))
    window.until(lambda: len(window.all("tbody tr")) == 2)
    window.one("input[data-all]").click()
    window.press("Pause")
    window.until_text("Paused 2 queues.")
    assert [info.paused for info in client.stats() if info.qid.startswith(qid)] == [True, True]


def test_hostile_names_and_payloads(window: Chromium, client: QueueClient) -> None:
    """A queue whose name is a script, with a payload that is one: nothing of it runs, anywhere."""
    evil = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    client.new_queue(evil)
    mid = client.push(evil, evil)
    xml = client.push(
        evil, f'<a xmlns="http://www.w3.org/1999/xhtml">{evil.replace("<img src=x", "<img/><b ")}</b></a>'
    )
    for path in (
        "/?filter=script", f"/queue?q={quote(evil)}", f"/message?q={quote(evil)}&id={mid}",
        f"/message?q={quote(evil)}&id={xml}",
    ):  # fmt: skip
        window.open(path)
        window.until_text("document.title='owned'")
        assert "owned" not in str(window.run("return document.title.replace(arguments[0], '')", evil))
        assert window.run("return document.querySelectorAll('main script, main img').length") == 0
    queue_page(window, evil)
    window.press("Purge…")
    window.until_text("document.title='owned'")
    window.press("Remove 2 messages")
    window.until_text("Purged: 2 messages removed.")
    assert ready(client, evil) == 0
    assert window.errors() == []


def test_a_payload_of_8_mib(window: Chromium, client: QueueClient, qid: str) -> None:
    """The page of a message of almost 8 MiB shows its beginning, and the queue's page stays light."""
    mid = client.push(qid, "0123456789abcdef" * (8 * 65536 - 100))
    queue_page(window, qid)
    window.until_text("8.0 MiB")
    window.open(f"/message?q={quote(qid)}&id={mid}")
    window.until_text("more characters are not shown")
    assert window.text(".payload-view").startswith("0123456789abcdef0123")
    assert "live" not in str(window.run("return Object.keys(document.body.dataset).join()"))

"""The page of all queues."""

import httpx


def test_queues_are_listed(browser: httpx.Client, qid: str) -> None:
    """The page names every queue."""
    answer = browser.get("/")
    assert answer.status_code == 200
    assert qid in answer.text

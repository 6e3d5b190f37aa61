"""Queues with a schema on the page, and in the metrics."""

import html
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.orders import INVALID, VALID, schemas_in
from support.servers.processes import FAST, ServerProcess, serving

from qs_client import QueueClient


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server with the schema `order` for all tests of this file."""
    folder: Path = tmp_path_factory.mktemp("shared")
    with serving(folder / "root", *FAST, "--schemas", str(schemas_in(folder / "schemas"))) as server:
        yield server


def facts(browser: httpx.Client, qid: str) -> dict[str, str]:
    """Returns the figures that the page of a queue shows."""
    page = browser.get("/queue", params={"q": qid}).text
    pairs = re.findall(r"<dt>(.*?)</dt><dd[^>]*>(.*?)</dd>", page, re.DOTALL)
    return {name: html.unescape(value) for name, value in pairs}


def test_the_options_have_the_schema(browser: httpx.Client, client: QueueClient, qid: str) -> None:
    """The form sets a schema and removes it; a name that the server does not have is answered with its text."""
    assert "Schema" not in facts(browser, qid)
    assert browser.post("/options", params={"q": qid}, data={"schema": "order"}).status_code == 303
    assert client.queue_options(qid).schema == "order"
    assert 'name="was-schema" value="order"' in browser.get("/queue", params={"q": qid}).text
    unknown = browser.post("/options", params={"q": qid}, data={"schema": "invoice"})
    assert unknown.status_code == 400
    assert "invoice" in unknown.text
    path = browser.post("/options", params={"q": qid}, data={"schema": "../order"})
    assert path.status_code == 400
    assert "Schema names a file of the server&#39;s schemas" in path.text
    assert browser.post("/options", params={"q": qid}, data={"schema": ""}).status_code == 303
    assert client.queue_options(qid).schema is None


def test_a_refused_push(browser: httpx.Client, client: QueueClient, qid: str) -> None:
    """A push that the schema does not allow is answered with 422 and the reason, and counted; one that it allows is
    stored."""
    client.set_queue(qid, schema="order")
    refused = browser.post("/push", params={"q": qid}, data={"payload": INVALID})
    assert refused.status_code == 422
    text = html.unescape(refused.text)
    assert "line 1, element 'total'" in text
    assert "The queue server answered 422 invalid." in text
    assert browser.post("/push", params={"q": qid}, data={"payload": VALID}).status_code == 303
    shown = facts(browser, qid)
    assert (shown["Schema"], shown["Refused by the schema"], shown["Pushed"]) == ("order", "1", "1")
    metrics = browser.get("/metrics/queues", params={"queue": re.escape(qid)}).text
    assert f'qs_queue_messages_refused_total{{queue="{qid}"}} 1.0' in metrics


def test_a_condition(browser: httpx.Client, client: QueueClient, qid: str) -> None:
    """The queue of a durable name shows the name's condition, which may have any characters."""
    where = "/a[@b = '<script>'] and $header-c != \"&\""
    assert "Condition" not in facts(browser, qid)
    client.set_queue(qid, where=where)
    assert facts(browser, qid)["Condition"] == where

"""A queue with a schema, in a real browser: the form that sets it, a push that it refuses, and the count."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from support.orders import INVALID, VALID, schemas_in
from support.servers.processes import FAST, ServerProcess, serving
from support.servers.web import Chromium

from qs_client import QueueClient

pytestmark = pytest.mark.slow  # a browser starts


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server with the schema `order` for all tests of this file."""
    folder: Path = tmp_path_factory.mktemp("server")
    with serving(folder / "root", *FAST, "--schemas", str(schemas_in(folder / "schemas"))) as process:
        yield process


def test_schema_of_a_queue(window: Chromium, client: QueueClient, qid: str) -> None:
    """The form sets the schema. A push that it does not allow shows the reason, and the queue counts it."""
    page = f"/queue?q={quote(qid)}"
    window.open(page)
    window.fill("#schema", "order")
    window.press("Change options")
    window.until_text("Changed the options.")
    assert client.queue_options(qid).schema == "order"
    window.fill("#payload", INVALID)
    window.press("Push")
    window.until_text("element 'total'")
    window.until_text("The queue server answered 422 invalid.")
    window.open(page)
    window.fill("#payload", VALID)
    window.press("Push")
    window.until_text("Pushed 1 message.")
    window.until_text("Refused by the schema\n1")
    [info] = client.stats(qid)
    assert (info.ready, info.refused) == (1, 1)

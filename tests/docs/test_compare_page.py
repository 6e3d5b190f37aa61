"""docs/compare.md gives rates and memory as docs/performance.md has them, and does not deny what qs can do."""

import pytest
from support.serving import PROJECT

from qs_schemas import PushMessage

DOCS = PROJECT / "docs"


def _rows(page: str, after: str = "") -> list[list[str]]:
    text = (DOCS / page).read_text(encoding="utf-8").partition(after)[2] if after else (DOCS / page).read_text("utf-8")
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]


@pytest.mark.parametrize(("lacking", "field"), [("priorities", "priority"), ("order within groups", "group")])
def test_what_not_to_take_qs_for(lacking: str, field: str) -> None:
    """What the protocol cannot ask for is among the reasons against qs, and nothing that it can: whoever adds the field
    corrects the page."""
    assert "mid" in PushMessage.__dataclass_fields__
    paragraph = (
        (DOCS / "compare.md").read_text(encoding="utf-8").partition("**Do not take qs**")[2].partition("\n\n")[0]
    )
    assert (lacking in paragraph) == (field not in PushMessage.__dataclass_fields__)


def test_every_queue_has_a_row_and_a_section() -> None:
    """The queues of the tables are those of the sections, which also have what is no queue server."""
    text = (DOCS / "compare.md").read_text(encoding="utf-8")
    first, *_ = _rows("compare.md")
    others = [row[0].split("](")[0].lstrip("[") for row in _rows("compare.md", "Others, in short:")[1:]]
    assert others == ["pgmq", "River", "procrastinate", "Kafka's share groups", "LavinMQ"]
    sections = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
    assert set(sections) - {"Queues in PostgreSQL", "Celery's brokers", "Files in a directory"} == (
        {*first[2:], *others} - {"pgmq", "River", "procrastinate"} | {"NATS JetStream"}
    )
    assert all(name in text.partition("## Queues in PostgreSQL")[2] for name in others[:3])


def test_the_rates() -> None:
    """The last two rows of the first table are two columns of the short table of measurements."""
    measured = _rows("performance.md", "in short: do not edit from here")[1:6]
    assert [row[0].split()[0].strip(",") for row in measured] == ["qs", "beanstalkd", "Redis", "RabbitMQ", "NATS"]
    rates = [row for row in _rows("compare.md") if row[0].startswith("durable push")]
    push, cycle = ([cell.removesuffix("/s") for cell in row[1:6]] for row in rates)
    assert push == [row[1] for row in measured]
    assert cycle == [row[3] for row in measured]
    memory = {row[0].split()[0].strip(","): row[5] for row in measured}
    assert f"{memory['qs']} to {memory['RabbitMQ']}" in (DOCS / "compare.md").read_text(encoding="utf-8")

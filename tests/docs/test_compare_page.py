"""docs/compare.md gives rates and memory as docs/performance.md has them."""

from support.serving import PROJECT

DOCS = PROJECT / "docs"


def _rows(page: str, after: str = "") -> list[list[str]]:
    text = (DOCS / page).read_text(encoding="utf-8").partition(after)[2] if after else (DOCS / page).read_text("utf-8")
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]


def test_the_rates() -> None:
    """The last two rows of the table are two columns of the short table of measurements."""
    measured = _rows("performance.md", "in short: do not edit from here")[1:6]
    assert [row[0].split()[0].strip(",") for row in measured] == ["qs", "beanstalkd", "Redis", "RabbitMQ", "NATS"]
    push, cycle = ([cell.removesuffix("/s") for cell in row[1:6]] for row in _rows("compare.md")[-2:])
    assert push == [row[1] for row in measured]
    assert cycle == [row[3] for row in measured]
    memory = {row[0].split()[0].strip(","): row[5] for row in measured}
    assert f"{memory['qs']} to {memory['RabbitMQ']}" in (DOCS / "compare.md").read_text(encoding="utf-8")

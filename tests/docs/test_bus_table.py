"""docs/bus.md says of every operation of the bus what it needs, as the table of the code does."""

import re

from support.serving import PROJECT

from qs_bus.operations import EVERYBODY, OPERATIONS


def test_the_rights_of_the_bus() -> None:
    """The rows of the table in the section about rights: operations, and what each needs."""
    page = (PROJECT / "docs" / "bus.md").read_text(encoding="utf-8")
    section = page.partition("## TLS, tokens and rights\n")[2].partition("\n## ")[0]
    rows = [(cells[0], cells[1]) for cells in re.findall(r"^\| (.*?) \| (.*) \|$", section, re.MULTILINE)]
    told = {op: needs for cell, needs in rows for op in re.findall("`([a-z-]+)`", cell)}
    assert told.keys() == {message.op for message in OPERATIONS}
    for message, operation in OPERATIONS.items():
        needs = told[message.op]
        rights = {right.value for right in (operation.rights or {}).values()}
        assert set(re.findall("`(read|write|configure|monitor)`", needs)) == rights, message.op
        assert ("nothing. " in needs) is (operation.rights is EVERYBODY), message.op
        assert ("nothing more" in needs) is (operation.rights == {}), message.op

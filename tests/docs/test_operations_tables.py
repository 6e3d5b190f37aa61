"""The tables of operations agree with the code: the server's, the bus's, and what clients raise."""

import ast
import inspect
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from support.clients.every_client import SCENARIOS
from support.servers.processes import FAST, PROJECT, bus_serving, serving

import qs_schemas
from qs_bus import operations as bus_operations
from qs_schemas import Message
from qs_server.operations.table import EVERYBODY, OPERATIONS, Operation
from qs_serving.access.caller import MONITOR
from qs_serving.access.principal import Right
from qs_serving.connection import TRANSITIONS, Cause, Connection, Phase
from qs_storage.engine import Batches, Claims, Queue, Redrive

PAGE = PROJECT / "docs" / "operations-reference.md"
PROTOCOL = (PROJECT / "docs" / "protocol.md").read_text(encoding="utf-8")
ROWS = {message.op: (message, operation) for message, operation in OPERATIONS.items()}
ABOUT_ONE_QUEUE = (Queue, Claims, Batches, Redrive)
STORAGE = re.compile(r"service\.storage\b|queue$|claims$|_claims\(|_batches\(|redrive$")
"""What handlers call the engine, a queue, its claims and its batches."""
LOOK_UPS = {"queue", "queues", "options"}
ONLY_ANSWERED = {"list-queues", "queue-stats"}
"""Operations whose answers name `queues`, and not the requests."""


def rendered() -> list[str]:
    """The lines of the page's table."""

    def rights(operation: Operation) -> str:
        needed = operation.rights
        if needed is EVERYBODY:
            return "none"
        if not needed:
            return "any"
        if len(set(needed.values())) < 2:
            return next((right.value for right in needed.values()), "")
        return ", ".join(f"{right.value} (`{name}`)" for name, right in needed.items())

    def cells(op: str, operation: Operation) -> list[str]:
        handler = operation.handler
        module = inspect.getmodule(handler)
        assert module is not None
        place = f"`{module.__name__.rpartition('.')[2]}.{handler.__name__}`"
        uses = ", ".join(f"`{method.__qualname__}`" for method in operation.uses)
        return [f"[`{op}`](protocol.md#{op})", rights(operation), place, uses]

    lines = [cells(op, operation) for op, (_, operation) in ROWS.items()]
    head = [["operation", "right", "handler", "storage"], ["---"] * 4]
    return [f"| {' | '.join(line)} |" for line in [*head, *lines]]


def test_operations_page_shows_table() -> None:
    """The page shows the table. When this fails, put these lines there."""
    found = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    assert "\n".join(found) == "\n".join(rendered())


def test_every_operation_of_schema_has_row() -> None:
    """Every operation of qs.xsd has a message class, and a row or a place among what is not implemented yet."""
    schema = ET.parse(Path(qs_schemas.__file__).parent / "qs.xsd")
    xs = "{http://www.w3.org/2001/XMLSchema}"
    [op] = (found for found in schema.iter(f"{xs}complexType") if found.get("name") == "op")
    names = {found.get("name") for found in op.iter(f"{xs}element")}
    assert names == set(qs_schemas.OPERATIONS)
    later = PROTOCOL.partition("\n## Answered with 501\n")[2]
    assert set(ROWS) == {name for name in names if f"| `{name}` |" not in later}
    assert all(f"\n### `{name}`\n" in PROTOCOL for name in ROWS)


@pytest.mark.parametrize("op", ROWS)
def test_row_agrees_with_handler_and_message(op: str) -> None:
    """The handler takes the row's message; rights are to queues that the message names."""
    message, operation = ROWS[op]
    assert qs_schemas.OPERATIONS[op] is message
    assert get_type_hints(operation.handler)["request"] is message
    named = {field.name for field in fields(message)} & {"qid", "queues"}
    named |= {"dead_letter"} & set(dir(message))  # in its options
    named |= {"op"} if operation.rights is MONITOR else set()  # to the server
    assert set(operation.rights or ()) == (named - {"queues"} if op in ONLY_ANSWERED else named)


@pytest.mark.parametrize("op", [op for op in ROWS if op not in ("list-queues", "subscribe")])
def test_handler_calls_methods_of_its_row(op: str) -> None:
    """A handler, with the functions of its module that it calls, calls the methods of its row, and no others on the
    engine or a queue. (The two that are left out do so by way of another module.)"""
    _, operation = ROWS[op]
    tree = ast.parse(inspect.getsource(inspect.getmodule(operation.handler)))  # type: ignore[arg-type]
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    due, done = {operation.handler.__name__}, set[str]()
    called: set[str] = set()
    while due:
        done.add(name := due.pop())
        for call in (node.func for node in ast.walk(functions[name]) if isinstance(node, ast.Call)):
            if isinstance(call, ast.Name) and call.id in functions.keys() - done:
                due.add(call.id)
            elif isinstance(call, ast.Attribute) and STORAGE.match(ast.unparse(call.value)):
                called.add(call.attr)
    assert called - LOOK_UPS == {method.__name__ for method in operation.uses}


def test_every_queue_method_is_of_some_operation() -> None:
    """Some operation uses each method of a queue, its claims and its batches."""
    used = {method for _, operation in ROWS.values() for method in operation.uses}
    for kind in ABOUT_ONE_QUEUE:
        methods = {member for name, member in vars(kind).items() if inspect.isfunction(member) and name[0] != "_"}
        assert methods <= used, kind


def test_protocol_page_gives_rights() -> None:
    """The page's table of rights is that of the operations."""
    page = PROTOCOL.partition("\n## Who may do what\n")[2].partition("\n## ")[0]
    found = {name.strip("`"): ops for name, ops in re.findall(r"^\| ([^|]*) \| (`.*) \|$", page, re.MULTILINE)}
    expected: dict[str, set[str]] = {}
    for op, (_, operation) in ROWS.items():
        words = {word for right in (operation.rights or {}).values() for word in right.value.split(" or ")}
        for word in words or {"no right" if operation.rights is EVERYBODY else "any right"}:
            expected.setdefault(word, set()).add(op)
    assert {name: set(re.findall(r"`([\w-]+)`", ops)) for name, ops in found.items()} == expected


def test_every_right_is_of_some_operation() -> None:
    """Each right is that of some operation."""
    assert {right for _, operation in ROWS.values() for right in (operation.rights or {}).values()} == set(Right)


def test_rows_are_of_message_classes() -> None:
    """The table has rows for message classes of the protocol only."""
    assert all(issubclass(message, Message) for message in OPERATIONS)


def test_bus_page_gives_rights() -> None:
    """The rows of the table in the section about rights: operations, and what each needs."""
    page = (PROJECT / "docs" / "bus.md").read_text(encoding="utf-8")
    section = page.partition("## TLS, tokens and rights\n")[2].partition("\n## ")[0]
    rows = [(cells[0], cells[1]) for cells in re.findall(r"^\| (.*?) \| (.*) \|$", section, re.MULTILINE)]
    told = {op: needs for cell, needs in rows for op in re.findall("`([a-z-]+)`", cell)}
    assert told.keys() == {message.op for message in bus_operations.OPERATIONS}
    for message, operation in bus_operations.OPERATIONS.items():
        needs = told[message.op]
        rights = {right.value for right in (operation.rights or {}).values()}
        assert set(re.findall("`(read|write|configure|monitor)`", needs)) == rights, message.op
        assert ("nothing. " in needs) is (operation.rights is bus_operations.EVERYBODY), message.op
        assert ("nothing more" in needs) is (operation.rights == {}), message.op


CLIENTS = PROJECT / "docs" / "clients.md"


def test_clients_page_says_what_each_fault_raises() -> None:
    """The page's table is the one that every client is tested against."""
    page = CLIENTS.read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| (?:`(\w+)`|nothing) \|$", page, re.MULTILINE)
    assert rows == [(each.what, each.raises.__name__ if each.raises else "") for each in SCENARIOS]


def test_clients_page_programs_about_dead_letters(fenced_blocks: Callable[..., list[object]], tmp_path: Path) -> None:
    """The sync one and the async one print what happens to a message that fails."""
    section = CLIENTS.read_text(encoding="utf-8").partition("## Messages that fail")[2].partition("\n## ")[0]
    printed = []
    with serving(tmp_path / "root", *FAST) as server:
        for block in fenced_blocks(section, "python"):
            body = block.body.replace("9876", str(server.port))  # type: ignore[attr-defined]
            done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, timeout=60, check=False)
            assert done.stderr == ""
            printed.append(re.sub(r"\d{16}", "ID", done.stdout))
    options = "QueueOptions(storage='journal', visibility=30.0, capacity=None, retention=None, dead_letter='failed'"
    assert printed[0].startswith(options)
    assert printed[0].splitlines()[1:] == ["orders ID 1 receives ID", "[ID]", "True 1 0 0 0"]
    assert printed[1] == "parcels 1 receives\n1\n1 True\n"


def test_clients_page_programs_about_pipelines(fenced_blocks: Callable[..., list[object]], tmp_path: Path) -> None:
    """The sync one and the async one store all their messages."""
    section = CLIENTS.read_text(encoding="utf-8").partition("## Many requests at once")[2].partition("\n## ")[0]
    printed = []
    with serving(tmp_path / "root", *FAST) as server:
        for block in fenced_blocks(section, "python"):
            body = block.body.replace("9876", str(server.port))  # type: ignore[attr-defined]
            done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, timeout=60, check=False)
            assert done.stderr == ""
            printed.append(done.stdout)
    assert printed == ["3 2\n", "2\n"]


def test_clients_page_programs_about_headers(fenced_blocks: Callable[..., list[Any]], tmp_path: Path) -> None:
    """The sync one and the async one print what is shown below each."""
    section = CLIENTS.read_text(encoding="utf-8").partition("## What a message says")[2].partition("\n## ")[0]
    printed = []
    with serving(tmp_path / "root", *FAST) as server:
        for block in fenced_blocks(section, "python"):
            body = block.body.replace("9876", str(server.port))
            done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, timeout=60, check=False)
            assert done.stderr == ""
            printed.append(done.stdout)
    assert printed == [block.body for block in fenced_blocks(section, "text")]


def test_clients_page_programs_about_conditions(fenced_blocks: Callable[..., list[Any]], tmp_path: Path) -> None:
    """The sync one and the async one print what is shown below each."""
    section = CLIENTS.read_text(encoding="utf-8").partition("## What a queue takes")[2].partition("\n## ")[0]
    printed = []
    with serving(tmp_path / "root", *FAST) as server, bus_serving(server) as bus:
        for block in fenced_blocks(section, "python"):
            body = block.body.replace("9876", str(server.port)).replace("9878", str(bus.port))
            done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, timeout=60, check=False)
            assert done.stderr == ""
            printed.append(done.stdout)
    assert printed == [block.body for block in fenced_blocks(section, "text")]


ARCHITECTURE = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()
CONNECTION_SECTION = ARCHITECTURE.split("## The states of a connection\n")[1].split("\n## ")[0]


def connection_rows() -> list[list[str]]:
    """Returns the cells of the table, an empty first cell as the one above."""
    found: list[list[str]] = []
    for line in CONNECTION_SECTION.split("Who may call what:")[0].splitlines():
        if line.startswith("| ") and not line.startswith("| phase"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            found.append([cells[0] or found[-1][0], *cells[1:]])
    return found


def test_connection_table_has_all_transitions() -> None:
    """Each row of the page is one or several of the code, and none is missing."""
    said = {
        (Phase[phase.strip().upper()], Cause[cause.partition(":")[0].upper()]): Phase[after.upper()]
        for phases, _, cause, after in connection_rows()
        if cause
        for phase in phases.split(",")
    }
    assert said == TRANSITIONS


def test_connection_table_says_what_phases_and_causes_are() -> None:
    """The page has the words of the code."""
    waits = {phases: waits for phases, waits, _, _ in connection_rows() if waits not in ("", "as above")}
    assert waits == {phase.name.lower(): phase.value for phase in Phase}
    causes = dict(cause.split(": ", 1) for _, _, cause, _ in connection_rows() if ": " in cause)
    assert causes == {cause.name.lower(): cause.value for cause in Cause}


def test_connection_drawing_has_all_causes() -> None:
    """Each phase and each cause is a word of the drawing."""
    drawing = re.search(r"```text\n(.*?)```", CONNECTION_SECTION, re.DOTALL)
    assert drawing
    words = set(re.findall(r"\w+", drawing.group(1)))
    assert {each.name.lower() for each in (*Phase, *Cause)} <= words


WAYS = ("The path of a push", "The way of a receive that waits", "The way of a dead letter")


@pytest.mark.parametrize("way", WAYS)
def test_ways_name_functions_that_exist(way: str) -> None:
    """Each function of a table is defined in the file beside it."""
    section = ARCHITECTURE.split(f"## {way}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([\w.]+)` \| `([\w/.]+)` \|", section, re.MULTILINE)
    assert len(rows) >= 7
    root = Path(__file__).parents[2]
    for function, file in rows:
        scope: ast.AST = ast.parse((root / file).read_text())
        for name in function.split("."):
            found = [node for node in ast.iter_child_nodes(scope) if getattr(node, "name", None) == name]
            assert found, f"{file} has no {function}"
            scope = found[0]


def test_connection_page_names_calls_that_exist() -> None:
    """Each call that the page names is a method of a connection."""
    who = CONNECTION_SECTION.split("Who may call what:")[1]
    for name in re.findall(r"`(\w+)`", who):
        assert hasattr(Connection, name), name

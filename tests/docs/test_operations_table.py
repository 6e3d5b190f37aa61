"""The table of operations agrees with the schema, the handlers, the interface of the storage, and its page."""

import ast
import inspect
import re
import xml.etree.ElementTree as ET
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import pytest
from support.serving import PROJECT

import qs_schemas
from qs_schemas import Message
from qs_server.operations.table import EVERYBODY, OPERATIONS, Operation
from qs_serving.access.caller import MONITOR
from qs_serving.access.principal import Right
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


def test_page() -> None:
    """The page shows the table. When this fails, put these lines there."""
    found = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    assert "\n".join(found) == "\n".join(rendered())


def test_schema() -> None:
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
def test_row(op: str) -> None:
    """The handler takes the row's message; rights are to queues that the message names."""
    message, operation = ROWS[op]
    assert qs_schemas.OPERATIONS[op] is message
    assert get_type_hints(operation.handler)["request"] is message
    named = {field.name for field in fields(message)} & {"qid", "queues"}
    named |= {"dead_letter"} & set(dir(message))  # in its options
    named |= {"op"} if operation.rights is MONITOR else set()  # to the server
    assert set(operation.rights or ()) == (named - {"queues"} if op in ONLY_ANSWERED else named)


@pytest.mark.parametrize("op", [op for op in ROWS if op not in ("list-queues", "subscribe")])
def test_what_a_handler_calls(op: str) -> None:
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


def test_every_method_of_a_queue_is_of_some_operation() -> None:
    """Some operation uses each method of a queue, its claims and its batches."""
    used = {method for _, operation in ROWS.values() for method in operation.uses}
    for kind in ABOUT_ONE_QUEUE:
        methods = {member for name, member in vars(kind).items() if inspect.isfunction(member) and name[0] != "_"}
        assert methods <= used, kind


def test_rights_on_the_protocol_page() -> None:
    """The page's table of rights is that of the operations."""
    page = PROTOCOL.partition("\n## Who may do what\n")[2].partition("\n## ")[0]
    found = {name.strip("`"): ops for name, ops in re.findall(r"^\| ([^|]*) \| (`.*) \|$", page, re.MULTILINE)}
    expected: dict[str, set[str]] = {}
    for op, (_, operation) in ROWS.items():
        words = {word for right in (operation.rights or {}).values() for word in right.value.split(" or ")}
        for word in words or {"no right" if operation.rights is EVERYBODY else "any right"}:
            expected.setdefault(word, set()).add(op)
    assert {name: set(re.findall(r"`([\w-]+)`", ops)) for name, ops in found.items()} == expected


def test_every_right_is_needed() -> None:
    """Each right is that of some operation."""
    assert {right for _, operation in ROWS.values() for right in (operation.rights or {}).values()} == set(Right)


def test_messages_without_a_row_have_no_handler() -> None:
    """The table has rows for message classes of the protocol only."""
    assert all(issubclass(message, Message) for message in OPERATIONS)

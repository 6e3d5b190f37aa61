"""Drives a call of `calls`: passes its exchanges on, and their answers or errors back."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from qs_schemas import Message

from .asking import Call, Exchange

T = TypeVar("T")


def drive(call: Call[T], exchange: Callable[[Exchange], Message]) -> T:
    """Runs the call and returns its value."""
    try:
        wanted = next(call)
        while True:
            try:
                answer = exchange(wanted)
            except Exception as error:
                wanted = call.throw(error)
            else:
                wanted = call.send(answer)
    except StopIteration as done:
        value: T = done.value
        return value


async def drive_async(call: Call[T], exchange: Callable[[Exchange], Awaitable[Message]]) -> T:
    """Runs the call and returns its value, like `drive`."""
    try:
        wanted = next(call)
        while True:
            try:
                answer = await exchange(wanted)
            except Exception as error:
                wanted = call.throw(error)
            else:
                wanted = call.send(answer)
    except StopIteration as done:
        value: T = done.value
        return value

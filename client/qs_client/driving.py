"""Runs a call of `calls`: hands its exchanges to whoever can do them, and the answers, or the trouble, back to it."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from qs_schemas import Message

from .asking import Call, Exchange

T = TypeVar("T")


def drive(call: Call[T], exchange: Callable[[Exchange], Message]) -> T:
    """What the call returns."""
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
    """What the call returns."""
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

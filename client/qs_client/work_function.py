"""The function that `qs work` calls: imports it, checks that it can be called, and makes its argument of a message."""

import importlib
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

from qs_schemas import GetMessage

from .errors import Reject
from .handling import text_of

WRONG = 2
"""The exit code when there is no such function, or it cannot be called: starting again would not help."""
FAILED = 1
"""The exit code when the function's module raises: perhaps something that it needs is not there yet."""


class UnusableError(Exception):
    """The function cannot be called. code: the exit code for it."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def load(name: str) -> Callable[[Any], object]:
    """Imports a function, first from the current directory. name: MODULE:FUNCTION. Raises UnusableError."""
    module_name, _, path = name.partition(":")
    here = os.getcwd()  # as `python -m` has it, and `python -P`, which runs this process, has not
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # The module itself is missing, or one that it imports: only the first is a wrong name.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise UnusableError(f"cannot import {module_name!r}: {described(error)}", FAILED) from None
        raise UnusableError(
            f"cannot import {module_name!r}: there is no module {error.name!r} in {here}, and none is installed", WRONG
        ) from None
    except (Exception, SystemExit) as error:  # a module may call sys.exit(), as scripts do
        raise UnusableError(f"cannot import {module_name!r}: {described(error)}", FAILED) from None
    where = getattr(found, "__file__", None) or module_name
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise UnusableError(f"there is no function {path!r} in {where}", WRONG) from None
    if not callable(found):
        raise UnusableError(f"{path!r} in {where} is no function: it is {type(found).__name__} {found!r:.60}", WRONG)
    if inspect.iscoroutinefunction(found) or inspect.isasyncgenfunction(found):
        raise UnusableError(
            f"{name} is async, and 'qs work' calls plain functions, one job at a time in each process: call "
            f"anyio.run({path}, message) in a plain function, or write a worker with AsyncQueueClient",
            WRONG,
        )
    if inspect.isgeneratorfunction(found):
        raise UnusableError(f"{name} is a generator: calling it does none of its work; take the yield out", WRONG)
    called: Callable[[Any], object] = found
    return called


def calling(function: Callable[[Any], object], *, as_json: bool, as_xml: bool) -> Callable[[GetMessage], None]:
    """Returns the handler of a message: it calls the function with the message, or with the JSON or XML in the message.

    The handler raises the function's exceptions, and Reject for a payload that is not JSON or XML: a further attempt
    would not help.
    """
    decode = _json if as_json else _xml if as_xml else _message

    def call(message: GetMessage) -> None:
        result = function(decode(message))
        if inspect.isawaitable(result) or inspect.isgenerator(result):
            if hasattr(result, "close"):
                result.close()  # else Python warns that a coroutine was never awaited
            raise TypeError(f"the function returned a {type(result).__name__}, and has done no work: it must not be")

    return call


def _message(message: GetMessage) -> GetMessage:
    return message


def _payload(message: GetMessage) -> bytes:
    payload = message.payload or b""
    return payload.encode() if isinstance(payload, str) else payload


def _json(message: GetMessage) -> object:
    try:
        return json.loads(_payload(message))
    except (ValueError, RecursionError) as error:
        raise Reject(f"the message is no JSON: {error}") from None


def _xml(message: GetMessage) -> object:
    from qs_schemas.parsing import parse_payload  # noqa: PLC0415 - lxml takes long to import

    try:
        return parse_payload(_payload(message))
    except ValueError as error:
        raise Reject(f"the message is no XML: {error}") from None


def described(error: BaseException) -> str:
    """Returns type, text and place of an exception, on one line."""
    said = text_of(error)
    text = f"{type(error).__name__}: {said}" if said else type(error).__name__
    if isinstance(error, SyntaxError):  # it names its place itself
        return " ".join(text.split())
    frames = [frame for frame in traceback.extract_tb(own_frames(error)) if not frame.filename.startswith("<frozen")]
    if frames:
        text += f" ({os.path.basename(frames[-1].filename)} line {frames[-1].lineno})"
    return " ".join(text.split())


def own_frames(error: BaseException) -> TracebackType | None:
    """Returns the traceback of an exception from the function on, without what has called it."""
    frames = error.__traceback__
    while frames is not None and os.path.dirname(frames.tb_frame.f_code.co_filename) == os.path.dirname(__file__):
        frames = frames.tb_next
    return frames

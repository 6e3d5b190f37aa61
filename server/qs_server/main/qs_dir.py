"""Runs the command `qs-dir`, which works on a queue's directory from a shell, without a server.

Exit codes: 0; 1 an error; 2 wrong usage; 3 sink took fewer messages than asked for; 130 Ctrl-C, 143 SIGTERM; 141 the
reader of the output went away. Signals are only noted, so that the current message is finished.
"""

import contextlib
import itertools
import json
import os
import select
import signal
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from qs_storage.disk import Disk
from qs_storage.engine import StorageError
from qs_storage.tools import counted
from qs_storage.tools.elements import (
    DIRQ,
    IN_FLIGHT,
    REMOVED,
    STATES,
    UNFINISHED,
    VSQS,
    WRITTEN,
    Element,
    elements,
    layout_of,
    purge,
)
from qs_storage.tools.ends import TICK, Body, End, Taken, open_end, put_all, take_all
from qs_storage.vsqs import check_no_server

from .qs_dir_flags import make_parser
from .tool_process import Meter, UsageError, become_owner, described, run, say, to_stdout

_PIECE = 1024 * 1024
"""Bytes of input a read."""
_FEWER = 3
"""The exit code of a sink that took fewer messages than `--count`: a script can tell it from an error."""
_SIGNALLED = 128
"""Exit codes from here on are signals, as the shell counts them: 130 is Ctrl-C."""
# Codes of states (`elements.STATES`) that are no words by themselves.
_WORDS = {IN_FLIGHT: "in flight", WRITTEN: "being written", REMOVED: "being removed"}
_NAME, _FIGURE = 23, 8
"""Widths of columns, fixed as lines are written as they come."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command. Returns the exit code. argv: None for the process's arguments."""
    arguments = make_parser().parse_args(argv)

    def command() -> int:
        directory = arguments.directory
        # The parent too: pump may have to make the directory, and the parent's owner could put a link in its place.
        become_owner([os.path.dirname(os.path.abspath(directory)), directory])
        return _COMMANDS[arguments.command](arguments)

    return run("qs-dir", command)


# -- pump and sink ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _signals_noted() -> Iterator[list[int]]:
    """Yields a list in which Ctrl-C and SIGTERM are noted, so that the current message is finished. A second signal
    interrupts."""
    caught: list[int] = []

    def note(number: int, frame: object) -> None:
        if caught:
            raise KeyboardInterrupt  # a user who asks twice does not want to wait for the current message
        caught.append(number)

    # An ignored signal stays ignored: a shell has its background jobs ignore Ctrl-C.
    noted = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, note) for number in noted}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _pump(arguments: Namespace) -> int:
    layout = _layout_for(arguments, exists=os.path.lexists(arguments.directory))
    if arguments.capacity is not None and layout != VSQS:
        raise UsageError("--capacity is for the layout vsqs")
    if layout == DIRQ and arguments.schema.others:
        raise UsageError(
            f"--schema: {', '.join(arguments.schema.others)} would be missing in each element (a ? allows that)"
        )
    with (
        _signals_noted() as caught,
        Meter("stored") as meter,
        _opened(arguments, layout, meter, "stored", capacity=arguments.capacity, put_only=True) as end,
    ):
        payloads = _lines() if arguments.lines else _numbers(arguments.size)
        for size in put_all(end, payloads, arguments.rate):
            if size is None:
                meter.tick()
            else:
                meter.add(1, size)
            if caught or meter.messages == arguments.count:
                break
    meter.summary()
    return _SIGNALLED + caught[0] if caught else 0


def _sink(arguments: Namespace) -> int:
    layout = _layout_for(arguments, exists=True)
    if arguments.visibility is not None and layout != VSQS:
        raise UsageError("--visibility is for the layout vsqs: with dirq a lock stays until somebody takes it away")
    visibility = 10.0 if arguments.visibility is None else arguments.visibility
    live = not (arguments.print and sys.stdout.isatty())  # both would write into the same line of the terminal
    disordered, newest = 0, ""
    with (
        _signals_noted() as caught,
        Meter("took", live=live) as meter,
        _opened(arguments, layout, meter, "taken out", visibility=visibility) as end,
    ):
        for taken in take_all(end, arguments.wait):
            if taken is None:
                meter.tick()
            else:
                if arguments.print:
                    _print(end, taken)  # before the message is removed: if it cannot be printed, it is given back
                end.remove(taken)
                meter.add(1, len(taken.payload))
                disordered += taken.order <= newest
                newest = max(newest, taken.order)
            if caught or meter.messages == arguments.count:
                break
    meter.summary(f"; {disordered} came out of order" if disordered else "")
    if caught:
        return _SIGNALLED + caught[0]
    return _FEWER if arguments.count is not None and meter.messages < arguments.count else 0


def _layout_for(arguments: Namespace, *, exists: bool) -> str:
    """Returns the layout, vsqs by default, and sets a missing --schema. Raises UsageError for a schema with another
    layout."""
    layout = layout_of(arguments.directory, arguments.layout) if exists else arguments.layout
    if arguments.schema is not None and layout != DIRQ:
        raise UsageError(
            f"--schema is for the layout dirq; {arguments.directory} has {layout or 'none yet: give --layout dirq'}"
        )
    if arguments.schema is None:
        arguments.schema = Body(Body.DEFAULT)
    return layout or VSQS


@contextlib.contextmanager
def _opened(arguments: Namespace, layout: str, meter: Meter, done: str, **options: Any) -> Iterator[End]:
    """Opens the directory for pump or sink. Adds the count of earlier messages to an error in the with block. done: the
    verb in `5 messages were stored before`; options: see `open_end`."""
    end = open_end(arguments.directory, layout, arguments.schema, sync=not arguments.no_sync, **options)
    try:
        yield end
    except BrokenPipeError:
        raise  # the reader of the output has gone, which is not an error of the directory
    except (OSError, StorageError, MemoryError) as error:
        were = "was" if meter.messages == 1 else "were"
        before = f"{counted(meter.messages, 'message')} {were} {done} before"
        raise StorageError(f"{described(error, arguments.directory)}; {before}") from error
    finally:
        end.close()


def _numbers(size: int | None) -> Iterator[bytes]:
    """Yields 1, 2, 3 and so on, each filled up or cut off to the size."""
    for number in itertools.count(1):
        text = b"%d" % number
        yield text if size is None else text.ljust(size, b".")[:size]


def _lines() -> Iterator[bytes | None]:
    """Yields the lines of standard input without their ends, as they come. Yields None when no line comes for a
    moment."""
    if sys.stdin is None:
        raise UsageError("standard input is closed: redirect it")
    descriptor = sys.stdin.fileno()
    begun: list[bytes] = []
    while True:
        # Not sys.stdin, whose buffer may have lines that select does not see.
        if not select.select([descriptor], [], [], TICK)[0]:
            yield None
            continue
        piece = os.read(descriptor, _PIECE)
        *whole, rest = piece.split(b"\n")
        if whole:
            whole[0] = b"".join([*begun, whole[0]])
            begun.clear()
            yield from whole
        else:
            yield None  # a line may be long
        if rest:
            begun.append(rest)
        if not piece:
            if begun:
                yield b"".join(begun)  # the last line has no end
            return


def _print(end: End, taken: Taken) -> None:
    """Writes the payload and a line end to the descriptor of standard output."""
    try:
        with to_stdout():
            # Not by sys.stdout, which would try to write failed output again at the end.
            Disk().write(sys.stdout.fileno(), taken.payload if taken.payload.endswith(b"\n") else taken.payload + b"\n")
    except BaseException:
        end.give_back(taken)
        raise


# -- ls ---------------------------------------------------------------------------------------------------------------


def _ls(arguments: Namespace) -> int:
    say(_listed(arguments, layout_of(arguments.directory, arguments.layout)))
    return 0


def _listed(arguments: Namespace, layout: str | None) -> Iterator[str]:
    states: Counter[str] = Counter()
    size, oldest = 0, None
    if not arguments.json and not arguments.summary:
        yield _line("MESSAGE", "AGE", "SIZE", "STATE")
    for element in () if layout is None else elements(arguments.directory, layout, time.time()):
        states[element.state] += 1
        size += element.size
        oldest = element.age if oldest is None else max(oldest, element.age)
        if arguments.json:
            yield json.dumps(_as_json(element))
        elif not arguments.summary:
            yield _line(element.name, f"{element.age:.1f}", str(element.size), _state(element))
    if not arguments.json:
        listed = ", ".join(f"{states[state]} {shown(state)}" for state in STATES if state in states)
        text = f"{counted(states.total(), 'message')}, {counted(size, 'byte')}"
        text += f": {listed}; the oldest is {oldest:.1f} s old" if oldest is not None else ""
        yield f"{text} ({layout})" if layout else text


def _line(name: str, age: str, size: str, state: str) -> str:
    return f"{name.ljust(_NAME)}  {age.rjust(_FIGURE)}  {size.rjust(_FIGURE)}  {state}"


def shown(state: str) -> str:
    """Returns the words for a state, one of STATES."""
    return _WORDS.get(state, state)


def _state(element: Element) -> str:
    text = shown(element.state)
    if element.left is not None:
        return f"{text}, {element.left:.1f} s left"
    return text if element.since is None else f"{text}, for {element.since:.1f} s"


def _as_json(element: Element) -> dict[str, object]:
    return {
        key: round(value, 3) if isinstance(value, float) else value
        for key, value in element._asdict().items()
        if value is not None
    }


# -- purge ------------------------------------------------------------------------------------------------------------


def _purge(arguments: Namespace) -> int:
    directory = arguments.directory
    layout = layout_of(directory, arguments.layout)
    if layout == VSQS:
        if arguments.max_lock is not None:
            raise UsageError("--max-lock is for the layouts of dirq: a message of vsqs comes back by itself")
        check_no_server(directory)  # files in a queue of the journal are on their way into that
    if arguments.all and not _is_sure(arguments, layout):
        sys.stderr.write("qs-dir: nothing was removed\n")
        return 1
    if layout is None:
        told = "there is nothing in it"
    else:
        purged = purge(directory, layout, arguments.max_temp, arguments.max_lock, everything=arguments.all)
        what = ("unfinished file", "expired message") if layout == VSQS else ("unfinished element", "old lock")
        freed = "made ready" if layout == VSQS else "removed"
        told = f"{counted(purged.unfinished, what[0])} removed, {counted(purged.freed, what[1])} {freed}"
        told += f", {counted(purged.removed, 'message')} removed" if arguments.all else ""
    say([f"{directory}: {told}"])
    return 0


def _is_sure(arguments: Namespace, layout: str | None) -> bool:
    if arguments.yes:
        return True
    if sys.stdin is None or sys.stderr is None or not sys.stdin.isatty() or not sys.stderr.isatty():
        raise UsageError("--all removes every message: add --yes (on a terminal you would be asked)")
    found = () if layout is None else elements(arguments.directory, layout, time.time())
    many = counted(sum(1 for each in found if each.state not in UNFINISHED), "message")
    answer = ""
    try:
        sys.stderr.write(f"Remove all of {arguments.directory}, {many}? [y/N] ")
        sys.stderr.flush()
        answer = sys.stdin.readline()
    finally:
        if not answer:  # Ctrl-C or Ctrl-D has left the cursor in the line
            sys.stderr.write("\n")
    return answer.strip().lower() in ("y", "yes")


_COMMANDS: dict[str, Callable[[Namespace], int]] = {"pump": _pump, "sink": _sink, "ls": _ls, "purge": _purge}


if __name__ == "__main__":
    raise SystemExit(main())

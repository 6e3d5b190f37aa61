"""The arguments of `qs work`."""

import argparse

from .argument_values import positive, seconds
from .queue_arguments import AddCommand

GRACE = 30.0
"""Seconds for the running jobs at a stop: supervisors wait 90 (systemd) or 30 seconds (Kubernetes) for a process."""
_MOST_PROCESSES = 1000
"""More processes than that are a slip of the keyboard."""

_EXAMPLES = """\
examples:
  qs work jobs thumbnails:make               calls make(message) of thumbnails.py for each message
  qs work jobs thumbnails:make --processes 4 -v
  qs work urgent jobs thumbnails:make --json calls make with what json.loads makes of each message

signals: TERM or INT stops gracefully, a second one at once; HUP loads the code again, without a gap
"""


def add_work(add: AddCommand) -> None:
    """Adds the subcommand `work` and its arguments."""
    added = add(
        "work",
        "work_processes:work",
        "call a Python function with each message, in several processes",
        "The function is imported as 'python -m' imports: from the current directory, or from where packages are "
        "installed. A message is deleted when the function returns, and given back with the reason when it raises.",
        json_help="call it with the JSON of each message",
    )
    added.epilog = _EXAMPLES
    added.add_argument("queues", metavar="QUEUE", nargs="+", help="several: the messages of all of them as they come")
    added.add_argument("function", metavar="MODULE:FUNCTION", type=function_name, help="as in thumbnails:make")
    added.set_defaults(hint_new=lambda given: given.queues[0] if len(given.queues) == 1 else "QUEUE")
    added.add_argument(
        "-p", "--processes", type=_processes, default=1, metavar="N", help="call it in N processes (default: 1)"
    )
    added.add_argument("--xml", action="store_true", help="call it with the root element of each message (lxml)")
    added.add_argument("--visibility", type=seconds, metavar="S", help="seconds of the window, which is extended")
    # 1, as messages that a process has ahead wait behind its job, while other processes may have nothing to do.
    added.add_argument(
        "--prefetch", type=positive, default=1, metavar="N", help="messages that a process has at a time (default: 1)"
    )
    added.add_argument(
        "--ack",
        choices=("behind", "wait"),
        default="behind",
        help="take the next message while the server deletes the one that is done, or wait (default: behind)",
    )
    added.add_argument(
        "--grace",
        type=seconds,
        default=GRACE,
        metavar="S",
        help=f"seconds for the running jobs at a stop; then they are given back (default: {GRACE:.0f})",
    )
    added.add_argument(
        "-v", "--verbose", action="count", default=0, help="a line for each job; -vv: tracebacks of those that fail too"
    )


def check_work(arguments: argparse.Namespace) -> None:
    """Checks what argparse cannot. Raises ValueError if the arguments contradict each other."""
    if arguments.json and arguments.xml:
        raise ValueError("the function gets the JSON or the XML of a message: give --json or --xml, not both")


def _example(text: str) -> str:
    """Returns an example of MODULE:FUNCTION for a text without a colon."""
    if text.endswith(".py") or "." not in text:
        return f"{text.removesuffix('.py').replace('/', '.')}:FUNCTION"
    module, _, function = text.rpartition(".")
    return f"{module}:{function}"


def function_name(text: str) -> str:
    """Parses MODULE:FUNCTION. Does not import it."""
    module, colon, function = text.partition(":")
    wrong = module.endswith(".py") or not all(
        name.isidentifier() for name in (*module.split("."), *function.split("."))
    )
    if not colon or wrong:
        example = "thumbnails:make" if colon else _example(text)
        raise argparse.ArgumentTypeError(f"{text!r} is not MODULE:FUNCTION, as in {example}")
    return text


def _processes(text: str) -> int:
    value = positive(text)
    if value > _MOST_PROCESSES:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {_MOST_PROCESSES}")
    return value

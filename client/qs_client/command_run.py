"""Runs a subcommand of `qs`: connects to its server, and maps results and errors to the exit codes of `command`."""

import sys
from argparse import Namespace
from collections.abc import Callable
from importlib import import_module

from qs_schemas.terminal import READER_GONE, silence_stdout

from .client import QueueClient
from .command_arguments import Target
from .command_output import Output, complain
from .errors import Conflict, Forbidden, NotFound, ServerError, Unauthorized
from .security import Security
from .server_arguments import make_security

FAILED = 1


def run(arguments: Namespace) -> int:
    """Runs the subcommand and returns its exit code. arguments: as `command_line` returns them.

    Whatever an operator can cause, by an argument or by a server that is away, is a line on stderr and an exit code,
    never a traceback.
    """
    try:
        return _run(arguments)
    except BrokenPipeError:  # before OSError: the reader, such as `head`, has what it wanted
        silence_stdout()  # else Python would report the same again, when it flushes at the end
        return READER_GONE
    except ServerError as error:
        return _fail(f"{error}{hint(error, arguments)}")
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error))
    except ValueError as error:  # a name that XML cannot carry
        return _fail(str(error))


def _run(arguments: Namespace) -> int:
    if sys.stdout is None:  # checked first: no result could be printed later
        return _fail("standard output is closed: redirect it to a file, or to /dev/null")
    out = Output(sys.stdout.buffer, as_json=arguments.json)
    code = _run_subcommand(arguments, out)
    out.flush()
    return code


def _run_subcommand(arguments: Namespace, out: Output) -> int:
    """Calls the function of the subcommand with what it needs: a connected client, the security of a bus's client, or
    nothing."""
    # Only now is its module imported: each subcommand starts without what the others need, and `--help` without all.
    module, _, name = arguments.run.partition(":")
    function: Callable[..., int] = getattr(import_module(f".{module}", __package__), name)
    if arguments.target is Target.NOTHING:
        return function(arguments, out)
    security = _security(arguments)
    if arguments.target is Target.BUS:
        return function(security, arguments, out)
    host, port, _ = arguments.address
    with QueueClient(host, port, timeout=arguments.timeout, tls=security.context, token=security.token) as client:
        return function(client, arguments, out)


def _security(arguments: Namespace) -> Security:
    security = make_security(arguments, arguments.address, complain)
    arguments.has_token = security.token is not None
    return security


def _fail(text: str) -> int:
    complain(text)
    return FAILED


def hint(error: ServerError, arguments: Namespace) -> str:
    """Returns the advice that follows an error of the server; empty for an error without advice."""
    if isinstance(error, Unauthorized):
        if arguments.has_token:
            return " (the token is that of QS_TOKEN, QS_TOKEN_FILE or --token-file: is it in the server's access file?)"
        return " (say who you are: give a token with QS_TOKEN or --token-file)"
    if isinstance(error, Forbidden):
        who = "the owner of this token" if arguments.has_token else "a client without a token"
        return f" ({who} has no such right: the server's access file gives it)"
    return _hint_about_queues(error, arguments)


def _hint_about_queues(error: ServerError, arguments: Namespace) -> str:
    if isinstance(error, Conflict) and arguments.command == "new" and "existing" in error.text:
        return " (qs set changes options)" if arguments.exist_ok else " (with --exist-ok that is no error)"
    if isinstance(error, NotFound) and arguments.hint_new:
        names = getattr(arguments, "queues", ())
        if any("," in name and name in error.text for name in names):
            import shlex  # noqa: PLC0415

            apart = shlex.join(each for name in names for each in name.split(",") if each)
            return f" (several queues are separate arguments: qs {arguments.command} {apart})"
        return f" (to create a queue: qs new {arguments.hint_new(arguments)})"
    return ""

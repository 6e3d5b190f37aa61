"""The command queue-web.py: reads the flags, runs the page, and reports errors in one line.

The flags are read with Python's own library and qs alone. So help is shown, and a wrong flag explained, also where the
extra `web` is not installed.
"""

import argparse
import logging
import os
import re
from collections.abc import Sequence
from functools import partial

from qs_client.server_arguments import (
    DEFAULT_BUS,
    DEFAULT_SERVER,
    add_security,
    bus,
    check_security,
    make_security,
    read_address,
    server,
)
from qs_schemas.extras import importing
from qs_serving.arguments import parse_arguments
from qs_serving.flags import basic_parser, read_tls

from .options import PORT, WebOptions

_logger = logging.getLogger(__name__)
_PROGRAM = "queue-web.py"
_SERVER = "--server-"
"""The prefix of the flags for TLS and a token towards the queue server: --tls-cert is the page's own towards
browsers."""
_DESCRIPTION = (
    "The page of a queue server: shows its queues and messages to browsers, pauses, purges and redrives them, and has "
    "metrics for Prometheus."
)
_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)*")
_HOST = re.compile(r"[A-Za-z0-9.-]+(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]+\](:[0-9]{1,5})?")


def _path(text: str) -> str:
    """Parses the path that all addresses of the page begin with."""
    path = text.rstrip("/")
    if not _PATH.fullmatch(path) or {"..", "."} & set(path.split("/")):
        raise argparse.ArgumentTypeError(f"{text!r} is not a path like /queues: letters, digits and ._~- only")
    return path


def _host(text: str) -> str:
    """Parses a name that browsers may ask for."""
    if not _HOST.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a host like queues.example or queues.example:8443")
    return text.lower()


def _warn(text: str) -> None:
    _logger.warning("%s", text)


def web_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command."""
    parser = basic_parser(_PROGRAM, _DESCRIPTION, PORT)
    text = f"address of the queue server (default: $QS_SERVER, else {DEFAULT_SERVER})"
    parser.add_argument("-s", "--server", type=server, metavar="HOST:PORT", help=text)
    text = f"show this bus too (for instance {DEFAULT_BUS}); TLS and the token are those towards the queue server"
    parser.add_argument("--bus", type=bus, metavar="HOST:PORT", help=text)
    parser.add_argument("--read-only", action="store_true", help="change nothing: no actions, and no forms for them")
    parser.add_argument(
        "--path", type=_path, default="", metavar="/PATH", help="the page is under this path, for a proxy (default: /)"
    )
    parser.add_argument(
        "--allow-host",
        type=_host,
        action="append",
        default=[],
        metavar="NAME",
        help="answer browsers that reach the page by this name, as through a proxy; may be repeated (default: the "
        "names and addresses of this machine that it listens on)",
    )
    parser.add_argument(
        "--open",
        action="store_true",
        help="nobody has to sign in: everybody who reaches the page may do what its own token may",
    )
    text = "How the page speaks to the queue server. The files are read again on SIGHUP."
    add_security(parser.add_argument_group("towards the queue server", text), _SERVER)
    return parser


def read_options(arguments: Sequence[str] | None) -> tuple[WebOptions, int]:
    """Reads the options and the verbosity from the command line. Exits on --help and on a wrong flag."""
    parser = web_parser()
    parsed = parse_arguments(parser, arguments)
    address = read_address(parser, parsed, prefix=_SERVER)
    # The bus gets the token that is for the queue server. Without this test, it went to a bus with qs:// in the clear.
    if parsed.bus is not None and parsed.bus.tls not in (None, check_security(parsed, address, _SERVER)):
        parser.error(
            "the page speaks to the bus as to the queue server, both with TLS or both without, and --bus contradicts "
            "that: give both addresses the same scheme, or leave it out of --bus"
        )
    options = WebOptions(
        server=(address.host, address.port),
        security=partial(make_security, parsed, address, _warn, prefix=_SERVER),
        shows_certificate=parsed.server_cert is not None,
        bus=None if parsed.bus is None else (parsed.bus.host, parsed.bus.port),
        host=parsed.host,
        port=parsed.port,
        path=parsed.path,
        hosts=tuple(parsed.allow_host),
        tls=read_tls(parser, parsed),
        read_only=parsed.read_only,
        open=parsed.open,
        check=parsed.check,
        log_format=parsed.log_format,
    )
    return options, parsed.verbose


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command. Exit codes: 0 stopped as asked; 1 could not start, or not stop in time; 2 wrong flags, or the
    extra is not installed."""
    options, verbose = read_options(arguments)
    with importing("web", _PROGRAM):  # not at the top: --help needs no extra
        from qs_serving.command import check_files, run_command  # noqa: PLC0415
        from qs_serving.service_manager import ServiceManager  # noqa: PLC0415

        from .serving import describe, run_web  # noqa: PLC0415
    if options.check:
        return check_files(_PROGRAM, verbose, lambda: describe(options), options.log_format)
    run = partial(run_web, manager=ServiceManager(os.environ))
    return run_command(_PROGRAM, verbose, run, options, options.log_format)


if __name__ == "__main__":
    raise SystemExit(main())

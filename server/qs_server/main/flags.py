"""Defines the flags of queue-server.py: the text of `--help`, and the options that the flags set.

This module imports only Python's own library, so help is shown without the extras, and man pages are made with nothing
installed.
"""

import argparse
import os
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from qs_schemas.addresses import address
from qs_serving.arguments import number_group, parse_arguments
from qs_serving.flags import LOG_FILE, add_buckers, add_limits, make_parser, read_common
from qs_storage.engine import Durability

from .options import PORT, HistoryOptions, ServerOptions

PROGRAM = "queue-server.py"
_MEMCACHED = 11211
"""The usual port of memcached, for an address without one."""
_REMOTES = {
    "memcached": {"servers": "memcached"},
    "postgres": {"dsn": "postgres", "connections": "postgres_connections"},
    "sqs": {"endpoint": "sqs_endpoint", "region": "sqs_region", "prefix": "sqs_prefix"},
}
"""By storage on another server: the arguments of its engine, and the flag that gives each. A flag that is given asks
for the engine; what is not given is as the engine has it."""
_DEFAULTS = ServerOptions("qs-data")
"""The flags have their defaults from the options, so that the two cannot differ."""


def read_options(arguments: Sequence[str] | None, storages: Collection[str]) -> tuple[ServerOptions, int]:
    """Returns (options, verbosity). storages: the choices of --storage. Ends the process on --help and on a wrong flag.
    Flags may also come from the config file (`parse_arguments`)."""
    parser = server_parser(storages)
    parsed = parse_arguments(parser, arguments)
    # A process list shows the flags, and a DSN may have a password.
    parsed.postgres = parsed.postgres or os.environ.get("QS_POSTGRES") or None
    if parsed.migrate and parsed.postgres is None:
        parser.error("--migrate makes the tables in a database: name it with --postgres DSN, or in QS_POSTGRES")
    history = HistoryOptions(parsed.history, parsed.history_size, parsed.history_age, parsed.history_keep)
    options = ServerOptions(
        root=parsed.root,
        umask=parsed.umask,
        storage=parsed.storage,
        durability=Durability(parsed.durability),
        history=None if parsed.history is None else history,
        cache=parsed.cache,
        max_keys=parsed.max_keys,
        schemas=parsed.schemas,
        migrate=parsed.migrate,
        engines={storage: given for storage, flags in _REMOTES.items() if (given := _given(parsed, flags))},
        **read_common(parser, parsed),
    )
    return options, parsed.verbose


def _given(parsed: argparse.Namespace, flags: Mapping[str, str]) -> dict[str, Any]:
    """Returns the arguments of an engine whose flags were given. flags: argument -> name of its flag."""
    values = {argument: getattr(parsed, flag) for argument, flag in flags.items()}
    return {argument: value for argument, value in values.items() if value is not None}


def server_parser(storages: Collection[str]) -> argparse.ArgumentParser:
    """Makes the parser. storages: the choices of --storage."""
    parser = make_parser(PROGRAM, "The qs queue server: queues in a journal or in directories, XML over TCP.", PORT)
    parser.add_argument(
        "--root",
        default=_DEFAULTS.root,
        metavar="DIR",
        help="directory of the queues, made if missing (default: ./%(default)s)",
    )
    parser.add_argument(
        "--umask",
        type=_umask,
        default=_DEFAULTS.umask,
        metavar="MODE",
        help="what others may not do with the files and directories that the server makes, in octal: 077 nothing at "
        "all (default), 007 whatever the owner's group may, 022 read all",
    )
    parser.add_argument(
        "--storage",
        choices=storages,
        metavar="NAME",
        default=_DEFAULTS.storage,
        help="engine of new queues that do not name one: journal, files, dirq-simple, dirq, null, memcached, sqs, "
        "postgres, or one that another package brings (default: %(default)s)",
    )
    parser.add_argument(
        "--durability",
        choices=[durability.value for durability in Durability],
        default=_DEFAULTS.durability.value,
        help="when an answered change survives a power loss: 'always' (default), at once; 'interval', after 50 ms; "
        "'none', perhaps never (it survives the end of the server)",
    )
    parser.add_argument(
        "--schemas",
        type=_directory,
        metavar="DIR",
        help="directory of the XML and JSON schemas (NAME.xsd, NAME.json) that queues may ask their payloads to obey; "
        "read at the start and on SIGHUP",
    )
    journal = parser.add_argument_group("journal")
    number_group(journal, "BYTES")(
        "--cache", _DEFAULTS.cache, "payloads kept in memory; others are read from the journal", 0
    )
    number_group(journal, "KEYS")(
        "--max-keys", _DEFAULTS.max_keys, "keys of pushes remembered, some 300 bytes each; pushes with more are refused"
    )
    add_buckers(parser, _BUCKERS)
    _add_history(parser)
    _add_remotes(parser)
    add_limits(parser.add_argument_group("limits"))
    return parser


_BUCKERS = {
    "-s": "queues are kept below --root; for queues on memcached servers write --storage memcached --memcached VALUE",
    "-p": "write --port VALUE",
    "-i": "leave it out, and write & echo $! >VALUE behind the command; or run the unit qs-server.service of systemd",
    "-l": LOG_FILE,
}
"""Flags of bucker's server, with what to write here instead. -s is the storage, which were the addresses of memcached
servers; -p the port; -i the file for the process id; -l the log."""


def _add_history(parser: argparse.ArgumentParser) -> None:
    defaults = HistoryOptions("")
    group = parser.add_argument_group("lifecycle record")
    group.add_argument("--history", metavar="DIR", help="record what happens to each message in files in DIR")
    add = number_group(group, "BYTES")
    add("--history-size", defaults.size, "finish a file when it is so large")
    number_group(group, "SECONDS")("--history-age", defaults.age, "or so long after its first line", 0.1)
    add("--history-keep", defaults.keep, "remove the oldest files when there are more", shown="keep all")


def _add_remotes(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("queues that other servers keep")
    group.add_argument(
        "--memcached",
        type=_addresses,
        metavar="HOST[:PORT][,...]",
        help="the memcached servers of queues of that storage (default: 127.0.0.1:11211)",
    )
    group.add_argument(
        "--postgres",
        metavar="DSN",
        help="the database of queues of that storage, like 'host=db1,db2 dbname=qs user=qs', or a URL; one with a "
        "password belongs into the file of --config, or the variable QS_POSTGRES",
    )
    number_group(group, "N")(
        "--postgres-connections", None, "connections for requests, and at most as many for others", shown="2"
    )
    group.add_argument(
        "--migrate",
        action="store_true",
        help="make the tables in the database of --postgres, or bring them up to date, and end",
    )
    group.add_argument("--sqs-endpoint", metavar="URL", help="where queues of the storage sqs are (default: Amazon)")
    group.add_argument("--sqs-region", metavar="NAME", help="region there; without it, that of AWS's own tools")
    group.add_argument("--sqs-prefix", metavar="TEXT", help="prefix of the names of all queues there (default: none)")


def _directory(text: str) -> str:
    """Reads the name of a directory. An empty one is a variable that was not set, and no directory."""
    if not text:
        raise argparse.ArgumentTypeError("the name of a directory is missing")
    return text


def _umask(text: str) -> int:
    """Reads a umask, which must leave the server's own user every right, because the server has to read the files that
    it makes."""
    if not re.fullmatch("0?[0-7]{3}", text) or int(text, 8) & 0o700:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no mode like 077 or 007: three octal digits, the first of them 0"
        )
    return int(text, 8)


def _addresses(written: str) -> tuple[tuple[str, int], ...]:
    """Reads HOST[:PORT],… as (host, port) pairs."""
    found = []
    for part in written.split(","):
        try:
            found.append(address(part.strip(), _MEMCACHED))
        except ValueError:
            raise argparse.ArgumentTypeError(f"{part!r} is no HOST[:PORT]") from None
    return tuple(found)

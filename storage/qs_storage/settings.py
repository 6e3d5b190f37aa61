"""A queue's directory in the root, for every storage: makes it, and reads and writes its options, `.queue.toml`.

A directory without that file has the defaults.
"""

import errno
import json
import math
import os
import re
import secrets
import shutil
import tomllib
from collections.abc import Callable

from .disk import Disk
from .engine import SECOND, BadQueueNameError, Options, QueueExistsError, StorageError
from .names import directory_of
from .policy import contradiction_in

FILE = ".queue.toml"
MAKING = ".making-"
"""Begins the name of a directory that is not a queue yet."""
_OPTIONS_HELP = (
    "the options are: storage = a name in quotes ('journal', 'files', …), visibility = seconds, "
    "capacity = messages (from 1), paused = true or false, timestamps = 'us' or 'ms', "
    "dead-letter = the 'name' of a queue and with it max-receives = 1 to 1000, retention = seconds (more than 0), "
    "backoff = seconds (more than 0), backoff-max = seconds with it, "
    "group-in-flight = messages (from 1), fair = true or false, max-in-flight = messages (from 1), "
    "rate = messages a second (more than 0), "
    "schema = the 'name' of a schema, where = the 'condition' of a bus's durable name, "
    "pieces = 'NAME=TYPE,...' of a dirq queue, body = the 'NAME' that is the payload; one a line"
)
_LONGEST = 10**15 - 1
"""Microseconds. Some 31 years: the longest time that an answer can say. Older servers wrote 10**15, and a file may have
been written by hand: a longer time counts as this one."""
_MOST_MESSAGES = 10**18 - 1
"""The greatest number of messages that an answer can say. A greater one counts as this one: neither is ever reached."""
_LEAST_RATE, _MOST_RATE = 1e-9, 1e9
"""One message in 31 years, and one each nanosecond. A rate beyond them counts as the nearer one."""
_MOST_RECEIVES = 1000
_DURATIONS = ("visibility", "retention", "backoff", "backoff-max")
"""Options in seconds. All but a visibility have to be greater than 0 if they are given."""
_NUMBERS = ("capacity", "group-in-flight", "max-in-flight")
"""Options in messages, from 1 on if they are given."""
_SWITCHES = ("paused", "fair")
"""Options that are true or false."""
_WRITTEN = (
    *("storage", *_DURATIONS, *_NUMBERS, "dead-letter", "max-receives", "rate", *_SWITCHES),
    *("schema", "where", "timestamps", "pieces", "body"),
)
"""All options, in the order in which they are written."""
_DEFAULTS = Options()


def read_options(directory: str, default_storage: str) -> Options:
    """Reads a queue's options. StorageError for an invalid file."""
    path = f"{directory}/{FILE}"
    try:
        with open(Disk().open_file(path, os.O_RDONLY), "rb") as file:
            found = tomllib.load(file)
    except FileNotFoundError:
        return Options(storage=default_storage)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StorageError(f"{path}: not TOML ({error}); {_OPTIONS_HELP}") from None
    options = Options(storage=default_storage)
    for key, value in found.items():
        try:
            _set(options, key, value)
        except (ValueError, BadQueueNameError) as error:
            raise StorageError(f"{path}: {key}: {error}") from None
    if bool(options.dead_letter) != (options.max_receives is not None):
        # Each alone would be ignored, and the operator would not know.
        raise StorageError(f"{path}: dead-letter and max-receives go together; {_OPTIONS_HELP}")
    if (contradiction := contradiction_in(options)) is not None:
        raise StorageError(f"{path}: {contradiction}; {_OPTIONS_HELP}")
    return options


def _set(options: Options, key: str, value: object) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
    if key == "storage" and isinstance(value, str):
        options.storage = value
    elif key in _NUMBERS and isinstance(value, int) and number and value >= 1:
        setattr(options, key.replace("-", "_"), min(value, _MOST_MESSAGES))
    elif key == "rate" and number and value:
        options.rate = float(min(max(value, _LEAST_RATE), _MOST_RATE))  # type: ignore[call-overload]
    elif key == "timestamps" and value in ("us", "ms"):
        options.timestamps = str(value)
    elif key == "dead-letter" and isinstance(value, str) and value:
        directory_of(value)  # BadQueueNameError
        options.dead_letter = value
    elif key == "max-receives" and isinstance(value, int) and number and 1 <= value <= _MOST_RECEIVES:
        options.max_receives = value
    elif key in _DURATIONS and number and (value or key == "visibility"):
        setattr(options, key.replace("-", "_"), max(_micros(value), int(bool(value))))  # type: ignore[arg-type]
    elif (
        (key in _SWITCHES and isinstance(value, bool))
        or (key in ("pieces", "body") and isinstance(value, str) and is_plain(value))
        or (key in ("schema", "where") and isinstance(value, str) and not _CONTROL.search(value))
    ):
        setattr(options, key, value)
    else:
        wrong = (
            f"this cannot be {value!r}"
            if key.replace("-", "_") in Options.__dataclass_fields__
            else "there is no such option"
        )
        raise ValueError(f"{wrong}; {_OPTIONS_HELP}")


def _micros(seconds: float) -> int:
    return min(round(min(seconds, _LONGEST) * SECOND), _LONGEST)


is_plain = re.compile(r"[0-9A-Za-z=,?* ]*").fullmatch
"""Matches the pieces of data of a dirq queue, or a piece's name."""
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


def storage_in(root: str, qid: str, default: str) -> str | None:
    """Returns the storage of the queue in a directory, None if there is no queue. default: the storage of a queue
    without options. StorageError, OSError."""
    path = f"{root}/{directory_of(qid)}"
    return read_options(path, default).storage if os.path.isdir(path) else None


def write_options(directory: str, options: Options, disk: Disk) -> None:
    """Writes the options atomically, whatever the durability, because a start refuses a torn file."""
    for key, value in (("pieces", options.pieces), ("body", options.body)):
        if not is_plain(value):
            raise StorageError(f"{key} = {value!r}: of letters, digits and = , ? * only")
    fields = ((key, getattr(options, key.replace("-", "_"))) for key in _WRITTEN)
    lines = [f"{key} = {_as_toml(key, value)}\n" for key, value in fields if _is_set(key, value)]
    disk.write_file(f"{directory}/{FILE}", "".join(lines).encode(), sync=True)


def _is_set(key: str, value: object) -> bool:
    """Tells whether an option has to be written: it differs from the default, or is one to be seen."""
    return key in ("storage", "visibility") or value != getattr(_DEFAULTS, key.replace("-", "_"))


def _as_toml(key: str, value: object) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # as TOML has it
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value / SECOND if key in _DURATIONS else value)  # type: ignore[operator]


# A directory gets its name only with its options in it: a listing of the root shows a whole queue or none.
def make_queue(root: str, qid: str, options: Options, disk: Disk, *, made: Callable[[], None]) -> None:
    """Makes a queue's directory with its options. made: called afterwards; if it raises, the directory is removed. The
    content of the directory is durable; the caller syncs the root. QueueExistsError, BadQueueNameError, OSError."""
    path = f"{root}/{directory_of(qid)}"
    if os.path.lexists(path):
        raise _exists(qid)
    making = f"{root}/{MAKING}{secrets.token_hex(8)}"
    disk.mkdir(making)
    try:
        write_options(making, options, disk)
        # Before the rename: a queue with a name has its options, also after a power loss.
        disk.sync_directory(making)
        _rename_new(making, path, qid, disk)
        try:
            made()
        except BaseException:
            # Under the other name again, so that nobody takes it for a queue while it is removed.
            disk.rename(path, making)
            raise
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise


def _rename_new(old: str, new: str, qid: str, disk: Disk) -> None:
    try:
        disk.rename(old, new)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise _exists(qid) from None
        raise


def _exists(qid: str) -> QueueExistsError:
    return QueueExistsError(f"'{qid}' is already an existing queue")

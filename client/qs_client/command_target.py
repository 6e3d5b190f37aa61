"""The kinds of server that subcommands of `qs` talk to."""

from enum import Enum


class Target(Enum):
    """Names the kind of server that a subcommand talks to."""

    SERVER = "server"
    BUS = "bus"
    NOTHING = "nothing"

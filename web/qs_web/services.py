"""What every request of the page works with."""

from dataclasses import dataclass

from .options import WebOptions
from .upstreams import Upstreams


@dataclass(frozen=True, slots=True)
class Services:
    """The parts that requests share: the options, and the connections to the queue server."""

    options: WebOptions
    upstreams: Upstreams

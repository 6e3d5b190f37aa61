"""The parts of the page that its requests share."""

from collections.abc import Callable
from dataclasses import dataclass, field

from .history import History
from .links import Links
from .options import WebOptions
from .sessions import Sessions
from .upstreams import Upstreams


@dataclass(frozen=True, slots=True)
class Services:
    """The parts that requests share.

    clock: seconds that only grow; history: of each queue; sign_in: nobody sees anything before a sign-in. patience:
    seconds that the queue server has to answer what a page asks.
    """

    options: WebOptions
    upstreams: Upstreams
    sessions: Sessions
    history: History
    links: Links
    clock: Callable[[], float]
    sign_in: bool
    patience: float = 1.5
    cookie: str = field(default="qs-session")

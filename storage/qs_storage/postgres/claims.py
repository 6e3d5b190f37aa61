"""Claims of a queue of the database."""

from .known import Known, Shared


class PostgresClaims:
    """See Claims."""

    def __init__(self, shared: Shared, known: Known) -> None:
        self._shared = shared
        self._known = known

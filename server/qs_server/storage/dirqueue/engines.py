"""The engines whose new queues, and those without options, are directories of dirq, or keep nothing."""

from typing import ClassVar

from ..directories import DirectoriesEngine
from ..engine import Feature

_CANNOT = frozenset({Feature.WHOLE, Feature.HELD, Feature.KEY, Feature.CLAIM, Feature.MILLISECONDS})
"""In either of the layouts: there an id is the name of an element, and a list gets its names one after the other."""


class DirqSimpleEngine(DirectoriesEngine):
    """Queues in the layout of dirq's QueueSimple."""

    name = "dirq-simple"
    cannot: ClassVar[frozenset[Feature]] = _CANNOT


class DirqEngine(DirectoriesEngine):
    """Queues in the layout of dirq's Queue."""

    name = "dirq"
    cannot: ClassVar[frozenset[Feature]] = _CANNOT


class NullEngine(DirectoriesEngine):
    """Queues that keep nothing."""

    name = "null"
    cannot: ClassVar[frozenset[Feature]] = frozenset({Feature.KEEP, Feature.DURABLE})

"""The engines whose new queues, and those without options, are directories of dirq, or keep nothing."""

from typing import ClassVar

from ..directories import DirectoriesEngine


class DirqSimpleEngine(DirectoriesEngine):
    """Queues in the layout of dirq's QueueSimple."""

    name = "dirq-simple"


class DirqEngine(DirectoriesEngine):
    """Queues in the layout of dirq's Queue."""

    name = "dirq"


class NullEngine(DirectoriesEngine):
    """Queues that keep nothing."""

    name = "null"
    keeps: ClassVar[bool] = False

"""How many examples a property is tried with."""

import os


def examples(usual: int) -> int:
    """As many as the environment's QS_EXAMPLES says, for a longer search; usually so many."""
    return int(os.environ.get("QS_EXAMPLES", usual))

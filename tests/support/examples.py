"""Sets how many examples a property is tried with, and runs machines of rules."""

import os

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine


def examples(usual: int) -> int:
    """Returns the number of examples: QS_EXAMPLES of the environment, for a longer search, otherwise the usual one."""
    return int(os.environ.get("QS_EXAMPLES", usual))


def run_machine(machine: type[RuleBasedStateMachine], usual: int, steps: int = 40) -> None:
    """Runs a machine usually so many times, each for at most so many steps; always the same ones."""
    case = machine.TestCase
    case.settings = settings(
        max_examples=examples(usual),
        stateful_step_count=steps,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    case().runTest()

"""`qs work`: calls a function with each message, in processes that are replaced when they end."""

import time
from argparse import Namespace

from .client import QueueClient
from .command_output import Output, complain
from .work_processes import Processes, Said


def work(client: QueueClient, arguments: Namespace, _: Output) -> int:
    """Works until a signal says to stop, and then shows a summary. Returns 0 then, 128 and its number after a second
    signal, and what `work_function` says if the function cannot be called at the start.

    client: is connected, so the address and the token are right; the processes have connections of their own.
    """
    client.disconnect()
    began = time.monotonic()
    processes = Processes(arguments.words, arguments.processes, arguments.grace, complain)
    code = processes.run()
    counts = processes.counts
    if processes.began:
        complain(
            f"{counts[Said.DONE]} done, {counts[Said.FAILED]} failed, {counts[Said.TAKEN_AWAY]} taken away, "
            f"{counts[Said.GIVEN_BACK]} given back, {processes.replaced} processes replaced, "
            f"in {time.monotonic() - began:.1f} s"
        )
    return code

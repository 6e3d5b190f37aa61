"""`qs tail`: messages from the bus, as they come."""

from argparse import Namespace
from itertools import islice

from .bus_client import BusClient
from .command_output import Output, complain

OK = 0


def tail(arguments: Namespace, out: Output) -> int:
    """Prints each message, and only then acknowledges it. Returns after --max of them; without, only by an exception.

    That the bus cannot be reached is raised at the start, and said later, when it goes on as soon as it can.
    """
    host, port = arguments.bus
    with BusClient(host, port, timeout=arguments.timeout, on_trouble=complain) as bus:
        messages = bus.subscribe(arguments.queues, ack=True, name=arguments.name)
        messages.open()
        for message in islice(messages, arguments.max):
            out.message(message, heading=arguments.verbose)
            out.flush()
            bus.delete(message)
    return OK

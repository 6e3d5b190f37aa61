"""`qs tail`: prints messages from the bus as they come."""

from argparse import Namespace
from itertools import islice

from .bus_client import BusClient
from .command_output import OK, Output, complain
from .security import Security

_TIMEOUT = 30.0  # seconds for a connection


def tail(security: Security, arguments: Namespace, out: Output) -> int:
    """Prints each message, and then acknowledges it. Returns after --max messages, otherwise only by an exception.

    Raises ServerUnavailable when the bus cannot be reached at the start; later outages are reported and survived. A bus
    without its queue server does not take the subscription: that is reported, and raised only after a given --timeout.
    """
    host, port, _ = arguments.address
    timeout = _TIMEOUT if arguments.timeout is None else arguments.timeout
    with BusClient(host, port, timeout=timeout, on_trouble=complain, tls=security.context, token=security.token) as bus:
        messages = bus.subscribe(arguments.queues, ack=True, name=arguments.name)
        messages.open(patient=arguments.timeout is None)
        for message in islice(messages, arguments.max):
            out.message(message, heading=arguments.verbose, ended=True)
            out.flush()
            bus.delete(message)
    return OK

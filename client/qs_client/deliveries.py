"""A subscription of the sync client as an iterator.

The session knows which messages belong to it. The client, which shares the connection between threads, has the steps,
begin, next delivery and end, and gives them to the iterator: an import of the client here would be a circle.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Self, TypeAlias

from qs_schemas import GetMessage, Subscribe

from .acknowledgements import Acknowledgements
from .backoff import Outages
from .connection import Connection
from .errors import OtherProcess, ServerError
from .lifetimes import Closing, call_after_fork
from .turns import Turn
from .waiting import Subscription

Begun: TypeAlias = Callable[[Connection, Subscription], None]
"""Called with the connection and the subscription when the subscribe request is sent, before its answer has come."""


_NAP = 0.05
"""Seconds of the pieces of a pause between two attempts. `close()` may be called in a signal handler, which interrupts
a sleep but could wait for ever for the lock inside an event that the interrupted thread waits for."""


class Deliveries(Closing):
    """Iterates over the messages of a subscription, over all the connections that it takes. It ends with `close()`,
    also in another thread or in a signal handler, at the end of its `with` block, or when it is no longer referenced,
    as after a `break`."""

    # Ensures
    # 1. Each message is handed out once for a connection. What a lost connection had sent ahead is not handed out: the
    #    server has taken it back and gives it to somebody, perhaps to this program, as a new delivery.
    # 2. After a lost connection it waits and subscribes again, as `Outages` decides; other errors end it.
    # 3. Messages that were sent ahead and not handed out are released at its end, if the server can be reached.
    # 4. `close` waits for no lock of a thread that waits for a message.
    # 5. At its end, and that of a `close`, each acknowledgement that went behind is confirmed, or the log says that it
    #    is not known. Only a `close` in the middle of a call of its own thread, as in a signal handler, leaves that to
    #    the end of the loop.
    #
    # Assumes one thread at a time that iterates. Never acknowledges: the program does.

    def __init__(
        self,
        request: Subscribe,
        outages: Outages,
        acknowledgements: Acknowledgements,
        *,
        begin: Callable[[Subscribe, Acknowledgements, Begun], None],
        next_delivery: Callable[[Connection, Subscription], GetMessage | None],
        end: Callable[[Connection, Subscription], None],
        confirm: Callable[[Acknowledgements], None],
        disconnects: Callable[[], int],
    ) -> None:
        """begin: sends the request and waits until the server has accepted it; next_delivery: waits for a message,
        returns None when this side has ended the subscription; end: ends the subscription without waiting for a thread
        that reads; confirm: waits, at the end, until the acknowledgements are confirmed; disconnects: returns how often
        the program has called `disconnect()`."""
        self._request = request
        self._outages = outages
        self._acknowledgements = acknowledgements
        self._begin = begin
        self._next_delivery = next_delivery
        self._end = end
        self._confirm = confirm
        self._disconnects = disconnects
        self._open: tuple[Connection, Subscription] | None = None
        self._closed = self._inherited = False
        self._ending = Turn()  # held while the end is under way
        call_after_fork(self)

    def after_fork(self) -> None:
        """Ends the iterator in a child process, see `lifetimes`."""
        self._inherited = self._closed = True
        self._ending = Turn()
        self._open = None
        self._acknowledgements.forget()

    @property
    def taken_away(self) -> int:
        """How many messages the server had given to somebody else, or that were gone, when their acknowledgement came.
        Counts those of ack="behind" only: where the program waits, it is told."""
        return self._acknowledgements.taken_away

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> GetMessage:
        if self._inherited:
            raise OtherProcess
        while not self._closed:
            try:
                self._acknowledgements.confirm()
            except ServerError:  # not one of those that begin anew
                self.close()
                raise
            try:
                if self._open is None:
                    self._subscribe()
                message = None if self._open is None else self._next_delivery(*self._open)
            except (ServerError, OSError) as error:
                self._lost(error)
            except BaseException:
                self.close()
                raise
            else:
                if message is None:
                    break
                return message
        # An end that another thread has begun is finished here: the program may disconnect right behind the loop.
        with self._ending.thread, self._ending.lock:
            self._finish()
        raise StopIteration

    def open(self) -> None:
        """Subscribes now, not when the first message is asked for. Raises the same errors as the first message
        would."""
        if self._open is None and not self._closed:
            try:
                self._subscribe()
            except BaseException:
                self.close()
                raise

    def _subscribe(self) -> None:
        self._outages.check(self._disconnects())
        request = replace(self._request)  # a copy, as each connection gives it a req of its own
        self._begin(request, self._acknowledgements, self._begun)
        self._outages.over()

    def _lost(self, error: ServerError | OSError) -> None:
        """Waits until the time of the next attempt. Raises the error when there is to be none."""
        if self._open is not None:
            self._open[1].lease.lost = True  # so a late `delete` of one of its messages is not an error
            self._open = None
        if self._closed:  # in another thread, which is why the call failed
            return
        try:
            until = time.monotonic() + self._outages.pause_after(error)
        except BaseException:
            self.close()
            raise
        while (
            not self._closed
            and not self._outages.disconnected(self._disconnects())
            and (left := until - time.monotonic()) > 0
        ):
            time.sleep(min(left, _NAP))

    def _begun(self, connection: Connection, subscription: Subscription) -> None:
        self._open = connection, subscription
        if self._closed:  # while the request was being sent
            connection.session.end(subscription)

    def close(self) -> None:
        """Ends the subscription and releases messages that were sent ahead, if the server can be reached. A loop that
        waits in another thread ends."""
        self._closed = True
        self._ending.take(self._finish)  # or another thread ends it, or what this signal handler interrupts

    def _finish(self) -> None:
        """Ends the subscription, and confirms what was acknowledged, also while it was ended."""
        if self._open is not None:
            self._end(*self._open)
        if not self._acknowledgements.done:
            self._confirm(self._acknowledgements)

    def __del__(self) -> None:
        self.close()

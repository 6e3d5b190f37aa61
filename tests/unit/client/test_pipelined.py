"""The accounting of pipelines: what is open, what is sent when, and which error is raised at the end."""

import contextlib
import gc
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import anyio
import pytest

from qs_client import Message, NotFound, PushMessage, ServerUnavailable, asking, async_pipeline, calls, pipelined
from qs_client import pipeline as sync_pipeline
from qs_client.async_pipeline import AsyncPipeline
from qs_client.pipeline import Pipeline
from qs_client.waiting import Pending
from qs_schemas import Error

MIB = 1024 * 1024


class Server:
    """The client's steps, and the server behind it: it answers everything when an answer is waited for.

    size: the bytes that a request is said to have; loses: the numbers of the waits that lose the connection instead.
    """

    def __init__(self, size: int = 100, loses: frozenset[int] = frozenset()) -> None:
        self.now = 0.0
        self.written: list[PushMessage] = []
        self.sent: list[int] = []  # how many requests were written when something was sent
        self.most_open = 0
        self._open: list[Pending] = []
        self._size = size
        self._loses = loses
        self._waits = 0
        self.session = self  # of the connection that it is to the async pipeline

    def ask(self, request: Message) -> Pending:
        assert isinstance(request, PushMessage)
        self.written.append(request)
        pending = Pending(request, self._size)
        self._open.append(pending)
        self.most_open = max(self.most_open, self._size * len(self._open))
        return pending

    def flush(self) -> None:
        self.sent.append(len(self.written))

    def answer(self, pending: Pending) -> Message:
        self._waits += 1
        if self._waits in self._loses:
            self._open.clear()
            raise ServerUnavailable("the connection is lost")
        for each in self._open:
            each.settle(self._answer_to(each))
        self._open.clear()
        if pending.answer is None:
            raise ServerUnavailable("the connection was lost")
        return pending.answer

    def _answer_to(self, pending: Pending) -> Message:
        request = pending.request
        assert isinstance(request, PushMessage)
        if request.qid == "none":
            first = (request.messages or [request])[0]
            return Error(404, "not-found", f"no queue for {mid_of(first.payload)}")
        if request.messages:
            return PushMessage(mids=[mid_of(each.payload) for each in request.messages])
        return PushMessage(mid=mid_of(request.payload))

    async def answered(self, pending: Pending, *_: object) -> Message:
        return self.answer(pending)

    def pipeline(self) -> Pipeline:
        def sleep(seconds: float) -> None:
            self.now += seconds

        return Pipeline(
            write=lambda request: (self, self.ask(request)),  # type: ignore[arg-type, return-value]
            answer=lambda _connection, pending, _seconds, _since: self.answer(pending),
            send=lambda _connection: self.flush(),
            drop=lambda _connection: self._open.clear(),
            timeout=lambda: None,
            clock=lambda: self.now,
            sleep=sleep,
        )

    def async_pipeline(self) -> AsyncPipeline:
        async def opened() -> Any:
            return self

        return AsyncPipeline(opened, lambda: None)


def mid_of(payload: bytes | str | None) -> int:
    """Returns the id of the message with this payload, which is a number and what follows a space."""
    assert isinstance(payload, str)
    return int(payload.split()[0])


# -- what is sent when, and what is kept ------------------------------------------------------------------------------


def test_a_request_that_has_waited_is_sent() -> None:
    """Requests wait for others, and are sent with the next one that comes 10 ms after the first of them."""
    server = Server()
    with server.pipeline() as batch:
        for at in (0.0, 0.009, 0.01, 0.015, 0.0199, 0.026):
            server.now = at
            batch.push("q", "1")
        assert server.sent == [3, 6]


def test_many_requests_are_sent_together() -> None:
    """32 requests are sent at once, also if no time passes."""
    server = Server()
    with server.pipeline() as batch:
        for _ in range(70):
            batch.push("q", "1")
        assert server.sent == [32, 64]


def test_the_bytes_that_are_open() -> None:
    """No more than 1 MiB is open, but for the last request; a single larger one is written alone."""
    for size, most in ((300_000, 1_200_000), (5 * MIB, 5 * MIB)):
        server = Server(size)
        with server.pipeline() as batch:
            stored = [batch.push("q", str(number)) for number in range(10)]
        assert server.most_open == most
        assert [each.result() for each in stored] == list(range(10))


def test_a_further_request_counts_with_its_own_bytes() -> None:
    """The bytes of a list's next request count in place of those of the one before."""
    server = Server(600_000)
    with server.pipeline() as batch:
        batch.push_many("q", ["1"] * 2500)
        for number in range(4):
            batch.push("q", str(number))
            assert server.most_open == min(number + 2, 2) * 600_000


def test_long_lists_keep_their_order() -> None:
    """The later lists of a call are written when it is the oldest: after the first lists of the calls behind it, and
    before the later lists of those."""
    server = Server()
    with server.pipeline() as batch:
        stored = [batch.push_many("q", [f"{number} {name}" for number in range(2500)]) for name in ("a", "b")]
        one = batch.push("q", "7 c")
    written = [
        (mid_of(each.payload), each.payload.split()[1], len(request.messages or [0]))  # type: ignore[union-attr, arg-type]
        for request in server.written
        for each in [(request.messages or [request])[0]]
    ]
    assert written == [
        (0, "a", 1000),
        (0, "b", 1000),
        (7, "c", 1),
        (1000, "a", 1000),
        (2000, "a", 500),
        (1000, "b", 1000),
        (2000, "b", 500),
    ]
    assert [each.result() for each in stored] == [list(range(2500))] * 2
    assert one.result() == 7


@pytest.mark.parametrize("qid", ["q", "none"])
def test_payloads_are_dropped(qid: str) -> None:
    """A call that is done keeps neither its request nor its payload, whether it has failed or not."""
    server = Server()
    payload = " ".join(["1", *"xyz"])  # no constant: nothing else refers to it
    payloads = [" ".join(["1", *"abc"])]
    before = sys.getrefcount(payload), sys.getrefcount(payloads[0])
    with server.pipeline() as batch:
        results = [batch.push(qid, payload), batch.push_many(qid, payloads)]
        assert sys.getrefcount(payload) > before[0]
        batch.wait_for(results[1]._call)
        server.written.clear()
        gc.collect()
        assert (sys.getrefcount(payload), sys.getrefcount(payloads[0])) == before
        for result in results:
            if qid == "none":
                with pytest.raises(NotFound):
                    result.result()
            else:
                result.result()


def test_payloads_of_abandoned_calls_are_dropped() -> None:
    """A call whose block was interrupted keeps neither."""
    server = Server()
    payload = " ".join(["1", *"xyz"])  # no constant: nothing else refers to it
    before = sys.getrefcount(payload)
    with pytest.raises(KeyboardInterrupt), server.pipeline() as batch:  # noqa: PT012 - the block raises
        result = batch.push("q", payload)
        assert sys.getrefcount(payload) > before
        raise KeyboardInterrupt
    server.written.clear()
    gc.collect()
    assert sys.getrefcount(payload) == before
    assert result.done


# -- the error at the end ---------------------------------------------------------------------------------------------


def note(more: int) -> list[str]:
    return [f"later calls of the pipeline that failed too, and whose result nobody asked for: {more}"]


def test_any_of_many_errors_is_raised() -> None:
    """The end raises the first of very many failed calls that nobody has looked at, wherever it is."""
    for unseen in (0, 255, 256, 300, 998, 999):
        server = Server()
        with pytest.raises(NotFound) as caught, server.pipeline() as batch:  # noqa: PT012 - its end
            failed = [batch.push("none", str(number)) for number in range(1000)]
            batch.wait_for(failed[-1]._call)
            for number, each in enumerate(failed):
                if number != unseen:
                    with pytest.raises(NotFound):
                        each.result()
        assert caught.value.text == f"no queue for {unseen}"
        assert not hasattr(caught.value, "__notes__")


def test_the_note_counts_those_that_nobody_has_looked_at() -> None:
    """The number in the note is exact: calls that were looked at late do not count, those let go of do."""
    server = Server()
    with pytest.raises(NotFound) as caught, server.pipeline() as batch:  # noqa: PT012 - its end
        failed = [batch.push("none", str(number)) for number in range(900)]
        for _ in range(2000):
            batch.push("none", "1")
        failed += [batch.push("none", "1") for _ in range(900)]
        batch.wait_for(failed[-1]._call)
        for each in (*failed[:700], *failed[1000:]):
            with pytest.raises(NotFound):
                each.result()
    assert caught.value.text == "no queue for 700"
    assert caught.value.__notes__ == note(200 + 2000 + 100 - 1)


def test_errors_are_not_kept_without_bound() -> None:
    """A pipeline keeps few of the calls whose results the program has let go of, looked at or not."""
    server = Server()
    with pytest.raises(NotFound) as caught, server.pipeline() as batch:  # noqa: PT012 - its end
        for _ in range(3000):
            with pytest.raises(NotFound):
                batch.push("none", "1").result()
        for _ in range(3000):
            batch.push("none", "1")
        gc.collect()
        assert sum(isinstance(each, NotFound) for each in gc.get_objects()) <= 300
    assert caught.value.__notes__ == note(2999)


# -- interrupts -------------------------------------------------------------------------------------------------------


OWN = {module.__file__ for module in (pipelined, sync_pipeline, async_pipeline, asking, calls)}


class Interruption:
    """Raises one KeyboardInterrupt, before the instruction of the client's own code with this number."""

    def __init__(self, at: int) -> None:
        self._left = at
        self.came = False

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        gc.disable()  # what it finds runs code of the client too: an interrupt there would hit no call of this test
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)
        gc.enable()

    def _trace(self, frame: FrameType, event: str, _argument: object) -> Any:
        if frame.f_code.co_filename not in OWN:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and not self.came:
            self._left -= 1
            if not self._left:
                self.came = True
                raise KeyboardInterrupt
        return self._trace


def interruptions() -> Iterator[Interruption]:
    """Yields one for each instruction, until one has not come."""
    at = 0
    while True:
        at += 1
        interruption = Interruption(at)
        yield interruption
        if not interruption.came:
            assert at > 100
            return


Pushes = list[tuple[str, str | None]]
"""The queue and the key of each push of a program."""


def play(batch: Pipeline, pushes: Pushes) -> Iterator[tuple[dict[int, Any], Exception | None, bool]]:
    """Pushes with a pipeline, goes on after an interrupt, and ends the block. Yields the results by number, the error
    of the end, and whether the end was interrupted.

    A generator, which has a state of exceptions of its own: an interrupt between the last two instructions of an
    `except` leaves there what was handled, where a real one never comes. Otherwise later tests would show it."""
    results: dict[int, Any] = {}
    for number, (qid, key) in enumerate(pushes):
        try:
            results[number] = batch.push(qid, str(number), key=key)
        except KeyboardInterrupt:
            pass
        except RuntimeError:  # an interrupted wait has ended the pipeline
            assert batch._open.ended
    try:
        batch.__exit__(None, None, None)
    except KeyboardInterrupt:
        yield results, None, True
    except (NotFound, ServerUnavailable) as error:
        yield results, error, False
    else:
        yield results, None, False


def check(server: Server, pushes: Pushes, results: dict[int, Callable[[], int]], error: Exception | None) -> None:
    """Checks what holds after one interrupt anywhere. results: of the calls that have returned."""
    written = [mid_of(each.payload) for each in server.written]
    plain = [number for number in written if pushes[number][1] is None]
    assert len(plain) == len(set(plain)), "a request that is not safe to repeat was written twice"
    more = int(error.__notes__[0].split()[-1]) if hasattr(error, "__notes__") else 0
    failed = 0
    for number, result in results.items():
        try:
            outcome: object = result()
        except (NotFound, ServerUnavailable) as own:
            outcome = own.text if isinstance(own, NotFound) else None
            failed += 1
        assert outcome in (number, f"no queue for {number}", None)
    # A call whose own method was interrupted may have failed, too. No call counts twice.
    interrupted = len(pushes) - len(results)
    assert failed <= (more + 1 if error is not None else 0) <= failed + interrupted


SCENARIOS: list[tuple[int, frozenset[int], Pushes]] = [
    (2 * MIB, frozenset(), [("q", None)] * 2),  # the second waits for the first
    (600_000, frozenset(), [("q", None)] * 3),  # two answers come together
    (600_000, frozenset(), [("none", None)] * 3),
    (600_000, frozenset({1}), [("q", None), ("q", "key"), ("q", None)]),
]


@pytest.mark.parametrize("scenario", range(len(SCENARIOS)))
def test_an_interrupt_at_any_instruction(scenario: int) -> None:
    """Wherever an interrupt comes that the program catches, each request is written once, no answer gets to another
    call, the end waits for all calls and raises the errors, and the bound is what it was."""
    size, loses, pushes = SCENARIOS[scenario]
    for interruption in interruptions():
        server = Server(size, loses)
        batch = server.pipeline()
        with interruption:
            results, error, end_interrupted = next(play(batch, pushes))
        if end_interrupted:
            continue
        assert not len(batch._open)
        assert not batch._open.is_full
        check(server, pushes, {number: each.result for number, each in results.items()}, error)
    assert sys.exc_info() == (None, None, None)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # by an interrupt just before its await
def test_an_interrupt_of_the_async_client_at_any_instruction() -> None:
    """An interrupt that an async program catches does no more to the calls of its pipeline, wherever it comes."""

    async def play_async(batch: AsyncPipeline, pushes: Pushes) -> tuple[dict[int, Any], Exception | None, bool]:
        results: dict[int, Any] = {}
        for number, (qid, _) in enumerate(pushes):
            with contextlib.suppress(KeyboardInterrupt):
                results[number] = await batch.push(qid, str(number))
        try:
            await batch.__aexit__(None, None, None)
        except KeyboardInterrupt:
            return results, None, True
        except (NotFound, ServerUnavailable) as error:
            return results, error, False
        return results, None, False

    async def main() -> None:
        for size, _, pushes in SCENARIOS[:3]:
            for interruption in interruptions():
                server = Server(size)
                batch = server.async_pipeline()
                with interruption:
                    results, error, end_interrupted = await play_async(batch, pushes)
                if not end_interrupted:
                    check(server, pushes, {number: each._call.value for number, each in results.items()}, error)

    anyio.run(main, backend="trio")

"""Everything that the server takes, it can say again: each answer to any request is a valid document.

Requests with values at their bounds are written as text, read by the server's parser, handled over a real engine, and
answered; then everything that there is is read. Each answer is read as a client reads it, by the quick reader and by
the parser with qs.xsd.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.sax.saxutils import escape

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support.clients.documents import NS
from support.storage.engines import JournalEngine
from tests.support.servers.requests import batch_of

from qs_schemas import CLIENT_LIMITS, OPERATIONS, GetQueue, Message, Peer, parse
from qs_schemas.wire import seconds
from qs_server.broker.subscriber import Subscriber
from qs_server.broker.subscriptions import Subscriptions
from qs_server.operations.service import Service
from qs_storage.directories import DirectoriesEngine, FilesEngine
from qs_storage.engine import Durability, State

NOW = 1_760_000_000_000_000
MOST = "9" * 18
LONG = "9" * 9 + "." + "9" * 9
DURATIONS = ("0", "0.000000001", "0.0000005", "000000001", " 7.25 ", "999999999", "999999999.9999994", LONG)
COUNTS = ("0", "1", "000000000000000001", " 2 ", MOST)
QIDS = ("q", "x" * 200, " &amp; &quot;'&lt; ", "é\u2028€", "\ufffd.", "~%2E", "&#32;a", "\U0001f600" * 15)
TEXTS = ("", "a", "&#9;&#10;&#13;", "]]&gt;", "\u0085\u2028\ufffd\U0010ffff", "'&quot;&lt;&amp;amp;", "é" * 128)
NAMES = tuple(text for text in TEXTS if text)
PAYLOADS = (
    *(f"<payload>{text}</payload>" for text in TEXTS),
    '<payload encoding="base64">AAECA//+</payload>',
    '<payload encoding="base64">77+/7Z+/</payload>',
    '<payload><a xmlns="" b="&#10;">&#13;<![CDATA[<&]]></a> tail</payload>',
    "<payload><!-- none -->&#x7f;</payload>",
)
VALUES: dict[str, tuple[str, ...]] = {
    "force": ("yes", "no"), "peek": ("yes", "no"), "state": ("new", "ready", "in-flight", "delayed", "all"),
    "max": COUNTS[1:], "after": COUNTS, "delay": DURATIONS, "key": NAMES, "visibility": DURATIONS, "wait": DURATIONS,
    "prefetch": COUNTS[1:], "subscription": TEXTS, "seq": ("1", "1", "1", " 2 ", MOST),
    "max-bytes": COUNTS[1:], "upto": COUNTS,
    "part": COUNTS, "parts": COUNTS[1:], "batch": COUNTS, "attempt": COUNTS, "count": ("yes", "no"),
    "connections": ("yes", "no"), "exist-ok": ("yes", "no"), "name": QIDS, "ack": ("client",),
}  # fmt: skip
OPTIONS: dict[str, tuple[str, ...]] = {
    "visibility": ("", *DURATIONS), "capacity": ("", *COUNTS[2:]), "retention": ("", *DURATIONS[1:]),
}  # fmt: skip
STORAGES = ("journal", "files", "dirq", "dirq-simple", "null", "nowhere")
MID = "MID"
"""Stands for an id of a message that there is."""
USUAL = ("push-message", "push-message", "receive-message", "release-message", "set-queue", "claim-messages")
"""The operations after which there is something to say. They come more often."""
OF_MESSAGE = {"delay": DURATIONS, "key": NAMES}
ATTRIBUTES = {
    "push-message": ("delay", "key"), "get-message": ("peek", "visibility"), "list-messages": ("state", "max", "after"),
    "receive-message": ("max", "visibility"), "release-message": ("delay", "count"), "extend-message": ("visibility",),
    "subscribe": ("prefetch", "visibility"), "unsubscribe": ("subscription",), "redrive-messages": ("max",),
    "claim-messages": ("seq", "max", "max-bytes", "upto"), "get-claim": ("seq", "part", "parts"),
    "ack-claim": ("seq",), "release-claim": ("seq",), "stage-messages": ("batch", "part", "attempt"),
    "publish-staged": ("batch",), "delete-queue": ("force",), "new-queue": ("exist-ok",),
}  # fmt: skip
"""The attributes that an operation has a use for. Others come now and then."""


NEEDED = frozenset(("seq", "batch", "part", "attempt", "subscription"))
"""Attributes without which a request is refused at once."""


def _attributes(values: dict[str, tuple[str, ...]]) -> st.SearchStrategy[str]:
    chosen = {
        name: st.sampled_from(those) if name in NEEDED else st.none() | st.sampled_from(those)
        for name, those in values.items()
    }
    return st.fixed_dictionaries(chosen).map(
        lambda found: "".join(f' {name}="{value}"' for name, value in found.items() if value is not None)
    )


def _list(entries: st.SearchStrategy[str], name: str) -> st.SearchStrategy[str]:
    return st.lists(entries, max_size=3).map(lambda found: f"<{name}>{''.join(found)}</{name}>")


qids = st.sampled_from((*QIDS[:1] * 12, *QIDS))
payloads = st.sampled_from(PAYLOADS)
ids = st.sampled_from((MID, MID, MID, "0", MOST, " 1 ", "none"))
dead_letters = st.just("") | st.builds(
    ' dead-letter="{}" max-receives="{}"'.format,
    st.sampled_from(QIDS[1:]),
    st.sampled_from(("00001", "2", "1000")),
)
entries_of_messages = st.one_of(
    st.builds("<message{}>{}</message>".format, _attributes(OF_MESSAGE), payloads), ids.map("<mid>{}</mid>".format)
)
CHILDREN: dict[str, st.SearchStrategy[str]] = {
    "qid": qids.map("<qid>{}</qid>".format),
    "mid": st.builds("<mid{}>{}</mid>".format, _attributes({"receives": COUNTS}), ids),
    "payload": payloads,
    "messages": _list(entries_of_messages, "messages"),
    "queues": _list(qids.map("<queue>{}</queue>".format), "queues"),
    "options": st.builds("<options{}{}/>".format, _attributes(OPTIONS), dead_letters),
    "consumer": qids.map("<consumer>{}</consumer>".format),
    "producer": qids.map("<producer>{}</producer>".format),
    "parts": _list(
        st.builds('<part number="{}" attempt="{}"/>'.format, st.sampled_from(COUNTS), st.sampled_from(COUNTS)), "parts"
    ),
}
_OF_FIELD = {"mids": "messages", "chosen": "parts"}


@st.composite
def requests(draw: st.DrawFn) -> str:
    """A request of any operation: mostly with what it needs, and values at their bounds."""
    op = draw(st.sampled_from((*sorted(OPERATIONS), *USUAL * 4)))
    cls = OPERATIONS[op]
    needed = [draw(st.sampled_from(group)) for group in cls.required]
    more = (
        draw(st.lists(st.sampled_from(sorted({*CHILDREN} & {*cls.__dataclass_fields__})), max_size=1))
        if ({*CHILDREN} & {*cls.__dataclass_fields__})
        else []
    )
    names = ATTRIBUTES.get(op, ())
    if draw(st.integers(0, 9)) == 0:
        names = (*names, draw(st.sampled_from(sorted(VALUES.keys() - {"wait"} - set(names)))))
    attributes = draw(_attributes({name: VALUES[name] for name in names}))
    children = dict.fromkeys(_OF_FIELD.get(field, field) for field in [*needed, *more])
    inside = "".join(draw(CHILDREN[name]) for name in children if name in CHILDREN)
    req = draw(st.none() | st.sampled_from(TEXTS))
    named = "" if req is None else f' req="{req}"'
    return f'<qs xmlns="{NS}"{named}><op{attributes}><{op}/></op>{inside}</qs>'


class World:
    """A server without sockets: bytes in, bytes out. Every answer is checked."""

    def __init__(self, engine: DirectoriesEngine) -> None:
        self._engine = engine
        self._subscriptions = Subscriptions(engine, lambda: self.now)
        self._service = Service(engine, self._subscriptions, lambda: Subscriber(1 << 20, lambda: None))
        self.now = NOW
        self.mids = ["1"]

    def ask(self, request: str) -> list[Message]:
        """Answers a request, and delivers to subscriptions."""
        peer = Peer(serving=True)
        peer.receive_data(request.replace(f">{MID}<", f">{self.mids[-1]}<").encode())
        asked = list(peer.events())
        batch = batch_of(asked, self._service, 1 << 30)
        found: list[bytes] = []
        while batch.unanswered and (batch.pause is None or not batch.pause.qids):
            batch.resume()
            batch.advance(None)
            found += batch.answers
            batch.take()
            self._engine.commit()
        self._service.start_subscriptions()
        self._subscriptions.dispatch(self._engine.effects().arrived)
        for subscriber in self._subscriptions.take_mail():
            found += map(peer.send, subscriber.mail)
            subscriber.mail = []
        return [self._check(request, each) for each in found]

    def _check(self, request: str, document: bytes) -> Message:
        """Returns the answer as a client reads it."""
        client = Peer(CLIENT_LIMITS)
        client.receive_data(document)
        read = client.next_event()
        assert isinstance(read, Message), f"{request}\n{document!r}\n{read}"
        assert read == parse(document, CLIENT_LIMITS)
        for mid in (getattr(read, "mid", None), *getattr(read, "mids", ())):
            if isinstance(mid, int):
                self.mids.append(str(mid))
        return read

    def read_all(self) -> None:
        """Asks for everything that there is: options, figures, ids, messages in each state, claims."""
        for qid in list(self._engine.queues()):
            named = f"<qid>{escape(qid)}</qid>"
            self.ask(_request("get-queue", named))
            self.ask(_request("queue-stats", named))
            self.ask(_request("list-claims", named))
            for state in State:
                self.ask(_request("list-messages", named, f' state="{state.value}"'))
            for mid in self._engine.queue(qid).list_mids(State.ALL, 20, -1):
                one = f"{named}<mid>{mid}</mid>"
                self.ask(_request("get-message", one, ' peek="yes"'))
                self.ask(_request("get-message", one, f' visibility="{LONG}"'))
                self.ask(_request("extend-message", one, f' visibility="{LONG}"'))
                self.ask(_request("release-message", one))
            self.ask(_request("receive-message", named, f' max="20" visibility="{LONG}"'))
        self.ask(_request("list-queues"))
        self.ask(_request("queue-stats"))


def _request(op: str, inside: str = "", attributes: str = "") -> str:
    return f'<qs xmlns="{NS}"><op{attributes}><{op}/></op>{inside}</qs>'


@contextmanager
def world(engine: type[DirectoriesEngine]) -> Iterator[World]:
    with tempfile.TemporaryDirectory() as root:
        made: list[World] = []
        opened = engine(root, clock=lambda: made[0].now if made else NOW, durability=Durability.NONE)
        made.append(World(opened))
        try:
            yield made[0]
        finally:
            opened.close()


GIVEN = {name: tuple(filter(None, values)) for name, values in OPTIONS.items()}
MADE = st.lists(
    st.builds(
        "<qid>{}</qid><options{}{}/>".format,
        st.sampled_from(QIDS),
        _attributes({"storage": STORAGES, **GIVEN}),
        dead_letters,
    ),
    max_size=4,
)
STEPS = st.lists(st.tuples(requests(), st.sampled_from((0, 1, 10**6, 10**15))), min_size=1, max_size=15)


@pytest.mark.parametrize("engine", [JournalEngine, FilesEngine])
@given(made=MADE, steps=STEPS)
@settings(
    max_examples=60,
    phases=[Phase.explicit, Phase.generate],
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_every_answer_can_be_read(
    engine: type[DirectoriesEngine], made: list[str], steps: list[tuple[str, int]]
) -> None:
    """Whatever is asked, with any value at its bounds, each answer and delivery is a valid document: also those that
    say later what was stored."""
    with world(engine) as server:
        for options in (*made, "<qid>q</qid>"):
            server.ask(_request("new-queue", options))
        for request, later in steps:
            server.ask(request)
            server.now += later
        server.read_all()


@pytest.mark.parametrize(
    ("given", "stored"),
    [("0.0000004", "0"), ("0.0000006", "0.000001"), ("000000001", "1"), ("0.1", "0.1"), ("999999999", "999999999"),
     ("86400.000001", "86400.000001"), ("999999999.9999994", 999_999_999.999999), (LONG, 999_999_999.999999)],
)  # fmt: skip
def test_a_time_is_said_as_it_was_stored(given: str, stored: str | float) -> None:
    """A duration is rounded to microseconds, and never to more digits than a document can have: get-queue says it, and
    what it says may be set again."""
    with world(JournalEngine) as server:
        server.ask(_request("new-queue", f'<qid>q</qid><options visibility="{given}" retention="5"/>'))
        for _ in range(2):
            (shown,) = server.ask(_request("get-queue", "<qid>q</qid>"))
            assert isinstance(shown, GetQueue)
            assert shown.options is not None
            assert shown.options.visibility == float(stored)
            again = f'<qid>q</qid><options visibility="{seconds(shown.options.visibility)}"/>'
            assert [each.type for each in server.ask(_request("set-queue", again))] == ["response"]


@pytest.mark.parametrize("engine", [JournalEngine, FilesEngine])
def test_what_older_servers_stored_can_be_read(engine: type[DirectoriesEngine]) -> None:
    """Options that an older server or a person has written, over the bounds of the protocol, count as the bounds; a
    message that another program has named by a huge number is said, with a time that a document can have."""
    with tempfile.TemporaryDirectory() as root:
        path = Path(root, "q")
        path.mkdir()
        longest = "visibility = 1000000000.0\nretention = 99999999999\ncapacity = 12345678901234567890123"
        Path(path, ".queue.toml").write_text(f'{longest}\ntimestamps = "ms"\n')
        Path(path, f"{10**17}").write_text("far")
        opened = engine(root, clock=lambda: NOW, durability=Durability.NONE)
        try:
            opened.refresh()
            server = World(opened)
            server.read_all()
            (shown,) = server.ask(_request("get-queue", "<qid>q</qid>"))
            assert isinstance(shown, GetQueue)
            assert shown.options is not None
            assert (shown.options.visibility, shown.options.retention) == (999_999_999.999999,) * 2
            assert shown.options.capacity == 10**18 - 1
        finally:
            opened.close()

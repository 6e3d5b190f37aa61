"""Options of queues that another server keeps, over the wire: dead letters at SQS, and what is refused."""

import boto3
from support.clients.documents import code, mids, new_queue, payloads, push, receive, release, request, text
from support.servers.processes import ServerProcess, Wire
from support.servers.remote import LONG, Elsewhere, made
from support.storage.memcached import needs_memcached

pytestmark = needs_memcached
LETTERS = "dead-letter='{}' max-receives='2'"


def set_queue(qid: str, options: str) -> str:
    return request("set-queue", f"<qid>{qid}</qid><options {options}/>")


def options(wire: Wire, qid: str) -> str:
    """The options as the answer has them."""
    answer = wire.ask(request("get-queue", f"<qid>{qid}</qid>"))
    assert code(answer) == 0, answer
    return answer.partition("<options ")[2].partition("/>")[0]


def test_dead_letters_at_sqs(elsewhere: Elsewhere, wire: Wire) -> None:
    """A message that was received too often is in the dead-letter queue, which was made, and says from where it came;
    get-queue says what SQS has."""
    assert code(wire.ask(new_queue("jobs", f"<options storage='sqs' {LETTERS.format('failed')}/>"))) == 0
    assert 'dead-letter="failed" max-receives="2"' in options(wire, "jobs")
    [mid] = mids(wire.ask(push("jobs", "poison")))
    for _ in range(2):
        assert payloads(wire.ask(receive("jobs", wait=LONG))) == ["poison"]
        assert code(wire.ask(release("jobs", mid))) == 0
    assert payloads(wire.ask(receive("jobs"))) == []
    sqs = boto3.session.Session().client("sqs", region_name="us-east-1", endpoint_url=elsewhere.sqs.url)
    url, source = (sqs.get_queue_url(QueueName=f"{elsewhere.prefix}{qid}")["QueueUrl"] for qid in ("failed", "jobs"))
    arn = sqs.get_queue_attributes(QueueUrl=source, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    elsewhere.sqs.sources[url] = arn
    answer = wire.ask(receive("failed", wait=LONG))
    assert payloads(answer) == ["poison"]
    assert f'dead-from="jobs" dead-mid="{mid}" dead-reason="receives"' in answer
    assert "dead-at" not in answer
    assert "dead-receives" not in answer


def test_options_that_are_changed(wire: Wire) -> None:
    """`set-queue` changes what it names, at once; an empty value removes."""
    qid = made(wire, "changed", "sqs", visibility=5)
    assert code(wire.ask(set_queue(qid, LETTERS.format("dead")))) == 0
    assert 'visibility="5" retention="345600" dead-letter="dead" max-receives="2"' in options(wire, qid)
    assert code(wire.ask(set_queue(qid, "visibility='7'"))) == 0
    assert 'visibility="7" retention="345600" dead-letter="dead" max-receives="2"' in options(wire, qid)
    assert code(wire.ask(set_queue(qid, "dead-letter='' max-receives=''"))) == 0
    assert "dead" not in options(wire, qid)
    assert code(wire.ask(set_queue(qid, LETTERS.format(qid)))) == 409


def test_a_queue_that_may_exist(wire: Wire, storage: str) -> None:
    """With exist-ok a queue is found whatever storage it has, and its options are compared with those that are
    named."""
    remote = made(wire, f"may-exist-{storage}", storage, visibility=5)
    local = made(wire, f"may-exist-{storage}-local", "journal")

    def again(qid: str, named: str = "") -> str:
        return wire.ask(request("new-queue", f"<qid>{qid}</qid>{named}", exist_ok="yes"))

    for qid, own, another in ((remote, storage, "journal"), (local, "journal", storage)):
        assert code(again(qid)) == 0
        assert code(again(qid, f"<options storage='{own}'/>")) == 0
        answer = again(qid, f"<options storage='{another}' visibility='7'/>")
        assert (code(answer), f"its storage is '{own}', not '{another}'" in text(answer)) == (409, True), answer
        assert "not 7" in text(answer)
    assert code(again(f"{remote}-new", f"<options storage='{storage}' visibility='5'/>")) == 0
    assert code(again(f"{remote}-new", f"<options storage='{storage}' visibility='5'/>")) == 0


def test_between_storages(wire: Wire, storage: str) -> None:
    """A dead-letter queue of another storage is refused in both directions, and nothing changes."""
    remote = made(wire, f"between-{storage}", storage)
    local = made(wire, f"between-{storage}-local", "journal")
    pairs = [(local, remote, "journal"), (remote, local, storage)]
    for qid, dead, own in pairs:
        before = options(wire, qid)
        for asked in (
            set_queue(qid, LETTERS.format(dead)),
            new_queue(f"{qid}-new", f"<options storage='{own}' {LETTERS.format(dead)}/>"),
        ):
            answer = wire.ask(asked)
            assert code(answer) == 501, answer
        assert options(wire, qid) == before
    assert f"{remote}-new" not in wire.ask(request("list-queues"))


def test_a_dead_letter_queue_that_is_made_later(remote_server: ServerProcess, wire: Wire) -> None:
    """If the dead-letter queue of a queue of the journal is made at SQS later, the message stays, and the log says so
    once."""
    qid = made(wire, "later", "journal")
    assert code(wire.ask(set_queue(qid, LETTERS.format("later-dead")))) == 0
    made(wire, "later-dead", "sqs")
    [mid] = mids(wire.ask(push(qid, "stays")))
    for _ in range(4):
        assert payloads(wire.ask(receive(qid))) == ["stays"]
        assert code(wire.ask(release(qid, mid))) == 0
    assert payloads(wire.ask(receive("later-dead"))) == []
    assert remote_server.log().count("cannot be moved to the dead-letter queue 'later-dead'") == 1


def test_retention_at_sqs(wire: Wire) -> None:
    """`get-queue` says how long SQS keeps messages; it is changed and removed; what SQS cannot is refused."""
    qid = made(wire, "kept", "sqs", retention=60)
    for asked, said in (("visibility='7'", "60"), ("retention='90.5'", "91"), ("retention=''", "345600")):
        assert code(wire.ask(set_queue(qid, asked))) == 0
        assert f'retention="{said}"' in options(wire, qid)
    for asked, said in (("59", "at least 60 seconds"), ("1209601", "at most 1209600 seconds; 1209601 were asked for")):
        for answer in (
            wire.ask(set_queue(qid, f"retention='{asked}'")),
            wire.ask(new_queue("too-long", f"<options storage='sqs' retention='{asked}'/>")),
        ):
            assert (code(answer), said in text(answer)) == (501, True), answer
    assert 'retention="345600"' in options(wire, qid)


def test_sqs_options_are_refused(wire: Wire) -> None:
    """Pause, redrive and uncounted releases are refused, with what to do instead; so are a capacity, reasons, rejects
    and a back-off."""
    qid = made(wire, "cannot", "sqs")
    [mid] = mids(wire.ask(push(qid, "x")))
    wire.ask(receive(qid, wait=LONG))
    about = f"<qid>{qid}</qid>"
    for asked, said in (
        (request("pause-queue", about), "cannot pause a queue: SQS goes on giving its messages to other programs"),
        (request("redrive-messages", about), "aws sqs start-message-move-task"),
        (request("release-message", f"{about}<mid>{mid}</mid>", count="no"), "cannot take a receive back"),
        (
            request("release-message", f"{about}<mid>{mid}</mid><reason>why</reason>"),
            "keeps no reasons: 'journal', 'postgres' and 'files' can",
        ),
        (
            request("reject-message", f"{about}<mid>{mid}</mid>"),
            "rejects no messages: 'journal', 'postgres' and 'files' can",
        ),
        (
            set_queue(qid, "backoff='5'"),
            "no back-off: 'backoff' is for queues of the storages 'journal', 'postgres', 'files', ",
        ),
        (set_queue(qid, "capacity='5'"), "no capacity"),
        (
            set_queue(qid, "fair='yes'"),
            "'sqs' has no groups: 'fair' is for queues of the storages 'journal' and 'postgres'",
        ),
        (
            set_queue(qid, "rate='5'"),
            "'sqs' has no rate: 'rate' is for queues of the storages 'journal' and 'postgres'",
        ),
        (
            push(qid, "x", priority=1),
            "'sqs' has no priorities: 'priority' is for queues of the storages 'journal' and 'postgres'",
        ),
        (push(qid, "x", group="g"), "'sqs' has no groups: 'group' is"),
        (push(qid, "x", expires=5), "'sqs' does not let messages expire: 'expires' is"),
        (push(qid, "x", key="k", unique="yes"), "'sqs' keeps no keys for as long as a message waits: 'unique' is"),
        (set_queue(qid, "visibility='43201'"), "at most 43200 seconds"),
    ):
        answer = wire.ask(asked)
        assert (code(answer), said in text(answer)) == (501, True), answer


def test_what_memcached_cannot(wire: Wire) -> None:
    """Options cannot be changed, nothing dies, and nothing is redriven or paused: each is refused, and says why."""
    qid = made(wire, "in-memcached", "memcached")
    [mid] = mids(wire.ask(push(qid, "x")))
    wire.ask(receive(qid))
    about = f"<qid>{qid}</qid>"
    for asked, said in (
        (request("pause-queue", about), "options of a queue of the storage 'memcached' cannot be changed"),
        (set_queue(qid, "visibility='5'"), "options of a queue of the storage 'memcached' cannot be changed"),
        (set_queue(qid, LETTERS.format("dead")), "options of a queue of the storage 'memcached' cannot be changed"),
        (new_queue("dying", f"<options storage='memcached' {LETTERS.format('dead')}/>"), "has no dead letters"),
        (request("redrive-messages", about), "has the storage 'memcached', which"),
        (set_queue(qid, "retention='60'"), "options of a queue of the storage 'memcached' cannot be changed"),
        (new_queue("aging", "<options storage='memcached' retention='60'/>"), "does not remove old messages"),
        (request("release-message", f"{about}<mid>{mid}</mid>", count="no"), "cannot take a receive back"),
        (
            request("release-message", f"{about}<mid>{mid}</mid><reason>why</reason>"),
            "keeps no reasons: 'journal', 'postgres' and 'files' can",
        ),
        (
            request("reject-message", f"{about}<mid>{mid}</mid>"),
            "rejects no messages: 'journal', 'postgres' and 'files' can",
        ),
        (new_queue("backing", "<options storage='memcached' backoff='5'/>"), "'memcached' has no back-off"),
        (new_queue("fair", "<options storage='memcached' fair='yes'/>"), "'memcached' has no groups: 'fair' is"),
        (new_queue("rated", "<options storage='memcached' rate='0.5'/>"), "'memcached' has no rate: 'rate' is"),
        (push(qid, "x", priority=1), "'memcached' has no priorities: 'priority' is"),
        (push(qid, "x", key="k", unique="yes"), "keeps no keys for as long as a message waits: 'unique' is"),
    ):
        answer = wire.ask(asked)
        assert (code(answer), said in text(answer)) == (501, True), answer
    assert 'storage="memcached" visibility="30"' in options(wire, qid)


def test_resuming_what_is_not_paused(wire: Wire, storage: str) -> None:
    """Resuming a queue that is not paused changes nothing, and is not an error."""
    qid = made(wire, f"resumed-{storage}", storage)
    assert code(wire.ask(request("resume-queue", f"<qid>{qid}</qid>"))) == 0

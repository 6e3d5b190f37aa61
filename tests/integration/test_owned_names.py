"""Keys, producers and consumers belong to the principals that use them: on a real server, one principal neither takes
another's nor learns of them, also after a restart."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.clients.access import Caller, hashed, principal, section, write_access
from support.clients.documents import code, request
from support.servers.processes import FAST, ServerProcess, serving

from qs_client import Conflict, Delivery, Draft, Forbidden, Full, NotFound, QueueClient, command

RIGHTS = {"read": ["*"], "write": ["*"], "configure": ["*"]}
SECTIONS = (principal("spark", **RIGHTS), principal("other", **RIGHTS), principal("ops", admin=True))
EVERYBODY = section("anonymous", **RIGHTS)
LAST = 10**18 - 1


@pytest.fixture
def access(tmp_path: Path) -> Path:
    return write_access(tmp_path / "access.toml", [*SECTIONS, EVERYBODY])


@pytest.fixture
def server(tmp_path: Path, access: Path) -> Iterator[ServerProcess]:
    with serving(tmp_path / "root", *FAST, "--access", str(access)) as server:
        with client_of(server, "ops") as ops:
            ops.new_queue("q")
        yield server


@contextlib.contextmanager
def client_of(server: ServerProcess, name: str | None) -> Iterator[QueueClient]:
    """A client of a principal; None: one that says nothing."""
    token = None if name is None else f"{name}-token"
    with QueueClient(server.host, server.port, timeout=20, token=token) as client:
        yield client


@contextlib.contextmanager
def clients(server: ServerProcess) -> Iterator[tuple[QueueClient, QueueClient, QueueClient]]:
    """Clients of `spark`, of `other`, and of nobody."""
    with client_of(server, "spark") as spark, client_of(server, "other") as other, client_of(server, None) as anybody:
        yield spark, other, anybody


def again(server: ServerProcess) -> None:
    server.kill()
    server.start()


def payloads(found: list[Delivery]) -> list[bytes]:
    return [delivery.payload for delivery in found]


def test_producers_of_two_principals_are_apart(server: ServerProcess) -> None:
    """Another principal's batches of a producer of the same name take no number from it, and publish nothing of it."""
    with clients(server) as (spark, other, anybody):
        spark.stage_messages("q", "spark", [b"mine"], batch=0)
        for stranger in (other, anybody):
            for parts in ([], [(0, 0)]):
                with pytest.raises(Conflict, match="1 is the greatest to publish now"):
                    stranger.publish_staged("q", "spark", LAST, parts)
            with pytest.raises(NotFound, match="producer 'spark' has not staged part 0 of batch 0"):
                stranger.publish_staged("q", "spark", 0, [(0, 0)])
            stranger.stage_messages("q", "spark", [], batch=LAST)
            stranger.publish_staged("q", "spark", LAST, [(0, 0)])
    again(server)
    with clients(server) as (spark, other, _):
        spark.publish_staged("q", "spark", 0, [(0, 0)])
        assert payloads(spark.receive("q", 9)) == [b"mine"]
        other.stage_messages("q", "spark", [b"dropped"], batch=3)
        other.publish_staged("q", "spark", 3, [(0, 0)])
        assert spark.receive("q", 9) == []


def test_keys(server: ServerProcess) -> None:
    """A key that another principal has used is free, single and in lists; its own repeated push has its own id."""
    with clients(server) as everybody:
        own = [client.push("q", b"%d" % number, key="k") for number, client in enumerate(everybody)]
        assert len(set(own)) == 3
        drafts = [Draft(b"x", key="k"), Draft(b"x", key="l")]
        lists = [client.push_many("q", drafts) for client in everybody]
        assert [first for first, _ in lists] == own
        assert len({second for _, second in lists}) == 3
    again(server)
    with clients(server) as everybody:
        assert [client.push("q", b"again", key="k") for client in everybody] == own
        assert [client.push_many("q", drafts) for client in everybody] == lists


def test_consumers_of_two_principals_are_apart(server: ServerProcess) -> None:
    """Another principal's consumer of the same name has claims of its own, and cannot see, read or end the others."""
    with clients(server) as (spark, other, anybody):
        spark.push_many("q", [b"0", b"1", b"2", b"3"])
        made = spark.claim_messages("q", "c", 1, max=2)
        assert spark.list_claims("q") == [made]
        for stranger in (other, anybody):
            assert stranger.list_claims("q") == []
            attempts: list[tuple[type[Exception], Callable[..., object]]] = [
                (NotFound, stranger.get_claim),
                (NotFound, stranger.release_claim),
                (Conflict, stranger.ack_claim),
            ]
            for error, operation in attempts:
                with pytest.raises(error, match="consumer 'c' has"):
                    operation("q", "c", 1)
        assert other.claim_messages("q", "c", 1, max=1).count == 1
        other.ack_claim("q", "c", 1)
    again(server)
    with clients(server) as (spark, other, anybody):
        assert payloads(spark.get_claim("q", "c", 1)) == [b"0", b"1"]
        assert anybody.claim_messages("q", "c", 1).count == 1
        spark.ack_claim("q", "c", 1)
        assert payloads(anybody.get_claim("q", "c", 1)) == [b"3"]


def test_an_operator_releases_claims(server: ServerProcess) -> None:
    """An admin is shown whose each claim is, and releases it by that; a principal names itself at most."""
    with clients(server) as (spark, other, anybody), client_of(server, "ops") as ops:
        ops.push_many("q", [b"0", b"1", b"2"])
        for client in (spark, anybody, ops):
            assert client.claim_messages("q", "c", 1, max=1).owner is None
        listed = {claim.owner: claim for claim in ops.list_claims("q")}
        assert set(listed) == {"spark", "", None}
        assert {claim.consumer for claim in listed.values()} == {"c"}
        for client in (other, anybody):
            for owner in {"spark", "ops", "nobody", "", "other"} - {"other" if client is other else ""}:
                with pytest.raises(Forbidden, match=f"a claim of '{owner}' needs the right 'admin'"):
                    client.release_claim("q", "c", 1, owner=owner)
        with pytest.raises(NotFound):
            other.release_claim("q", "c", 1, owner="other")
        with pytest.raises(NotFound):
            ops.release_claim("q", "c", 1, owner="nobody")
        assert [ops.release_claim("q", "c", 1, owner=owner) for owner in ("spark", "")] == [1, 1]
        assert ops.list_claims("q") == [listed[None]]
        assert ops.release_claim("q", "c", 1) == 1
        assert spark.claim_messages("q", "c", 1, max=1).count == 1
        assert spark.release_claim("q", "c", 1, owner="spark") == 1


def test_claims_on_the_command_line(
    server: ServerProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`qs claims` shows an admin whose claims there are, as `--owner` takes it, and releases by that."""
    monkeypatch.setenv("QS_SERVER", f"{server.host}:{server.port}")

    def qs(token: str, *arguments: str) -> tuple[int, list[list[str]], str]:
        monkeypatch.setenv("QS_TOKEN", token)
        done = command.main(["claims", "q", *arguments])
        out, err = capsys.readouterr()
        return done, [line.split() for line in out.splitlines()], err

    with clients(server) as (spark, other, anybody):
        spark.push_many("q", [b"0", b"1", b"2"])
        for client in (spark, other, anybody):
            client.claim_messages("q", "c", 1, max=1)
    _, [head, *rows], _ = qs("other-token")
    assert ("OWNER" in head, len(rows)) == (False, 1)
    _, [head, *rows], _ = qs("ops-token")
    assert (head[-1], [row[-1] for row in rows]) == ("OWNER", ["''", "other", "spark"])
    assert qs("ops-token", "--release", "c")[2] == "qs: 'c' has no claim on 'q'\n"
    assert (
        qs("ops-token", "--release", "c", "--owner", "who")[2] == "qs: 'c' of the principal 'who' has no claim on 'q'\n"
    )
    for owner in ("", "spark"):
        done, rows, _ = qs("ops-token", "--release", "c", "--owner", owner)
        assert (done, " ".join(rows[0])) == (0, "claim 1 of c: 1 messages are visible again")
    assert [row[-1] for row in qs("ops-token")[1]] == ["OWNER", "other"]
    with pytest.raises(SystemExit):
        qs("ops-token", "--owner", "other")
    assert "give --release CONSUMER too" in capsys.readouterr().err


def test_the_name_of_the_principal_counts(server: ServerProcess, access: Path) -> None:
    """A token that is given to another principal brings nothing along; a new token of the same principal does."""
    with client_of(server, "spark") as spark:
        mid = spark.push("q", b"x", key="k")
        spark.claim_messages("q", "c", 1)
    tokens = {"spark": "other-token", "other": "spark-token"}
    given = [section(f"principals.{name}", tokens=[hashed(token)], **RIGHTS) for name, token in tokens.items()]
    write_access(access, given)
    server.process.send_signal(signal.SIGHUP)

    def swapped() -> bool:
        with Caller(server, "spark-token") as caller:
            return "<principal>other</principal>" in caller.greeting

    server.until(swapped)
    with client_of(server, "spark") as other, client_of(server, "other") as spark:
        assert other.push("q", b"y", key="k") != mid
        assert other.list_claims("q") == []
        assert spark.push("q", b"x", key="k") == mid
        assert payloads(spark.get_claim("q", "c", 1)) == [b"x"]


def test_an_access_file_that_comes_later(tmp_path: Path) -> None:
    """Names that were used on an open server belong to clients without a principal, and an open server may release
    those of principals."""
    access = write_access(tmp_path / "access.toml", [*SECTIONS, EVERYBODY])
    root = tmp_path / "root"
    with serving(root, *FAST) as server, client_of(server, None) as client:
        client.new_queue("q")
        mid = client.push("q", b"x", key="k")
        made = client.claim_messages("q", "c", 1)
        client.stage_messages("q", "p", [b"staged"], batch=5)
    with serving(root, *FAST, "--access", str(access)) as server, clients(server) as (spark, _, anybody):
        assert anybody.list_claims("q") == [made]
        assert spark.list_claims("q") == []
        assert anybody.push("q", b"x", key="k") == mid
        assert spark.push("q", b"y", key="k") != mid
        assert spark.claim_messages("q", "c", 1).count == 1
        with pytest.raises(Conflict):
            spark.publish_staged("q", "p", 5, [(0, 0)])
        with client_of(server, "ops") as ops:
            assert sorted(str(claim.owner) for claim in ops.list_claims("q")) == ["", "spark"]
    with serving(root, *FAST) as server, client_of(server, None) as client:
        assert [(claim.owner, claim.seq) for claim in client.list_claims("q")] == [(None, 1), ("spark", 1)]
        assert client.release_claim("q", "c", 1, owner="spark") == 1
        client.publish_staged("q", "p", 5, [(0, 0)])
        assert sorted(payloads(client.receive("q", 9))) == [b"staged", b"y"]


def test_more_keys_than_the_server_remembers(tmp_path: Path) -> None:
    """A push with a key beyond --max-keys is 507, which says what to do, also after a restart; others are not."""
    with serving(tmp_path / "root", *FAST, "--max-keys", "2") as server:
        with client_of(server, None) as client:
            client.new_queue("q")
            mids = [client.push("q", b"x", key=key) for key in "ab"]
        again(server)
        with client_of(server, None) as client:
            with pytest.raises(Full, match=r"507 full: .*2 is the most: push without a key, .* --max-keys"):
                client.push("q", b"x", key="c")
            with pytest.raises(Full):
                client.push_many("q", [b"x", Draft(b"x", key="c")])
            assert client.push_many("q", [Draft(b"x", key=key) for key in "ab"]) == mids
            client.push("q", b"x")
            assert len(list(client.list_messages("q"))) == 3


def test_empty_part(server: ServerProcess) -> None:
    """A list of no messages stages an empty part; without the list, the request is refused."""
    with Caller(server, "spark-token") as spark:
        names = "<qid>q</qid><producer>p</producer>"
        answer = spark.ask(request("stage-messages", f"{names}<messages/>", batch=0, part=0, attempt=0))
        assert (code(answer), "<count>0</count>" in answer) == (0, True)
        assert code(spark.ask(request("stage-messages", names, batch=0, part=0, attempt=0))) == 400

"""Every operation of the server, asked for by every kind of client: allowed as the table of operations says, else
refused before anything else is looked at."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clients.access import RIGHTS, SUBSETS, Caller, principal, section, write_access
from support.clients.documents import REQUESTS, code, document, request, text
from support.servers.processes import FAST, ServerProcess, serving

from qs_server.operations.table import OPERATIONS

ROWS = {message.op: operation for message, operation in OPERATIONS.items()}
QUEUES = ("here", "absent")


def needs(op: str) -> set[str]:
    """The rights that the operation's request needs."""
    return {right.value for right in (ROWS[op].rights or {}).values()}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose principals have each set of rights, with the queue `here`."""
    directory = tmp_path_factory.mktemp("access")
    sections = [principal("-".join(["p", *subset]), **{key: [*QUEUES] for key in subset}) for subset in SUBSETS]
    sections += [principal("others", **{key: ["other-*"] for key in RIGHTS})]
    sections += [principal("monitor", monitor=True), principal("admin", admin=True)]
    access = write_access(directory / "access.toml", sections)
    with serving(directory / "root", *FAST, "--access", str(access)) as running:
        yield running


def test_every_operation_is_here() -> None:
    """A new operation has to be added above."""
    assert set(REQUESTS) == set(ROWS)


def ask(server: ServerProcess, token: str | None, op: str) -> dict[str, int]:
    """The code that a new connection gets for the operation on each queue."""
    found = {}
    for qid in QUEUES:
        with Caller(server, "admin-token") as admin:
            admin.ask(request("new-queue", "<qid>here</qid>"))  # it may have been deleted
            admin.ask(document("delete-queue", "absent"))
        with Caller(server, token) as caller:
            found[qid] = code(caller.ask(document(op, qid)))
    return found


@pytest.mark.parametrize("op", REQUESTS)
def test_nobody(server: ServerProcess, op: str) -> None:
    """Without a section for them, clients that have said nothing, and those that have said it wrongly, are told to
    authenticate."""
    for token in (None, "wrong-token"):
        codes = set(ask(server, token, op).values())
        assert codes == ({0} if op == "ping" else {401}), (token, op)


@pytest.mark.parametrize("op", [op for op in REQUESTS if op != "authenticate"])
def test_principals(server: ServerProcess, op: str) -> None:
    """A principal is refused what it has no right to, whether the queue exists or not, and nothing else."""
    for subset in SUBSETS:
        name = "-".join(["p", *subset])
        granted = all({*right.split(" or ")} & {*subset} for right in needs(op))
        for qid, answer in ask(server, f"{name}-token", op).items():
            assert (answer == 403) is not granted, (name, op, qid)
            assert answer != 401, (name, op, qid)
    allowed = {"others": not needs(op), "admin": True, "monitor": all("monitor" in right for right in needs(op))}
    for name, granted in allowed.items():
        for qid, answer in ask(server, f"{name}-token", op).items():
            assert (answer == 403) is not granted, (name, op, qid)


@pytest.mark.parametrize("subset", SUBSETS, ids=" ".join)
def test_anonymous(tmp_path: Path, subset: tuple[str, ...]) -> None:
    """A client that has said nothing has the rights of the section for them; what it lacks is 401, as it could still
    authenticate. After a wrong token it has none."""
    sections = [section("anonymous", **{key: [*QUEUES] for key in subset}), principal("admin", admin=True)]
    access = write_access(tmp_path / "access.toml", sections)
    with serving(tmp_path / "root", *FAST, "--access", str(access)) as server:
        for op in REQUESTS:
            granted = op != "authenticate" and all({*right.split(" or ")} & {*subset} for right in needs(op))
            answers = ask(server, None, op)
            assert all((answer == 401) is not granted for answer in answers.values()), (op, answers)
        with Caller(server, "wrong-token") as nobody:
            assert code(nobody.ask(document("list-queues", ""))) == 401


def test_copies_need_both_rights(server: ServerProcess) -> None:
    """A copy needs read on the queue that is copied from, and write on each that is copied to."""
    body = "<qid>{}</qid><mid>1</mid><queues><queue>{}</queue><queue>{}</queue></queues>"
    for name, queues, expected in (
        ("p-read", ("here", "here", "here"), "may not write the queue 'here'"),
        ("p-write", ("here", "here", "here"), "may not read the queue 'here'"),
        ("p-read-write", ("here", "absent", "other-1"), "may not write the queue 'other-1'"),
        ("p-read-write", ("other-1", "here", "here"), "may not read the queue 'other-1'"),
    ):
        with Caller(server, f"{name}-token") as caller:
            answer = caller.ask(request("copy-message", body.format(*queues)))
        assert (code(answer), expected in text(answer)) == (403, True), answer


@pytest.mark.parametrize("op", ["receive-message", "subscribe"])
def test_each_of_several_queues(server: ServerProcess, op: str) -> None:
    """A request that names several queues needs the right to each."""
    queues = "<queues><queue>here</queue><queue>other-1</queue></queues>"
    for name in ("p-read", "others"):
        with Caller(server, f"{name}-token") as caller:
            assert code(caller.ask(request(op, queues))) == 403
